"""A run by a plan: made whole, checked whole, carried out step by step in the one loop, verified at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import AgentRun
from swe_ai_fleet.agents.approval_gate import ApprovalGate
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.conduct import Rules
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning.operations import Operations
from swe_ai_fleet.agents.planning.planned_model import PlannedModel
from swe_ai_fleet.agents.planning.planner import Planner
from swe_ai_fleet.agents.planning.progress import Progress
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.domain.plan import Plan
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """What a plan may cost in second thoughts.

    `max_corrections` is how often a plan with mistakes goes back to the model, `max_replans` how many plans may follow
    the first, `retries` how often a step that says so is tried again; `proposes` puts each plan before the approval
    gate, as a `propose_approach` call, before its first step.
    """

    max_corrections: int = 2
    max_replans: int = 2
    retries: int = 2
    proposes: bool = False


class PlanRun:
    """One agent that carries out plans, from its first message to its stop reason; or from where it was left.

    The history is that of any run: the plan is the text beside its first call, each step a call and its observation.

    Args:
        model: The model that plans and judges.
        toolbox: What plans are made of, and what carries them out.
        history: The conversation; the task stands in it.
        budget: What the run may spend; an iteration is a reply of the model, not a step of the plan.
        goal: The task in words, for the verification.
        rules: What ends the run beside plan and budget; errors in a row are the plan's business here.
        plan_rules: How often plans and steps may be tried anew.
        journal: Where each reply and each plan is recorded.
        gate: Decides which calls wait for a person.
        sampling: How the model samples.
        steps: What an earlier part of the same run did.
        direct: A plan that no model needs to make or verify.
        on_delta: Hears the model's text as it comes in.
        on_step: Hears each step once its calls are answered.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        toolbox: Toolbox,
        history: History,
        budget: Budget,
        goal: str,
        rules: Rules | None = None,
        plan_rules: PlanRules | None = None,
        journal: Journal | None = None,
        gate: ApprovalGate | None = None,
        sampling: Sampling | None = None,
        steps: Sequence[Step] = (),
        direct: Plan | None = None,
        on_delta: Callable[[str], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        plans = plan_rules or PlanRules()
        operations = Operations(toolbox)
        self._budget = budget
        self._steps = steps
        self._on_step = on_step
        self._progress = Progress(operations, retries=plans.retries)
        # The last step's calls are answered, and heard of, only once the run goes on.
        self._progress.resume(steps, pending=bool(history.unanswered()), direct=direct)
        planner = Planner(
            model=model,
            operations=operations,
            history=history,
            budget=budget,
            journal=journal,
            max_calls=budget.limits.max_iterations - budget.usage.model_calls,
            max_corrections=plans.max_corrections,
        )
        self._planned = PlannedModel(
            model=model,
            planner=planner,
            progress=self._progress,
            operations=operations,
            goal=goal,
            journal=journal,
            direct=direct,
            max_replans=plans.max_replans,
            proposes=plans.proposes,
        )
        self._run = AgentRun(
            model=self._planned,
            toolbox=toolbox,
            history=history,
            budget=budget,
            rules=replace(rules or Rules(), max_tool_errors=0, max_malformed_replies=0),
            journal=journal,
            gate=gate,
            sampling=sampling,
            steps=steps,
            on_delta=on_delta,
            on_step=self._observe,
        )

    async def drive(self) -> Trajectory:
        """Run to the end; what became of each step stands in the trajectory's `plan`, reached or not.

        Spent limits, model faults and plans that fail are stop reasons; a cancellation and bugs are raised.
        """
        with iterations(self._budget, len(self._steps) + self._budget.limits.max_tool_calls + 1):
            trajectory = await self._run.drive()
        stopped, report = self._planned.stopped, self._progress.report()
        if stopped is not None and trajectory.stop_reason is StopReason.MODEL_ERROR:
            trajectory = replace(trajectory, stop_reason=stopped.stop, error=stopped.message)
        if trajectory.stop_reason is not StopReason.FINAL_ANSWER and not self._planned.last_words:
            trajectory = replace(trajectory, answer=self._planned.answer or report.told())
        return replace(trajectory, plan=report)

    def _observe(self, step: Step) -> None:
        self._progress.observe(step)
        if self._on_step is not None:
            self._on_step(step)


@contextmanager
def iterations(budget: Budget, most: int) -> Generator[None]:
    """Let a run have so many turns for a while: not all turns are the model's, and others counted before."""
    limits = budget.limits
    budget.limits = replace(limits, max_iterations=most)
    try:
        yield
    finally:
        budget.limits = limits
