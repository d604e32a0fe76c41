"""`fleet backup` and `fleet restore`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.place import nats_of
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.settings import Settings

Directory = Annotated[Path, argument("The directory of the backup.", metavar="DIR")]


async def backup(screen: Screen, settings: Settings, directory: Directory) -> Exit:
    from importlib.metadata import version

    from swe_ai_fleet.extensions.backup.making import back_up
    from swe_ai_fleet.runtime.factories import connect_log

    async with connect_log(nats_of(settings), name="backup") as log:
        manifest = await back_up(log.connection, directory, fleet_version=version("swe-ai-fleet"), report=screen.note)
    if screen.json:
        screen.document({"directory": str(directory), "streams": len(manifest.streams), "bytes": manifest.size})
    else:
        screen.line(f"{counted(len(manifest.streams), 'stream')}, {manifest.size} bytes, in {directory}")
        screen.note("it contains what agents read and wrote: keep it encrypted, as safe as the repositories")
    return Exit.ACCEPTED


async def restore(
    screen: Screen,
    settings: Settings,
    directory: Directory,
    *,
    replicas: Annotated[
        int, option("NATS servers that keep each stream. Default: as many as before.", min=0, max=5)
    ] = 0,
    check: Annotated[int, option("Verify the newest N executions; -1: none. Default: all.", min=-1, metavar="N")] = 0,
) -> Exit:
    from swe_ai_fleet.extensions.backup.checking import Finding, check_contents
    from swe_ai_fleet.extensions.backup.restoring import restore_backup
    from swe_ai_fleet.runtime.channels import running_place
    from swe_ai_fleet.runtime.factories import connect_log
    from swe_ai_fleet.runtime.nats_server import EmbeddedNats

    async with AsyncExitStack() as stack:
        if not settings.nats_url:
            running = running_place(settings.home)
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
        finding = Finding() if check < 0 else await check_contents(log, log.connection, sample=check)
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
