"""Backups of a real NATS server: taken while it is written to, whole, refused where damaged, restored as they were."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import NotFound, PreconditionFailed
from swe_ai_fleet.domain.event import CancelRequested, EventBody, ToolFinished, WorkspaceCheckpointed, Writer
from swe_ai_fleet.extensions.backup.archive import back_up, restore_backup
from swe_ai_fleet.extensions.backup.commands import check_contents
from swe_ai_fleet.runtime.nats_server import EmbeddedNats, NatsAddress
from tests.event_source import a_deliberation

EXECUTION = "0e0ab0a5-0000-5000-8000-000000000001"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def log(server: EmbeddedNats) -> AsyncIterator[JetStream]:
    async with connected(server.address) as log:
        await log.ensure_streams()
        yield log


def connected(address: NatsAddress) -> AbstractAsyncContextManager[JetStream]:
    return JetStream.connect(address.url, credentials=Credentials(token=address.token), timeout=15)


def writer(name: str = "") -> Writer:
    return Writer(tenant="default", execution_id=name or str(uuid.uuid4()), task_id="t", agent_id="a-1", generation=1)


async def test_a_backup_under_load_has_every_blob_that_its_events_name(log: JetStream, tmp_path: Path) -> None:
    stop = asyncio.Event()
    written = 0

    async def work(number: int) -> None:
        nonlocal written
        own = writer(f"0e0ab0a5-0000-5000-8000-{number:012}")
        async with log.journal(own) as journal:
            while not stop.is_set():
                # Large enough for its body to be a blob of its own, which is stored first.
                await journal.append(CancelRequested(reason=f"{written} " * 60_000))
                written += 1

    workers = [asyncio.create_task(work(number)) for number in range(4)]
    try:
        while written < 8:
            await asyncio.sleep(0.01)
        began = written
        manifest = await back_up(log.connection, tmp_path / "backup", fleet_version="1")
        while written == began:
            await asyncio.sleep(0.01)
    finally:
        stop.set()
        await asyncio.gather(*workers)
    names = [one.name for one in manifest.streams]
    assert names.index("AGENT_COMMANDS") < names.index("AGENT_EVENTS") < names.index("AGENT_RESULTS")
    assert names[-1] == "OBJ_agent-blobs"

    async with EmbeddedNats(tmp_path / "other") as server, connected(server.address) as other:
        await restore_backup(other.connection, tmp_path / "backup")
        seen = 0
        async with aclosing(other.everything()) as events:
            async for event in events:
                # `everything` leaves out, and logs, what it cannot read: a missing blob would be a missing event.
                assert event is not None
                seen += 1
        assert seen == (await other.usage())["AGENT_EVENTS"].messages >= 8
        # The next event follows the last one.
        last = await other.last_sequence()
        await other.tell(writer(), CancelRequested(reason="on the restored server"))
        assert await other.last_sequence() == last + 1


async def test_what_is_damaged_or_half_is_refused_before_anything_is_sent(log: JetStream, tmp_path: Path) -> None:
    await log.tell(writer(EXECUTION), CancelRequested(reason="one"))
    directory = tmp_path / "backup"
    await back_up(log.connection, directory, fleet_version="1")
    with pytest.raises(PreconditionFailed, match="is not empty"):
        await back_up(log.connection, directory, fleet_version="1")
    assert (directory / "manifest.json").stat().st_mode & 0o077 == 0
    file = directory / "AGENT_EVENTS.snapshot"
    whole = file.read_bytes()
    async with EmbeddedNats(tmp_path / "other") as server, connected(server.address) as other:
        for broken in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
            file.write_bytes(broken)
            with pytest.raises(PreconditionFailed, match="damaged"):
                await restore_backup(other.connection, directory)
        file.unlink()
        with pytest.raises(PreconditionFailed, match="No such file"):
            await restore_backup(other.connection, directory)
        file.write_bytes(whole)
        told = json.loads((directory / "manifest.json").read_text())
        told["streams"][0]["file"] = "../secret"
        (directory / "manifest.json").write_text(json.dumps(told))
        with pytest.raises(PreconditionFailed, match="names a file"):
            await restore_backup(other.connection, directory)
        (directory / "manifest.json").unlink()
        with pytest.raises(NotFound, match="not a complete backup"):
            await restore_backup(other.connection, directory)
        assert (await other.connection.api("STREAM.NAMES", timeout=5))["total"] == 0


async def test_the_check_finds_what_does_not_fit(log: JetStream) -> None:
    async def tell(execution_id: str, told: Sequence[tuple[str, EventBody]]) -> None:
        for agent_id, body in told:
            await log.tell(replace(writer(execution_id), agent_id=agent_id), body)

    whole = a_deliberation(agents=1, steps=3)
    await tell("whole", whole)
    finding = await check_contents(log, log.connection)
    assert (finding.faults, finding.executions, finding.chains, finding.entries) == ([], 1, 1, 6)

    changed = [one for one in whole if not (isinstance(one[1], ToolFinished) and one[1].entry.seq == 4)]
    await tell("changed", changed)
    missing = BlobRef(name=f"default/nowhere/{'a' * 64}", digest="a" * 64, size=1, media_type="text/plain")
    checkpoint = WorkspaceCheckpointed(step=1, revision=1, commit="c" * 40, head="c" * 40, bundle=missing)
    await tell("lost", [*whole, ("agent-dev-1", checkpoint)])
    finding = await check_contents(log, log.connection)
    assert finding.executions == 3
    assert len(finding.faults) == 2, finding.faults
    assert finding.faults[0].startswith("changed: the audit chain of agent-dev-1 breaks: entry 4 is missing")
    assert finding.faults[1] == f"lost: the blob {missing.name} is missing"
    newest = await check_contents(log, log.connection, sample=1)
    assert (newest.executions, len(newest.faults)) == (1, 1)
