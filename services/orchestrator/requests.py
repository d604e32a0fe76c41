"""Turns requests into tasks, plans and decisions, and subtasks into messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import principal
from services.errors import Context
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.contract import from_enum, from_message, to_enum
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.blob import blob_ref
from swe_ai_fleet.domain.budget import Limits, Totals
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.errors import InvalidRequest, fields_named
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.subtask import SKIPPED, Derivation, Subtask, SubtaskOutcome
from swe_ai_fleet.domain.task import (
    COUNCIL_ROUNDS,
    MAX_PATCHES,
    UPLOAD,
    Constraints,
    ContextOptions,
    EnvironmentSpec,
    RepoRef,
    Role,
    SubmittedPatch,
    Task,
    TaskKind,
)
from swe_ai_fleet.domain.text import check_identifier, plain_line
from swe_ai_fleet.orchestrator.delivery import HandDelivery
from swe_ai_fleet.orchestrator.derivations import DerivationRequest
from swe_ai_fleet.orchestrator.subtasks import child_task_id
from swe_ai_fleet.ports import BlobStore

MAX_TASK_BYTES = 1024 * 1024

_UPLOAD_ID = re.compile(r"[0-9a-f]{64}")
_ORCHESTRATE_FIELDS = {
    "num_agents": "options.num_agents",
    "max_agents": "options.max_agents",
    "rounds": "options.deliberation_rounds",
    "architect_top_k": "options.architect_top_k",
    "custom_params": "options.custom_params",
}
DEFAULT_TOP_K = 3
"""How many of the best candidates an architect chooses among, if a request does not say how many."""
MAX_DESCRIPTION_CHARS = 2_000
MAX_ERROR_CHARS = 500


def deliberation_task(request: pb.DeliberateRequest) -> Task:
    """The task of a Deliberate request. Raises InvalidRequest, naming the field."""
    reviewed = request.enable_peer_review if request.HasField("enable_peer_review") else True
    return _checked_size(
        _task(
            request,
            kind=TaskKind.DELIBERATE,
            num_agents=request.num_agents,
            rounds=(request.rounds or COUNCIL_ROUNDS) if reviewed else 0,
        )
    )


def orchestration_task(request: pb.OrchestrateRequest) -> Task:
    """The task of an Orchestrate request. Raises InvalidRequest, naming the field."""
    if request.delivery.push and request.repo.upload_id:
        raise InvalidRequest(
            "what was uploaded cannot be pushed anywhere", field="delivery.push", hint="fetch the bundle artifact"
        )
    options = request.options
    reviewed = options.enable_peer_review or options.deliberation_rounds or not request.HasField("options")
    params = dict(options.custom_params)
    profile = params.pop("model_profile", "")
    if profile and request.model_profile not in ("", profile):
        raise InvalidRequest(
            "two model profiles are named", field="options.custom_params[model_profile]", hint="model_profile is enough"
        )
    return _checked_size(
        _task(
            request,
            kind=TaskKind.ORCHESTRATE,
            num_agents=options.num_agents,
            max_agents=options.max_agents,
            probes=options.probes,
            rounds=(options.deliberation_rounds or COUNCIL_ROUNDS) if reviewed else 0,
            architect_top_k=(options.architect_top_k or DEFAULT_TOP_K) if options.enable_architect_selection else 0,
            derive_subtasks=options.derive_subtasks,
            custom_params=params,
            model_profile=request.model_profile or profile,
            context_options=from_message(
                ContextOptions, request.context_options, phase=request.context_options.phase.strip().lower()
            ),
        )
    )


def submitted_task(request: pb.SubmitTaskRequest) -> Task:
    """The task in a SubmitTask request. Raises InvalidRequest, naming the field."""
    match request.WhichOneof("task"):
        case "deliberate":
            return deliberation_task(request.deliberate)
        case "orchestrate":
            return orchestration_task(request.orchestrate)
        case _:
            raise InvalidRequest("no task given", field="task", hint="set deliberate or orchestrate")


def fields_of(request: Message) -> AbstractContextManager[None]:
    """Inside, errors that name a field of the task name the request's field instead."""
    names: Mapping[str, str] = {}
    prefix, inner = "", request
    if isinstance(request, pb.SubmitTaskRequest):
        chosen = request.WhichOneof("task")
        prefix, inner = (f"{chosen}.", getattr(request, chosen)) if chosen else ("", request)
    if isinstance(inner, pb.OrchestrateRequest):
        param = "model_profile" in inner.options.custom_params and not inner.model_profile
        names = _ORCHESTRATE_FIELDS | ({"model_profile": "options.custom_params[model_profile]"} if param else {})
    return fields_named(lambda head: prefix + names.get(head, head) if head else "")


