"""What a fleet remembers, over a real NATS: admitted, kept once, found again, forgotten for good."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, MEMORIES_BUCKET, Memory, MemoryKind, MemoryScope
from swe_ai_fleet.extensions.knowledge.service import open_memories
from swe_ai_fleet.ports import Memories
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer
from swe_ai_fleet.tools.secrets import Secrets
from tests.tables import table

ANSWER = "Integration tests run with `make test-all`."


@pytest.fixture(scope="module")
async def embeddings() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(Script()) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class World:
    """What outlives a process: a bucket, a home, an embedder; a namespace of the test's own."""

    log: JetStream
    settings: Settings
    namespace: str

    @asynccontextmanager
    async def open(self, **settings: object) -> AsyncIterator[Memories]:
        """A replica's memories."""
        async with open_memories(self.settings.model_copy(update=settings), self.log, mask=Secrets()) as memories:
            yield memories

    @property
    def hers(self) -> MemoryScope:
        return MemoryScope(namespaces=(self.namespace,))

    def fact(self, text: str, **fields: object) -> Memory:
        return Memory(**{"namespace": self.namespace, "text": text} | fields)  # type: ignore[arg-type]

    async def texts(
        self, memories: Memories, query: str, scope: MemoryScope | None = None, limit: int = 5
    ) -> list[str]:
        return [found.memory.text for found in await memories.recall(query, scope or self.hers, limit=limit)]


@pytest.fixture
async def world(nats_server: EmbeddedNats, embeddings: ScriptedModelServer, tmp_path: Path) -> AsyncIterator[World]:
    address = nats_server.address
    settings = Settings(
        home=tmp_path / "home", nats_url=address.url, nats_token=address.token, embeddings_url=embeddings.url
    )
    async with connect_log(settings, name="memories-test") as log:
        yield World(log=log, settings=settings, namespace=f"agent:{uuid.uuid4().hex[:12]}")


@pytest.fixture
async def memories(world: World) -> AsyncIterator[Memories]:
    async with world.open() as opened:
        yield opened


class TestRemembering:
    async def test_the_same_is_remembered_once(self, world: World, memories: Memories) -> None:
        assert await memories.remember(world.fact("Use tabs."))
        assert not await memories.remember(world.fact("  use\nTABS. "))
        other = world.fact("Use tabs.", namespace=f"{world.namespace}-2")
        assert await memories.remember(other)
        for namespace in (world.namespace, other.namespace):
            assert await world.texts(memories, "tabs", MemoryScope(namespaces=(namespace,))) == ["Use tabs."]

    async def test_a_newer_text_that_says_the_same_takes_the_place_of_the_older(
        self, world: World, memories: Memories
    ) -> None:
        older, newer = "the suite wants a running database server", "a running database server, the suite wants"
        await memories.remember(world.fact(older))
        assert await memories.remember(world.fact(newer))
        assert await world.texts(memories, "database server") == [newer]
        # What is told again later than it was true does not come back.
        assert not await memories.remember(world.fact(older, created_at="2020-01-01T00:00:00+00:00"))
        assert await world.texts(memories, "database server") == [newer]

    @table(
        "both",
        [
            ("the port of the service is 8080", "the port of the service is 8081"),
            ("the colour of the door that Alice likes is blue", "the colour of the door that Bob likes is blue"),
            ("the cache may be emptied while tests run", "the cache may not be emptied while tests run"),
            ("run make in src/core before tests", "run make in src/gui before tests"),
            ("Алиса любит чай", "Борис любит чай"),
        ],
    )
    async def test_facts_that_differ_in_what_matters_are_both_kept(
        self, world: World, memories: Memories, both: tuple[str, str]
    ) -> None:
        here = replace(world, namespace=f"{world.namespace}-{abs(hash(both))}")
        for text in both:
            await memories.remember(here.fact(text))
        assert {*await here.texts(memories, both[0])} == {*both}

    async def test_what_cannot_be_kept_is_refused_by_the_name_of_its_field(
        self, world: World, memories: Memories
    ) -> None:
        for memory, field in (
            (world.fact("x" * (MAX_MEMORY_CHARS + 1)), "text"),
            (world.fact(" \n "), "text"),
            (world.fact("x", namespace="agent:../x y"), "namespace"),
            (world.fact("x", tenant="a b"), "tenant"),
            (world.fact("x", source="s" * 1_000), "source"),
            (world.fact("x", created_at="yesterday"), "created_at"),
            (world.fact("x", metadata={"k": "v" * 1_000}), "metadata[k]"),
            (world.fact("x", metadata={str(number): "v" for number in range(100)}), "metadata"),
        ):
            with pytest.raises(InvalidRequest) as refused:
                await memories.remember(memory)
            assert refused.value.field == field


