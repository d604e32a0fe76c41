"""The groundwork of an execution: its baseline, environment run, checklist, and the context of its agents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.agents import preparation
from swe_ai_fleet.agents.preparation import findings, read_checklist, read_proposal, statement
from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.structured_output import schema_of
from swe_ai_fleet.domain.assignment import Answer, AnswerAssignment, BaselineAssignment, ExamineAssignment
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.checklist import Checklist
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext, Phase
from swe_ai_fleet.domain.environment import EnvironmentProposal, EnvironmentRun
from swe_ai_fleet.domain.errors import Fenced, FleetError, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import (
    BaselineFinished,
    ChecklistMade,
    ChecksStarted,
    ContextGathered,
    EnvironmentRunFinished,
)
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import task_namespaces
from swe_ai_fleet.domain.task import ApprovalPolicy, Task, TaskKind
from swe_ai_fleet.domain.test_run import Baseline, gets_on_better, wants_help
from swe_ai_fleet.domain.workflow import AgentConfig
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.orchestrator.runs import CHECKLIST, ENVIRONMENT
from swe_ai_fleet.ports import ContextSource, Journal

MAX_TOKENS = 200_000
MAX_SECONDS = 900.0
_PART = 4
_COMMAND_CHARS = 500
_REASON_CHARS = 2_000
_ASKING = frozenset({ApprovalPolicy.RISKY, ApprovalPolicy.EVERY})
_QUESTION = "Which set-up commands make this repository's own tests run?"


@dataclass(kw_only=True)
class Groundwork:
    """The groundwork of one execution, done in the background of an async context.

    The untouched commit is tested first. If its tests lack something, an agent looks for what the environment needs;
    its proposal is tried in a fresh environment and used, by this and later executions, if more tests run then. At the
    same time an agent turns the statement into a checklist, if the task asks for one.

    `usage` is that of the environment run and the checklist.
    """

    work: ExecutionContext
    usage: Usage = field(default_factory=Usage)
    _preparing: asyncio.Task[str] = field(init=False)
    _making_checklist: asyncio.Task[Checklist | None] = field(init=False)

    async def __aenter__(self) -> Groundwork:
        self._preparing = asyncio.create_task(self._prepare())
        self._making_checklist = asyncio.create_task(self._record_checklist())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._preparing.cancel()
        self._making_checklist.cancel()
        await asyncio.gather(self._preparing, self._making_checklist, return_exceptions=True)

    async def commands(self) -> str:
        """Wait for the baseline; any number of tasks may wait, and cancelling one does not cancel the work.

        Returns the commands that run on the untouched commit and on every candidate. Raises Fenced, Unavailable.
        """
        return await asyncio.shield(self._preparing)

    async def checklist(self) -> Checklist | None:
        """The checklist, once its probes ran on the untouched commit; waits as `commands`. None: the task has none."""
        return await asyncio.shield(self._making_checklist)

    async def _record_checklist(self) -> Checklist | None:
        recorded = self.work.known.checklist
        if recorded is None and not (self.work.task.probes and self._may_ask and not self.work.known.ranking):
            return None
        checklist = recorded or await self._make_checklist()
        self.usage += checklist.usage
        if recorded is None:
            await self.work.journal.append(ChecklistMade(checklist=checklist))
        return checklist

    @property
    def _may_ask(self) -> bool:
        """Whether agents may run commands without an approval."""
        task = self.work.task
        return task.kind is not TaskKind.JUDGE and task.enable_tools and task.approval not in _ASKING

    async def _make_checklist(self) -> Checklist:
        task, checklist = self.work.task, Checklist()
        try:
            assignment = self._assignment(
                CHECKLIST,
                statement(task),
                tools=preparation.CHECKLIST_TOOLS,
                prompt=rendered(
                    "probe",
                    directory=task.repo.subdirectory,
                    requirements=preparation.MAX_REQUIREMENTS,
                    probes=preparation.MAX_PROBES,
                ),
                steps=preparation.MAX_CHECKLIST_STEPS,
                schema=schema_of(preparation.ChecklistShape),
            )
            answer = await self.work.runs.run(assignment)
            checklist = replace(checklist, usage=answer.usage)
            if not answer.text:
                return replace(checklist, error=answer.error[:_REASON_CHARS])
            checklist = replace(checklist, requirements=read_checklist(answer.text, task))
            if checklist.probed:
                checklist = checklist.with_outcomes(await self._probed_on_base(checklist))
            return checklist
        except Fenced:
            raise
        except (FleetError, ValueError) as error:
            return replace(checklist, error=str(error)[:_REASON_CHARS])

    async def _probed_on_base(self, checklist: Checklist) -> Examination:
        await self.commands()
        return await self.work.runs.check(
            ExamineAssignment(
                execution_id=self.work.task.execution_id,
                task=self.work.task,
                repository=self.work.repository,
                examinees=(),
                requirements=checklist.probed,
            )
        )

    async def _prepare(self) -> str:
        state = self.work.known
        baseline = state.baseline
        if baseline is None:
            baseline = await self._first_baseline()
        if state.environment_run is not None:
            self.usage += state.environment_run.usage
        elif baseline is not None and self._may_help(baseline):
            baseline = await self._improve(baseline)
        commands = "; ".join(suite.command for suite in baseline.suites) if baseline is not None else ""
        return self._named_checks or commands[:_COMMAND_CHARS]

    @property
    def _named_checks(self) -> str:
        return "; ".join(check.command for check in self.work.task.constraints.checks)[:_COMMAND_CHARS]

    async def _first_baseline(self) -> Baseline | None:
        """Make and record the baseline, or record the fault that prevents it."""
        await self.work.journal.append(ChecksStarted(command=self._named_checks))
        try:
            baseline_finished = BaselineFinished(baseline=await self._baseline(self.work.task))
        except Fenced:
            raise
        except FleetError as error:
            baseline_finished = BaselineFinished(error=str(error)[:_REASON_CHARS])
        await self.work.journal.append(baseline_finished)
        return baseline_finished.baseline

    async def _baseline(self, task: Task) -> Baseline:
        return await self.work.runs.check(
            BaselineAssignment(execution_id=task.execution_id, task=task, repository=self.work.repository)
        )

    def _may_help(self, baseline: Baseline) -> bool:
        """Whether an environment run is needed and allowed."""
        task = self.work.task
        detects = task.environment.detect and not task.constraints.checks and self._may_ask
        return detects and baseline.report.learned is None and wants_help(baseline)

    async def _improve(self, before: Baseline) -> Baseline:
        """Record an environment run, whose proposal is tried; returns the baseline to use."""
        run, after = await self._run_environment(before)
        self.usage += run.usage
        if run.answered:
            # An empty result is kept too, so that no later execution tries again.
            proposal = run.proposal if run.kept else None
            proposal = proposal or EnvironmentProposal(source=self._source, notes=run.reason)
            await self.work.deps.recipes.keep(self.work.task.tenant, before.recipe_key, proposal)
        if run.kept:
            self.work.journal.post(BaselineFinished(baseline=after))
        await self.work.journal.append(EnvironmentRunFinished(run=run))
        return after if run.kept and after is not None else before

    @property
    def _source(self) -> str:
        return f"{self.work.task.execution_id}/{ENVIRONMENT}"

    async def _run_environment(self, before: Baseline) -> tuple[EnvironmentRun, Baseline | None]:
        """The run, and the baseline with its proposal; None where there is no proposal to try."""
        run = EnvironmentRun(agent_id=ENVIRONMENT, before=before.line)
        try:
            answer = await self._ask_preparer(before)
        except Fenced:
            raise
        except FleetError as error:
            return replace(run, reason=str(error)[:_REASON_CHARS]), None
        run = replace(run, usage=answer.usage, answered=bool(answer.text))
        if not answer.text:
            return replace(run, reason=answer.error[:_REASON_CHARS]), None
        try:
            proposal = read_proposal(answer.text, source=self._source)
            if proposal.test_command and not all(suite.unusable for suite in before.suites):
                # The detected command's tests are those that count.
                proposal = replace(proposal, test_command="")
            run = replace(run, proposal=proposal)
            environment = proposal.amending(self.work.task.environment)
            after = await self._baseline(replace(self.work.task, environment=environment))
        except (PreconditionFailed, ValueError) as error:
            return replace(run, reason=str(error)[:_REASON_CHARS]), None
        except Fenced:
            raise
        except FleetError as error:
            return replace(run, answered=False, reason=str(error)[:_REASON_CHARS]), None
        is_better = gets_on_better(before, after)
        reason = "more tests run with it" if is_better else "no more tests run with it"
        return replace(run, kept=is_better, reason=reason, after=after.line), after

    async def _ask_preparer(self, before: Baseline) -> Answer:
        assignment = self._assignment(
            ENVIRONMENT,
            _QUESTION,
            tools=preparation.ENVIRONMENT_TOOLS,
            prompt=rendered("prepare", directory=self.work.task.repo.subdirectory, lines=preparation.MAX_LINES),
            steps=preparation.MAX_ENVIRONMENT_STEPS,
            schema=schema_of(preparation.ProposalShape),
        )
        return await self.work.runs.run(replace(assignment, background=findings(before), workshop=True))

    def _assignment(
        self, agent_id: str, query: str, *, tools: Sequence[str], prompt: str, steps: int, schema: Mapping[str, object]
    ) -> AnswerAssignment:
        """A question to an agent that makes no candidate; it does not get the task's context."""
        task = self.work.task
        config = AgentConfig(
            role=str(task.role), tools=tools, use_tools=True, system_prompt=prompt, max_iterations=steps
        )
        constraints = replace(task.constraints, limits=_limits(task, steps))
        return AnswerAssignment(
            execution_id=task.execution_id,
            agent_id=agent_id,
            task=replace(task, context="", constraints=constraints),
            repository=self.work.repository,
            query=query,
            config=config,
            schema=schema,
        )


