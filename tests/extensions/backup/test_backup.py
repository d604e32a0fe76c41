"""Backups of a real NATS server: taken while it is written to, whole, refused where damaged, restored as they were."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.event import CancelRequested, EventBody, ToolFinished, WorkspaceCheckpointed, Writer
from swe_ai_fleet.runtime.nats_server import EmbeddedNats, NatsAddress
from tests.event_source import a_deliberation
from tests.fleet_command import Ran, Shell
from tests.nats_logs import connected


class Place:
    """A NATS server, and the commands of somebody who has its address."""

    def __init__(self, address: NatsAddress, shell: Shell) -> None:
        self.address = address
        self._shell = shell

    async def fleet(self, *arguments: str) -> Ran:
        where = {"FLEET_NATS_URL": self.address.url, "FLEET_NATS_TOKEN": self.address.token}
        return await self._shell.fleet(*arguments, "--json", **where)

    async def refused(self, command: str, directory: Path) -> str:
        ran = await self.fleet(command, str(directory))
        assert ran.code == 2, ran.out + ran.err
        return ran.document["error"]["message"]


@pytest.fixture
async def places(warm: str, tmp_path: Path) -> AsyncIterator[tuple[Place, Place]]:
    shell = Shell(home=tmp_path / "home", warm=warm)
    async with EmbeddedNats(tmp_path / "nats") as one, EmbeddedNats(tmp_path / "other") as other:
        yield Place(one.address, shell), Place(other.address, shell)


@pytest.fixture
async def log(places: tuple[Place, Place]) -> AsyncIterator[JetStream]:
    async with connected(places[0].address) as log:
        yield log


def writer(name: str = "") -> Writer:
    return Writer(tenant="default", execution_id=name or str(uuid.uuid4()), task_id="t", agent_id="a-1", generation=1)


async def test_a_backup_under_load_has_every_blob_that_its_events_name(
    log: JetStream, places: tuple[Place, Place], tmp_path: Path
) -> None:
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
                if written > 8:
                    # A pace: what is written is read, sent and checked again below, three times.
                    await asyncio.sleep(0.1)

    workers = [asyncio.create_task(work(number)) for number in range(4)]
    (here, there), directory = places, tmp_path / "backup"
    try:
        while written < 8:
            await asyncio.sleep(0.01)
        saved = await here.fleet("backup", str(directory))
    finally:
        stop.set()
        await asyncio.gather(*workers)
    assert saved.code == 0, saved.err
    assert "is not empty" in await here.refused("backup", directory)
    assert (directory / "manifest.json").stat().st_mode & 0o077 == 0
    restored = await there.fleet("restore", str(directory))
    assert restored.code == 0, restored.out + restored.err
    assert restored.document["faults"] == []
    async with connected(there.address) as other:
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


async def test_what_is_damaged_is_refused_before_anything_is_sent_and_the_check_finds_what_does_not_fit(
    log: JetStream, places: tuple[Place, Place], tmp_path: Path
) -> None:
    async def tell(execution_id: str, told: Sequence[tuple[str, EventBody]]) -> None:
        for agent_id, body in told:
            await log.tell(replace(writer(execution_id), agent_id=agent_id), body)

    whole = a_deliberation(agents=1, steps=3)
    await tell("whole", whole)
    await tell("changed", [one for one in whole if not (isinstance(one[1], ToolFinished) and one[1].entry.seq == 4)])
    missing = BlobRef(name=f"default/nowhere/{'a' * 64}", digest="a" * 64, size=1, media_type="text/plain")
    checkpoint = WorkspaceCheckpointed(step=1, revision=1, commit="c" * 40, head="c" * 40, bundle=missing)
    await tell("lost", [*whole, ("agent-dev-1", checkpoint)])
    (here, there), directory = places, tmp_path / "backup"
    assert (await here.fleet("backup", str(directory))).code == 0
    file, manifest = directory / "AGENT_EVENTS.snapshot", directory / "manifest.json"
    kept, told = file.read_bytes(), manifest.read_text()
    for broken in (kept[:-1], kept[:-1] + bytes([kept[-1] ^ 1])):
        file.write_bytes(broken)
        assert "damaged" in await there.refused("restore", directory)
    file.write_bytes(kept)
    listed = json.loads(told)
    listed["streams"][0]["file"] = "../secret"
    for text, said in ((json.dumps(listed), "names a file"), (None, "not a complete backup")):
        manifest.unlink() if text is None else manifest.write_text(text)
        assert said in await there.refused("restore", directory)
    login = NatsCredentials(token=there.address.token)
    async with JetStream.connect(there.address.url, credentials=login) as other:
        assert (await other.connection.api("STREAM.NAMES", timeout=5))["total"] == 0
    manifest.write_text(told)
    restored = await there.fleet("restore", str(directory))
    assert (restored.code, restored.document["executions"]) == (1, 3)
    changed, lost = restored.document["faults"]
    assert changed.startswith("changed: the audit chain of agent-dev-1 breaks: entry 4 is missing")
    assert lost == f"lost: the blob {missing.name} is missing"