class TestRecalling:
    async def test_an_unrelated_question_recalls_nothing(self, world: World, memories: Memories) -> None:
        for text in ("The build runs in a container.", "Tests of the parser are slow.", "My favourite colour is blue."):
            await memories.remember(world.fact(text))
        assert await world.texts(memories, "Who runs the bakery in the old town?") == []

    async def test_a_long_task_recalls_the_short_note_that_it_holds(self, world: World, memories: Memories) -> None:
        for text in (ANSWER, "The changelog lives in docs.", "Set retry_limit for it.", "Set retry_count for it."):
            await memories.remember(world.fact(text))
        task = (
            "Add a function that reads the configuration from a TOML file, cover it with tests, keep the linter quiet, "
            "run the integration tests with make before you commit, and describe the change in the changelog. " * 3
        )
        assert (await world.texts(memories, task))[0] == ANSWER
        # Exact words win where the meaning is the same.
        assert (await world.texts(memories, "what does retry_count do?"))[0] == "Set retry_count for it."


class TestForgetting:
    async def test_what_is_forgotten_is_nowhere_any_more(self, world: World, memories: Memories) -> None:
        for text in ("alpha one", "alpha two", "alpha three"):
            await memories.remember(world.fact(text))
        two = world.fact("alpha two").memory_id
        for scope in ({"namespaces": ("fleet",)}, {"tenant": "other"}, {"metadata": {"a": "x"}}):
            assert await memories.forget(MemoryScope(**{"namespaces": (world.namespace,)} | scope), [two]) == 0
        assert [await memories.forget(world.hers, [two]) for _ in range(2)] == [1, 0]
        assert "alpha two" not in await world.texts(memories, "alpha two")
        kept = await (await world.log.bucket(MEMORIES_BUCKET)).entries()
        assert b"alpha two" not in b"".join(one.value for one in kept)
        assert await memories.forget(world.hers) == 2
        assert await memories.remember(world.fact("alpha two"))
        assert await world.texts(memories, "alpha two") == ["alpha two"]


class TestLimits:
    async def test_beyond_the_limit_the_oldest_go(self, world: World) -> None:
        async with world.open(memory_limit=3, memory_age_days=10) as memories:
            for number in range(6):
                await memories.remember(world.fact(f"alpha {number}", created_at=f"2999-01-01T00:0{number}:00+00:00"))
            assert sorted(await world.texts(memories, "alpha", limit=10)) == ["alpha 3", "alpha 4", "alpha 5"]
            old = world.fact("beta", created_at="2020-01-01T00:00:00+00:00", namespace=f"{world.namespace}-2")
            await memories.remember(old)
            assert await world.texts(memories, "beta", MemoryScope(namespaces=(old.namespace,))) == []


async def test_while_the_embedder_is_away_nothing_is_lost_and_vectors_come_later(
    world: World, embeddings: ScriptedModelServer
) -> None:
    embeddings.embeddings.fail_next(Failure(status=400, times=20))
    async with world.open() as memories:
        assert await memories.remember(world.fact("Her favourite colour is teal."))
        assert await world.texts(memories, "favourite colour") == ["Her favourite colour is teal."]


async def test_replicas_keep_a_memory_once_and_an_index_is_made_anew(world: World, tmp_path: Path) -> None:
    async with world.open() as one, world.open(home=tmp_path / "other") as other:
        told = await asyncio.gather(*(side.remember(world.fact("alpha")) for side in (one, other, one, other)))
        assert sum(told) == 1
        await other.remember(world.fact("beta", kind=MemoryKind.OUTCOME))
        assert await other.forget(world.hers, [world.fact("alpha").memory_id]) == 1
        await one.remember(world.fact("gamma"))
        assert [await world.texts(one, text) for text in ("alpha", "beta", "gamma")] == [[], ["beta"], ["gamma"]]
    shutil.rmtree(world.settings.home)
    async with world.open() as anew:
        assert [await world.texts(anew, text) for text in ("alpha", "beta", "gamma")] == [[], ["beta"], ["gamma"]]
