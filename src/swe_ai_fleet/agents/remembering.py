"""Facts that an agent wants later runs to know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.event import ToolFinished
from swe_ai_fleet.domain.memory import memory_id
from swe_ai_fleet.domain.tool import Decision, ToolResult
from swe_ai_fleet.domain.trajectory import Step
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline

REMEMBER = "remember"
MAX_FACTS = 10
MAX_FACT_CHARS = 1_000
_NOTED = "remembered"


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
    return tuple(fact for one in results if one.operation == REMEMBER and (fact := _fact(one)))


def noted_by(body: ToolFinished) -> str:
    """The fact that a call noted, as an event tells it; empty where it noted none."""
    ours = body.entry.tool == RememberingTools.name and body.entry.operation == REMEMBER
    return _fact(body.result) if ours and body.entry.decision is Decision.ALLOWED else ""


def _fact(result: ToolResult) -> str:
    fact = result.metadata.get(_NOTED)
    return fact if result.success and isinstance(fact, str) else ""


def _key(fact: str) -> str:
    return memory_id("", "", fact)
