"""GetTaskContext: what an agent would be told, as far as that is known before a clone of the repository is opened."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import tenant
from services.errors import NotAvailable
from services.orchestrator.requests import repo_ref
from swe_ai_fleet.agents.opening import opening_messages
from swe_ai_fleet.agents.toolbox import first_line
from swe_ai_fleet.context.blocks import rendered, tokens
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext, Phase
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.task import ContextOptions, RepoRef, Role, Task, TaskKind, check_identifier
from swe_ai_fleet.orchestrator.background import context_request
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import ContextSource, SecretMask
from swe_ai_fleet.tools.catalogue import PROFILES, operations
from swe_ai_fleet.tools.pipeline import ToolLimits

MOUNT = "/workspace"


@dataclass(frozen=True, kw_only=True)
class TaskContexts:
    """Makes the contexts of tasks.

    Attributes:
        source: Knows the project.
        executions: Know the tasks that were handed in.
        mask: Hides secrets, as in agents' prompts.
    """

    source: ContextSource
    executions: Executions
    mask: SecretMask

    async def get(self, request: pb.GetTaskContextRequest) -> pb.GetTaskContextResponse:
        """The context of a task and role. Raises InvalidRequest, NotFound, NotAvailable, Unavailable."""
        _refuse_what_a_clone_has(request)
        task, handed_in = await self._task(request)
        task = _asked(request, task)
        wanted = context_request(task)
        if wanted is None and not handed_in:
            options = task.context_options
            wanted = ContextRequest(
                tenant=task.tenant,
                task_id=task.task_id,
                role=task.role,
                phase=Phase(options.phase) if options.phase else None,
                token_budget=options.token_budget,
                include_decisions=options.include_decisions,
                include_history=options.include_history,
            )
        gathered = await self.source.gather(wanted) if wanted is not None else GatheredContext()
        known = _told(gathered, history=False)
        system, first = opening_messages(
            task,
            workspace=_NoClone(),
            limits=ToolLimits(),
            perspective=Perspective(),
            mask=self.mask,
            background=known,
        )
        blocks = pb.ContextBlocks(
            system=system.content,
            # Of a task that nobody has handed in, there is nothing to tell but that.
            context=first.content if handed_in else known,
            tools=_tools(task.role),
            history=_told(gathered, history=True),
        )
        text = _joined(blocks.system, blocks.context, blocks.tools, blocks.history)
        return pb.GetTaskContextResponse(
            context_text=text,
            blocks=blocks,
            token_count=tokens(text),
            version_hash=hashlib.sha256(text.encode()).hexdigest(),
        )

    async def _task(self, request: pb.GetTaskContextRequest) -> tuple[Task, bool]:
        """The task as it was handed in last, or one that says as much as the request does; which of the two."""
        role = Role.parse(request.role)
        known: Task | None = None
        if request.task_id:
            check_identifier(request.task_id, field="task_id")
            try:
                known = (await self.executions.latest(tenant(), request.task_id)).task
            except NotFound:
                known = None
        if known is not None:
            return replace(known, role=role if request.role else known.role), True
        repo = repo_ref(request.repo) if request.HasField("repo") else RepoRef(location="")
        empty = Task(
            task_id=request.task_id,
            kind=TaskKind.DELIBERATE,
            description="",
            repo=repo,
            tenant=tenant(),
            role=role,
        )
        return empty, False


class _NoClone:
    """Stands where a workspace will be: prompts say where that is and what it lets one do."""

    root = Path(MOUNT)
    mount = MOUNT
    environment = Environment()

    async def run(self, command: Command) -> NoReturn:
        raise PreconditionFailed("there is no clone to run a command in")


def _refuse_what_a_clone_has(request: pb.GetTaskContextRequest) -> None:
    asked = {
        "options.include_repository_map": request.options.include_repository_map,
        "options.include_instructions": request.options.include_instructions,
        "options.model_profile": bool(request.options.model_profile),
    }
    for field, there in asked.items():
        if there:
            raise NotAvailable(f"{field} is not available here", field=field, hint="leave it out")


def _asked(request: pb.GetTaskContextRequest, task: Task) -> Task:
    """The task as it would be with what the request says of it."""
    for name in ("case_id", "story_id"):
        if getattr(request, name):
            check_identifier(getattr(request, name), field=name)
    phase = request.phase.strip().lower()
    if phase and phase not in list(Phase):
        raise InvalidRequest(f"unknown phase {phase[:64]!r}", field="phase", hint=f"one of {', '.join(Phase)}")
    options, known = request.options, task.context_options
    return replace(
        task,
        case_id=request.case_id or task.case_id,
        story_id=request.story_id or task.story_id,
        context_options=ContextOptions(
            phase=phase or known.phase,
            token_budget=request.token_budget or known.token_budget,
            include_decisions=(
                options.include_decisions if options.HasField("include_decisions") else known.include_decisions
            ),
            include_history=options.include_history if options.HasField("include_history") else known.include_history,
        ),
    )


def _told(gathered: GatheredContext, *, history: bool) -> str:
    return rendered([block for block in gathered.blocks if (block.kind == "history") is history])


def _tools(role: Role) -> str:
    """The operations that the role is shown at first, a line each."""
    known = operations()
    lines = [f"- {name}: {first_line(known[name].spec)}" for name in sorted(PROFILES[role]) if name in known]
    return "\n".join(("# Tools", *lines))


def _joined(*texts: str) -> str:
    return "\n\n".join(text.strip() for text in texts if text.strip())
