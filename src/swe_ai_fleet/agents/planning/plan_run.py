"""A run by a plan: made whole, checked whole, carried out step by step in the one loop, verified at the end.

The planned model's replies are the plan's next calls, and the real model is asked only for plans. So a plan is carried
out by the same loop as everything else, with its limits, approvals, history and log.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import AgentRun, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.agents.planning.planner import Operations, Planner, PlanStopped
from swe_ai_fleet.agents.planning.progress import PlanCallId, Progress, Purpose
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import PlanMade
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ModelRequest, Sampling, ToolCall
from swe_ai_fleet.domain.trajectory import Plan, PlanStep, Step, StopReason, Trajectory
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE

PLAN = "plan"
"""Stands as the model's name in replies that the plan gave."""
_MET = "The goal is met."
_LOOKS = ("tests_run", "git_diff")


class PlannedModel(ModelWrapper):
    """A `ChatModel` for one run: plan, carry out, look at what changed, ask whether the goal is met, answer.

    Args:
        parts: What the run is made of; its model makes the plans and judges at the end.
        planner: How it is asked for them.
        progress: How far they are.
        operations: What they are made of.
        goal: The task, for the verification.
        direct: A plan that needs no model: what its last step gives is the answer. Where it fails, the model plans.
        max_replans: How many plans may follow the first.
        proposes: Each plan is put before the approval gate as a `propose_approach` call first.
    """

    def __init__(
        self,
        parts: RunParts,
        *,
        planner: Planner,
        progress: Progress,
        operations: Operations,
        goal: str,
        direct: Plan | None,
        max_replans: int,
        proposes: bool,
    ) -> None:
        self.model = parts.model
        self._parts = parts
        self._planner = planner
        self._progress = progress
        self._operations = operations
        self._goal = goal
        self._direct = direct
        self._max_plans = max_replans + 1 + (direct is not None)
        self._proposes = proposes and PROPOSE in operations
        self._nonce = secrets.token_hex(4)
        self.stopped: PlanStopped | None = None
        """Why it spoke no more, once it does not."""
        self.answer = ""
        """What the verification made of the results, the goal met or not."""
        self.final_prompt_sent = False
        """Whether the real model got the final prompt."""

    async def reply(self, request: ModelRequest) -> ModelReply:
        """The plan's next calls; without tools, whatever the real model says. Raises PlanStopped, ModelError."""
        if not request.tools:
            self.final_prompt_sent = True
            return await self.model.reply(request)
        try:
            return await self._next(request.sampling)
        except PlanStopped as stopped:
            self.stopped = stopped
            raise

    async def _next(self, sampling: Sampling) -> ModelReply:
        progress = self._progress
        while True:
            if progress.failure:
                raise PlanStopped(f"{progress.failure}; the plan says to give up then", stop=StopReason.TOOL_ERROR)
            reply = await self._planned(sampling)
            if self._proposes and not progress.approved and progress.due() is not None:
                return self._saying(reply, self._proposal())
            if (due := progress.due()) is not None:
                call_id, step = due
                return self._saying(reply, self._call(call_id, step), text=step.why)
            if looks := self._verification_calls():
                return self._saying(reply, *looks)
            if reply is not None:
                self._planner.keep(reply, step=progress.turns + 1)
            if self._direct is not None and progress.plans == 1:
                return self._saying(None, self._finish(progress.content))
            answer = await self._judged(sampling)
            if answer is not None:
                return answer

    async def _planned(self, sampling: Sampling) -> ModelReply | None:
        """Have a plan that holds; the reply that a new one stands in, None where the plan at hand is gone on with."""
        progress, reply = self._progress, None
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
        """The final answer where the goal is met; None where a new plan is to be made for what it lacks."""
        progress, number = self._progress, self._progress.turns + 1
        verdict, reply = await self._planner.verdict(
            step=number, sampling=sampling, goal=self._goal, steps=progress.report().as_text()
        )
        # A goal that is met needs no words: what the last step gave is the answer.
        self.answer = verdict.answer or verdict.missing or (verdict.met and (progress.content or _MET)) or ""
        progress.met, progress.missing = verdict.met, verdict.missing
        if verdict.met is not False and self.answer:
            return self._saying(reply, self._finish(self.answer))
        self._planner.keep(reply, step=number)
        progress.reason = f"the goal is not met: {verdict.missing or verdict.answer or 'nothing was found'}"
        return None

    def _verification_calls(self) -> list[ToolCall]:
        """After changes that nobody looked at: the tests, where they did not run since, and the diff."""
        progress = self._progress
        if progress.looked or not progress.changed:
            return []
        names = [name for name in _LOOKS if name in self._operations and (name != _LOOKS[0] or progress.untested)]
        ids = (PlanCallId(plan=progress.plans, purpose=Purpose.VERIFY, number=number) for number in (1, 2))
        return [self._plan_call(call_id, name, {}) for call_id, name in zip(ids, names, strict=False)]

    def _proposal(self) -> ToolCall:
        progress = self._progress
        call_id = PlanCallId(plan=progress.plans, purpose=Purpose.APPROVE)
        lines = [
            f"{number}. {step.tool} {step.operation} {json.dumps(step.params, ensure_ascii=False)} {step.why}".rstrip()
            for number, step in enumerate(progress.steps, start=1)
        ]
        return self._plan_call(call_id, PROPOSE, {"approach": "\n".join(lines), "reasoning": self._goal})

    def _call(self, call_id: PlanCallId, step: PlanStep) -> ToolCall:
        spec = self._operations.spec(step)
        return self._plan_call(call_id, spec.name if spec else f"{step.tool}_{step.operation}", step.params)

    def _finish(self, answer: str) -> ToolCall:
        call_id = PlanCallId(plan=self._progress.plans, purpose=Purpose.FINISH)
        return self._plan_call(call_id, FINAL_ANSWER.name, {"result": answer})

    def _saying(self, reply: ModelReply | None, *calls: ToolCall, text: str = "") -> ModelReply:
        """The calls, in the reply that the plan or the verdict stands in where there is one."""
        message = AssistantMessage(content=reply.message.content if reply else text, tool_calls=calls)
        return ModelReply(
            message=message,
            finish_reason="tool_calls",
            usage=reply.usage if reply else Usage(),
            model=reply.model if reply else PLAN,
            repairs=reply.repairs if reply else (),
        )

    def _plan_call(self, call_id: PlanCallId, name: str, arguments: Mapping[str, object]) -> ToolCall:
        own = str(replace(call_id, nonce=self._nonce))
        text = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(call_id=own, model_call_id=own, name=name, arguments=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """What a plan may cost in second thoughts.

    `max_replans` is how many plans may follow the first, `retries` how often a step that says so is tried again;
    `proposes` puts each plan before the approval gate, as a `propose_approach` call, before its first step.
    """

    max_replans: int = 2
    retries: int = 2
    proposes: bool = False


class PlanRun:
    """One agent that carries out plans, from its first message to its stop reason; or from where it was left.

    The history is that of any run: the plan is the text beside its first call, each step a call and its observation.

    Args:
        parts: What the run is made of. An iteration is a reply of the model, not a step of the plan; errors in a row
            and loops are the plan's business.
        goal: The task in words, for the verification.
        plan_rules: How often plans and steps may be tried anew.
        direct: A plan that no model needs to make or verify.
    """

    def __init__(
        self, parts: RunParts, *, goal: str, plan_rules: PlanRules | None = None, direct: Plan | None = None
    ) -> None:
        rules, operations, budget = plan_rules or PlanRules(), Operations(parts.toolbox), parts.budget
        self._parts = parts
        self._progress = Progress(operations, retries=rules.retries)
        # The last step's calls are answered, and heard of, only once the run goes on.
        self._progress.resume(parts.steps, pending=bool(parts.history.unanswered()), direct=direct)
        planner = Planner(parts, operations, max_calls=budget.limits.max_iterations - budget.usage.model_calls)
        self._planned = PlannedModel(
            parts,
            planner=planner,
            progress=self._progress,
            operations=operations,
            goal=goal,
            direct=direct,
            max_replans=rules.max_replans,
            proposes=rules.proposes,
        )

    async def drive(self) -> Trajectory:
        """Run to the end; what became of each step stands in the trajectory's `plan`, reached or not.

        Spent limits, model faults and plans that fail are stop reasons; a cancellation and bugs are raised.
        """
        parts, budget = self._parts, self._parts.budget
        carried_out = replace(
            parts,
            model=self._planned,
            rules=replace(parts.rules, max_tool_errors=0, max_malformed_replies=0),
            guard=None,
            last_look=None,
            on_step=self._observe,
        )
        with iterations(budget, len(parts.steps) + budget.limits.max_tool_calls + 1):
            trajectory = await AgentRun(carried_out).drive()
        stopped, report = self._planned.stopped, self._progress.report()
        if stopped is not None and trajectory.stop_reason is StopReason.MODEL_ERROR:
            trajectory = replace(trajectory, stop_reason=stopped.stop, error=stopped.message)
        if trajectory.stop_reason is not StopReason.FINAL_ANSWER and not self._planned.final_prompt_sent:
            trajectory = replace(trajectory, answer=self._planned.answer or report.as_text())
        return replace(trajectory, plan=report)

    def _observe(self, step: Step) -> None:
        self._progress.observe(step)
        if self._parts.on_step is not None:
            self._parts.on_step(step)


@contextmanager
def iterations(budget: Budget, most: int) -> Generator[None]:
    """Let a run have so many turns for a while: not all turns are the model's, and others counted before."""
    limits = budget.limits
    budget.limits = replace(limits, max_iterations=most)
    try:
        yield
    finally:
        budget.limits = limits