def _limits(task: Task, steps: int) -> Limits:
    """A quarter of one candidate's tokens and cost, and at most `steps` iterations."""
    limits = task.constraints.totals.share(task.constraints.limits, parts=max(1, task.num_agents))
    return replace(
        limits,
        max_iterations=min(steps, limits.max_iterations),
        max_tokens=max(1, limits.max_tokens // _PART) if limits.max_tokens else MAX_TOKENS,
        max_cost=limits.max_cost / _PART,
        timeout_seconds=min(MAX_SECONDS, limits.timeout_seconds),
    )


PAUSES = (0.5, 2.0)
"""Seconds before each further attempt while the context service does not answer; after the last there is no context."""
NO_SERVICE = "no context service is configured"


async def background(
    source: ContextSource | None,
    task: Task,
    journal: Journal,
    state: ExecutionState,
    *,
    pauses: Sequence[float] = PAUSES,
) -> str:
    """The context of a task's agents; empty where none is wanted, or none is available.

    Under a later driver agents get the same context as before. A missing context does not fail the execution: the event
    says why there is none.
    """
    if state.context is not None:
        return state.context.text
    request = context_request(task)
    if request is None:
        return ""
    gathered, error = await _gathered(source, request, pauses)
    await journal.append(ContextGathered(context=gathered, error=error))
    return gathered.text


def context_request(task: Task, *, placed: bool = False) -> ContextRequest | None:
    """The context request of a task; None where it belongs to no story or case and reads no memory.

    With `placed` the task itself may be in the project's knowledge.
    """
    placed = placed or bool(task.story_id or task.case_id)
    if task.kind is TaskKind.WORKFLOW or not (placed or task.memory.read):
        return None
    options = task.context_options
    return ContextRequest(
        tenant=task.tenant,
        case_id=task.case_id,
        story_id=task.story_id,
        task_id=task.task_id if placed else "",
        role=task.role,
        phase=Phase(options.phase) if options.phase else None,
        query=task.description,
        token_budget=options.token_budget,
        include_decisions=options.include_decisions,
        include_history=options.include_history,
        namespaces=task_namespaces(task) if task.memory.read else (),
        entities=task.memory.entities if task.memory.read else (),
    )


async def _gathered(
    source: ContextSource | None, request: ContextRequest, pauses: Sequence[float]
) -> tuple[GatheredContext, str]:
    """The context, or an empty one and the reason."""
    if source is None:
        return GatheredContext(), NO_SERVICE
    error = ""
    for pause in (0.0, *pauses):
        await asyncio.sleep(pause)
        try:
            return await source.gather(request), ""
        except Unavailable as fault:
            error = str(fault)
        except FleetError as fault:
            return GatheredContext(), str(fault)
    return GatheredContext(), error
