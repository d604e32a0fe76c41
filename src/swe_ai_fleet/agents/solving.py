"""One task solved in one clone: the prompt, the tools, the gate, the loop."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.agent_run import Rules, RunParts
from swe_ai_fleet.agents.approvals import Approver, PolicyGate, ProposingModel, RunApprovalService
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History, summariser
from swe_ai_fleet.agents.model_middleware import CheckpointingModel, CheckpointPolicy
from swe_ai_fleet.agents.opening import BaselineNews, RevisionPrompt, opening_messages
from swe_ai_fleet.agents.planning.plan_run import PlanRules, drive
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.results import last_tests, tests_show_change
from swe_ai_fleet.agents.run_deps import RunContext
from swe_ai_fleet.agents.spec import AgentSpec, RunResources
from swe_ai_fleet.agents.sub_agents.exploring import sub_agents_used
from swe_ai_fleet.agents.sub_agents.memory import REMEMBER, RememberingTools, asked_about, noted_in, searches_in
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentTools, idle_sub_agents
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, REQUEST_TOOLS, Toolbox
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import Artifacts, Diff
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.task import ApprovalPolicy, Role, Task
from swe_ai_fleet.domain.text import nearest
from swe_ai_fleet.domain.trajectory import Step, StopReason, Trajectory
from swe_ai_fleet.ports import Clone
from swe_ai_fleet.tools.builtin import PROPOSE
from swe_ai_fleet.tools.catalogue import PLUGINS, ToolAccess, Toolset, open_toolkits, operations
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.repo_map.languages import language_of
from swe_ai_fleet.tools.repo_map.relevance import is_test
from swe_ai_fleet.tools.tests import TestTool
from swe_ai_fleet.tools.truncation import truncate

MAX_PINNED_DIFF_CHARS = 6_000
MAX_TASK_CHARS = 2_000
_PROPOSE = (
    f"Before you change anything, read what you need and call {PROPOSE}; a person decides about it. Until it is "
    "approved, every call that changes something is refused."
)


@dataclass(frozen=True, kw_only=True)
class Consent:
    """How a run asks people for the approvals that its task requires; they have `timeout_seconds` (0: for ever).

    Without an `approver` in this process, the request goes to the log, and the run ends until it is decided. If the
    workspace cannot be stored until then, calls that need approval are refused.
    """

    approver: Approver | None = None
    timeout_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    trajectory: Trajectory
    diff: Diff
    commit: str
    branch: str
    model: str

    def artifacts(self, patch: BlobRef | None) -> Artifacts:
        return Artifacts(
            commit_sha=self.commit,
            branch=self.branch,
            patch=patch,
            files_changed=self.diff.files,
            insertions=self.diff.insertions,
            deletions=self.diff.deletions,
            tests=last_tests(self.trajectory),
        )


class Solver(AgentSpec[Solution]):
    """An agent that solves a task in a clone.

    The clone is checkpointed during calls to the model, at most every `checkpoint_seconds` (None: never). It is as an
    earlier process left it; for a `revision` it has the author's earlier candidate.
    """

    def __init__(
        self,
        assignment: CodingAssignment,
        clone: Clone,
        run: RunContext,
        *,
        revision: RevisionPrompt | None = None,
        consent: Consent | None = None,
        checkpoint_seconds: float | None = None,
    ) -> None:
        task, mask = assignment.task, run.deps.mask
        super().__init__(
            task=task,
            budget=Budget(task.constraints.limits, spent=run.earlier.usage),
            policy=policy_of(task),
            perspective=assignment.perspective,
            rules=Rules(abort_on_error=task.constraints.abort_on_error, answer_at_limit=True),
            environment=clone.environment.key,
        )
        self._clone, self._run, self._mask = clone, run, mask
        self._commit = assignment.repository.commit
        self._background, self._revision = assignment.background, revision
        self._consent, self._checkpoint_seconds = consent or Consent(), checkpoint_seconds
        self._proposes = task.approval is ApprovalPolicy.PLAN
        self._news = BaselineNews(baselines=run.deps.baselines, task=task, environment=clone.environment, mask=mask)
        self._gate: PolicyGate | None = None
        self._notes: tuple[str, ...] = ()
        # The step of a last look, and the diff that it was made with.
        self._last_diff: tuple[Step | None, Diff] = None, Diff(patch=b"")

    @asynccontextmanager
    async def tools(self, resources: RunResources) -> AsyncGenerator[Toolbox]:
        self._resources = resources
        self._searched = searches_in(self._run.earlier.steps)
        async with open_toolkits(self._clone, resources.pipeline, self._run.deps.access, self.task) as toolset:
            if isinstance(tests := toolset.toolkits.get(TestTool.name), TestTool):
                tests.failed_before = self._news.failing
            self._notes = (*toolset.gaps, _PROPOSE) if self._proposes else toolset.gaps
            yield self._toolbox(toolset)

    async def opening(self, resources: RunResources, toolbox: Toolbox) -> Sequence[Message]:
        task, revision, deps = self.task, self._revision, self._run.deps
        opening = revision.first if revision is not None else ()
        if not opening:
            # A preview of the opening may be for another commit or another text under the same ids.
            key = (task.tenant, task.execution_id, self._commit, task.description)
            facts = await deps.facts.of(key, self._clone, focus=task.description)
            opening = opening_messages(
                task,
                workspace=self._clone,
                limits=resources.pipeline.limits,
                perspective=self.perspective,
                notes=self._notes,
                facts=facts.selected(task.context_options),
                mask=self._mask,
                background=self._background,
            )
        if revision is not None:
            opening = revision.behind(opening)
        self._news.resume(opening)
        return RevisionPrompt(text=text).behind(opening) if (text := await self._news.text()) else opening

    async def drive(self, parts: RunParts) -> Trajectory:
        task, run = self.task, self._run
        self._news.resume(run.earlier.messages)
        model = parts.model
        if self._checkpoint_seconds is not None and run.keeper is not None:
            policy = CheckpointPolicy(store=run.keeper.keep, every_seconds=self._checkpoint_seconds)
            model = CheckpointingModel(model=model, trail=run.trail, checkpoints=policy, step=len(parts.steps))
        history = History(
            run.earlier.messages,
            context_tokens=self._resources.capabilities.max_model_len,
            summarise=summariser(model, parts.budget),
            pins=self._pins,
        )
        if task.approval is not ApprovalPolicy.NONE:
            entities = task.memory.entities if task.memory.read else ()
            self._searched += await asked_about(run.deps.memory_search(task, self._clone), entities)
            self._gate = gate = self._approvals(parts, history)
            if self._proposes:
                model = ProposingModel(model=model, wanted=lambda: gate.wants_proposal)
        return await drive(
            task.planning_mode or run.deps.planning_mode,
            replace(
                parts, model=model, history=history, gate=self._gate, news=self._news.text, last_look=self._last_look
            ),
            task_text=task.description,
            mode_rules=replace(run.deps.mode_rules, plans=PlanRules(proposes=self._proposes)),
        )

    async def read(self, parts: RunParts, trajectory: Trajectory) -> Solution:
        model = self._resources.capabilities.model
        if trajectory.stop_reason is StopReason.AWAITING_APPROVAL:
            return Solution(trajectory=trajectory, diff=Diff(patch=b""), commit="", branch="", model=model)
        if trajectory.stop_reason is StopReason.REJECTED and self._gate is not None:
            trajectory = replace(trajectory, error=self._gate.rejection)
        # The clone has not changed since the last look if that was at the last step.
        step, diff = self._last_diff
        if step is None or trajectory.steps[-1] is not step:
            diff = await self._clone.diff()
        commit, branch = await self._clone.head()
        return Solution(trajectory=trajectory, diff=diff, commit=commit, branch=branch, model=model)

    async def _last_look(self, steps: Sequence[Step]) -> str:
        """The objection to a developer's answer without a change, or without a test that shows it; else empty."""
        task, environment = self.task, self._clone.environment
        if task.role is not Role.DEV or not task.enable_tools or self._revision is not None:
            return ""
        if tests_show_change(steps, await self._news.run()):
            return ""
        diff = await self._clone.diff()
        self._last_diff, files = (steps[-1], diff), diff.files
        untested = environment.test_command and any(map(language_of, files)) and not any(map(is_test, files))
        if files and not untested:
            return ""
        text = rendered(
            "last_look",
            files=files,
            baseline=await self._news.line(),
            sentences=re.split(r"(?<=[.!?])\s+|\n+", truncate(task.description.strip(), MAX_TASK_CHARS)),
        )
        return self._mask(text)

    def _toolbox(self, toolset: Toolset) -> Toolbox:
        task, resources, deps, steps = self.task, self._resources, self._run.deps, self._run.earlier.steps
        sub_agents = SubAgentTools(
            self._clone,
            resources.pipeline,
            model=resources.model,
            budget=self.budget,
            toolkits=toolset.toolkits,
            without=toolset.unlisted,
            memory=deps.memory_search(task, self._clone),
            limits=deps.sub_agents,
            used=sub_agents_used(steps),
            searched=self._searched,
        )
        kits: dict[str, Toolkit] = {**toolset.toolkits, sub_agents.name: sub_agents}
        if task.memory.write:
            notes = RememberingTools(self._clone, resources.pipeline, noted=noted_in(steps))
            kits[notes.name] = notes
        named_tools = {*task.tools, *task.constraints.allowed_tools, *(("search_memory",) if task.memory.read else ())}
        idle, unlisted = idle_sub_agents(task.role, named_tools, can_research=sub_agents.can_research)
        return Toolbox(
            kits,
            resources.pipeline,
            idle=toolset.idle | idle,
            unlisted=toolset.unlisted | unlisted,
            parallel=deps.parallel,
        )

    def _approvals(self, parts: RunParts, history: History) -> PolicyGate:
        run, consent = self._run, self._consent
        approvals = RunApprovalService(
            run=run,
            clone=self._clone,
            history=history,
            spent=parts.budget.total,
            approver=consent.approver,
            timeout_seconds=consent.timeout_seconds,
            searched=self._searched,
        )
        return PolicyGate(
            self.task.approval,
            agent_id=run.trail.agent_id,
            goal=self.task.description,
            read=parts.toolbox.preview,
            approvals=approvals if consent.approver is not None or run.keeper is not None else None,
            mask=self._mask,
            earlier=run.earlier,
        )

    async def _pins(self) -> Sequence[str]:
        """Texts that a condensed history must contain: the approved plan, and the changes in the workspace."""
        plan = self._gate.approved if self._gate is not None else ""
        diff = await self._clone.diff()
        changes = "Nothing is changed in the workspace so far."
        if diff.files:
            patch = truncate(self._mask(diff.patch.decode("utf-8", "replace")), MAX_PINNED_DIFF_CHARS)
            changes = f"The changes in the workspace so far ({len(diff.files)} files):\n{patch}"
        return [*([f"The approved plan:\n{plan}"] if plan else []), changes]


