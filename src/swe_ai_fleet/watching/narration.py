"""Events as one line of text each: those that a reader needs, or every one."""

from __future__ import annotations

from swe_ai_fleet.domain import event as events
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.candidate import Artifacts, CheckReport, CheckResult, TestSummary
from swe_ai_fleet.domain.checklist import Checklist
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import EventBody, StoredEvent
from swe_ai_fleet.domain.examination import STATEMENT, Examination
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.watching.text import clean, one_line

BASELINE = "baseline"
EXAMINATION = "new tests on the others' changes"
ENVIRONMENT = "environment"
CHECKLIST = "checklist"
REPOSITORY_TESTS = "the repository's tests, once their environment is there"
"""The words for a test command that is not known yet."""
_LINE = 200
_SUBJECTS = ("path", "command", "pattern", "paths", "message")


def narrate(stored: StoredEvent, *, brief: bool = False) -> str:
    """An event in a line; empty for one that readers do not need. `brief` leaves out single tool calls."""
    agent, body = stored.event.agent_id, stored.event.body
    match body:
        case events.ExecutionStarted(task=task, repository=repository):
            patches, agents = len(task.patches), counted(task.num_agents, "agent")
            subject = counted(patches, "patch", "patches") if patches else agents
            line = f"{subject} on {repository.location} at {repository.commit[:12]}"
        case events.RunStarted(model=model, tools=tools):
            line = f"{agent}: started with {model} and {counted(len(tools), 'tool')}"
        case events.ToolFinished(entry=entry):
            line = "" if brief else f"{agent}: {_tool(entry)}"
        case events.RunFinished(stop_reason=reason, artifacts=artifacts, usage=usage, error=error):
            size = _size(artifacts) if artifacts.files_changed else "no change"
            why = f": {error}" if error.removeprefix("the run stopped: ") not in ("", reason) else ""
            line = f"{agent}: ended ({reason}): {size}, {usage.total_tokens:,} tokens{why}"
        case events.RunLost(lost_agent_id=lost, reason=reason):
            line = f"{lost}: lost: {reason}"
        case events.ModelAwaited(waited_ms=waited):
            resumed = f"goes on after {waited / 1000:.0f} s without a model server"
            line = f"{agent}: {resumed if waited else 'waits: no model server answers'}"
        case events.RunStopped(stopped_agent_id=stopped, reason=reason):
            line = f"{stopped}: stopped: {reason}"
        case events.ContextGathered(context=context, error=error):
            line = f"context: none: {error}" if error else f"context: {gathered_text(context)}"
        case events.NodeUpdated(node_id=node, status=status, attempt=attempt, error=error):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            line = f"{node}: {status}{again}" + (f": {error}" if error else "")
        case events.ChecksStarted(candidate_id=candidate_id, command=command):
            line = f"{candidate_id or BASELINE}: runs {command or REPOSITORY_TESTS}"
        case events.BaselineFinished(baseline=baseline, error=error):
            seconds = f" ({baseline.duration_ms / 1000:.1f} s)" if baseline is not None else ""
            line = f"{BASELINE}: {baseline_text(baseline, error)}{seconds}"
        case events.EnvironmentRunFinished(run=run):
            line = f"{ENVIRONMENT}: its result is {'' if run.kept else 'not '}used: {run.reason}"
        case events.ChecklistMade(checklist=checklist):
            line = f"{CHECKLIST}: {checklist_text(checklist)}"
        case events.ChecksFinished(report=report):
            # A report of an early version has no verdict, only the results of its checks.
            why = "; ".join(report.reasons) or checks_text(report) or "no evidence"
            line = f"{report.candidate_id}: {report.verdict_word}: {why}"
        case events.CandidateReviewed(critique=critique):
            must_fix = sum(finding.must_fix for finding in critique.findings)
            comment = critique.error or f"{critique.verdict}, {critique.score:g}: {critique.content}"
            line = f"{critique.candidate_id}: reviewed by {critique.reviewer_id}: {comment}"
            reproduced = sum(finding.reproduced for finding in critique.findings)
            line += f" ({must_fix} to fix first, {reproduced} reproduced)" if must_fix else ""
        case events.RevisionJudged(candidate_id=revision, revises=revised, kept=kept, reason=reason):
            line = f"{revision}: {'replaces' if kept else 'dropped in favour of'} {revised}: {reason}"
        case events.CandidatesExamined(examination=examination):
            line = f"{EXAMINATION}: {examination_text(examination)} ({examination.duration_ms / 1000:.1f} s)"
        case events.CandidateScored(score=score):
            by = f" ({score.raw:.2f} before {score.outcomes} outcomes)" if score.score != score.raw else ""
            value = f"none: {score.error}" if score.score is None else f"{score.score:.2f}{by}"
            line = f"{score.candidate_id}: scored by {score.model or 'no model'}: {value}"
        case events.CandidatesRanked(ranking=ranking, winner_id=winner):
            order = " > ".join(f"{ranked.candidate_id} {ranked.score:.3f}" for ranked in ranking)
            line = f"ranked: {order or 'nothing'}; winner: {winner or 'none'}"
        case events.WinnerDelivered(delivered=delivered, report=report):
            line = f"delivered as {delivered.commit_sha[:12]} on {delivered.branch}"
            line += (
                f"; checks there: {checks_text(report) or 'none'}" if report.verdict is None else f": {report.verdict}"
            )
        case events.RefusedKept(candidate_id=candidate_id, delivered=delivered):
            line = f"no winner; the best candidate, {candidate_id}, is kept as {delivered.branch}"
        case events.CandidateDelivered(candidate_id=candidate_id, delivered=delivered, by=by, reason=reason):
            line = f"{candidate_id}: delivered by {by} as {delivered.commit_sha[:12]} on {delivered.branch}"
            line += f": {reason}" if reason else ""
        case events.ExecutionErased(by=by, reason=reason):
            line = f"erased by {by}: {reason}"
        case events.CancelRequested(reason=reason):
            line = f"cancelled: {reason}"
        case events.ApprovalRequested(request=request):
            subject = "its plan" if request.policy is ApprovalPolicy.PLAN else request.call.name
            answer = how_to_answer(stored.event.execution_id, request.approval_id)
            approach = one_line(request.approach, 80)
            return clean(f"{request.agent_id} awaits approval of {subject}: {approach}; {answer}").replace("\n", " ")
        case events.ApprovalResolved(resolution=resolution):
            comment = f": {resolution.text}" if resolution.text else ""
            line = f"{resolution.approval_id}: {resolution.decision} by {resolution.approver or 'unknown'}{comment}"
        case events.ApprovalRefused(approval_id=approval_id, caller=caller):
            line = f"{approval_id}: {caller} cannot approve their own task"
        case events.ExecutionFinished(status=status, error=error):
            line = f"ended: {status}" + (f": {error}" if error else "")
        case _:
            line = ""
    return one_line(line, _LINE)


