"""Whatever happens to a replica, its index ends as the bucket says."""

from __future__ import annotations

from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.shared import SharedMemories
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.tools.secrets import Secrets
from tests.extensions.knowledge.in_memory_index import InMemoryIndex
from tests.memory_parts import WordEmbedder

SCOPE = MemoryScope(namespaces=("fleet",))
Act = tuple[Literal["remember", "forget", "elsewhere"], int] | Literal["away", "back", "without", "anew"]
ACTS = st.one_of(
    st.tuples(st.sampled_from(("remember", "forget", "elsewhere")), st.integers(0, 5)),
    st.sampled_from(("away", "back", "without", "anew")),
)


def memory(number: int) -> Memory:
    return Memory(namespace="fleet", text=f"alpha w{number}")


class Replica:
    """One replica's life: runs of acts, each run in a process that dies at its end."""

    def __init__(self) -> None:
        self.store, self.index, self.embedder = MemoryKeyValue(), InMemoryIndex(), WordEmbedder()
        self.expected: set[str] = set()

    async def live(self, acts: list[Act]) -> None:
        embedder = None if "without" in acts else self.embedder
        if "anew" in acts:
            self.index = InMemoryIndex()
        async with (
            SharedMemories.open(self.store, self.index, mask=Secrets(), embedder=embedder, timeout=10.0) as here,
            SharedMemories.open(self.store, InMemoryIndex(), mask=Secrets(), timeout=10.0) as there,
        ):
            for act in acts:
                await self._act(act, here, there)

    async def _act(self, act: Act, here: SharedMemories, there: SharedMemories) -> None:
        match act:
            case ("remember" | "elsewhere" as where, number):
                side = here if where == "remember" else there
                known = memory(number).text in self.expected
                assert await side.remember(memory(number)) is not known
                self.expected.add(memory(number).text)
            case ("forget", number):
                known = memory(number).text in self.expected
                assert await here.forget(SCOPE, [memory(number).memory_id]) == int(known)
                self.expected.discard(memory(number).text)
                assert memory(number) not in await self.index.listed(SCOPE)
            case "away" | "back":
                self.embedder.away = act == "away"

    async def followed(self) -> int:
        """How many texts have been embedded once a replica has caught up."""
        options = {"mask": Secrets(), "embedder": self.embedder, "timeout": 10.0}
        async with SharedMemories.open(self.store, self.index, **options) as memories:
            await memories.settled()
        return self.embedder.embedded

    async def end(self) -> None:
        self.embedder.away = False
        embedded = await self.followed()
        anew = InMemoryIndex()
        async with SharedMemories.open(self.store, anew, mask=Secrets(), timeout=10.0) as memories:
            await memories.settled()
        assert {one.text for one in await anew.listed(SCOPE)} == self.expected
        assert {one.text for one in await self.index.listed(SCOPE)} == self.expected
        (vector,) = await self.embedder.embed(["alpha"])
        found = await self.index.search(SCOPE, vector=vector, space=self.embedder.name, limit=100)
        assert {one.memory.text for one in found} == self.expected
        assert await self.followed() == embedded + 1  # the query's


@settings(max_examples=60)
@given(st.lists(st.lists(ACTS, max_size=8), max_size=4))
async def test_the_index_ends_as_the_bucket_says(lives: list[list[Act]]) -> None:
    replica = Replica()
    for acts in lives:
        await replica.live(acts)
    await replica.end()
