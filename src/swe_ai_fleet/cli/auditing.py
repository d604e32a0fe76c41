"""`fleet audit verify`: audit chains recomputed from the log of a fleet or from a file, and who signed them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import audit_table
from swe_ai_fleet.domain.audit_chains import ChainVerdict, signed_throughout
from swe_ai_fleet.runtime.audit_keys import PublicKeys, public_keys
from swe_ai_fleet.watching.audit_document import read_audit_document
from swe_ai_fleet.watching.chains import report, verify_events


async def verify_audit(screen: Screen, client: FleetClient, name: str, *, public_key: Path | None) -> Exit:
    """Recompute the audit chain of every agent of an execution from its log.

    The keys that count are those of `public_key`, and then everything has to be signed; else those that the fleet
    vouches for, and what is unsigned is told.
    """
    answer = await client.answered(await client.find(name))
    vouched = PublicKeys.of(key.public_key for key in answer.audit_keys)
    keys = _demanded(public_key) or (vouched if vouched.keys else None)
    verdicts = verify_events([event async for event in client.recorded(answer.execution)], keys)
    about = {"execution_id": answer.execution.execution_id}
    return _told(screen, about, verdicts if public_key is None else signed_throughout(verdicts))


async def verify_audit_document(screen: Screen, path: Path, *, public_key: Path | None) -> Exit:
    """Recompute the chains of an exported document; no fleet is asked."""
    try:
        document = read_audit_document(await asyncio.to_thread(path.read_bytes))
    except OSError as error:
        raise CommandFault(f"{path} cannot be read: {error.strerror}", exit_code=Exit.USAGE) from None
    verdicts = document.verdicts(_demanded(public_key))
    about = {"file": str(path), "execution_id": document.execution_id}
    return _told(screen, about, verdicts if public_key is None else signed_throughout(verdicts))


def _demanded(path: Path | None) -> PublicKeys | None:
    return public_keys(path, setting="public_key") if path is not None else None


def _told(screen: Screen, about: Mapping[str, object], verdicts: Sequence[ChainVerdict]) -> Exit:
    if screen.json:
        screen.document({**about, **report(verdicts)})
    elif verdicts:
        screen.out.print(audit_table(verdicts))
    else:
        screen.line("no agent has recorded anything")
    return Exit.ACCEPTED if all(verdict.intact for verdict in verdicts) else Exit.NOT_ACCEPTED
