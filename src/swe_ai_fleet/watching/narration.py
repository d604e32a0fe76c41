"""Events told in a line each."""

from __future__ import annotations

from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.candidate import CheckReport, CheckResult
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import (
    ApprovalRefused,
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    CandidateReviewed,
    CandidatesRanked,
    ChecksFinished,
    ContextGathered,
    ExecutionFinished,
    ExecutionStarted,
    NodeUpdated,
    RevisionJudged,
    RunFinished,
    RunLost,
    RunStarted,
    StoredEvent,
    ToolFinished,
    WinnerDelivered,
)
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.watching.text import clean, one_line

_LINE = 200
_SUBJECTS = ("path", "command", "pattern", "paths", "message")


def narrate(stored: StoredEvent, *, brief: bool = False) -> str:
    """What happened, in a line; empty for what a reader can do without. `brief` leaves single tool calls out."""
    agent, body = stored.event.agent_id, stored.event.body
    match body:
        case ExecutionStarted(task=task, repository=repository):
            line = f"{task.num_agents} agents on {repository.location} at {repository.commit[:12]}"
        case RunStarted(model=model, tools=tools):
            line = f"{agent}: started with {model} and {len(tools)} tools"
        case ToolFinished(entry=entry):
            line = "" if brief else f"{agent}: {_tool(entry)}"
        case RunFinished(stop_reason=reason, artifacts=left, usage=usage, error=error):
            size = f"+{left.insertions} -{left.deletions} in {len(left.files_changed)} files"
            line = f"{agent}: ended ({reason}): {size}, {usage.total_tokens:,} tokens" + (f": {error}" if error else "")
        case RunLost(lost_agent_id=lost, reason=reason):
            line = f"{lost}: lost: {reason}"
        case ContextGathered(context=context, error=error):
            line = f"context: none: {error}" if error else f"context: {gathered_text(context)}"
        case NodeUpdated(node_id=node, status=status, attempt=attempt, error=error):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            line = f"{node}: {status}{again}" + (f": {error}" if error else "")
        case ChecksFinished(report=report):
            verdict = "accepted" if report.accepted else "not accepted"
            line = f"{report.candidate_id}: {verdict}: {checks_text(report) or 'no evidence'}"
        case CandidateReviewed(critique=critique):
            must_fix = sum(finding.must_fix for finding in critique.findings)
            said = critique.error or f"{critique.verdict}, {critique.score:g}: {critique.content}"
            line = f"{critique.candidate_id}: reviewed by {critique.reviewer_id}: {said}"
            line += f" ({must_fix} to be mended first)" if must_fix else ""
        case RevisionJudged(candidate_id=revision, revises=revised, kept=kept, reason=reason):
            line = f"{revision}: {'takes the place of' if kept else 'dropped, so there stays'} {revised}: {reason}"
        case CandidatesRanked(ranking=ranking, winner_id=winner):
            order = " > ".join(f"{ranked.candidate_id} {ranked.score:.3f}" for ranked in ranking)
            line = f"ranked: {order or 'nothing'}; winner: {winner or 'none'}"
        case WinnerDelivered(delivered=delivered, report=report):
            line = f"delivered as {delivered.commit_sha[:12]} on {delivered.branch}"
            line += f"; checks there: {checks_text(report) or 'none'}"
        case CancelRequested(reason=reason):
            line = f"cancelled: {reason}"
        case ApprovalRequested(request=request):
            return clean(waiting_line(request, stored.event.execution_id)).replace("\n", " ")
        case ApprovalResolved(resolution=resolution):
            said = f": {resolution.text}" if resolution.text else ""
            line = f"{resolution.approval_id}: {resolution.decision} by {resolution.approver or 'somebody'}{said}"
        case ApprovalRefused(approval_id=approval_id, caller=caller):
            line = f"{approval_id}: {caller} may not decide about what they handed in"
        case ExecutionFinished(status=status, error=error):
            line = f"ended: {status}" + (f": {error}" if error else "")
        case _:
            line = ""
    return one_line(line, _LINE)


def gathered_text(context: GatheredContext) -> str:
    """What agents are told beside their task, in a few words."""
    if not context.text:
        return "nothing is known that fits"
    count = len(context.recalled)
    recalled = f", {count} {'memory' if count == 1 else 'memories'}" if count else ""
    return f"{context.tokens:,} tokens{recalled}"


def how_to_answer(execution_id: str, approval_id: str = "") -> str:
    """The command that answers, for people to copy."""
    which = f" --approval {approval_id}" if approval_id else ""
    return f"fleet approve {execution_id}{which} (or reject, or adjust --text …)"


def waiting_line(request: ApprovalRequest, execution_id: str) -> str:
    """That an agent waits, and how it is answered, in a line."""
    what = "its plan" if request.policy is ApprovalPolicy.PLAN else request.call.name
    answer = how_to_answer(execution_id, request.approval_id)
    return f"{request.agent_id} waits for approval of {what}: {one_line(request.approach, 80)}; {answer}"


def checks_text(report: CheckReport | None) -> str:
    """A report in a line: what passed, what failed, what was skipped."""
    return ", ".join(_check_text(result) for result in report.results) if report else ""


def _tool(entry: AuditEntry) -> str:
    subject = next((str(entry.arguments[name]) for name in _SUBJECTS if entry.arguments.get(name)), "")
    name = f"{entry.tool}_{entry.operation}" + (f" {one_line(subject, 60)}" if subject else "")
    why = f": {entry.reason}" if entry.reason else ""
    return f"{name} -> {entry.outcome}{why} ({entry.duration_ms / 1000:.1f} s)"


def _check_text(result: CheckResult) -> str:
    if result.skipped_reason:
        return f"{result.name} skipped"
    counted = ""
    if result.tests is not None:
        tests = result.tests
        counted = f" {tests.passed}/{tests.passed + tests.failed + tests.errors}"
    elif result.problems:
        counted = f" ({len(result.problems)} problems)"
    return f"{result.name} {'ok' if result.passed else 'FAILED'}{counted}"
