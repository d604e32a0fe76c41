"""An execution's audit chains as one JSON document, which proves itself to whoever has the public key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.audit import AuditEntry, HeadVerifier, SignedHead
from swe_ai_fleet.domain.audit_chains import AuditChains, ChainVerdict
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChain:
    """One chain with what the log says of its end."""

    agent_id: str
    run: int
    entries: tuple[AuditEntry, ...]
    recorded_heads: tuple[str, ...]
    signatures: tuple[SignedHead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDocument:
    """All chains of an execution. `public_keys` (PEM) are for whoever has no better source; they prove nothing."""

    execution_id: str
    chains: tuple[RecordedChain, ...]
    public_keys: str = ""
    format: Literal["swe-ai-fleet.audit/1"] = "swe-ai-fleet.audit/1"

    def verdicts(self, keys: HeadVerifier | None) -> tuple[ChainVerdict, ...]:
        """What its chains come to; with `keys` their signatures too."""
        chains = AuditChains(keys, execution_id=self.execution_id)
        for told in self.chains:
            chains.begin(told.agent_id)
            for entry in told.entries:
                chains.append(told.agent_id, entry)
            for recorded in told.recorded_heads:
                chains.record(told.agent_id, recorded)
            for signed in told.signatures:
                chains.sign(signed)
        return chains.verdicts()


def audit_document(execution_id: str, events: Iterable[StoredEvent], public_keys: str = "") -> AuditDocument:
    """The document of an execution that has these events."""
    chains, entries = AuditChains(), dict[tuple[str, int], list[AuditEntry]]()
    for stored in events:
        chained = chains.take(stored)
        if chained is not None:
            entries.setdefault((chained.agent_id, chained.run), []).append(chained.entry)
    return AuditDocument(
        execution_id=execution_id,
        chains=tuple(
            RecordedChain(
                agent_id=verdict.agent_id,
                run=verdict.run,
                entries=tuple(entries.get((verdict.agent_id, verdict.run), ())),
                recorded_heads=chains.recorded(verdict.agent_id, verdict.run),
                signatures=chains.signed(verdict.agent_id, verdict.run),
            )
            for verdict in chains.verdicts()
        ),
        public_keys=public_keys,
    )


def read_audit_document(data: bytes) -> AuditDocument:
    """A document from its JSON. Raises InvalidRequest for what is none."""
    try:
        return from_json(AuditDocument, data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"this is no audit document: {(str(error).splitlines() or [''])[0]}",
            field="file",
            hint="`fleet export --format audit` writes one",
        ) from None
