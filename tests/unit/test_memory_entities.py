"""Names that memory is asked about: in a gathered context, and at the gate."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.memory_findings import MAX_NAMED, findings
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults
from swe_ai_fleet.context.book import ContextBook
from swe_ai_fleet.context.gathering import NAMED, ContextGatherer
from swe_ai_fleet.domain.context import ContextRequest
from swe_ai_fleet.domain.memory import Memory, MemoryScope, Recollection
from swe_ai_fleet.testing.memory_changes import MemoryChanges
from swe_ai_fleet.tools.secrets import Secrets

MASK = Secrets(["hunter2hunter2"])


@dataclass
class Remembered:
    """Memories that are recalled by any word they share with a query, the shortest first."""

    texts: Sequence[str]
    asked: list[str] = field(default_factory=list[str])

    async def remember(self, memory: Memory) -> bool:
        raise AssertionError(memory)

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        raise AssertionError(scope)

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        self.asked.append(query)
        words = set(query.lower().split())
        fitting = sorted((text for text in self.texts if words & set(text.lower().rstrip(".").split())), key=len)
        return tuple(Recollection(memory=Memory(namespace="fleet", text=text), score=0.2) for text in fitting[:limit])


async def gathered(texts: Sequence[str], *entities: str, query: str = "greet people", tokens: int = 0):
    async with ContextBook(MemoryChanges(), mask=MASK, now=lambda: "2026-11-22T12:00:00+00:00") as book:
        source = ContextGatherer(book, Remembered(texts), mask=MASK)
        return await source.gather(
            ContextRequest(query=query, namespaces=("fleet",), entities=entities, token_budget=tokens)
        )


class TestInAContext:
    async def test_what_names_an_entity_is_there_whatever_the_query_is(self) -> None:
        texts = ["Invoice totals are rounded.", "People like to be greeted, so greet them."]
        assert [one.memory.text for one in (await gathered(texts)).recalled] == texts[1:]
        found = await gathered(texts, "Invoice", "Stripe")
        assert [one.memory.text for one in found.recalled] == texts
        assert "Invoice totals are rounded." in found.text
        assert found.omitted == ("nothing is remembered of Stripe",)

    async def test_it_goes_before_what_only_fits(self) -> None:
        crowd = [f"People who greet {number} {'again ' * 40}." for number in range(5)]
        found = await gathered(["Invoice totals are rounded.", *crowd], "Invoice", tokens=260)
        assert found.blocks[0].text == "Invoice totals are rounded."

    async def test_a_part_of_a_word_names_nothing(self) -> None:
        found = await gathered(["Invoices are many invoice-ish."], "voice")
        assert found.omitted == ("nothing is remembered of voice",)

    async def test_one_memory_that_two_entities_name_is_told_once(self) -> None:
        found = await gathered(["Invoice and Stripe belong together."], "Invoice", "Stripe", query="Stripe")
        assert len(found.recalled) == 1
        assert found.omitted == ()

    async def test_no_entity_crowds_the_others_out(self) -> None:
        texts = [f"Invoice number {number}" for number in range(9)]
        found = await gathered([*texts, "Stripe pays."], "Invoice", "Stripe", query="nothing else")
        assert len(found.recalled) == NAMED + 1


class TestAtTheGate:
    def test_secrets_are_masked_and_floods_are_cut(self) -> None:
        flood = MemoryResults(
            gaps=tuple(f"hunter2hunter2 {number}" for number in range(500)),
            sources=("hunter2hunter2" * 90,),
            content="hunter2hunter2 " + "x" * 100_000,
        )
        found = findings([flood], MASK)
        assert found is not None
        assert "hunter2" not in repr(found)
        assert (len(found.gaps), len(found.content) < 17_000) == (MAX_NAMED, True)
        assert found.coverage == 0.0

    @given(st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))))
    def test_coverage_and_gaps_say_the_same(self, searches: list[tuple[set[str], set[str]]]) -> None:
        made = [
            MemoryResults(asked=tuple(sorted(asked)), gaps=tuple(sorted(asked & missing)))
            for asked, missing in searches
        ]
        found = findings(made, MASK)
        asked = set[str]().union(*(asked for asked, _ in searches))
        known = set[str]().union(*(asked - missing for asked, missing in searches))
        if not asked:
            assert found is None
            return
        assert found is not None
        assert set(found.gaps) == asked - known
        assert found.coverage == round(100 * len(known) / len(asked), 1)