def not_for_tasks(subject: str) -> InvalidRequest:
    """The error for a subject that is not `agent.cmd.execute` with a tenant and a priority."""
    return InvalidRequest(
        f"{subject[:200]!r} is not a subject for tasks",
        field="subject",
        hint="agent.cmd.execute[.<tenant>[.<priority>]], the priority high, normal, low or 0 to 9",
    )


def _task(request: pb.DeliberateRequest | pb.OrchestrateRequest | pb.JudgePatchesRequest, **fields: Any) -> Task:
    """The task of a request; `fields` are those that the task does not take from the request under the same name."""
    if not request.task_id:
        raise InvalidRequest("no task id given", field="task_id", hint="choose one; it makes the request repeatable")
    return from_message(
        Task,
        request,
        repo=repo_ref(request.repo),
        constraints=_constraints(request.constraints),
        environment=from_message(
            EnvironmentSpec, request.environment, detect=not request.environment.disable_detection
        ),
        # Set by `with_patches`, to references to the stored patches.
        patches=(),
        **fields,
    )


def repo_ref(repo: pb.RepoRef) -> RepoRef:
    """The repository that a request names. Raises InvalidRequest, naming the field."""
    if repo.upload_id and not _UPLOAD_ID.fullmatch(repo.upload_id):
        raise InvalidRequest("not the id of an upload", field="repo.upload_id", hint="as UploadRepository gave it")
    # Otherwise it would be taken as a path on this machine.
    if repo.url and "://" not in repo.url and ":" not in repo.url.split("/", 1)[0]:
        raise InvalidRequest(f"{repo.url[:64]!r} is not a URL", field="repo.url", hint="repo.path names a directory")
    if repo.path and not repo.path.startswith("/"):
        raise InvalidRequest(f"{repo.path[:64]!r} is not an absolute path", field="repo.path")
    if repo.credential_ref:
        check_identifier(repo.credential_ref, field="repo.credential_ref")
        if not repo.url:
            raise InvalidRequest("credentials are for URLs", field="repo.credential_ref", hint="leave it out")
    location = UPLOAD + repo.upload_id if repo.upload_id else repo.path or repo.url
    return from_message(RepoRef, repo, location=location)


def _constraints(message: pb.TaskConstraints) -> Constraints:
    checks: dict[str, CheckSpec] = {}
    for number, check in enumerate(message.checks):
        name = check.name or check.command
        if name in checks:
            raise InvalidRequest(f"two checks are called {name[:64]!r}", field=f"constraints.checks[{number}].name")
        checks[name] = from_message(CheckSpec, check, name=name)
    return from_message(
        Constraints,
        message,
        limits=from_message(Limits, message),
        totals=Totals(
            max_tokens=message.total_max_tokens,
            max_tool_calls=message.total_max_tool_calls,
            max_cost=message.total_max_cost,
        ),
        allowed_hosts=tuple(message.network.allowed_hosts) if message.HasField("network") else None,
        checks=tuple(checks.values()),
    )


def _checked_size(task: Task) -> Task:
    """The task, if it is small enough for an event that clients can receive. Raises InvalidRequest."""
    size = len(to_json(task))
    if size > MAX_TASK_BYTES:
        # `context` is the only field for prose without a limit of its own.
        raise InvalidRequest(
            f"the request has {size} bytes as a stored task",
            field="context",
            hint=f"at most {MAX_TASK_BYTES}; put long material into a file of the repository",
        )
    return task


