"""What was acknowledged outlives a writer that is killed at any moment: real NATS, real SQLite, real processes."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.adapters.memory_index import open_memory_index
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.memory import MemoryManager
from swe_ai_fleet.memory.shared import SharedMemories
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.secrets import Secrets
from tests.memory_parts import WordEmbedder
from tests.memory_writer import NAMESPACE, fact

SCOPE = MemoryScope(namespaces=(NAMESPACE,))
KILLS = (5, 20)


@pytest.fixture
async def jetstream(nats_server: EmbeddedNats) -> AsyncIterator[JetStream]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=Credentials(token=address.token), patience=10.0) as opened:
        yield opened


@pytest.fixture
async def bucket(jetstream: JetStream) -> tuple[str, KeyValue]:
    name = f"memories-{uuid.uuid4().hex}"
    return name, await jetstream.bucket(name)


async def killed_after(count: int, *arguments: str) -> list[int]:
    """What a writer acknowledged before it was killed."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.memory_writer", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    acknowledged: list[int] = []
    async with asyncio.timeout(60):
        while len(acknowledged) < count and (line := await writer.stdout.readline()):
            acknowledged.append(int(line))
        writer.kill()
        acknowledged += [int(line) for line in (await writer.stdout.read()).split(b"\n")[:-1] if line]
        await writer.wait()
    assert len(acknowledged) >= count
    return acknowledged


async def test_no_acknowledged_memory_of_a_fleet_is_lost(
    nats_server: EmbeddedNats, bucket: tuple[str, KeyValue], tmp_path: Path
) -> None:
    name, store = bucket
    address, first = nats_server.address, 0
    acknowledged: list[int] = []
    for count in KILLS:
        acknowledged += await killed_after(
            count, "shared", address.url, address.token, name, str(tmp_path / "one"), str(first)
        )
        first = acknowledged[-1] + 2
    # The index that the killed ones left, and one made anew.
    for home in (tmp_path / "one", tmp_path / "two"):
        home.mkdir(exist_ok=True)
        async with (
            open_memory_index("", home) as index,
            SharedMemories.open(store, index, mask=Secrets(), embedder=WordEmbedder()) as memories,
        ):
            await memories.settled()
            for number in acknowledged:
                best = (await memories.recall(f"where is widget w{number}", SCOPE, limit=1))[0]
                assert best.memory.text == fact(number)
                # Both its words and its vector are there again.
                assert best.found_by == "words, meaning"
            last = Memory(namespace=NAMESPACE, text=fact(acknowledged[-1]))
            assert await memories.forget(SCOPE, [last.memory_id]) == 1
            assert not await memories.recall(f"w{acknowledged[-1]}", SCOPE)
            assert await memories.remember(last)
    assert len(acknowledged) >= sum(KILLS)


async def test_no_acknowledged_fact_of_a_library_is_lost(tmp_path: Path) -> None:
    first = 0
    acknowledged: list[int] = []
    for count in KILLS:
        acknowledged += await killed_after(count, "library", str(tmp_path), str(first))
        first = acknowledged[-1] + 2
    async with MemoryManager("writer", 10, settings=Settings(home=tmp_path, embeddings="none")) as manager:
        for number in acknowledged:
            assert (await manager.recall(f"where is widget w{number}", n_results=1)) == [fact(number)]
        said = manager.conversation.turns[-2:]
        assert f"q{acknowledged[-1]}" in [turn.user for turn in said]
