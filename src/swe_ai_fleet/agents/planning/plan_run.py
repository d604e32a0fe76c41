"""Running an agent by a plan, step by step, or in the mode that fits the request.

The replies of `PlannedModel` are the next calls of a plan; the real model is only asked for plans and verdicts. So the
agent loop also executes plans, with its limits, approvals and log.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents.agent_run import AgentRun, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.agents.planning.planner import Operations, Planner, PlanStopped
from swe_ai_fleet.agents.planning.progress import PlanCallId, PlanProgress, RequestPurpose
from swe_ai_fleet.agents.planning.routing import THRESHOLD, assess, fast_path
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ModelError, ModelUnavailable
from swe_ai_fleet.domain.event import MessageAdded, PlanMade
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest, Sampling, ToolCall, UserMessage
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.trajectory import Plan, PlanStep, Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.tools.builtin import PROPOSE

PLAN = "plan"
"""The model's name in replies that come from the plan."""
_MET = "The goal is met."
_INSPECTIONS = ("tests_run", "git_diff")
HAND_OVER = (
    "Working by a plan did not do it: {reason}. From here on choose each next step yourself, by the results so far, "
    "and call final_answer when the task is done."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """The rules of working by plans.

    `max_replans` is how many plans may follow the first; with `proposes`, each plan goes through the approval gate, as
    a `propose_approach` call, before its first step.
    """

    max_replans: int = 2
    proposes: bool = False


class PlannedModel(ModelWrapper):
    """A `ChatModel` for one run: plan, execute, inspect the changes, ask whether the goal is met, answer.

    A `direct` plan needs no model: the result of its last step is the answer. If it fails, the model plans.
    """

    model: ChatModel

    def __init__(self, parts: RunParts, *, goal: str, rules: PlanRules, direct: Plan | None) -> None:
        operations, limits = Operations(parts.toolbox), parts.budget.limits
        self.model = parts.model
        self._parts, self._operations, self._goal, self._direct = parts, operations, goal, direct
        self._planner = Planner(parts, operations, max_calls=limits.max_iterations - parts.budget.usage.model_calls)
        self.progress = PlanProgress(operations)
        # Unanswered calls of the last step are observed when the run continues.
        self.progress.resume(parts.steps, pending=bool(parts.history.unanswered()), direct=direct)
        self._max_plans = rules.max_replans + 1 + (direct is not None)
        self._proposes = rules.proposes and PROPOSE in operations
        self._nonce = secrets.token_hex(4)
        self.stopped: PlanStopped | None = None
        """Why planning stopped, if it did."""
        self.answer = ""
        """The answer of the verification, whether or not the goal is met."""
        self.final_prompt_sent = False
        """Whether the real model got the final prompt."""

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The plan's next calls; without tools, the reply of the real model. Raises PlanStopped, ModelError."""
        if not request.tools:
            self.final_prompt_sent = True
            return await self.model.reply(request)
        try:
            return await self._next(request.sampling)
        except PlanStopped as stopped:
            self.stopped = stopped
            raise

    async def _next(self, sampling: Sampling) -> ModelReply:
        progress = self.progress
        while True:
            if progress.failure:
                raise PlanStopped(f"{progress.failure}; the plan says to give up then", stop=StopReason.TOOL_ERROR)
            reply = await self._planned(sampling)
            due = progress.due()
            if self._proposes and not progress.approved and due is not None:
                return self._calling(reply, self._proposal())
            if due is not None:
                call_id, step = due
                return self._calling(reply, self._call(call_id, step), text=step.why)
            if calls := self._verification_calls():
                return self._calling(reply, *calls)
            if reply is not None:
                self._planner.keep(reply, step=progress.turns + 1)
            if self._direct is not None and progress.plans == 1:
                return self._calling(None, self._finish(progress.content))
            answer = await self._judged(sampling)
            if answer is not None:
                return answer

    async def _planned(self, sampling: Sampling) -> ModelReply | None:
        """Make a new plan if there is no current one; the reply with it, None if the current plan continues."""
        progress, reply = self.progress, None
        reason, number = progress.reason, progress.turns + 1
        if progress.plans and not reason:
            return None
        if not progress.plans and self._direct is not None:
            plan, reason = self._direct, "a single operation: no model was asked"
        else:
            if progress.plans >= self._max_plans:
                raise PlanStopped(f"no new plan is allowed any more, and this one no longer holds: {reason}")
            plan, reply = await self._planner.plan(
                step=number, sampling=sampling, reason=reason, done=progress.report().as_text()
            )
        progress.begin(plan)
        self._parts.post(PlanMade(step=number, plan=plan, reason=reason))
        return reply

    async def _judged(self, sampling: Sampling) -> ModelReply | None:
        """The final answer if the goal is met; None if a new plan must be made for what is missing."""
        progress, number = self.progress, self.progress.turns + 1
        verdict, reply = await self._planner.verdict(
            step=number, sampling=sampling, goal=self._goal, steps=progress.report().as_text()
        )
        # If the verdict has no text, the result of the last step is the answer.
        self.answer = verdict.answer or verdict.missing or (verdict.met and (progress.content or _MET)) or ""
        progress.met, progress.missing = verdict.met, verdict.missing
        if verdict.met is not False and self.answer:
            return self._calling(reply, self._finish(self.answer))
        self._planner.keep(reply, step=number)
        progress.reason = f"the goal is not met: {verdict.missing or verdict.answer or 'nothing was found'}"
        return None

    def _verification_calls(self) -> list[ToolCall]:
        """The calls that inspect changes after a plan: the tests, if they did not run since, and the diff."""
        progress = self.progress
        if progress.looked or not progress.changed:
            return []
        names = [
            name for name in _INSPECTIONS if name in self._operations and (name != "tests_run" or progress.untested)
        ]
        ids = (PlanCallId(plan=progress.plans, purpose=RequestPurpose.VERIFY, number=number) for number in (1, 2))
        return [self._plan_call(call_id, name, {}) for call_id, name in zip(ids, names, strict=False)]

    def _proposal(self) -> ToolCall:
        progress = self.progress
        call_id = PlanCallId(plan=progress.plans, purpose=RequestPurpose.APPROVE)
        lines = [
            f"{number}. {step.tool} {step.operation} {json.dumps(step.params, ensure_ascii=False)} {step.why}".rstrip()
            for number, step in enumerate(progress.steps, start=1)
        ]
        return self._plan_call(call_id, PROPOSE, {"approach": "\n".join(lines), "reasoning": self._goal})

    def _call(self, call_id: PlanCallId, step: PlanStep) -> ToolCall:
        spec = self._operations.spec(step)
        return self._plan_call(call_id, spec.name if spec else f"{step.tool}_{step.operation}", step.params)

    def _finish(self, answer: str) -> ToolCall:
        call_id = PlanCallId(plan=self.progress.plans, purpose=RequestPurpose.FINISH)
        return self._plan_call(call_id, FINAL_ANSWER.name, {"result": answer})

    def _calling(self, reply: ModelReply | None, *calls: ToolCall, text: str = "") -> ModelReply:
        """The calls, in the reply with the plan or the verdict, if there is one."""
        message = AssistantMessage(content=reply.message.content if reply else text, tool_calls=calls)
        return ModelReply(
            message=message,
            finish_reason="tool_calls",
            usage=reply.usage if reply else Usage(),
            model=reply.model if reply else PLAN,
            repairs=reply.repairs if reply else (),
        )

    def _plan_call(self, call_id: PlanCallId, name: str, arguments: Mapping[str, object]) -> ToolCall:
        unique = str(replace(call_id, nonce=self._nonce))
        text = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(call_id=unique, model_call_id=unique, name=name, arguments=text)


async def by_plan(parts: RunParts, *, goal: str, rules: PlanRules, direct: Plan | None) -> Trajectory:
    """Execute plans to the end; the trajectory's `plan` has the status of each step.

    The history is that of any run: the plan is the text beside its first call, each step a call and its result. An
    iteration is a reply of the model, not a step of the plan; the rules on consecutive errors and loops do not apply.
    Reached limits, model faults and failed plans are stop reasons; a cancellation and bugs are raised.
    """
    budget, planned = parts.budget, PlannedModel(parts, goal=goal, rules=rules, direct=direct)
    plan_parts = replace(
        parts,
        model=planned,
        rules=replace(parts.rules, max_tool_errors=0, max_malformed_replies=0),
        guard=None,
        last_look=None,
        on_step=planned.progress.observe,
    )
    with iterations(budget, len(parts.steps) + budget.limits.max_tool_calls + 1):
        trajectory = await AgentRun(plan_parts).drive()
    stopped, report = planned.stopped, planned.progress.report()
    if stopped is not None and trajectory.stop_reason is StopReason.MODEL_ERROR:
        trajectory = replace(trajectory, stop_reason=stopped.stop, error=stopped.message)
    if trajectory.stop_reason is not StopReason.FINAL_ANSWER and not planned.final_prompt_sent:
        trajectory = replace(trajectory, answer=planned.answer or report.as_text())
    return replace(trajectory, plan=report)


@contextmanager
def iterations(budget: Budget, most: int) -> Generator[None]:
    """Raise the limit on turns meanwhile: turns of a plan are not turns of the model."""
    limits = budget.limits
    budget.limits = replace(limits, max_iterations=most)
    try:
        yield
    finally:
        budget.limits = limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRules:
    """How the mode of a run is chosen, and the rules of plans.

    `threshold` is the complexity from which a hybrid run works step by step; with `outline`, a step by step run first
    writes down its approach in a few lines.
    """

    threshold: float = THRESHOLD
    outline: bool = False
    plans: PlanRules = field(default_factory=PlanRules)


async def _step_by_step(parts: RunParts, rules: ModeRules) -> Trajectory:
    if rules.outline and not parts.steps:
        # A fault here will occur again in the run itself, which ends with its reason.
        with suppress(ModelError, TimeoutError):
            async with parts.budget.time_limit():
                await Planner(parts, Operations(parts.toolbox)).outline()
    return await AgentRun(parts).drive()


async def _handed_over(parts: RunParts, planned: Trajectory, rules: ModeRules) -> Trajectory:
    """Continue the conversation of a failed plan step by step."""
    message, budget = UserMessage(content=HAND_OVER.format(reason=planned.error)), parts.budget
    parts.history.add(message)
    parts.post(MessageAdded(step=len(planned.steps), message=message))
    # Steps of the plan were not turns of the model; it has those left that planning did not use.
    turns_left = max(0, budget.limits.max_iterations - budget.usage.model_calls)
    with iterations(budget, len(planned.steps) + turns_left):
        trajectory = await _step_by_step(replace(parts, steps=planned.steps), rules)
    return replace(trajectory, plan=planned.plan)


async def drive(
    mode: PlanningMode, parts: RunParts, *, task_text: str, mode_rules: ModeRules | None = None
) -> Trajectory:
    """Run an agent in a mode to its end, from its first message or from where an earlier process left it.

    `simple` works by plans, `agentic` step by step; `hybrid` chooses by the complexity of `task_text`, the request in
    the caller's words, and continues a failed plan step by step. `simple` and `hybrid` answer requests for a single
    operation without a model, `agentic` only if the model is unavailable at its first call. A resumed run stays in its
    mode.
    """
    model, rules, earlier = _AvailabilityModel(parts.model), mode_rules or ModeRules(), _worked_by_plan(parts.steps)
    parts, operations = replace(parts, model=model), Operations(parts.toolbox)
    if earlier is False or (earlier is None and mode is PlanningMode.AGENTIC):
        trajectory = await _step_by_step(parts, rules)
        direct = fast_path(task_text, operations) if model.unavailable and not trajectory.steps else None
        if direct is None:
            return trajectory
    else:
        direct, hybrid = fast_path(task_text, operations), mode is PlanningMode.HYBRID
        if earlier is None and hybrid and direct is None and assess(task_text) >= rules.threshold:
            return await _step_by_step(parts, rules)
    trajectory = await by_plan(parts, goal=task_text, rules=rules.plans, direct=direct)
    if mode is PlanningMode.HYBRID and trajectory.stop_reason is StopReason.PLAN_FAILED:
        return await _handed_over(parts, trajectory, rules)
    return trajectory


def _worked_by_plan(steps: Sequence[Step]) -> bool | None:
    """Whether the last call of a resumed run was a plan's; None without any calls."""
    for step in reversed(steps):
        if step.reply.tool_calls:
            return PlanCallId.read(step.reply.tool_calls[0].call_id) is not None
    return None


class _AvailabilityModel(ModelWrapper):
    """Remembers whether the model was unavailable."""

    model: ChatModel

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.unavailable = False

    async def reply(self, request: ModelRequest) -> ModelReply:
        try:
            return await self.model.reply(request)
        except ModelUnavailable:
            self.unavailable = True
            raise