def derivation_request(request: pb.DeriveSubtasksRequest) -> DerivationRequest:
    """The plan in a request. Raises InvalidRequest naming the field."""
    roles: list[Role] = []
    for number, name in enumerate(request.roles):
        with fields_named(lambda _, number=number: f"roles[{number}]"):
            roles.append(Role.parse(name))
    return DerivationRequest(
        description=request.task_description,
        case_id=request.case_id,
        plan_id=request.plan_id,
        roles=tuple(dict.fromkeys(roles)),
        strategy=request.strategy.strip().lower() or "auto",
        repo=repo_ref(request.repo) if request.HasField("repo") else None,
    )


def derivation_response(plan: DerivationRequest, derivation: Derivation) -> pb.DeriveSubtasksResponse:
    """A plan's subtasks, with ids that no other derivation uses."""
    names = {subtask.subtask_id: f"{derivation.derivation_id}.{subtask.subtask_id}" for subtask in derivation.subtasks}
    return pb.DeriveSubtasksResponse(
        tasks=[
            atomic_task(subtask, names, case_id=plan.case_id, plan_id=plan.plan_id) for subtask in derivation.subtasks
        ],
        derivation_id=derivation.derivation_id,
        total_tasks=len(derivation.subtasks),
    )


def subtask_results(state: ExecutionState) -> list[pb.SubtaskResult]:
    """The current state of an orchestration's subtasks, dependencies first, with shortened texts."""
    if state.derivation is None:
        return []
    task, derivation = state.task, state.derivation
    names = {
        subtask.subtask_id: child_task_id(task.task_id, subtask.subtask_id, derivation.joint)
        for subtask in derivation.subtasks
    }
    results: list[pb.SubtaskResult] = []
    for subtask in derivation.subtasks:
        name = subtask.subtask_id
        outcome = state.subtask_outcomes.get(name, SubtaskOutcome(subtask_id=name))
        execution_id = outcome.execution_id or state.subtask_executions.get(name, "")
        results.append(
            pb.SubtaskResult(
                task=atomic_task(subtask, names, case_id=task.case_id, plan_id=task.plan_id, cut=True),
                execution_id=execution_id,
                status=_status(outcome, started=bool(execution_id)),
                commit_sha=outcome.commit_sha,
                error_message=outcome.error[:MAX_ERROR_CHARS],
            )
        )
    return results


def _status(outcome: SubtaskOutcome, *, started: bool) -> pb.DeliberationStatus:
    """A subtask's status: failed if it has a winner that could not be merged, cancelled if it was skipped."""
    if outcome.status == SKIPPED:
        name = ExecutionStatus.CANCELLED.name
    elif not outcome.status:
        name = ExecutionStatus.IN_PROGRESS.name if started else ExecutionStatus.PENDING.name
    elif outcome.status == ExecutionStatus.COMPLETED and not outcome.merged:
        name = ExecutionStatus.FAILED.name
    else:
        name = ExecutionStatus(outcome.status).name
    return to_enum(pb.DeliberationStatus, name)


def atomic_task(
    of: Subtask, names: Mapping[str, str], *, case_id: str, plan_id: str, cut: bool = False
) -> pb.AtomicTask:
    """A subtask as a message. `names` are the task ids of it and its dependencies, by subtask id."""
    return pb.AtomicTask(
        task_id=names[of.subtask_id],
        role=of.role,
        description=of.description[:MAX_DESCRIPTION_CHARS] if cut else of.description,
        dependencies=[names[name] for name in of.dependencies],
        constraints=pb.TaskConstraints(allowed_paths=of.allowed_paths) if of.allowed_paths else None,
        case_id=case_id,
        plan_id=plan_id,
        priority=of.priority,
    )


