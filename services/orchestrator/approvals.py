"""Approvals on the wire: what waits, and what a caller decides about it."""

from __future__ import annotations

from google.protobuf import json_format, struct_pb2

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import principal
from services.errors import Context
from services.orchestrator import responses
from services.orchestrator.replies import fit
from swe_ai_fleet.contract import from_enum, to_message
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import ApprovalPolicy


def pending(state: ExecutionState, *, room: int) -> list[pb.PendingApproval]:
    """What an execution waits for, its texts cut until all fit into `room` bytes."""
    told = [_pending(request, state.execution_id) for request in state.pending]
    fit(told, room)
    return told


def _pending(request: ApprovalRequest, execution_id: str) -> pb.PendingApproval:
    told = to_message(pb.PendingApproval, request, operation=None, whole_diff=None)
    if request.policy is not ApprovalPolicy.PLAN:
        told.operation.operation = request.call.name
        told.operation.call_id = request.call.call_id
        told.operation.step = request.step
        told.operation.params.CopyFrom(_arguments(request.call.arguments))
    if request.diff_ref is not None:
        told.whole_diff.CopyFrom(responses.artifact(request.diff_ref, execution_id, f"{request.agent_id}.diff"))
    return told


def _arguments(text: str) -> struct_pb2.Struct:
    """Arguments as a model wrote them, whatever that is; masked, and maybe cut, so not always JSON."""
    try:
        return json_format.Parse(text, struct_pb2.Struct())
    except (json_format.ParseError, RecursionError):
        told = struct_pb2.Struct()
        told.fields["raw"].string_value = text
        return told


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
