"""One task solved in one clone: the prompt, the tools, the gate, the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import Rules, RunParts
from swe_ai_fleet.agents.approval_gate import Approver, CallPreview, PolicyGate
from swe_ai_fleet.agents.approval_requests import ProposingModel, RunApprovalService
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.history import History, summariser
from swe_ai_fleet.agents.loop_guard import LoopGuard
from swe_ai_fleet.agents.model_middleware import CheckpointingModel, CheckpointPolicy
from swe_ai_fleet.agents.opening import BaselineNews, SecondGo, opening_messages
from swe_ai_fleet.agents.planning import PlanRules, drive
from swe_ai_fleet.agents.repository_facts import MAP_TOKENS
from swe_ai_fleet.agents.results import last_tests
from swe_ai_fleet.agents.run_memory import REMEMBER, RememberingTools, asked_about, noted_in, searches_in
from swe_ai_fleet.agents.sub_agents import MemoryResults, SubAgentTools, idle_sub_agents, sub_agents_used
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import Artifacts, Diff, Perspective
from swe_ai_fleet.domain.event import RunStarted
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.domain.run import RunState
from swe_ai_fleet.domain.task import ApprovalPolicy, Task
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel, Clone, Journal, SecretMask
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE
from swe_ai_fleet.tools.catalogue import Toolset, open_toolkits
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.tests import TestTool
from swe_ai_fleet.tools.truncation import truncate

MAX_PINNED_DIFF_CHARS = 6_000
_PROPOSE = (
    f"Before you change anything, read what you need and call {PROPOSE}; a person decides about it. Until it is "
    "approved, every call that changes something is refused."
)


@dataclass(frozen=True, kw_only=True)
class Consent:
    """How a run asks people where its task wants them asked.

    Attributes:
        approver: Decides at once, in this process.
        keep: Makes the workspace outlive the run, given the step; then the log is asked, and the run ends until
            somebody has decided. With neither, what would wait is refused.
        timeout_seconds: How long people have; 0: for ever.
    """

    approver: Approver | None = None
    keep: Callable[[int], Awaitable[object]] | None = None
    timeout_seconds: float = 0.0

    @property
    def possible(self) -> bool:
        return self.approver is not None or self.keep is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What a run did and what its clone holds at the end."""

    trajectory: Trajectory
    diff: Diff
    commit: str
    branch: str
    model: str

    def artifacts(self, patch: BlobRef | None) -> Artifacts:
        """What the run left, its patch by reference."""
        return Artifacts(
            commit_sha=self.commit,
            branch=self.branch,
            patch=patch,
            files_changed=self.diff.files,
            insertions=self.diff.insertions,
            deletions=self.diff.deletions,
            tests=last_tests(self.trajectory),
        )


