"""`fleet approve`, `reject` and `adjust`: what executions wait for, shown and answered."""

from __future__ import annotations

import getpass
from contextlib import AbstractAsyncContextManager

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import status_word
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, MemoryFindings
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.watching.narration import how_to_answer
from swe_ai_fleet.watching.text import visible

_DECISIONS = {
    ApprovalDecision.APPROVED: pb.APPROVAL_DECISION_APPROVED,
    ApprovalDecision.REJECTED: pb.APPROVAL_DECISION_REJECTED,
    ApprovalDecision.ADJUSTED: pb.APPROVAL_DECISION_ADJUSTED,
}
_POLICIES = {
    "": pb.APPROVAL_POLICY_UNSPECIFIED,
    "none": pb.APPROVAL_POLICY_NONE,
    "plan": pb.APPROVAL_POLICY_PLAN,
    "risky": pb.APPROVAL_POLICY_RISKY,
    "every": pb.APPROVAL_POLICY_EVERY,
}
_LINES = 60


async def resolve(
    screen: Screen,
    fleet: AbstractAsyncContextManager[FleetClient],
    name: str,
    decision: ApprovalDecision,
    *,
    approval: str,
    text: str,
    approver: str,
) -> Exit:
    """Answer what an execution waits for."""
    adjusted = decision is ApprovalDecision.ADJUSTED
    if adjusted and not text.strip():
        raise CommandFault("what is to be done otherwise?", exit_code=Exit.USAGE, hint="say it with --text")
    async with fleet as client:
        answer = await client.resolve(
            pb.ResolveApprovalRequest(
                execution_id=await client.find(name),
                decision=_DECISIONS[decision],
                adjustment=text if adjusted else "",
                comment="" if adjusted else text,
                approver=approver or _user(),
                approval_id=approval,
            )
        )
    status = status_word(answer.status)
    if screen.json:
        screen.document(
            {"execution_id": answer.execution_id, "status": status, "pending_approvals": answer.pending_approvals}
        )
    else:
        left = f"; {answer.pending_approvals} more wait" if answer.pending_approvals else ""
        screen.line(f"execution {answer.execution_id}: {decision}; {status}{left}")
    return Exit.ACCEPTED


def policy_value(word: str) -> pb.ApprovalPolicy:
    """The policy that a word such as `plan` names. Raises CommandFault."""
    if word.strip().lower() not in _POLICIES:
        known = ", ".join(name for name in _POLICIES if name)
        raise CommandFault(f"unknown --approve {word!r}", exit_code=Exit.USAGE, hint=f"one of {known}")
    return _POLICIES[word.strip().lower()]


def print_pending(screen: Screen, state: ExecutionState) -> None:
    """Everything that an execution waits for, with what is needed to decide."""
    several = len(state.pending) > 1
    for request in state.pending:
        what = "its plan" if request.policy is ApprovalPolicy.PLAN else request.call.name
        screen.line(f"{request.agent_id} asks for approval of {what}", style="bold yellow")
        for title, text in _parts(request):
            lines = visible(text).splitlines()
            screen.line(f"  {title}:")
            for line in lines[:_LINES]:
                screen.line(f"    {line}")
            if len(lines) > _LINES:
                screen.line(f"    ... {len(lines) - _LINES} more lines; --json has them all", style="dim")
        if request.expires_at:
            screen.line(f"  rejected by itself at {request.expires_at[:19]} (UTC)")
        screen.line(f"  answer with: {how_to_answer(state.execution_id, request.approval_id if several else '')}")


def _parts(request: ApprovalRequest) -> list[tuple[str, str]]:
    parts = [
        ("approach" if request.policy is ApprovalPolicy.PLAN else "call", request.approach),
        ("why it counts as risky", "\n".join(request.reasons)),
        ("what memory covers", _covered(request.memory_results)),
        ("found in memory", request.memory),
        ("changed so far", request.diff),
    ]
    return [(title, text) for title, text in parts if text.strip()]


def _covered(found: MemoryFindings | None) -> str:
    if found is None:
        return ""
    lines = [f"{found.coverage:.0f} % of what was asked"]
    lines += [f"not known: {gap}" for gap in found.gaps]
    lines += [f"source: {source}" for source in found.sources]
    return "\n".join(lines)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
