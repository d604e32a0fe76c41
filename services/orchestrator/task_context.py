"""GetTaskContext: the messages that an agent would get for a task, made by a host in a clone of the repository."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import tenant
from services.orchestrator.requests import repo_ref
from swe_ai_fleet.domain.assignment import OpeningAssignment
from swe_ai_fleet.domain.context import GatheredContext, Phase
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed, fields_named
from swe_ai_fleet.domain.task import SCRATCH, PinnedRepository, RepoRef, Role, Task, TaskKind, UncommittedChanges
from swe_ai_fleet.domain.text import check_identifier
from swe_ai_fleet.orchestrator.context_blocks import rendered, tokens
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.groundwork import context_request
from swe_ai_fleet.ports import ContextSource, WorkspaceProvider


@dataclass(frozen=True, kw_only=True)
class TaskContexts:
    source: ContextSource
    executions: Executions
    workspaces: WorkspaceProvider

    async def get(self, request: pb.GetTaskContextRequest) -> pb.GetTaskContextResponse:
        """The context of a task and role.

        Raises InvalidRequest, NotFound, Unavailable, and the errors of building an environment.
        """
        task, pinned = await self._task(request)
        task = _with_request(request, task)
        # A task that was never submitted has no description; only its case and story can have context.
        context = context_request(task, placed=not task.description)
        gathered = await self.source.gather(context) if context is not None else GatheredContext()
        assignment = OpeningAssignment(
            execution_id=str(uuid.uuid4()),
            task=task,
            repository=pinned or await self._pinned(task.repo),
            background=_context_text(gathered, history=False),
        )
        try:
            with fields_named(lambda head: "options.model_profile" if head == "model_profile" else head):
                opening = await self.executions.fleet.run(assignment)
        finally:
            await self.workspaces.release(assignment.execution_id)
        blocks = pb.ContextBlocks(
            system=opening.system,
            context=opening.task,
            tools="\n".join(("# Tools", *(f"- {line}" for line in opening.tools))),
            history=_context_text(gathered, history=True),
        )
        texts = (blocks.system, blocks.context, blocks.tools, blocks.history)
        text = "\n\n".join(text.strip() for text in texts if text.strip())
        return pb.GetTaskContextResponse(
            context_text=text,
            blocks=blocks,
            token_count=tokens(text),
            version_hash=hashlib.sha256(text.encode()).hexdigest(),
            model=opening.model,
        )

    async def _task(self, request: pb.GetTaskContextRequest) -> tuple[Task, PinnedRepository | None]:
        """The task as last submitted, with its commit; or a task made from the request alone, without a commit."""
        default = self.executions.rules(tenant()).default_repository or SCRATCH
        repo = repo_ref(request.repo) if request.HasField("repo") else RepoRef(location=default)
        task, pinned = Task(task_id=request.task_id, kind=TaskKind.DELIBERATE, description="", repo=repo), None
        if request.task_id:
            check_identifier(request.task_id, field="task_id")
            with suppress(NotFound):
                state = await self.executions.latest(tenant(), request.task_id)
                task, pinned = state.task, state.repository
        if request.HasField("repo"):
            task, pinned = replace(task, repo=repo), None
        return replace(task, tenant=tenant(), role=Role.parse(request.role) if request.role else task.role), pinned

    async def _pinned(self, repo: RepoRef) -> PinnedRepository:
        """The commit of a repository; uncommitted changes are ignored instead of refused."""
        if repo.uncommitted is UncommittedChanges.REFUSE:
            repo = replace(repo, uncommitted=UncommittedChanges.IGNORE)
        try:
            return await self.workspaces.pin(tenant(), repo)
        except PreconditionFailed as fault:
            raise NotFound(fault.message, field=fault.field, hint=fault.hint) from fault


def _with_request(request: pb.GetTaskContextRequest, task: Task) -> Task:
    for name in ("case_id", "story_id"):
        if getattr(request, name):
            check_identifier(getattr(request, name), field=name)
    phase = request.phase.strip().lower()
    if phase and phase not in list(Phase):
        raise InvalidRequest(f"unknown phase {phase[:64]!r}", field="phase", hint=f"one of {', '.join(Phase)}")
    chosen, options = task.context_options, request.options
    if options.include_repository_map and task.repo.location == SCRATCH:
        raise InvalidRequest("no repository given", field="repo", hint="set repo.path or repo.url")
    included = {field.name: value for field, value in options.ListFields() if field.name.startswith("include_")}
    chosen = replace(chosen, phase=phase or chosen.phase, token_budget=request.token_budget or chosen.token_budget)
    return replace(
        task,
        case_id=request.case_id or task.case_id,
        story_id=request.story_id or task.story_id,
        model_profile=options.model_profile or task.model_profile,
        context_options=replace(chosen, **included),
    )


def _context_text(gathered: GatheredContext, *, history: bool) -> str:
    return rendered([block for block in gathered.blocks if (block.kind == "history") is history])