async def solve(
    task: Task,
    clone: Clone,
    *,
    equipment: Equipment,
    trail: AuditTrail,
    journal: Journal | None = None,
    store: Callable[[bytes], Awaitable[BlobRef]] | None = None,
    perspective: Perspective | None = None,
    consent: Consent | None = None,
    earlier: RunState | None = None,
    checkpoints: CheckpointPolicy | None = None,
    revision: SecondGo | None = None,
    background: str = "",
) -> Solution:
    """Run one agent in a clone until it stops. Model faults and spent limits are stop reasons.

    With `earlier` it goes on from there; clone and trail must stand where that run left them. With `checkpoints` the
    workspace is stored now and then, so that another process can go on from it. With a `revision` the clone holds
    the author's earlier work. `background` is what the project knows beside the task.

    Raises ModelError where the model cannot be asked what it can do, InvalidRequest for what is not there.
    """
    constraints, perspective, consent = task.constraints, perspective or Perspective(), consent or Consent()
    proposes = task.approval is ApprovalPolicy.PLAN
    limits = ToolLimits(command_timeout_seconds=constraints.limits.command_timeout_seconds)
    mask = equipment.mask
    pipeline = Pipeline(
        trail=trail,
        policy=policy_of(task),
        mask=mask,
        store=store,
        limits=limits,
        cache=equipment.cache(task),
    )
    model = equipment.model(task, perspective, trail)
    async with open_toolkits(clone, pipeline, equipment.access, task) as held:
        capabilities = await model.probe()
        budget = Budget(
            constraints.limits,
            prices=equipment.price(capabilities.model),
            spent=earlier.usage if earlier is not None else None,
        )
        searched = searches_in(earlier.steps) if earlier is not None else []
        news = BaselineNews(baselines=equipment.baselines, task=task, environment=clone.environment, mask=mask)
        if isinstance(tests := held.toolkits.get(TestTool.name), TestTool):
            tests.failed_before = news.failing
        toolbox = _toolbox(task, clone, pipeline, held, model, budget, equipment, earlier, searched)
        if earlier is None or earlier.started is None:
            opening = revision.first if revision is not None else ()
            if not opening:
                facts = await equipment.facts.of(
                    (task.tenant, task.execution_id), clone, focus=task.description, map_tokens=MAP_TOKENS
                )
                opening = opening_messages(
                    task,
                    workspace=clone,
                    limits=limits,
                    perspective=perspective,
                    notes=(*held.notes, _PROPOSE) if proposes else held.notes,
                    facts=facts,
                    mask=mask,
                    background=background,
                )
            if revision is not None:
                opening = revision.behind(opening)
            news.heard(opening)
            opening = SecondGo(text=text).behind(opening) if (text := await news.text()) else opening
            started = RunStarted(
                role=task.role,
                model=capabilities.model,
                messages=opening,
                tools=tuple(spec.name for spec in toolbox.specs),
                temperature=perspective.temperature,
                seed=perspective.seed,
                environment=clone.environment.key,
            )
            if journal is not None:
                journal.post(started)
            earlier = RunState(agent_id=trail.agent_id, started=started, messages=opening)
        news.heard(earlier.messages)
        if checkpoints is not None:
            model = CheckpointingModel(model=model, trail=trail, checkpoints=checkpoints, step=len(earlier.steps))
        gate: PolicyGate | None = None

        async def pins() -> Sequence[str]:
            plan = gate.approved if gate is not None else ""
            return [*([f"The approved plan:\n{plan}"] if plan else []), await _changes_so_far(clone, mask)]

        history = History(
            earlier.messages,
            context_tokens=capabilities.max_model_len,
            summarise=summariser(model, budget),
            pins=pins,
        )
        if task.approval is not ApprovalPolicy.NONE:
            entities = task.memory.entities if task.memory.read else ()
            searched += await asked_about(equipment.memory_search(task, clone), entities)
            gate = _gate(
                task, clone, history, budget, toolbox, pipeline, consent, earlier, journal, store, mask, searched
            )
        parts = RunParts(
            model=ProposingModel(model=model, wanted=lambda: gate.wants_proposal) if proposes and gate else model,
            toolbox=toolbox,
            history=history,
            budget=budget,
            rules=Rules(abort_on_error=constraints.abort_on_error, answer_at_limit=True),
            journal=journal,
            guard=LoopGuard(toolbox.specs, earlier=_finished_steps(earlier, history)),
            gate=gate,
            sampling=Sampling(temperature=perspective.temperature, seed=perspective.seed),
            steps=earlier.steps,
            news=news.text,
        )
        trajectory = await drive(
            task.planning_mode or equipment.planning_mode,
            parts,
            task_text=task.description,
            mode_rules=replace(equipment.mode_rules, plans=PlanRules(proposes=proposes)),
        )
        if trajectory.stop_reason is StopReason.AWAITING_APPROVAL:
            return Solution(trajectory=trajectory, diff=Diff(patch=b""), commit="", branch="", model=capabilities.model)
        if trajectory.stop_reason is StopReason.REJECTED and gate is not None:
            trajectory = replace(trajectory, error=gate.rejection)
        diff = await clone.diff()
        commit, branch = await clone.head()
    return Solution(trajectory=trajectory, diff=diff, commit=commit, branch=branch, model=capabilities.model)


