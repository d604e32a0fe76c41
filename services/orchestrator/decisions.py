"""Decisions of callers on the wire: approvals, judgements of patches, deliveries.

`JudgePatches` becomes a task, `DeliverCandidate` a decision about an execution that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from google.protobuf import json_format, struct_pb2

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import principal
from services.errors import Context
from services.orchestrator import responses
from services.orchestrator.replies import fit
from services.orchestrator.requests import common_task
from swe_ai_fleet.contract import from_enum, to_message
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.blob import blob_ref
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.domain.task import MAX_PATCHES, ApprovalPolicy, SubmittedPatch, Task, TaskKind
from swe_ai_fleet.domain.text import plain_line
from swe_ai_fleet.orchestrator.delivery import HandDelivery
from swe_ai_fleet.ports import BlobStore

MAX_DIFF_BYTES = 3 * 1024 * 1024
"""Of all patches of a request together: what a gRPC message of the usual size can carry."""
_MAX_GIVEN_NAME_CHARS = 120
PATCH_MEDIA_TYPE = "text/x-diff"


def pending(state: ExecutionState, *, room: int) -> list[pb.PendingApproval]:
    """What an execution waits for, its texts cut until all fit into `room` bytes."""
    approvals = [_pending(request, state.execution_id) for request in state.pending]
    fit(approvals, room)
    return approvals


def _pending(request: ApprovalRequest, execution_id: str) -> pb.PendingApproval:
    approval = to_message(pb.PendingApproval, request, operation=None, whole_diff=None)
    if request.policy is not ApprovalPolicy.PLAN:
        approval.operation.operation = request.call.name
        approval.operation.call_id = request.call.call_id
        approval.operation.step = request.step
        approval.operation.params.CopyFrom(_arguments(request.call.arguments))
    if request.diff_ref is not None:
        approval.whole_diff.CopyFrom(responses.artifact(request.diff_ref, execution_id, f"{request.agent_id}.diff"))
    return approval


def _arguments(text: str) -> struct_pb2.Struct:
    """Arguments as a model wrote them, whatever that is; masked, and maybe cut, so not always JSON."""
    try:
        return parsed(json_format.Parse, text, struct_pb2.Struct())
    except (json_format.ParseError, ValueError):
        arguments = struct_pb2.Struct()
        arguments.fields["raw"].string_value = text
        return arguments


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
    """The task of a request, its patches still to be stored. Raises InvalidRequest with the field."""
    if not 1 <= len(request.patches) <= MAX_PATCHES:
        raise InvalidRequest(
            f"there are {len(request.patches)} patches", field="patches", hint=f"1 to {MAX_PATCHES} of them"
        )
    _check_sizes(request.patches)
    task = common_task(request, kind=TaskKind.JUDGE)
    title = "Judge a patch" if len(request.patches) == 1 else f"Judge {len(request.patches)} patches"
    return replace(task, description=request.task_description.strip() or title)


def with_patches(task: Task, patches: Sequence[pb.SubmittedPatch]) -> Task:
    """The task with references to its patches, as `store_patches` stores them."""
    return replace(
        task,
        patches=tuple(
            SubmittedPatch(
                name=patch.name,
                patch=blob_ref(task.tenant, task.execution_id, _closed(patch.diff), PATCH_MEDIA_TYPE),
                summary=patch.summary,
            )
            for patch in patches
        ),
    )


async def store_patches(task: Task, patches: Sequence[pb.SubmittedPatch], blobs: BlobStore) -> None:
    """Store what a task refers to. Raises ResourceExhausted, Unavailable."""
    for patch in patches:
        await blobs.put(task.tenant, task.execution_id, _closed(patch.diff), PATCH_MEDIA_TYPE)


def _closed(diff: bytes) -> bytes:
    """A patch with the line feed at its end that shells and forms take away; without it git finds it damaged."""
    return diff if diff.endswith(b"\n") else diff + b"\n"


def hand_delivery(request: pb.DeliverCandidateRequest, caller: str) -> HandDelivery:
    """What a person asks for. `caller` is who authenticated; empty where one token is everybody's."""
    if not request.candidate_id:
        raise InvalidRequest("no candidate given", field="candidate_id", hint="as in DeliberationResult.candidate_id")
    # However long or odd the name is that they give themselves, behind it stands who they are.
    named = plain_line(request.approver, _MAX_GIVEN_NAME_CHARS)
    by = f"{named} ({caller})" if named and caller and named != caller else named or caller or "somebody"
    return HandDelivery(
        candidate_id=request.candidate_id,
        by=by,
        caller=caller,
        reason=request.reason,
        branch=request.branch,
        push=request.push,
    )


def _check_sizes(patches: Sequence[pb.SubmittedPatch]) -> None:
    total = sum(len(patch.diff) for patch in patches)
    if total > MAX_DIFF_BYTES:
        raise InvalidRequest(f"the patches have {total} bytes", field="patches", hint=f"at most {MAX_DIFF_BYTES}")
    for number, patch in enumerate(patches):
        if not patch.diff.strip():
            raise InvalidRequest("the patch is empty", field=f"patches[{number}].diff")
