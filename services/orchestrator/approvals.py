"""Approvals on the wire: what waits, and what a caller decides about it."""

from __future__ import annotations

from google.protobuf import json_format, struct_pb2

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import principal
from services.errors import Context
from services.orchestrator import responses
from services.orchestrator.replies import fit
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.moment import milliseconds
from swe_ai_fleet.domain.task import ApprovalPolicy

_DECISIONS = {
    pb.APPROVAL_DECISION_APPROVED: ApprovalDecision.APPROVED,
    pb.APPROVAL_DECISION_REJECTED: ApprovalDecision.REJECTED,
    pb.APPROVAL_DECISION_ADJUSTED: ApprovalDecision.ADJUSTED,
}


def pending(state: ExecutionState, *, room: int) -> list[pb.PendingApproval]:
    """What an execution waits for, its texts cut until all fit into `room` bytes."""
    told = [_pending(request, state.execution_id) for request in state.pending]
    fit(told, room)
    return told


def _pending(request: ApprovalRequest, execution_id: str) -> pb.PendingApproval:
    told = pb.PendingApproval(
        approval_id=request.approval_id,
        agent_id=request.agent_id,
        policy=responses.POLICIES[request.policy],
        proposal=request.approach,
        requested_at_ms=milliseconds(request.requested_at),
        goal=request.goal,
        memory=request.memory,
        diff=request.diff,
        reasons=request.reasons,
        expires_at_ms=milliseconds(request.expires_at),
    )
    if (found := request.memory_results) is not None:
        told.memory_results.coverage = found.coverage
        told.memory_results.gaps.extend(found.gaps)
        told.memory_results.sources.extend(found.sources)
        told.memory_results.content = found.content
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
    decision = _DECISIONS.get(request.decision)
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
