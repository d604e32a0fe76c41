"""`fleet backup`; `fleet restore`, which also verifies executions: their audit chains and the blobs they refer to."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import BLOBS, BLOBS_BUCKET
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.place import nats_of
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.execution import advance
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.settings import Settings

_TIMEOUT_SECONDS = 60.0
_MAX_FAULTS = 50
_BLOB = re.compile(rb'"name": ?"([^"\\/]{1,200}/[^"\\/]{1,200}/[0-9a-f]{64})", ?"digest"')
"""A blob's reference in the codec's format."""


@dataclass(kw_only=True)
class BackupCheck:
    """The result of a check. `faults` are the first fifty inconsistencies; empty: there are none."""

    executions: int = 0
    events: int = 0
    chains: int = 0
    entries: int = 0
    blobs: int = 0
    faults: list[str] = field(default_factory=list[str])

    def fault(self, text: str) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(text)


async def check_contents(log: JetStream, connection: Connection, *, sample: int = 0) -> BackupCheck:
    """Verify executions by reading them from their first event to their last.

    An execution whose first events have expired is skipped, because its chains cannot be complete.

    Args:
        log: Reads the events.
        connection: To the same server.
        sample: The number of executions, the newest first; 0: all.

    Raises:
        Unavailable: NATS did not answer.
    """
    finding = BackupCheck()
    executions = await _executions(log)
    stored = await _blobs(connection)
    for tenant, execution_id in list(executions)[-sample:] if sample else executions:
        await _check_execution(log, tenant, execution_id, stored, finding)
    return finding


async def _executions(log: JetStream) -> dict[tuple[str, str], None]:
    """Executions whose first event is stored, the oldest first."""
    executions: dict[tuple[str, str], None] = {}
    async with aclosing(log.heads()) as heads:
        async for head in heads:
            if head is not None and head.event.body.type == "execution_started":
                executions[head.event.tenant, head.event.execution_id] = None
    return executions


async def _blobs(connection: Connection) -> set[str]:
    """The names of the stored blobs."""
    names: set[str] = set()
    described = messages(connection, BLOBS, f"$O.{BLOBS_BUCKET}.M.>", follow=False, timeout=_TIMEOUT_SECONDS)
    async with aclosing(described) as metas:
        async for meta in metas:
            if meta is not None:
                info = json.loads(meta.data)
                if not info.get("deleted"):
                    names.add(str(info["name"]))
    return names


async def _check_execution(
    log: JetStream, tenant: str, execution_id: str, stored: set[str], finding: BackupCheck
) -> None:
    finding.executions += 1
    chains, state, named = AuditChains(), None, set[str]()
    try:
        async with aclosing(log.read(tenant, execution_id)) as events:
            async for event in events:
                finding.events += 1
                state = advance(state, event)
                finding.entries += chains.take(event) is not None
                named.update(match.decode() for match in _BLOB.findall(to_json(event.event)))
    except FleetError as error:
        finding.fault(f"{execution_id}: {error.message}")
        return
    if state is None:
        finding.fault(f"{execution_id}: its events do not form an execution")
    for verdict in chains.verdicts():
        finding.chains += 1
        if verdict.fault is not None:
            finding.fault(f"{execution_id}: the audit chain of {verdict.agent_id} breaks: {verdict.fault.reason}")
    finding.blobs += len(named)
    for name in sorted(name for name in named if name not in stored):
        finding.fault(f"{execution_id}: the blob {name} is missing")


Directory = Annotated[Path, argument("The directory of the backup.", metavar="DIR")]


async def backup(screen: Screen, settings: Settings, directory: Directory) -> Exit:
    from importlib.metadata import version

    from swe_ai_fleet.extensions.backup.archive import back_up
    from swe_ai_fleet.runtime.factories import connect_log

    async with connect_log(nats_of(settings), name="backup") as log:
        manifest = await back_up(log.connection, directory, fleet_version=version("swe-ai-fleet"), report=screen.note)
    if screen.json:
        screen.document({"directory": str(directory), "streams": len(manifest.streams), "bytes": manifest.size})
    else:
        screen.line(f"{counted(len(manifest.streams), 'stream')}, {manifest.size} bytes, in {directory}")
        screen.note("it contains everything that agents read and wrote: keep it encrypted, as safe as the repositories")
    return Exit.ACCEPTED


async def restore(
    screen: Screen,
    settings: Settings,
    directory: Directory,
    *,
    replicas: Annotated[
        int, option("Copies of each stream on NATS servers. Default: as many as before.", min=0, max=5)
    ] = 0,
    check: Annotated[int, option("Verify the newest N executions; -1: none. Default: all.", min=-1, metavar="N")] = 0,
) -> Exit:
    from swe_ai_fleet.extensions.backup.archive import restore_backup
    from swe_ai_fleet.runtime.channels import running_fleet
    from swe_ai_fleet.runtime.factories import connect_log
    from swe_ai_fleet.runtime.nats_server import EmbeddedNats

    async with AsyncExitStack() as stack:
        if not settings.nats_url:
            running = running_fleet(settings.home)
            if running is not None:
                raise CommandFault(
                    f"a fleet is running in {settings.home} (process {running.pid})",
                    field="home",
                    hint="stop it, or set another FLEET_HOME",
                )
            address = (
                await stack.enter_async_context(
                    EmbeddedNats(settings.home / "nats", max_file_bytes=settings.nats_bytes)
                )
            ).address
            settings = settings.model_copy(update={"nats_url": address.url, "nats_token": address.token})
        log = await stack.enter_async_context(connect_log(settings, name="restore"))
        restored = await restore_backup(log.connection, directory, replicas=replicas, report=screen.note)
        finding = BackupCheck() if check < 0 else await check_contents(log, log.connection, sample=check)
    messages = sum(stream.messages for stream in restored)
    if screen.json:
        document = {
            "streams": len(restored),
            "messages": messages,
            "expired": sum(stream.expired for stream in restored),
            "executions": finding.executions,
            "chains": finding.chains,
            "faults": finding.faults,
        }
        screen.document(document)
    else:
        screen.line(
            f"{len(restored)} streams, {messages} messages; of {finding.executions} executions, {finding.chains} audit "
            f"chains with {finding.entries} entries and {finding.blobs} blobs were verified"
        )
        for fault in finding.faults:
            screen.line(f"FAULT: {fault}", style="red")
    return Exit.NOT_ACCEPTED if finding.faults else Exit.ACCEPTED
