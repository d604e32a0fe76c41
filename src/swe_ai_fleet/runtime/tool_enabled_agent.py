"""`ToolEnabledAgent`: one agent as a library call, in the caller's workspace."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.agents.recorded_run import RecordedRun, recorded_run, run_finished
from swe_ai_fleet.agents.results import ToolRecord, tool_record
from swe_ai_fleet.agents.run_deps import RunContext, RunDeps
from swe_ai_fleet.agents.scoring import RubricJudge
from swe_ai_fleet.agents.solving import Solution, Solver, check_tools
from swe_ai_fleet.agents.spec import run_agent
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.assignment import CheckAssignment, CodingAssignment
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import AgentResult, CheckReport
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import Fenced, FleetError, InvalidRequest
from swe_ai_fleet.domain.event import Writer
from swe_ai_fleet.domain.task import (
    DEFAULT_TENANT,
    Constraints,
    RepoRef,
    Role,
    Task,
    TaskKind,
    UncommittedChanges,
    execution_id,
)
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.evidence import EvidenceGatherer
from swe_ai_fleet.orchestrator.evidence.check_results import no_evidence
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.library_requests import read_constraints
from swe_ai_fleet.runtime.run_deps import model_prices, open_run_deps
from swe_ai_fleet.runtime.tool_services import make_sandbox, secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.catalogue import all_toolkits
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline


class ToolEnabledAgent:
    """An agent that solves tasks with tools in a git clone.

    Args:
        agent_id: The agent's id in audit entries and events.
        role: DEV, QA, ARCHITECT, DEVOPS or DATA.
        workspace_path: A git clone, used as it is and never removed. If it does not exist yet,
            `constraints["repo_url"]` is cloned into it first.
        vllm_url: Base URL of an OpenAI-compatible server; without it, the one in the settings.
        model: Model name; empty = the first the server lists.
        settings: Everything else; from the environment when not given. With a `nats_url` each step is logged there.
    """

    def __init__(
        self,
        agent_id: str,
        role: str,
        workspace_path: str | Path,
        vllm_url: str | None = None,
        model: str = "",
        *,
        settings: Settings | None = None,
    ) -> None:
        overrides = {"model_url": vllm_url or "", "model": model}
        self._settings = (settings or Settings()).model_copy(update={k: v for k, v in overrides.items() if v})
        self.agent_id = agent_id
        self.role = Role.parse(role)
        self.workspace_path = Path(workspace_path).absolute()
        self.execution_id = ""

    @property
    def tools(self) -> dict[str, Toolkit]:
        """The toolkits over the workspace, by name (`git`, `files`, `tests`, `http`, …), for direct calls."""
        access = tool_access(self._settings)
        environment = Environment(network=access.hosts(Constraints()))
        workspace = make_sandbox(self._settings).workspace(self.workspace_path, environment=environment)
        return all_toolkits(workspace, Pipeline(mask=secret_mask(self._settings)), access)

    async def execute_task(
        self,
        task: str,
        context: str = "",
        constraints: Mapping[str, object] | None = None,
        *,
        task_id: str = "",
    ) -> AgentResult:
        """Solve a task, and check the result as a fleet would, against the initial commit.

        `success`: the agent answered, and no check refutes its change; a run that a limit, the model or a tool stopped
        is returned without it. An answer without a change has no `verdict`, unless there are `checks`.

        Args:
            task: The instruction.
            context: Further information for the agent.
            constraints: max_iterations, max_tool_calls, max_tokens, timeout_seconds, abort_on_error, allowed_tools,
                denied_tools, allowed_paths, allowed_hosts, requirements, rubric, checks; repo_url and ref if there is
                no clone yet.
            task_id: The task's id in the log; a random one when empty.

        Raises:
            InvalidRequest: A malformed constraint, or no workspace and no `repo_url`.
            PreconditionFailed, Unavailable: No sandbox, no repository, no NATS.
        """
        options = dict(constraints or {})
        location = str(options.pop("repo_url", "") or "")
        ref = str(options.pop("ref", "") or "")
        task_id = task_id or f"task-{uuid.uuid4().hex[:12]}"
        settings = await with_isolation_level(self._settings)
        access = tool_access(settings)
        async with AsyncExitStack() as stack:
            log: EventLog = MemoryLog()
            if settings.nats_url:
                log = stream = await stack.enter_async_context(connect_log(settings, name=self.agent_id))
                await stream.ensure_streams()
            recorded = await self._claim(stack, log, task_id)
            workspaces = workspace_provider(settings)
            if not (self.workspace_path / ".git").exists():
                if not location:
                    raise InvalidRequest(
                        f"{self.workspace_path.name or self.workspace_path} is not a git clone",
                        field="workspace_path",
                        hint="use a clone, or set constraints['repo_url']",
                    )
                await workspaces.clone_into(DEFAULT_TENANT, RepoRef(location=location, ref=ref), self.workspace_path)
            repo = RepoRef(location=str(self.workspace_path), uncommitted=UncommittedChanges.IGNORE)
            request = Task(
                task_id=task_id,
                kind=TaskKind.DELIBERATE,
                description=task,
                repo=repo,
                role=self.role,
                context=context,
                constraints=read_constraints(options),
                num_agents=1,
            ).validated(max_agents=1)
            check_tools(request, access)
            if request.constraints.limits.max_cost and not model_prices(settings):
                raise InvalidRequest(
                    "no model has a price", field="constraints.max_cost", hint="set FLEET_MODEL_PRICES"
                )
            pinned = await workspaces.pin(DEFAULT_TENANT, repo)
            environment = await workspaces.environment(pinned, request.environment)
            environment = replace(environment, network=access.hosts(request.constraints))
            clone = await stack.enter_async_context(workspaces.attach(self.agent_id, pinned, environment))
            deps = await stack.enter_async_context(open_run_deps(settings, alone=False))
            assignment = CodingAssignment(
                execution_id=self.execution_id, agent_id=self.agent_id, task=request, repository=pinned
            )
            run = RunContext(deps=deps, trail=recorded.trail, journal=recorded.journal)
            solution = await run_agent(Solver(assignment, clone, run), run)
            trajectory = solution.trajectory
            await run.end(
                run_finished(
                    run.trail,
                    trajectory.stop_reason,
                    trajectory.usage,
                    artifacts=solution.artifacts(None),
                    answer=trajectory.answer,
                    error=trajectory.error,
                )
            )
            record = await tool_record(log, DEFAULT_TENANT, self.execution_id, self.agent_id)
            report = await _evidence(assignment, solution, workspaces, deps)
        return _result(solution, record, report, needs_proof=request.constraints.require_verified)

    async def _claim(self, stack: AsyncExitStack, log: EventLog, task_id: str) -> RecordedRun:
        """Claim this agent's next unclaimed attempt at the task, until the stack ends."""
        for attempt in itertools.count(1):
            self.execution_id = execution_id(
                tenant=DEFAULT_TENANT, kind=TaskKind.DELIBERATE, task_id=f"{task_id}@{self.agent_id}", attempt=attempt
            )
            writer = Writer(
                tenant=DEFAULT_TENANT, execution_id=self.execution_id, task_id=task_id, agent_id=self.agent_id
            )
            with suppress(Fenced):
                async with AsyncExitStack() as claim:
                    run = recorded_run(log, writer, audit_key=self._settings.audit_key.encode())
                    recorded = await claim.enter_async_context(run)
                    # Until the claim is durable, another process may win it.
                    await recorded.journal.flush()
                    stack.push_async_exit(claim.pop_all())
                    return recorded
        raise AssertionError("there is always a further attempt")