def gathered_text(context: GatheredContext) -> str:
    """The size of a gathered context, in a few words."""
    if not context.text:
        return "nothing relevant found"
    recalled = f", {counted(len(context.recalled), 'memory', 'memories')}" if context.recalled else ""
    return f"{context.tokens:,} tokens{recalled}"


def how_to_answer(execution_id: str, approval_id: str = "") -> str:
    """The command that answers an approval, for people to copy."""
    which = f" --approval {approval_id}" if approval_id else ""
    return f"fleet approve {execution_id}{which} (or reject, or adjust --text …)"


def checklist_text(checklist: Checklist) -> str:
    """A checklist in a few words."""
    if checklist.error:
        return f"none: {checklist.error}"
    probed, telling = len(checklist.probed), len(checklist.telling)
    return (
        f"{len(checklist.requirements)} requirements of {STATEMENT}, {probed} with a probe; "
        f"{telling} of these fail on the untouched commit"
    )


def examination_text(examination: Examination) -> str:
    """The results of the new tests of each candidate on the others' sources, in a few words."""
    parts = [
        f"those of {', '.join(tests.candidates)}: "
        + ", ".join(f"{crossing.candidate_id} {crossing.cell}" for crossing in tests.crossings)
        for tests in examination.sets
        if tests.crossings
    ]
    return "; ".join((*parts, *examination.notes)) or "nothing to run"


def baseline_text(baseline: Baseline | None, error: str) -> str:
    """The test results of the untouched commit, or why there are none."""
    return baseline.line if baseline is not None else f"none: {error}"


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
    verdict = f"{result.name} {'ok' if result.passed else 'FAILED'}"
    if result.tests is not None:
        return f"{verdict}: {_tests_text(result, result.tests)}"
    return verdict + (f" ({counted(len(result.problems), 'problem')})" if result.problems else "")


