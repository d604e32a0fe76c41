"""A run by a plan: made whole, checked whole, carried out step by step in the one loop, verified at the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import AgentRun
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.planning.operations import Operations
from swe_ai_fleet.agents.planning.planned_model import PlannedModel
from swe_ai_fleet.agents.planning.planner import Planner
from swe_ai_fleet.agents.planning.progress import Progress
from swe_ai_fleet.agents.run_parts import RunParts
from swe_ai_fleet.domain.plan import Plan
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory


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
            on_step=self._observe,
        )
        with iterations(budget, len(parts.steps) + budget.limits.max_tool_calls + 1):
            trajectory = await AgentRun(carried_out).drive()
        stopped, report = self._planned.stopped, self._progress.report()
        if stopped is not None and trajectory.stop_reason is StopReason.MODEL_ERROR:
            trajectory = replace(trajectory, stop_reason=stopped.stop, error=stopped.message)
        if trajectory.stop_reason is not StopReason.FINAL_ANSWER and not self._planned.last_words:
            trajectory = replace(trajectory, answer=self._planned.answer or report.told())
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
