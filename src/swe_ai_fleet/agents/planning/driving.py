"""The one way into a run: by plan, step by step, or whichever of the two the request calls for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.agent_run import AgentRun
from swe_ai_fleet.agents.approval_gate import ApprovalGate
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.conduct import Rules
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.model_face import ModelFace
from swe_ai_fleet.agents.planning.call_ids import PlanCallId
from swe_ai_fleet.agents.planning.complexity import THRESHOLD, assess
from swe_ai_fleet.agents.planning.fast_path import fast_path
from swe_ai_fleet.agents.planning.operations import Operations
from swe_ai_fleet.agents.planning.plan_run import PlanRules, PlanRun, iterations
from swe_ai_fleet.agents.planning.planner import Planner
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.errors import ModelError, ModelUnavailable
from swe_ai_fleet.domain.event import MessageAdded
from swe_ai_fleet.domain.message import ModelReply, ModelRequest, Sampling, UserMessage
from swe_ai_fleet.domain.plan import Plan
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Journal

HAND_OVER = (
    "Working by a plan did not do it: {reason}. From here on choose each next step yourself, by the results so far, "
    "and call final_answer when the task is done."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """How it is chosen between the modes, and what plans may cost.

    `threshold` is the complexity from which on a hybrid run goes step by step; with `fast_path`, requests for a single
    operation are answered without a model; with `outline`, a run that goes step by step writes down in a few lines how
    it means to go about the task first.
    """

    threshold: float = THRESHOLD
    fast_path: bool = True
    outline: bool = False
    plans: PlanRules = field(default_factory=PlanRules)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What every kind of run is made of."""

    model: ChatModel
    toolbox: Toolbox
    history: History
    budget: Budget
    task_text: str
    rules: Rules
    mode_rules: ModeRules
    journal: Journal | None
    guard: LoopGuard | None
    gate: ApprovalGate | None
    sampling: Sampling | None
    on_delta: Callable[[str], None] | None
    on_step: Callable[[Step], None] | None

    async def by_plan(self, steps: Sequence[Step], direct: Plan | None = None) -> Trajectory:
        run = PlanRun(
            model=self.model,
            toolbox=self.toolbox,
            history=self.history,
            budget=self.budget,
            goal=self.task_text,
            rules=self.rules,
            plan_rules=self.mode_rules.plans,
            journal=self.journal,
            gate=self.gate,
            sampling=self.sampling,
            steps=steps,
            direct=direct,
            on_delta=self.on_delta,
            on_step=self.on_step,
        )
        return await run.drive()

    async def step_by_step(self, steps: Sequence[Step]) -> Trajectory:
        if self.mode_rules.outline and not steps:
            await self._outline()
        run = AgentRun(
            model=self.model,
            toolbox=self.toolbox,
            history=self.history,
            budget=self.budget,
            rules=self.rules,
            journal=self.journal,
            guard=self.guard,
            gate=self.gate,
            sampling=self.sampling,
            steps=steps,
            on_delta=self.on_delta,
            on_step=self.on_step,
        )
        return await run.drive()

    async def _outline(self) -> None:
        planner = Planner(
            model=self.model,
            operations=Operations(self.toolbox),
            history=self.history,
            budget=self.budget,
            journal=self.journal,
        )
        # Whatever goes wrong here goes wrong once more in the run itself, which ends with the reason.
        with suppress(ModelError, TimeoutError):
            async with asyncio.timeout(self.budget.seconds_left):
                await planner.outline(sampling=self.sampling or Sampling(), on_delta=self.on_delta)

    def direct(self) -> Plan | None:
        return fast_path(self.task_text, Operations(self.toolbox)) if self.mode_rules.fast_path else None

    async def by_plan_then_step_by_step(self, steps: Sequence[Step], direct: Plan | None) -> Trajectory:
        """By a plan; where none can be had or none does it, the same conversation goes on step by step."""
        planned = await self.by_plan(steps, direct)
        if planned.stop_reason is not StopReason.PLAN_FAILED:
            return planned
        message = UserMessage(content=HAND_OVER.format(reason=planned.error))
        self.history.add(message)
        if self.journal is not None:
            self.journal.post(MessageAdded(step=len(planned.steps), message=message))
        # The plan's steps were no turns of the model's: it has as many as it did not use for planning.
        left = max(0, self.budget.limits.max_iterations - self.budget.usage.model_calls)
        with iterations(self.budget, len(planned.steps) + left):
            trajectory = await self.step_by_step(planned.steps)
        return replace(trajectory, plan=planned.plan)


async def drive(
    mode: PlanningMode,
    *,
    model: ChatModel,
    toolbox: Toolbox,
    history: History,
    budget: Budget,
    task_text: str,
    rules: Rules | None = None,
    mode_rules: ModeRules | None = None,
    journal: Journal | None = None,
    guard: LoopGuard | None = None,
    gate: ApprovalGate | None = None,
    sampling: Sampling | None = None,
    steps: Sequence[Step] = (),
    on_delta: Callable[[str], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Trajectory:
    """Run an agent in a mode to its end, from its first message or from where an earlier process left it.

    `simple` carries out one plan, `agentic` chooses each next step, `hybrid` goes by the request's complexity and hands
    a plan that fails over to the step by step way. `simple` and `hybrid` answer requests for a single operation without
    a model; `agentic` does where no model answers its first call.

    Args:
        mode: Of the three; a run that goes on stays in the one it was in.
        model: The model that plans.
        toolbox: What it can call.
        history: The conversation; the task stands in it.
        budget: What the run may spend.
        task_text: The request in the caller's own words, by which complexity and fast path are judged.
        rules: What ends the run beside its budget.
        mode_rules: How modes are chosen and what plans may cost.
        journal: Where each reply and each plan is recorded.
        guard: Notices loops, step by step; a plan has its own bounds.
        gate: Decides which calls wait for a person.
        sampling: How the model samples.
        steps: What an earlier part of the same run did.
        on_delta: Hears the model's text as it comes in.
        on_step: Hears each step once its calls are answered.

    Returns: the trajectory, with a report of its plans where it had some.
    """
    heard = _Heard(model)
    run = _Run(
        model=heard,
        toolbox=toolbox,
        history=history,
        budget=budget,
        task_text=task_text,
        rules=rules or Rules(),
        mode_rules=mode_rules or ModeRules(),
        journal=journal,
        guard=guard,
        gate=gate,
        sampling=sampling,
        on_delta=on_delta,
        on_step=on_step,
    )
    planned = _went_by_plan(steps)
    if planned is not None:
        hybrid = mode is PlanningMode.HYBRID
        if not planned:
            return await run.step_by_step(steps)
        direct = run.direct()
        return await (run.by_plan_then_step_by_step(steps, direct) if hybrid else run.by_plan(steps, direct))
    if mode is PlanningMode.AGENTIC:
        trajectory = await run.step_by_step(steps)
        if heard.unavailable and not trajectory.steps and (direct := run.direct()) is not None:
            return await run.by_plan(steps, direct)
        return trajectory
    direct = run.direct()
    if mode is PlanningMode.SIMPLE:
        return await run.by_plan(steps, direct)
    if direct is None and assess(task_text).score >= run.mode_rules.threshold:
        return await run.step_by_step(steps)
    return await run.by_plan_then_step_by_step(steps, direct)


def _went_by_plan(steps: Sequence[Step]) -> bool | None:
    """Whether the last call of a run that goes on was a plan's; None where it called nothing yet."""
    for step in reversed(steps):
        if step.reply.tool_calls:
            return PlanCallId.read(step.reply.tool_calls[0].call_id) is not None
    return None


class _Heard(ModelFace):
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
