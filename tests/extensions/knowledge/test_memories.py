"""What is remembered: admitted, kept once, found again, forgotten for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import pytest

from swe_ai_fleet.domain.errors import InvalidRequest, Unavailable
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, Memory, MemoryKind, MemoryScope
from swe_ai_fleet.extensions.knowledge.recalling import MemoryLimits
from swe_ai_fleet.extensions.knowledge.shared import SharedMemories
from swe_ai_fleet.ports import Memories
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.tools.secrets import Secrets
from tests.extensions.knowledge.in_memory_index import InMemoryIndex
from tests.memory_parts import WordEmbedder

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADA = "agent:ada"
HERS = MemoryScope(namespaces=(ADA,))
SECRET = "hunter2-hunter2"


def fact(text: str, *, namespace: str = ADA, **fields: object) -> Memory:
    return Memory(namespace=namespace, text=text, **fields)  # pyright: ignore[reportArgumentType]


class World:
    """What outlives a process: a bucket, an index, an embedder, a clock."""

    def __init__(self) -> None:
        self.store = MemoryKeyValue()
        self.index = InMemoryIndex()
        self.embedder: WordEmbedder | None = WordEmbedder()
        self.now = NOW

    def open(self, **options: object) -> AbstractAsyncContextManager[SharedMemories]:
        common = {"mask": Secrets((SECRET,)), "embedder": self.embedder, "clock": lambda: self.now, **options}
        return SharedMemories.open(self.store, self.index, timeout=5.0, **common)  # pyright: ignore


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def memories(world: World) -> AsyncGenerator[Memories]:
    async with world.open() as opened:
        yield opened


async def texts(memories: Memories, query: str, scope: MemoryScope = HERS, limit: int = 5) -> list[str]:
    return [found.memory.text for found in await memories.recall(query, scope, limit=limit)]


class TestRemembering:
    async def test_the_same_is_remembered_once(self, world: World, memories: Memories) -> None:
        assert await memories.remember(fact("Use tabs."))
        assert not await memories.remember(fact("  use\nTABS. "))
        assert await memories.remember(fact("Use tabs.", namespace="fleet"))
        assert len(await world.index.listed(MemoryScope())) == 2

    async def test_a_newer_text_that_says_the_same_takes_the_place_of_the_older(
        self, world: World, memories: Memories
    ) -> None:
        await memories.remember(fact("the suite wants a running database server"))
        await memories.remember(fact("the suite wants a running database server", kind=MemoryKind.OUTCOME))
        assert await memories.remember(fact("a running database server, the suite wants"))
        assert await texts(memories, "database server") == ["a running database server, the suite wants"]
        assert len(await world.index.listed(MemoryScope())) == 1
        # What is told again later than it was true does not come back.
        old = fact("the suite wants a running database server", created_at="2020-01-01T00:00:00+00:00")
        assert not await memories.remember(old)
        assert await texts(memories, "database server") == ["a running database server, the suite wants"]

    @pytest.mark.parametrize(
        "both",
        [
            ("the port of the service is 8080", "the port of the service is 8081"),
            ("the colour of the door that Alice likes is blue", "the colour of the door that Bob likes is blue"),
            ("the cache may be emptied while tests run", "the cache may not be emptied while tests run"),
            ("run make in src/core before tests", "run make in src/gui before tests"),
            ("Алиса любит чай", "Борис любит чай"),
            ("テストはRedisが必要です", "デプロイは火曜日です"),
            ("the parser is slow", "the lexer is written in another language"),
        ],
    )
    async def test_facts_that_differ_in_what_matters_are_both_kept(self, world: World, both: tuple[str, str]) -> None:
        world.embedder = _OddEmbedder(blind=True)
        async with world.open() as memories:
            for text in both:
                await memories.remember(fact(text))
            assert {memory.text for memory in await world.index.listed(HERS)} == {*both}

    async def test_what_cannot_be_kept_is_refused_by_the_name_of_its_field(
        self, world: World, memories: Memories
    ) -> None:
        for memory, field in (
            (fact("x" * (MAX_MEMORY_CHARS + 1)), "text"),
            (fact(" \n "), "text"),
            (fact("x", namespace="agent:../x y"), "namespace"),
            (fact("x", tenant="a b"), "tenant"),
            (fact("x", source="s" * 1_000), "source"),
            (fact("x", created_at="yesterday"), "created_at"),
            (fact("x", metadata={"k": "v" * 1_000}), "metadata[k]"),
            (fact("x", metadata={"": "v"}), "metadata"),
            (fact("x", metadata={str(number): "v" for number in range(100)}), "metadata"),
            (fact("x", metadata={"k": 1}), "metadata"),
        ):
            with pytest.raises(InvalidRequest) as refused:
                await memories.remember(memory)
            assert refused.value.field == field
        assert await world.index.listed(MemoryScope()) == ()


class TestForgetting:
    async def test_what_is_forgotten_is_nowhere_any_more(self, world: World, memories: Memories) -> None:
        for text in ("alpha one", "alpha two", "alpha three"):
            await memories.remember(fact(text))
        await memories.remember(fact("alpha four", namespace="fleet"))
        two = fact("alpha two").memory_id
        elsewhere = ({"namespaces": ("fleet",)}, {"tenant": "other"}, {"namespaces": (ADA,), "metadata": {"a": "x"}})
        for scope in elsewhere:
            assert await memories.forget(MemoryScope(**scope), [two]) == 0  # type: ignore[arg-type]
        assert await memories.forget(HERS, [two]) == 1
        assert await memories.forget(HERS, [two]) == 0
        assert "alpha two" not in await texts(memories, "alpha two")
        assert b"alpha two" not in b"".join(one.value for one in await world.store.entries())
        assert await memories.forget(HERS) == 2
        assert await texts(memories, "alpha", MemoryScope()) == ["alpha four"]
        assert await memories.remember(fact("alpha two"))
        assert await texts(memories, "alpha two") == ["alpha two"]


class TestLimits:
    async def test_beyond_the_limit_the_oldest_go(self, world: World) -> None:
        async with world.open(limits=MemoryLimits(per_namespace=3)) as memories:
            for number in range(6):
                world.now += timedelta(minutes=1)
                await memories.remember(fact(f"alpha {number}"))
            await memories.remember(fact("alpha other", namespace="fleet"))
            assert sorted(await texts(memories, "alpha", limit=10)) == ["alpha 3", "alpha 4", "alpha 5"]
            assert len(await world.index.listed(MemoryScope())) == 4

    async def test_what_is_too_old_is_not_recalled_and_goes(self, world: World) -> None:
        async with world.open(limits=MemoryLimits(max_age_days=10, per_namespace=5)) as memories:
            await memories.remember(fact("alpha old"))
            world.now += timedelta(days=9)
            await memories.remember(fact("alpha new"))
            world.now += timedelta(days=2)
            assert await texts(memories, "alpha") == ["alpha new"]
            await memories.remember(fact("beta"))
            assert {one.text for one in await world.index.listed(MemoryScope())} == {"alpha new", "beta"}


async def test_while_the_embedder_is_away_nothing_is_lost_and_vectors_come_later(world: World) -> None:
    assert world.embedder is not None
    world.embedder.away, world.embedder.refuses = True, "poison"
    async with world.open() as memories:
        for text in ("Her favourite colour is teal.", "the poison text"):
            assert await memories.remember(fact(text))
        assert await texts(memories, "favourite colour") == ["Her favourite colour is teal."]
        assert await texts(memories, "the beloved hue") == []
    world.embedder.away = False
    async with world.open() as memories:
        await memories.settled()
        assert await texts(memories, "the beloved hue") == ["Her favourite colour is teal."]
        assert await texts(memories, "poison text") == ["the poison text"]


class TestSharing:
    async def test_replicas_keep_a_memory_once_and_see_each_others(self) -> None:
        store, here, there = MemoryKeyValue(), InMemoryIndex(), InMemoryIndex()
        async with (
            SharedMemories.open(store, here, mask=Secrets(), timeout=5.0) as one,
            SharedMemories.open(store, there, mask=Secrets(), timeout=5.0) as other,
        ):
            told = await asyncio.gather(*(side.remember(fact("alpha")) for side in (one, other, one, other)))
            assert sum(told) == 1
            await other.remember(fact("beta"))
            await one.settled()
            assert await other.forget(HERS, [fact("alpha").memory_id]) == 1
            await one.remember(fact("gamma"))
            assert {memory.text for memory in await here.listed(HERS)} == {"beta", "gamma"}
            # As of an index that has not heard yet what another replica forgot.
            await here.put([(fact("gamma delta"), None)])
            assert await texts(one, "gamma") == ["gamma"]

    async def test_what_is_forgotten_while_it_is_embedded_does_not_come_back(self) -> None:
        store, index, embedder = MemoryKeyValue(), InMemoryIndex(), _OddEmbedder(waits=True)
        async with (
            SharedMemories.open(store, index, mask=Secrets(), embedder=embedder) as memories,
            SharedMemories.open(store, InMemoryIndex(), mask=Secrets()) as elsewhere,
        ):
            await elsewhere.remember(fact("the beloved automobile"))
            await embedder.asked.wait()
            assert await memories.forget(HERS) == 1
            embedder.go.set()
            await memories.settled()
            assert await index.listed(HERS) == ()

    async def test_keys_are_told_apart_whatever_the_names_hold(self) -> None:
        names = [
            ("a.b", "fleet"), ("a", "agent:b.c"), ("a", "agent:b/c"), ("a-b", "repository:x"),
        ]  # fmt: skip
        store = MemoryKeyValue()
        async with SharedMemories.open(store, InMemoryIndex(), mask=Secrets(), timeout=5.0) as memories:
            for tenant, namespace in names:
                assert await memories.remember(fact("x", tenant=tenant, namespace=namespace))
        assert len(await store.entries()) == len(names)

    async def test_an_index_that_never_follows_is_no_silence(self) -> None:
        store, index = MemoryKeyValue(), _FailingIndex()
        async with SharedMemories.open(store, index, mask=Secrets(), timeout=0.2) as memories:
            await memories.remember(fact("alpha"))
            index.failures = 1_000
            with pytest.raises(Unavailable, match="stored"):
                await memories.remember(fact("beta"))
        assert any(b"beta" in one.value for one in await store.entries())


class _OddEmbedder(WordEmbedder):
    """To a blind one all texts mean the same; it waits until it may go."""

    def __init__(self, *, blind: bool = False, waits: bool = False) -> None:
        super().__init__()
        self.blind, self.asked, self.go = blind, asyncio.Event(), asyncio.Event()
        if not waits:
            self.go.set()

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.asked.set()
        await self.go.wait()
        return await super().embed(["same"] * len(texts) if self.blind else texts)


class _FailingIndex(InMemoryIndex):
    failures = 0

    async def put(self, *arguments: object, **options: object) -> None:  # pyright: ignore
        if self.failures:
            self.failures -= 1
            raise Unavailable("the disk is away")
        await super().put(*arguments, **options)  # pyright: ignore