def check_tools(task: Task, access: ToolAccess) -> None:
    """Check that the tools, hosts and servers that a task names exist. Raises InvalidRequest naming the field."""
    access.hosts(task.constraints)
    servers = access.servers(task.constraints)
    limits = task.constraints
    named = {"tools": task.tools, "allowed_tools": limits.allowed_tools, "denied_tools": limits.denied_tools}
    if not any(named.values()):
        return
    specs = [definition.spec for definition in operations().values()]
    own = (SubAgentTools, RememberingTools)
    tool_names = {name for spec in specs for name in (spec.name, spec.tool)} | {tool.name for tool in access.plugins}
    tool_names |= {
        name for kit in own for name in (kit.name, *(definition.spec.name for definition in kit.definitions.values()))
    }
    tool_names |= servers | {PLUGINS, FINAL_ANSWER.name, REQUEST_TOOLS}
    for field, names in named.items():
        for number, name in enumerate(names):
            # The tools of a server are only known once it is connected.
            if name not in tool_names and not any(name.startswith(f"{server}_") for server in servers):
                place = f"{'' if field == 'tools' else 'constraints.'}{field}[{number}]"
                raise InvalidRequest(f"there is no tool {name[:64]!r}", field=place, hint=nearest(name, tool_names))


def policy_of(task: Task) -> Policy:
    allowed = frozenset(task.tools) | frozenset(task.constraints.allowed_tools)
    # Tools that other fields of the task ask for need not be among its tools as well.
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
