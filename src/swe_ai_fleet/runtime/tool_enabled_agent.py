"""`ToolEnabledAgent`: one agent as a library call, in a workspace of the caller's."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.agents.recorded_run import RunJournal, run_finished
from swe_ai_fleet.agents.results import operation
from swe_ai_fleet.agents.solving import Solution, Solver, check_tools
from swe_ai_fleet.agents.spec import RunContext
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
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
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import AgentResult, StopReason
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.runtime.equipment import model_prices, open_equipment
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.library_requests import read_constraints
from swe_ai_fleet.runtime.tool_services import make_sandbox, secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import all_toolkits
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline


class ToolEnabledAgent:
    """An agent that solves tasks with tools in a git clone.

    Args:
        agent_id: Names the agent in audit entries and events.
        role: DEV, QA, ARCHITECT, DEVOPS or DATA.
        workspace_path: A git clone, used as it is and never removed. Where nothing is there yet,
            `constraints["repo_url"]` is cloned into it first.
        vllm_url: Base URL of an OpenAI-compatible server; without it, what settings say.
        model: Model name; empty = the first the server lists.
        settings: Everything else; from the environment when not given. With a `nats_url` each step goes to the log.
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
        given = {"model_url": vllm_url or "", "model": model}
        self._settings = (settings or Settings()).model_copy(update={k: v for k, v in given.items() if v})
        self.agent_id = agent_id
        self.role = Role.parse(role)
        self.workspace_path = Path(workspace_path)
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
        """Solve a task. A run that a limit, the model or a tool stopped is a result with `success` false.

        Args:
            task: What is to be done.
            context: What else the agent should know.
            constraints: max_iterations, max_tool_calls, max_tokens, timeout_seconds, abort_on_error, allowed_tools,
                denied_tools, allowed_paths, allowed_hosts, requirements, rubric, checks; repo_url and ref where nothing
                is cloned yet.
            task_id: Names the task in the log; a random one when empty.

        Raises:
            InvalidRequest: A malformed constraint, or no workspace and no `repo_url`.
            PreconditionFailed, Unavailable: No sandbox, no repository, no NATS.
        """
        wanted = dict(constraints or {})
        location = str(wanted.pop("repo_url", "") or "")
        ref = str(wanted.pop("ref", "") or "")
        task_id = task_id or f"task-{uuid.uuid4().hex[:12]}"
        self.execution_id = execution_id(
            tenant=DEFAULT_TENANT, kind=TaskKind.DELIBERATE, task_id=f"{task_id}@{self.agent_id}", attempt=1
        )
        settings = await with_isolation_level(self._settings)
        access = tool_access(settings)
        async with AsyncExitStack() as stack:
            workspaces = workspace_provider(settings)
            if not (self.workspace_path / ".git").exists():
                if not location:
                    raise InvalidRequest(
                        f"{self.workspace_path.name or self.workspace_path} holds no git clone",
                        field="workspace_path",
                        hint="name a clone, or set constraints['repo_url']",
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
                constraints=read_constraints(wanted),
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
            equipment = await stack.enter_async_context(open_equipment(settings, alone=False))
            journal = await self._journal(stack, task_id)
            trail = AuditTrail(
                execution_id=self.execution_id,
                agent_id=self.agent_id,
                journal=journal,
                key=self._settings.audit_key.encode(),
            )
            assignment = CodingAssignment(
                execution_id=self.execution_id, agent_id=self.agent_id, task=request, repository=pinned
            )
            run = RunContext(equipment=equipment, trail=trail, journal=journal)
            solution = await Solver(assignment, clone, run).solve()
            trajectory = solution.trajectory
            await run.end(
                run_finished(
                    trail,
                    trajectory.stop_reason,
                    trajectory.usage,
                    artifacts=solution.artifacts(None),
                    answer=trajectory.answer,
                    error=trajectory.error,
                )
            )
        return _result(solution, trail)

    async def _journal(self, stack: AsyncExitStack, task_id: str) -> Journal | None:
        """This run's journal where a log is configured; every step then stands in it as it happens."""
        if not self._settings.nats_url:
            return None
        log = await stack.enter_async_context(connect_log(self._settings, name=self.agent_id))
        await log.ensure_streams()
        writer = Writer(tenant=DEFAULT_TENANT, execution_id=self.execution_id, task_id=task_id, agent_id=self.agent_id)
        return RunJournal(await stack.enter_async_context(log.journal(writer)))


def _result(solution: Solution, trail: AuditTrail) -> AgentResult:
    trajectory, left = solution.trajectory, solution.artifacts(None)
    return AgentResult(
        success=trajectory.stop_reason is StopReason.FINAL_ANSWER,
        operations=tuple(operation(entry) for entry in trail.entries if entry.outcome is not Outcome.STARTED),
        artifacts={
            "commit_sha": left.commit_sha,
            "branch": left.branch,
            "patch": solution.diff.patch.decode("utf-8", "replace"),
            "files_changed": list(left.files_changed),
            "tests": to_plain(left.tests) if left.tests else None,
            "answer": trajectory.answer,
        },
        audit_trail=tuple(trail.entries),
        error=trajectory.error or None,
        usage=trajectory.usage,
        stop_reason=trajectory.stop_reason,
    )
