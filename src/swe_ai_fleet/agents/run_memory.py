"""Memory of a run: what its searches found, for whoever decides about it, and facts that later runs are to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar

import structlog
from pydantic import Field

from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.approval import MemoryFindings
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ToolFinished
from swe_ai_fleet.domain.memory import memory_id
from swe_ai_fleet.domain.tool import Decision, ToolResult
from swe_ai_fleet.domain.trajectory import Step
from swe_ai_fleet.ports import SecretMask, Workspace
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.truncation import beginning

MAX_CONTENT_CHARS = 16_000
MAX_NAMED = 100
"""Gaps, and sources, that are shown."""
_NAME_CHARS = 500
_log = structlog.get_logger(__name__)
REMEMBER = "remember"
MAX_FACTS = 10
MAX_FACT_CHARS = 1_000
_NOTED = "remembered"


def findings(searches: Iterable[MemoryResults], mask: SecretMask) -> MemoryFindings | None:
    """All searches as one; None where nothing was asked. What any of them found is no gap."""
    asked: dict[str, bool] = {}
    passages: dict[str, None] = {}
    sources: dict[str, None] = {}
    for search in searches:
        gaps = frozenset(search.gaps)
        for text in search.asked or search.gaps:
            asked[text] = asked.get(text, False) or text not in gaps
        passages |= dict.fromkeys([search.content] if search.content else [])
        sources |= dict.fromkeys(search.sources)
    if not asked:
        return None
    missing = [text for text, known in asked.items() if not known]
    return MemoryFindings(
        coverage=round(100 * (len(asked) - len(missing)) / len(asked), 1),
        gaps=tuple(mask(text)[:_NAME_CHARS] for text in missing[:MAX_NAMED]),
        sources=tuple(mask(text)[:_NAME_CHARS] for text in list(sources)[:MAX_NAMED]),
        content=beginning(mask("\n\n".join(passages)), MAX_CONTENT_CHARS),
    )


def searches_in(steps: Sequence[Step]) -> list[MemoryResults]:
    """What the searches of a run's earlier steps gave."""
    results: list[MemoryResults] = []
    for result in (seen.result for step in steps for seen in step.observations):
        if result.success and result.operation == "search_memory":
            # A chat's tool of that name, or another version's: its text stands in the history all the same.
            with suppress(ValueError):
                results.append(from_plain(MemoryResults, dict(result.metadata)))
    return results


async def asked_about(memory: MemorySearch, entities: Sequence[str]) -> list[MemoryResults]:
    """What memory knows of the names that a task is about; nothing where it names none or memory cannot be asked."""
    if not entities:
        return []
    try:
        recollection = await memory.search(entities, ())
    except FleetError as fault:
        _log.warning("memory.entities_not_asked", reason=fault.message[:200])
        return []
    return [
        MemoryResults(
            coverage=recollection.coverage,
            content=recollection.content,
            gaps=recollection.gaps,
            sources=recollection.sources,
            asked=tuple(entities),
        )
    ]


class RememberingTools(Toolkit):
    """`remember`: an agent's note for later runs.

    It writes nothing anywhere. The note stands in the run's log, under `remembered` in the metadata of the call's
    result, and is kept from there if the run's candidate wins.

    Args:
        workspace: Where the run works.
        pipeline: The way every call goes.
        noted: What an earlier part of the same run noted.
    """

    name: ClassVar[str] = "remembering"
    bare: ClassVar[bool] = True

    def __init__(self, workspace: Workspace, pipeline: Pipeline | None = None, *, noted: Iterable[str] = ()) -> None:
        super().__init__(workspace, pipeline)
        self._noted = {_key(fact) for fact in noted}

    @operation(read_only=True, locks=(), time_limit_seconds=10.0)
    async def remember(
        self,
        fact: Annotated[
            str,
            Field(description="One fact, whole and by itself; no secrets.", min_length=1, max_length=MAX_FACT_CHARS),
        ],
    ) -> ToolResult:
        """Note a fact about this project that later runs should know, such as how its tests are run or why something
        is as it is. Not what you did: that is recorded anyway. It is kept if your solution is chosen."""
        text = fact.strip()
        if not text:
            raise ToolFailure("the fact is empty")
        if _key(text) in self._noted:
            return ToolResult(success=True, operation=REMEMBER, content="That is noted already.")
        if len(self._noted) >= MAX_FACTS:
            raise ToolFailure(f"{MAX_FACTS} facts are noted, and more are not kept; go on with the task")
        self._noted.add(_key(text))
        left = MAX_FACTS - len(self._noted)
        return ToolResult(
            success=True, operation=REMEMBER, content=f"Noted; {left} more may be.", metadata={_NOTED: text}
        )


def noted_in(steps: Iterable[Step]) -> tuple[str, ...]:
    """The facts that a run has noted so far."""
    results = (seen.result for step in steps for seen in step.observations)
    return tuple(fact for result in results if result.operation == REMEMBER and (fact := _fact(result)))


def noted_by(body: ToolFinished) -> str:
    """The fact that a call noted, as an event tells it; empty where it noted none."""
    ours = body.entry.tool == RememberingTools.name and body.entry.operation == REMEMBER
    return _fact(body.result) if ours and body.entry.decision is Decision.ALLOWED else ""


def _fact(result: ToolResult) -> str:
    fact = result.metadata.get(_NOTED)
    return fact if result.success and isinstance(fact, str) else ""


def _key(fact: str) -> str:
    return memory_id("", "", fact)