async def _evidence(
    assignment: CodingAssignment, solution: Solution, workspaces: GitWorkspaceProvider, deps: RunDeps
) -> CheckReport | None:
    """The report of a fleet's checks on the agent's result; None without an answer, or without a change or a check."""
    patch, task = solution.diff.patch, assignment.task
    answered = solution.trajectory.stop_reason is StopReason.FINAL_ANSWER
    if not answered or not (patch or task.constraints.checks):
        return None
    blobs = MemoryLog()
    ref = await blobs.put(task.tenant, assignment.execution_id, patch, "text/x-diff") if patch else None
    gatherer = EvidenceGatherer(
        workspaces=workspaces,
        blobs=blobs,
        access=deps.access,
        mask=deps.mask,
        rubric=RubricJudge(deps=deps),
    )
    check = CheckAssignment(
        execution_id=assignment.execution_id,
        candidate_id=assignment.agent_id,
        task=task,
        repository=assignment.repository,
        patch=ref,
    )
    try:
        return await gatherer.gather(check)
    except FleetError as error:
        return no_evidence(assignment.agent_id, error)
    finally:
        await workspaces.release(assignment.execution_id)


def _result(solution: Solution, record: ToolRecord, report: CheckReport | None, *, needs_proof: bool) -> AgentResult:
    trajectory, artifacts = solution.trajectory, solution.artifacts(None)
    operations = [operation for operations_of_run in record.operations.values() for operation in operations_of_run]
    trail = [entry for entries_of_run in record.entries.values() for entry in entries_of_run]
    tests = artifacts.tests or (report.tests if report else None)
    objection = report.objection(needs_proof=needs_proof) if report else ""
    return AgentResult(
        success=trajectory.stop_reason is StopReason.FINAL_ANSWER and not objection,
        operations=tuple(operations),
        artifacts={
            "commit_sha": artifacts.commit_sha,
            "branch": artifacts.branch,
            "patch": solution.diff.patch.decode("utf-8", "replace"),
            "files_changed": list(artifacts.files_changed),
            "tests": to_plain(tests) if tests else None,
            "answer": trajectory.answer,
        },
        audit_trail=tuple(trail),
        error=trajectory.error or objection or None,
        usage=trajectory.usage + (report.usage if report else Usage()),
        stop_reason=trajectory.stop_reason,
        verdict=report.verdict if report else None,
        verdict_reasons=report.reasons if report else (),
    )
