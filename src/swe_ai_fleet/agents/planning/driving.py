"""The one way into a run: by plan, step by step, or whichever of the two the request calls for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.agent_run import AgentRun, RunParts
from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.agents.planning.plan_run import PlanRules, PlanRun, iterations
from swe_ai_fleet.agents.planning.planner import Operations, Planner
from swe_ai_fleet.agents.planning.progress import PlanCallId
from swe_ai_fleet.agents.planning.routing import THRESHOLD, assess, fast_path
from swe_ai_fleet.domain.errors import ModelError, ModelUnavailable
from swe_ai_fleet.domain.event import MessageAdded
from swe_ai_fleet.domain.message import ModelReply, ModelRequest, UserMessage
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.trajectory import Plan, Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel

HAND_OVER = (
    "Working by a plan did not do it: {reason}. From here on choose each next step yourself, by the results so far, "
    "and call final_answer when the task is done."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """How it is chosen between the modes, and what plans may cost.

    `threshold` is the complexity from which on a hybrid run goes step by step; with `outline`, a run that goes step by
    step writes down in a few lines how it means to go about the task first.
    """

    threshold: float = THRESHOLD
    outline: bool = False
    plans: PlanRules = field(default_factory=PlanRules)


@dataclass(frozen=True, kw_only=True)
class _Ways:
    """The ways that one run can go."""

    parts: RunParts
    task_text: str
    rules: ModeRules

    async def by_plan(self, direct: Plan | None) -> Trajectory:
        return await PlanRun(self.parts, goal=self.task_text, plan_rules=self.rules.plans, direct=direct).drive()

    async def step_by_step(self) -> Trajectory:
        if self.rules.outline and not self.parts.steps:
            await self._outline()
        return await AgentRun(self.parts).drive()

    async def _outline(self) -> None:
        planner = Planner(self.parts, Operations(self.parts.toolbox))
        # Whatever goes wrong here goes wrong once more in the run itself, which ends with the reason.
        with suppress(ModelError, TimeoutError):
            async with self.parts.budget.time_limit():
                await planner.outline()

    def direct(self) -> Plan | None:
        return fast_path(self.task_text, Operations(self.parts.toolbox))

    async def by_plan_then_step_by_step(self, direct: Plan | None) -> Trajectory:
        """By a plan; where none can be had or none does it, the same conversation goes on step by step."""
        planned = await self.by_plan(direct)
        if planned.stop_reason is not StopReason.PLAN_FAILED:
            return planned
        message, budget = UserMessage(content=HAND_OVER.format(reason=planned.error)), self.parts.budget
        self.parts.history.add(message)
        self.parts.post(MessageAdded(step=len(planned.steps), message=message))
        # The plan's steps were no turns of the model's: it has as many as it did not use for planning.
        left = max(0, budget.limits.max_iterations - budget.usage.model_calls)
        with iterations(budget, len(planned.steps) + left):
            trajectory = await replace(self, parts=replace(self.parts, steps=planned.steps)).step_by_step()
        return replace(trajectory, plan=planned.plan)


async def drive(
    mode: PlanningMode, parts: RunParts, *, task_text: str, mode_rules: ModeRules | None = None
) -> Trajectory:
    """Run an agent in a mode to its end, from its first message or from where an earlier process left it.

    `simple` carries out one plan, `agentic` chooses each next step, `hybrid` goes by the request's complexity and hands
    a plan that fails over to the step by step way. `simple` and `hybrid` answer requests for a single operation without
    a model; `agentic` does where no model answers its first call.

    Args:
        mode: Of the three; a run that goes on stays in the one it was in.
        parts: What the run is made of.
        task_text: The request in the caller's own words, by which complexity and fast path are judged.
        mode_rules: How modes are chosen and what plans may cost.

    Returns: the trajectory, with a report of its plans where it had some.
    """
    heard = _Heard(parts.model)
    ways = _Ways(parts=replace(parts, model=heard), task_text=task_text, rules=mode_rules or ModeRules())
    planned = _went_by_plan(parts.steps)
    if planned is not None:
        if not planned:
            return await ways.step_by_step()
        direct = ways.direct()
        hybrid = mode is PlanningMode.HYBRID
        return await (ways.by_plan_then_step_by_step(direct) if hybrid else ways.by_plan(direct))
    if mode is PlanningMode.AGENTIC:
        trajectory = await ways.step_by_step()
        if heard.unavailable and not trajectory.steps and (direct := ways.direct()) is not None:
            return await ways.by_plan(direct)
        return trajectory
    direct = ways.direct()
    if mode is PlanningMode.SIMPLE:
        return await ways.by_plan(direct)
    if direct is None and assess(task_text).score >= ways.rules.threshold:
        return await ways.step_by_step()
    return await ways.by_plan_then_step_by_step(direct)


def _went_by_plan(steps: Sequence[Step]) -> bool | None:
    """Whether the last call of a run that goes on was a plan's; None where it called nothing yet."""
    for step in reversed(steps):
        if step.reply.tool_calls:
            return PlanCallId.read(step.reply.tool_calls[0].call_id) is not None
    return None


class _Heard(ModelWrapper):
    """A model of which is known whether it could be reached."""

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.unavailable = False

    async def reply(self, request: ModelRequest) -> ModelReply:
        try:
            return await self.model.reply(request)
        except ModelUnavailable:
            self.unavailable = True
            raise