def _tests_text(result: CheckResult, tests: TestSummary) -> str:
    """`312 passed; 3 fail without the change; 2 failed before and fail now`."""
    parts = [f"{tests.passed} passed"]
    if count := len(result.shown):
        parts.append(f"{count} {'fails' if count == 1 else 'fail'} without the change")
    if bad := tests.failed + tests.errors:
        verb = "fails" if bad == 1 else "fail"
        parts.append(f"{bad} failed before and {verb} now" if result.passed else f"{bad} {verb}")
    return "; ".join(parts)


def _size(artifacts: Artifacts) -> str:
    files = counted(len(artifacts.files_changed), "file")
    return f"+{artifacts.insertions} -{artifacts.deletions} in {files}"


_SCANNED_CHARS = 2_000


def line_of(stored: StoredEvent) -> str:
    """An event in a line of at most 200 characters; never empty."""
    narration = narrate(stored) or _detail(stored.event.agent_id, stored.event.body)
    # Cleaning goes character by character: a text of a megabyte is cut first.
    return one_line(narration[:_SCANNED_CHARS], _LINE) or stored.event.body.type


def _detail(agent: str, body: EventBody) -> str:
    """An event that `narrate` leaves out, in a line."""
    match body:
        case events.ExecutionClaimed(owner=owner):
            return f"running on {owner}"
        case events.RunClaimed(host=host, resumes=resumes):
            return f"{agent}: {'resumed' if resumes else 'started'} on {host}"
        case events.RunReassigned(lost_agent_id=lost, attempt=attempt, reason=reason):
            return f"{lost}: lost; restarted elsewhere (attempt {attempt}): {reason}"
        case events.ModelReplied(step=step, reply=reply):
            calls = ", ".join(call.name for call in reply.message.tool_calls)
            content = reply.message.content[:_SCANNED_CHARS]
            return f"{agent}: step {step}: " + (f"calls {calls}" if calls else content or "empty reply")
        case events.MessageAdded(message=message):
            return f"{agent}: told: {message.content[:_SCANNED_CHARS]}"
        case events.CallRepaired(step=step, repairs=repairs):
            return f"{agent}: step {step}: repaired: {'; '.join(repairs)}"
        case events.HistoryCondensed(tokens_before=before, tokens_after=after):
            return f"{agent}: conversation condensed from {before:,} to {after:,} tokens"
        case events.LoopNoticed(pattern=pattern, advice=advice):
            return f"{agent}: loop detected ({pattern}): {advice}"
        case events.PlanMade(plan=plan, reason=reason):
            return f"{agent}: plan of {counted(len(plan.steps), 'step')}" + (f": {reason}" if reason else "")
        case events.WorkspaceCheckpointed(step=step, commit=commit):
            return f"{agent}: step {step}: workspace stored as {commit[:12]}"
        case events.WorkspaceNotKept(step=step, reason=reason):
            return f"{agent}: step {step}: workspace not stored: {reason}"
        case events.ToolStarted(entry=entry):
            return f"{agent}: {entry.tool}_{entry.operation} started"
        case events.CandidateSubmitted(candidate=candidate):
            return f"{candidate.candidate_id}: submitted: {_size(candidate.artifacts)}"
        case events.VotesCast(votes=votes):
            return "votes: " + "; ".join(f"{vote.judge_id}: {vote.choice or vote.error or 'none'}" for vote in votes)
        case events.SubtasksDerived(derivation=derivation):
            return f"split into {counted(len(derivation.subtasks), 'subtask')}"
        case events.SubtaskStarted(subtask_id=subtask, execution_id=execution_id):
            return f"{subtask}: submitted as {execution_id}"
        case events.SubtaskEnded(outcome=outcome):
            return f"{outcome.subtask_id}: {outcome.status}" + (f": {outcome.error}" if outcome.error else "")
        case events.BreakpointsSet(action=action, node_id=node, by=by):
            return f"{action} by {by or 'unknown'}" + (f" {node}" if node else "")
        case events.WorkflowFinished():
            return "workflow output ready"
        case events.AuditHeadSigned(head=head):
            return f"{head.agent_id}: {counted(head.entries, 'audit entry', 'audit entries')} signed by {head.key_id}"
        case events.ResultPublished():
            return "subscribers notified"
        case _:
            return ""
