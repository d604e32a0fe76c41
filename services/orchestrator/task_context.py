"""GetTaskContext: what an agent would be told, as far as that is known before a clone of the repository is opened."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.errors import NotAvailable
from services.orchestrator.requests import repo_ref
from services.values import check_values
from swe_ai_fleet.agents.history.token_count import BYTES_PER_TOKEN
from swe_ai_fleet.agents.offer import first_line
from swe_ai_fleet.agents.opening import opening_messages
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext, Phase
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound, PreconditionFailed
from swe_ai_fleet.domain.memory import task_namespaces
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Role, Task, TaskKind, check_identifier
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import ContextSource
from swe_ai_fleet.tools.catalogue import PROFILES, operations
from swe_ai_fleet.tools.pipeline import ToolLimits

MOUNT = "/workspace"
_HISTORY = ("history",)


@dataclass(frozen=True, kw_only=True)
class TaskContexts:
    """Makes the contexts of tasks.

    Attributes:
        source: Knows the project.
        executions: Know the tasks that were handed in.
    """

    source: ContextSource
    executions: Executions

    async def get(self, request: pb.GetTaskContextRequest) -> pb.GetTaskContextResponse:
        """The context of a task and role. Raises InvalidRequest, NotFound, NotAvailable, Unavailable."""
        check_values(request)
        _refuse_what_a_clone_has(request)
        task, handed_in = await self._task(request)
        try:
            gathered = await self.source.gather(_wanted(request, task))
        except NotFound as fault:
            if not handed_in or fault.field != "task_id":
                raise
            gathered = GatheredContext()
        system, _ = opening_messages(task, workspace=_NoClone(), limits=ToolLimits(), perspective=Perspective())
        blocks = pb.ContextBlocks(
            system=system.content,
            context=_joined(_described(task), *_texts(gathered, history=False)),
            tools=_tools(task.role),
            history=_joined(*_texts(gathered, history=True)),
        )
        text = _joined(blocks.system, blocks.context, blocks.tools, blocks.history)
        data = text.encode()
        return pb.GetTaskContextResponse(
            context_text=text,
            blocks=blocks,
            token_count=round(len(data) / BYTES_PER_TOKEN),
            version_hash=hashlib.sha256(data).hexdigest(),
        )

    async def _task(self, request: pb.GetTaskContextRequest) -> tuple[Task, bool]:
        """The task as it was handed in last, or one that says as much as the request does; which of the two."""
        role = Role.parse(request.role)
        known: Task | None = None
        if request.task_id:
            check_identifier(request.task_id, field="task_id")
            try:
                known = (await self.executions.latest(DEFAULT_TENANT, request.task_id)).task
            except NotFound:
                known = None
        if known is not None:
            return replace(known, role=role if request.role else known.role), True
        repo = repo_ref(request.repo) if request.HasField("repo") else RepoRef(location="")
        return Task(task_id=request.task_id, kind=TaskKind.DELIBERATE, description="", repo=repo, role=role), False


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


def _wanted(request: pb.GetTaskContextRequest, task: Task) -> ContextRequest:
    options = request.options
    for name in ("case_id", "story_id"):
        if getattr(request, name):
            check_identifier(getattr(request, name), field=name)
    return ContextRequest(
        tenant=task.tenant,
        case_id=request.case_id or task.case_id,
        story_id=request.story_id or task.story_id,
        task_id=request.task_id,
        role=task.role,
        phase=_phase(request.phase or task.context_options.phase),
        query=task.description,
        token_budget=request.token_budget or task.context_options.token_budget,
        include_decisions=options.include_decisions if options.HasField("include_decisions") else True,
        include_history=options.include_history if options.HasField("include_history") else True,
        namespaces=task_namespaces(task) if task.memory.read else (),
    )


def _phase(text: str) -> Phase | None:
    name = text.strip().lower()
    if name and name not in list(Phase):
        raise InvalidRequest(f"unknown phase {text[:64]!r}", field="phase", hint=f"one of {', '.join(Phase)}")
    return Phase(name) if name else None


def _described(task: Task) -> str:
    return f"# Task\n{task.description.strip()}" if task.description.strip() else ""


def _texts(gathered: GatheredContext, *, history: bool) -> list[str]:
    return [block.text for block in gathered.blocks if (block.kind in _HISTORY) is history]


def _tools(role: Role) -> str:
    """The operations that the role is shown at first, a line each."""
    known = operations()
    lines = [f"- {name}: {first_line(known[name].spec)}" for name in sorted(PROFILES[role]) if name in known]
    return "\n".join(("# Tools", *lines))


def _joined(*texts: str) -> str:
    return "\n\n".join(text.strip() for text in texts if text.strip())