MAX_DIFF_BYTES = 3 * 1024 * 1024
"""Of all patches of a request together: they must fit into one gRPC message."""
_MAX_APPROVER_CHARS = 120
PATCH_MEDIA_TYPE = "text/x-diff"


def resolution(request: pb.ResolveApprovalRequest, context: Context) -> ApprovalResolution:
    """A caller's decision. Raises InvalidRequest naming the field."""
    decision = from_enum(ApprovalDecision, pb.ApprovalDecision, request.decision)
    if decision is None:
        raise InvalidRequest("no decision given", field="decision", hint="APPROVED, REJECTED or ADJUSTED")
    adjusted = decision is ApprovalDecision.ADJUSTED
    if request.adjustment and not adjusted:
        raise InvalidRequest(
            f"an adjustment does not go with {decision}", field="adjustment", hint="comment is for what else to say"
        )
    if request.comment and adjusted:
        raise InvalidRequest("the adjustment is what is said", field="comment", hint="put it into adjustment")
    return ApprovalResolution(
        approval_id=request.approval_id,
        decision=decision,
        text=request.adjustment if adjusted else request.comment,
        approver=request.approver.strip(),
        caller=principal().name or f"token holder at {context.peer()}",
    )


def judge_task(request: pb.JudgePatchesRequest) -> Task:
    """The task of a request, without its patches. Raises InvalidRequest naming the field."""
    if not 1 <= len(request.patches) <= MAX_PATCHES:
        raise InvalidRequest(
            f"there are {len(request.patches)} patches", field="patches", hint=f"1 to {MAX_PATCHES} of them"
        )
    total = sum(len(patch.diff) for patch in request.patches)
    if total > MAX_DIFF_BYTES:
        raise InvalidRequest(f"the patches have {total} bytes", field="patches", hint=f"at most {MAX_DIFF_BYTES}")
    for number, patch in enumerate(request.patches):
        if not patch.diff.strip():
            raise InvalidRequest("the patch is empty", field=f"patches[{number}].diff")
    task = _checked_size(_task(request, kind=TaskKind.JUDGE))
    title = "Judge a patch" if len(request.patches) == 1 else f"Judge {len(request.patches)} patches"
    return replace(task, description=request.task_description.strip() or title)


def with_patches(task: Task, patches: Sequence[pb.SubmittedPatch]) -> Task:
    """The task with references to its patches, which `store_patches` stores."""
    return replace(
        task,
        patches=tuple(
            SubmittedPatch(
                name=patch.name,
                patch=blob_ref(task.tenant, task.execution_id, _with_line_feed(patch.diff), PATCH_MEDIA_TYPE),
                summary=patch.summary,
            )
            for patch in patches
        ),
    )


async def store_patches(task: Task, patches: Sequence[pb.SubmittedPatch], blobs: BlobStore) -> None:
    """Store a task's patches. Raises ResourceExhausted, Unavailable."""
    for patch in patches:
        await blobs.put(task.tenant, task.execution_id, _with_line_feed(patch.diff), PATCH_MEDIA_TYPE)


def _with_line_feed(diff: bytes) -> bytes:
    """A patch with a line feed at its end, which git requires and which shells and forms remove."""
    return diff if diff.endswith(b"\n") else diff + b"\n"


def hand_delivery(request: pb.DeliverCandidateRequest, caller: str) -> HandDelivery:
    """The delivery that a person asks for. `caller` is who authenticated; empty if all callers share one token."""
    if not request.candidate_id:
        raise InvalidRequest("no candidate given", field="candidate_id", hint="as in DeliberationResult.candidate_id")
    # Callers may give themselves any name, so the authenticated name follows it.
    approver = plain_line(request.approver, _MAX_APPROVER_CHARS)
    by = f"{approver} ({caller})" if approver and caller and approver != caller else approver or caller or "somebody"
    return HandDelivery(
        candidate_id=request.candidate_id,
        by=by,
        caller=caller,
        reason=request.reason,
        branch=request.branch,
        push=request.push,
    )