def policy_of(task: Task) -> Policy:
    """What a run of a task may call."""
    allowed = frozenset(task.tools) | frozenset(task.constraints.allowed_tools)
    # What a task asks for in so many words need not be named among its tools again.
    also = {
        PROPOSE: task.approval is ApprovalPolicy.PLAN,
        REMEMBER: task.memory.write,
        "search_memory": task.memory.read,
    }
    return Policy(
        role=task.role,
        read_only=not task.enable_tools,
        allowed=allowed | {name for name, there in also.items() if there} if allowed else allowed,
        denied=frozenset(task.constraints.denied_tools),
        allowed_paths=task.constraints.allowed_paths,
    )


def _toolbox(
    task: Task,
    clone: Clone,
    pipeline: Pipeline,
    held: Toolset,
    model: ChatModel,
    budget: Budget,
    equipment: Equipment,
    earlier: RunState | None,
    searched: list[MemoryResults],
) -> Toolbox:
    """The toolkits of the run and its sub-agents."""
    others = SubAgentTools(
        clone,
        pipeline,
        model=model,
        budget=budget,
        toolkits=held.toolkits,
        without=held.unlisted,
        memory=equipment.memory_search(task, clone),
        limits=equipment.sub_agents,
        used=sub_agents_used(earlier.steps) if earlier is not None else 0,
        searched=searched,
    )
    kits: dict[str, Toolkit] = {**held.toolkits, others.name: others}
    if task.memory.write:
        notes = RememberingTools(clone, pipeline, noted=noted_in(earlier.steps) if earlier is not None else ())
        kits[notes.name] = notes
    asked = {*task.tools, *task.constraints.allowed_tools, *(("search_memory",) if task.memory.read else ())}
    idle, unlisted = idle_sub_agents(task.role, asked, can_research=others.can_research)
    return Toolbox(
        kits,
        pipeline,
        idle=held.idle | idle,
        unlisted=held.unlisted | unlisted,
        parallel=equipment.parallel,
    )


def _gate(
    task: Task,
    clone: Clone,
    history: History,
    budget: Budget,
    toolbox: Toolbox,
    pipeline: Pipeline,
    consent: Consent,
    earlier: RunState,
    journal: Journal | None,
    store: Callable[[bytes], Awaitable[BlobRef]] | None,
    mask: SecretMask,
    searched: Sequence[MemoryResults],
) -> PolicyGate:
    approvals = RunApprovalService(
        clone=clone,
        history=history,
        trail=pipeline.trail,
        mask=mask,
        spent=budget.total,
        journal=journal,
        keep=consent.keep,
        store=store,
        approver=consent.approver,
        timeout_seconds=consent.timeout_seconds,
        known=set(earlier.requests),
        searched=searched,
    )
    return PolicyGate(
        task.approval,
        agent_id=pipeline.trail.agent_id,
        goal=task.description,
        read=CallPreview(toolbox, pipeline),
        approvals=approvals if consent.possible else None,
        mask=mask,
        earlier=earlier,
    )


async def _changes_so_far(clone: Clone, mask: SecretMask) -> str:
    """What a condensed history must still say of the workspace."""
    diff = await clone.diff()
    if not diff.files:
        return "Nothing is changed in the workspace so far."
    patch = truncate(mask(diff.patch.decode("utf-8", "replace")), MAX_PINNED_DIFF_CHARS)
    return f"The changes in the workspace so far ({len(diff.files)} files):\n{patch}"


def _finished_steps(earlier: RunState, history: History) -> Sequence[Step]:
    """The steps of a run that goes on; the last one is still to be carried out where its calls have no answer."""
    return earlier.steps[:-1] if history.unanswered() else earlier.steps
