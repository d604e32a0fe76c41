"""A sub-agent that looks around before it answers: the one loop over a few operations that only read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from swe_ai_fleet.agents.agent_run import AgentRun
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.conduct import Rules
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.run_parts import RunParts
from swe_ai_fleet.agents.sub_agents.shapes import Shape, read, schema_of
from swe_ai_fleet.agents.sub_agents.structured import reply_in_shape
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, Toolbox, final_answer_in
from swe_ai_fleet.domain.message import Message, UserMessage
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

S = TypeVar("S", bound=Shape)
MAX_LAST_WORDS_SECONDS = 20.0
_CONCLUDE = "Put what you found into the JSON object that was asked for: answer with it and nothing else. Add nothing."
SPENT = frozenset({StopReason.MAX_TOKENS, StopReason.MAX_COST, StopReason.TIMEOUT, StopReason.MODEL_ERROR})
"""After these there is nothing left for another reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored(Generic[S]):
    """What such a sub-agent did and said. Without a `conclusion` its last words have no usable form."""

    trajectory: Trajectory
    conclusion: S | None

    @property
    def answer(self) -> str:
        return self.trajectory.answer.strip()


def offered(toolkits: Mapping[str, Toolkit], pipeline: Pipeline, names: Collection[str]) -> tuple[str, ...]:
    """Those of the named operations that are there, only read, and that the run's policy allows."""
    specs = (definition.spec for kit in toolkits.values() for definition in kit.definitions.values())
    found = {spec.name for spec in specs if spec.read_only and not spec.executes and pipeline.policy.offers(spec)}
    return tuple(name for name in names if name in found)


async def explore(
    model: ChatModel,
    opening: Sequence[Message],
    shape: type[S],
    *,
    toolkits: Mapping[str, Toolkit],
    pipeline: Pipeline,
    names: Collection[str],
    budget: Budget,
) -> Explored[S]:
    """Let a sub-agent look around and conclude.

    What it can call is exactly `names`: another call is refused and audited as any other. A reply without a call ends
    it, as `final_answer` does. A limit ends it with what it has; so does a fault of the model, unless it has nothing.

    Raises:
        ToolFailure: The model failed before anything was looked at.
        ValueError: There are no names; a policy that names nothing would allow everything.
    """
    if not names:
        raise ValueError("a sub-agent that looks around needs something to look with")
    narrow = pipeline.under(replace(pipeline.policy, allowed=frozenset(names)))
    history = History(opening)
    seconds = min(MAX_LAST_WORDS_SECONDS, budget.limits.timeout_seconds / 4)
    parts = RunParts(
        model=model,
        toolbox=Toolbox(toolkits, narrow, answer=final_answer_in(schema_of(shape))),
        history=history,
        budget=budget,
        rules=Rules(max_reminders=0, max_tool_errors=6, answer_at_limit=True, last_words_seconds=seconds),
    )
    trajectory = await AgentRun(parts).drive()
    if trajectory.stop_reason is StopReason.MODEL_ERROR and not trajectory.steps:
        raise ToolFailure(f"the model of the sub-agent gave no answer: {trajectory.error}")
    try:
        return Explored(trajectory=trajectory, conclusion=read(shape, *said_in(trajectory)))
    except ValueError:
        if trajectory.stop_reason in SPENT or not (trajectory.answer or trajectory.steps):
            return Explored(trajectory=trajectory, conclusion=None)
    try:
        messages = [*history.messages, UserMessage(content=f"{trajectory.answer}\n\n{_CONCLUDE}".strip())]
        conclusion = await reply_in_shape(model, messages, shape, budget=budget)
    except ToolFailure:
        conclusion = None
    return Explored(trajectory=trajectory, conclusion=conclusion)


def said_in(trajectory: Trajectory) -> list[object]:
    """Where a conclusion may stand: the arguments of the last reply's final answer, and the answer itself."""
    last = trajectory.steps[-1].reply.tool_calls if trajectory.steps else ()
    return [*(call.arguments for call in last if call.name == FINAL_ANSWER.name), trajectory.answer]
