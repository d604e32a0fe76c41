"""What executions wait for: shown, and the answer to it."""

from __future__ import annotations

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import enum_name
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.approval import ApprovalRequest, MemoryFindings
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.watching.narration import how_to_answer


def resolution(decision: str, *, approval_id: str, text: str, approver: str) -> pb.ResolveApprovalRequest:
    """The answer to an approval, its execution still to be named. Raises CommandFault."""
    adjusted = decision == "adjusted"
    if adjusted and not text.strip():
        raise CommandFault("it is empty", exit_code=Exit.USAGE, field="text", hint="say what is to be done otherwise")
    return pb.ResolveApprovalRequest(
        decision=enum_name(pb.ApprovalDecision, decision, field="decision"),
        adjustment=text if adjusted else "",
        comment="" if adjusted else text,
        approver=approver,
        approval_id=approval_id,
    )


def print_pending(screen: Screen, state: ExecutionState) -> None:
    """Everything that an execution waits for, with what is needed to decide."""
    several = len(state.pending) > 1
    for request in state.pending:
        what = "its plan" if request.policy is ApprovalPolicy.PLAN else request.call.name
        screen.line(f"{request.agent_id} asks for approval of {what}", style="bold yellow")
        for title, text in _parts(request):
            screen.block(title, text)
        if request.expires_at:
            screen.line(f"  rejected by itself at {request.expires_at[:19]} (UTC)")
        screen.line(f"  answer with: {how_to_answer(state.execution_id, request.approval_id if several else '')}")


def _parts(request: ApprovalRequest) -> list[tuple[str, str]]:
    return [
        ("approach" if request.policy is ApprovalPolicy.PLAN else "call", request.approach),
        ("why it counts as risky", "\n".join(request.reasons)),
        ("what memory covers", _covered(request.memory_results)),
        ("found in memory", request.memory),
        ("changed so far", request.diff),
    ]


def _covered(found: MemoryFindings | None) -> str:
    if found is None:
        return ""
    lines = [f"{found.coverage:.0f} % of what was asked"]
    lines += [f"not known: {gap}" for gap in found.gaps]
    lines += [f"source: {source}" for source in found.sources]
    return "\n".join(lines)
