"""Requests as clients send them, turned into tasks."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.errors import NotAvailable
from services.values import check_values
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.budget import Limits, Totals
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.task import (
    COUNCIL_ROUNDS,
    UPLOAD,
    ApprovalPolicy,
    CheckSpec,
    Constraints,
    ContextOptions,
    Delivery,
    EnvironmentSpec,
    MemoryOptions,
    PlanningMode,
    RepoRef,
    Role,
    Task,
    TaskKind,
    TaskMcpServer,
    UncommittedChanges,
    check_identifier,
)

MAX_TASK_BYTES = 1024 * 1024
MAX_EXIT_CODE = 255
MAX_COST = 1e9

_UNCOMMITTED = {
    pb.UNCOMMITTED_CHANGES_UNSPECIFIED: UncommittedChanges.REFUSE,
    pb.UNCOMMITTED_CHANGES_INCLUDE: UncommittedChanges.INCLUDE,
    pb.UNCOMMITTED_CHANGES_IGNORE: UncommittedChanges.IGNORE,
}
_APPROVAL = {
    pb.APPROVAL_POLICY_UNSPECIFIED: ApprovalPolicy.NONE,
    pb.APPROVAL_POLICY_NONE: ApprovalPolicy.NONE,
    pb.APPROVAL_POLICY_PLAN: ApprovalPolicy.PLAN,
    pb.APPROVAL_POLICY_RISKY: ApprovalPolicy.RISKY,
    pb.APPROVAL_POLICY_EVERY: ApprovalPolicy.EVERY,
}
_PLANNING = {
    pb.PLANNING_MODE_SIMPLE: PlanningMode.SIMPLE,
    pb.PLANNING_MODE_AGENTIC: PlanningMode.AGENTIC,
    pb.PLANNING_MODE_HYBRID: PlanningMode.HYBRID,
}
_UPLOAD_ID = re.compile(r"[0-9a-f]{64}")
_ORCHESTRATE_FIELDS = {
    "num_agents": "options.num_agents",
    "max_agents": "options.max_agents",
    "rounds": "options.deliberation_rounds",
    "architect_top_k": "options.architect_top_k",
}
DEFAULT_TOP_K = 3
"""How many of the best an architect chooses among where a request asks for one and no more."""


def deliberation_task(request: pb.DeliberateRequest) -> Task:
    """The task of a Deliberate request. Raises InvalidRequest and NotAvailable, naming the field."""
    check_values(request)
    _refuse_later_features(request)
    reviewed = request.enable_peer_review if request.HasField("enable_peer_review") else True
    return _bounded(
        Task(
            kind=TaskKind.DELIBERATE,
            num_agents=request.num_agents,
            max_agents=request.max_agents,
            probes=request.probes,
            rounds=(request.rounds or COUNCIL_ROUNDS) if reviewed else 0,
            architect_top_k=request.architect_top_k,
            **_common(request),
        )
    )


def orchestration_task(request: pb.OrchestrateRequest) -> Task:
    """The task of an Orchestrate request. Raises InvalidRequest and NotAvailable, naming the field."""
    check_values(request)
    _refuse_later_features(request)
    _check_push(request)
    options = request.options
    reviewed = options.enable_peer_review or not request.HasField("options")
    return _bounded(
        Task(
            kind=TaskKind.ORCHESTRATE,
            num_agents=options.num_agents,
            max_agents=options.max_agents,
            probes=options.probes,
            rounds=(options.deliberation_rounds or COUNCIL_ROUNDS) if reviewed else 0,
            architect_top_k=(options.architect_top_k or DEFAULT_TOP_K) if options.enable_architect_selection else 0,
            derive_subtasks=options.derive_subtasks,
            delivery=_delivery(request.delivery),
            case_id=request.case_id,
            story_id=request.story_id,
            plan_id=request.plan_id,
            context_options=_context_options(request.context_options),
            **_common(request),
        )
    )


def submitted_task(request: pb.SubmitTaskRequest) -> Task:
    """The task inside a SubmitTask request. Raises InvalidRequest and NotAvailable, naming the field."""
    match request.WhichOneof("task"):
        case "deliberate":
            return deliberation_task(request.deliberate)
        case "orchestrate":
            return orchestration_task(request.orchestrate)
        case _:
            raise InvalidRequest("no task given", field="task", hint="set deliberate or orchestrate")


@contextmanager
def fields_of(request: Message) -> Generator[None]:
    """Inside, faults name fields as they are called in this request, whatever the task calls them."""
    names: Mapping[str, str] = {}
    prefix, inner = "", request
    if isinstance(request, pb.SubmitTaskRequest):
        chosen = request.WhichOneof("task")
        prefix, inner = (f"{chosen}.", getattr(request, chosen)) if chosen else ("", request)
    if isinstance(inner, pb.OrchestrateRequest):
        names = _ORCHESTRATE_FIELDS
    try:
        yield
    except FleetError as error:
        field = prefix + names.get(error.field, error.field)
        if not error.field or field == error.field:
            raise
        raise type(error)(error.message, field=field, hint=error.hint) from error


def passed_over(request: pb.DeliberateRequest | pb.OrchestrateRequest) -> tuple[str, ...]:
    """Fields that were given but do nothing yet, and whose absence does no harm; the reply names them."""
    if isinstance(request, pb.DeliberateRequest):
        return ()
    given = {
        "options.custom_params": bool(request.options.custom_params),
        "context_options.include_repository_map": request.context_options.HasField("include_repository_map"),
        "context_options.include_instructions": request.context_options.HasField("include_instructions"),
    }
    return tuple(name for name, there in given.items() if there)


def common_task(request: pb.JudgePatchesRequest, *, kind: TaskKind) -> Task:
    """The task of a request that no agent works on. Raises InvalidRequest and NotAvailable, naming the field."""
    check_values(request)
    _refuse_later_features(request)
    return _bounded(
        Task(
            kind=kind,
            task_id=_task_id(request.task_id),
            description=request.task_description,
            repo=repo_ref(request.repo),
            constraints=_constraints(request.constraints),
            environment=_environment(request.environment),
            attempt=request.attempt or 1,
            priority=request.priority,
        )
    )


def _task_id(text: str) -> str:
    if not text:
        raise InvalidRequest("no task id given", field="task_id", hint="choose one; it makes the request repeatable")
    return text


def _common(request: pb.DeliberateRequest | pb.OrchestrateRequest) -> dict[str, Any]:
    """The fields of `Task` that both kinds of request have."""
    return {
        "task_id": _task_id(request.task_id),
        "description": request.task_description,
        "role": Role.parse(request.role),
        "repo": repo_ref(request.repo),
        "context": request.context,
        "constraints": _constraints(request.constraints),
        "environment": _environment(request.environment),
        "enable_tools": request.enable_tools if request.HasField("enable_tools") else True,
        "tools": tuple(request.tools),
        "planning_mode": _PLANNING.get(request.planning_mode),
        "model_profile": request.model_profile,
        "approval": _APPROVAL[request.approval],
        "attempt": request.attempt or 1,
        "priority": request.priority,
        "memory": MemoryOptions(
            read=request.memory.read,
            write=request.memory.write,
            namespaces=tuple(request.memory.namespaces),
            entities=tuple(request.memory.entities),
        ),
    }


def _refuse_later_features(request: pb.DeliberateRequest | pb.OrchestrateRequest | pb.JudgePatchesRequest) -> None:
    asked = {
        "environment.container_image": bool(request.environment.container_image),
    }
    for field, there in asked.items():
        if there:
            raise _later(field)


def _check_push(request: pb.OrchestrateRequest) -> None:
    if request.delivery.push and request.repo.upload_id:
        raise InvalidRequest(
            "what was uploaded cannot be pushed anywhere", field="delivery.push", hint="fetch the bundle artifact"
        )


def _later(field: str) -> NotAvailable:
    return NotAvailable(f"{field} is not available yet", field=field, hint="leave it out")


def repo_ref(repo: pb.RepoRef) -> RepoRef:
    """A repository as a request names it. Raises InvalidRequest and NotAvailable, naming the field."""
    if repo.upload_id and not _UPLOAD_ID.fullmatch(repo.upload_id):
        raise InvalidRequest("not the id of an upload", field="repo.upload_id", hint="as UploadRepository gave it")
    # A URL that is none would otherwise be looked up as a path on this machine.
    if repo.url and "://" not in repo.url and ":" not in repo.url.split("/", 1)[0]:
        raise InvalidRequest(f"{repo.url[:64]!r} is no URL", field="repo.url", hint="repo.path names a directory")
    if repo.path and not repo.path.startswith("/"):
        raise InvalidRequest(f"{repo.path[:64]!r} is not an absolute path", field="repo.path")
    if repo.credential_ref:
        check_identifier(repo.credential_ref, field="repo.credential_ref")
        if not repo.url:
            raise InvalidRequest("credentials are for URLs", field="repo.credential_ref", hint="leave it out")
    return RepoRef(
        location=UPLOAD + repo.upload_id if repo.upload_id else repo.path or repo.url,
        ref=repo.ref,
        commit=repo.commit,
        subdirectory=repo.subdirectory,
        credential=repo.credential_ref,
        uncommitted=_UNCOMMITTED[repo.uncommitted],
    )


def _constraints(given: pb.TaskConstraints) -> Constraints:
    default = Limits()
    limits = Limits(
        max_iterations=given.max_iterations or default.max_iterations,
        max_tool_calls=given.max_tool_calls or default.max_tool_calls,
        max_tokens=given.max_tokens or default.max_tokens,
        timeout_seconds=float(given.timeout_seconds or default.timeout_seconds),
        max_cost=given.max_cost or default.max_cost,
    )
    for name, cost in (("max_cost", given.max_cost), ("total_max_cost", given.total_max_cost)):
        if not 0 <= cost <= MAX_COST:
            raise InvalidRequest(
                f"constraints.{name} is {cost:g}",
                field=f"constraints.{name}",
                hint="0 for no limit, or a positive amount",
            )
    return Constraints(
        rubric=given.rubric,
        requirements=tuple(given.requirements),
        metadata=dict(given.metadata),
        limits=limits,
        totals=Totals(
            max_tokens=given.total_max_tokens,
            max_tool_calls=given.total_max_tool_calls,
            max_cost=given.total_max_cost,
        ),
        allowed_tools=tuple(given.allowed_tools),
        denied_tools=tuple(given.denied_tools),
        allowed_paths=tuple(given.allowed_paths),
        allowed_hosts=tuple(given.network.allowed_hosts) if given.HasField("network") else None,
        checks=_checks(given),
        mcp_servers=tuple(
            TaskMcpServer(
                name=server.name,
                command=tuple(server.command),
                url=server.url,
                variables=dict(server.variables),
                tools=tuple(server.tools) or ("*",),
                allowed_hosts=tuple(server.allowed_hosts),
            )
            for server in given.mcp_servers
        ),
        abort_on_error=given.abort_on_error,
        require_verified=given.require_verified,
    )


def _checks(given: pb.TaskConstraints) -> tuple[CheckSpec, ...]:
    checks: dict[str, CheckSpec] = {}
    for number, one in enumerate(given.checks):
        name = one.name or one.command
        if name in checks:
            raise InvalidRequest(f"two checks are called {name[:64]!r}", field=f"constraints.checks[{number}].name")
        if one.expected_exit_code > MAX_EXIT_CODE:
            field = f"constraints.checks[{number}].expected_exit_code"
            raise InvalidRequest(f"no command exits with {one.expected_exit_code}", field=field, hint="0 to 255")
        spec = CheckSpec(
            name=name,
            command=one.command,
            required=one.required if one.HasField("required") else True,
            expected_exit_code=one.expected_exit_code,
        )
        if one.timeout_seconds:
            spec = CheckSpec(
                name=name,
                command=one.command,
                timeout_seconds=float(one.timeout_seconds),
                required=spec.required,
                expected_exit_code=one.expected_exit_code,
            )
        checks[name] = spec
    return tuple(checks.values())


def _environment(given: pb.EnvironmentSpec) -> EnvironmentSpec:
    return EnvironmentSpec(
        setup=tuple(given.setup_commands),
        variables=dict(given.variables),
        path=tuple(given.path_directories),
        detect=not given.disable_detection,
        test_command=given.test_command,
    )


def _context_options(given: pb.ContextOptions) -> ContextOptions:
    return ContextOptions(
        phase=given.phase.strip().lower(),
        token_budget=given.token_budget,
        include_decisions=given.include_decisions if given.HasField("include_decisions") else True,
        include_history=given.include_history if given.HasField("include_history") else True,
    )


def _delivery(given: pb.Delivery) -> Delivery:
    default = Delivery()
    return Delivery(
        branch=given.branch,
        push=given.push,
        author_name=given.author_name or default.author_name,
        author_email=given.author_email or default.author_email,
        message=given.message,
    )


def _bounded(task: Task) -> Task:
    """The task, if an event can carry it and a client can be sent that event."""
    size = len(to_json(task))
    if size > MAX_TASK_BYTES:
        # `context` is the only field without a bound of its own that is meant for prose.
        raise InvalidRequest(
            f"the request has {size} bytes as a stored task",
            field="context",
            hint=f"at most {MAX_TASK_BYTES}; put long material into a file of the repository",
        )
    return task
