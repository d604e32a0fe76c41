"""Every event in a line of words, also those that `narrate` leaves out."""

from __future__ import annotations

from swe_ai_fleet.domain.event import (
    AuditHeadSigned,
    BreakpointsSet,
    CallRepaired,
    CandidateSubmitted,
    EventBody,
    ExecutionClaimed,
    HistoryCondensed,
    LoopNoticed,
    MessageAdded,
    ModelReplied,
    PlanMade,
    ResultPublished,
    RunClaimed,
    RunReassigned,
    StoredEvent,
    SubtaskEnded,
    SubtasksDerived,
    SubtaskStarted,
    ToolStarted,
    VotesCast,
    WorkflowFinished,
    WorkspaceCheckpointed,
    WorkspaceNotKept,
)
from swe_ai_fleet.watching.narration import narrate
from swe_ai_fleet.watching.text import one_line

LINE_CHARS = 200
_LOOKED_AT = 2_000


def line_of(stored: StoredEvent) -> str:
    """What happened, in a line of at most 200 characters; never empty."""
    said = narrate(stored) or _own(stored.event.agent_id, stored.event.body)
    # Whoever wrote a megabyte is not cleaned character by character for a line.
    return one_line(said[:_LOOKED_AT], LINE_CHARS) or stored.event.body.type


def _own(agent: str, body: EventBody) -> str:
    match body:
        case ExecutionClaimed(owner=owner):
            return f"driven by {owner}"
        case RunClaimed(host=host, resumes=resumes):
            return f"{agent}: {'goes on' if resumes else 'begins'} at {host}"
        case RunReassigned(lost_agent_id=lost, attempt=attempt, reason=reason):
            return f"{lost}: lost, goes on elsewhere (attempt {attempt}): {reason}"
        case ModelReplied(step=step, reply=reply):
            calls = ", ".join(call.name for call in reply.message.tool_calls)
            said = reply.message.content[:_LOOKED_AT]
            return f"{agent}: step {step}: " + (f"calls {calls}" if calls else said or "nothing said")
        case MessageAdded(message=message):
            return f"{agent}: told: {message.content[:_LOOKED_AT]}"
        case CallRepaired(step=step, repairs=repairs):
            return f"{agent}: step {step}: mended: {'; '.join(repairs)}"
        case HistoryCondensed(tokens_before=before, tokens_after=after):
            return f"{agent}: conversation condensed from {before:,} to {after:,} tokens"
        case LoopNoticed(pattern=pattern, advice=advice):
            return f"{agent}: goes in circles ({pattern}): {advice}"
        case PlanMade(plan=plan, reason=reason):
            return f"{agent}: plan of {len(plan.steps)} steps" + (f": {reason}" if reason else "")
        case WorkspaceCheckpointed(step=step, commit=commit):
            return f"{agent}: step {step}: workspace kept as {commit[:12]}"
        case WorkspaceNotKept(step=step, reason=reason):
            return f"{agent}: step {step}: workspace not kept: {reason}"
        case ToolStarted(entry=entry):
            return f"{agent}: {entry.tool}_{entry.operation} begins"
        case CandidateSubmitted(candidate=candidate):
            left = candidate.artifacts
            size = f"+{left.insertions} -{left.deletions} in {len(left.files_changed)} files"
            return f"{candidate.candidate_id}: handed in: {size}"
        case VotesCast(votes=votes):
            return "votes: " + "; ".join(f"{vote.judge_id}: {vote.choice or vote.error or 'none'}" for vote in votes)
        case SubtasksDerived(derivation=derivation):
            return f"split into {len(derivation.subtasks)} subtasks"
        case SubtaskStarted(subtask_id=subtask, execution_id=execution_id):
            return f"{subtask}: handed in as {execution_id}"
        case SubtaskEnded(outcome=outcome):
            return f"{outcome.subtask_id}: {outcome.status}" + (f": {outcome.error}" if outcome.error else "")
        case BreakpointsSet(action=action, node_id=node, by=by):
            return f"{by or 'somebody'} says {action}" + (f" {node}" if node else "")
        case WorkflowFinished():
            return "the workflow has its output"
        case AuditHeadSigned(head=head):
            return f"{head.agent_id}: {head.entries} audit entries signed by {head.key_id}"
        case ResultPublished():
            return "subscribers are told"
        case _:
            return ""
