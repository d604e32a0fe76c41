"""Where agents' audit chains stand, signed by the driver, which has recomputed them itself."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field

from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.event import AuditHeadSigned
from swe_ai_fleet.ports import EventLog, HeadSigner, Journal


@dataclass(kw_only=True)
class HeadSigning:
    """Signs chains of one driven execution into its log; each event is read once.

    Args:
        signer: Holds the key.
        log: Has the chains.
        journal: The execution's own.
        tenant: Whose execution it is.
        execution_id: Which.
    """

    signer: HeadSigner
    log: EventLog
    journal: Journal
    tenant: str
    execution_id: str
    _chains: AuditChains = field(default_factory=AuditChains)
    _next: int = 0
    _told: set[tuple[str, int, int]] = field(default_factory=set[tuple[str, int, int]])
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sign(self, agent_id: str = "") -> None:
        """Sign what is whole and not signed of an agent's chains, or of everybody's.

        A chain that does not fit is left unsigned, for whoever verifies it to find. Raises Fenced, Unavailable.
        """
        async with self._turn:
            async with aclosing(self.log.read(self.tenant, self.execution_id, from_sequence=self._next)) as events:
                async for stored in events:
                    self._chains.take(stored)
                    self._next = stored.sequence + 1
            for head in tuple(self._chains.unsigned(agent_id)):
                name = (head.agent_id, head.run, head.entries)
                if name not in self._told:
                    await self.journal.append(AuditHeadSigned(head=self.signer.signed(head, self.execution_id)))
                    self._told.add(name)
