"""Turns domain values into messages: executions, candidates with evidence and reviews, audit heads, events."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.requests import subtask_results
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.contract import to_enum, to_message
from swe_ai_fleet.domain import candidate, review
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import Candidate, CheckKind, CheckReport, RankedCandidate
from swe_ai_fleet.domain.event import StoredEvent, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.domain.message import TextDelta
from swe_ai_fleet.domain.task import SCRATCH, Task, TaskKind
from swe_ai_fleet.domain.text import milliseconds
from swe_ai_fleet.orchestrator.ranking import drop_reasons
from swe_ai_fleet.orchestrator.runs import expenses

MAX_ERROR_CHARS = 8_000
MAX_TITLE_CHARS = 200
_UNRANKED = RankedCandidate(candidate_id="", rank=0, score=0.0, accepted=False)


def audit_heads(state: ExecutionState) -> list[pb.AuditHead]:
    """The head of each agent's audit chain, with its signature if it is signed."""
    return [
        to_message(pb.AuditHead, signed, agent_id=agent.agent_id)
        if (signed := state.signed_heads.get(agent.agent_id)) and signed.hash == agent.audit_head
        else pb.AuditHead(agent_id=agent.agent_id, hash=agent.audit_head)
        for agent in state.agents.values()
        if agent.audit_head
    ]


def critiques(state: ExecutionState, candidate_id: str) -> list[pb.Critique]:
    """The peers' critiques of a candidate, including failed ones."""
    return [_critique(critique) for critique in state.critiques if critique.candidate_id == candidate_id]


def votes(state: ExecutionState, candidates: Collection[str]) -> list[pb.Vote]:
    """The votes for any of these candidates."""
    return [to_message(pb.Vote, vote) for vote in state.votes if vote.choice in candidates]


def earlier_summaries(state: ExecutionState, of: Candidate) -> list[str]:
    """The author's summaries of the candidates that this one revises, oldest first."""
    summaries: list[str] = []
    seen = {of.candidate_id}
    before = state.candidates.get(of.revises)
    while before is not None and before.candidate_id not in seen:
        seen.add(before.candidate_id)
        summaries.insert(0, before.summary)
        before = state.candidates.get(before.revises)
    return summaries


def superseded(state: ExecutionState) -> list[Candidate]:
    """The candidates that are not ranked: those that were dropped or replaced by a revision."""
    dropped = drop_reasons(state)
    return [candidate for name, candidate in state.candidates.items() if name in dropped]


def _critique(of: review.Critique) -> pb.Critique:
    verdict = None if of.error else of.verdict
    return to_message(
        pb.Critique,
        of,
        verdict=to_enum(pb.Verdict, verdict),
        findings=[
            ": ".join(filter(None, (f"{finding.file}:{finding.line}" if finding.line else finding.file, finding.text)))
            for finding in of.findings
        ],
    )


def total_usage(state: ExecutionState) -> pb.Usage:
    """The usage of the execution so far; once it has ended, its recorded total."""
    return to_message(pb.Usage, state.usage if state.status.terminal else state.spent)


def title(task: Task) -> str:
    """The first line of the description; for a workflow its name and its first text input."""
    text = task.description
    if task.workflow is not None:
        inputs = json_object(task.workflow.inputs.encode())
        first_text = next((value for value in inputs.values() if isinstance(value, str) and value.strip()), "")
        text = f"{task.workflow.workflow.name}: {first_text}" if first_text else task.workflow.workflow.name
    return next(iter(text.strip().splitlines()), "")[:MAX_TITLE_CHARS]


def expense_messages(state: ExecutionState) -> list[pb.Expense]:
    """The usage of each kind of agents' work, and what it led to."""
    return [to_message(pb.Expense, expense) for expense in expenses(state)]


def artifact(of: BlobRef, execution_id: str, name: str = "") -> pb.ArtifactRef:
    return to_message(pb.ArtifactRef, of, name=name, execution_id=execution_id)


def check_suite(report: CheckReport) -> pb.CheckSuite:
    """The evidence about a candidate.

    The first check of a kind that has a field goes there, the others to `additional_checks`. If the task names its own
    checks, the field of the dry run has their summary.
    """
    suite = pb.CheckSuite(
        all_passed=report.accepted,
        duration_ms=sum(result.duration_ms for result in report.results),
        skipped_reason="" if report.results else "no evidence could be gathered",
    )
    for result in report.results:
        match result.kind:
            case CheckKind.POLICY if not suite.HasField("policy"):
                suite.policy.CopyFrom(to_message(pb.PolicyResult, result))
            case CheckKind.LINT if not suite.HasField("lint"):
                suite.lint.CopyFrom(to_message(pb.LintResult, result))
            case CheckKind.DRY_RUN if not suite.HasField("dryrun"):
                suite.dryrun.CopyFrom(to_message(pb.DryRunResult, result))
            case _:
                suite.additional_checks.append(_check(result))
    named = [result for result in report.results if result.kind is CheckKind.COMMAND]
    if named and not suite.HasField("dryrun"):
        failed = [check for check in named if check.required and not check.passed and not check.skipped_reason]
        shown = (failed or named)[0]
        message = f"{shown.name}: {shown.message}" if failed else "every required check passes"
        skipped = shown.skipped_reason if all(check.skipped_reason for check in named) else ""
        summary = replace(
            shown,
            passed=not failed and not skipped,
            message=message,
            duration_ms=sum(check.duration_ms for check in named),
            skipped_reason=skipped,
        )
        suite.dryrun.CopyFrom(to_message(pb.DryRunResult, summary))
    return suite


def _check(of: candidate.CheckResult) -> pb.CheckResult:
    details = {"kind": str(of.kind), "required": str(of.required).lower(), **of.details}
    if of.exit_code is not None:
        details["exit_code"] = str(of.exit_code)
    if of.output:
        details["output"] = of.output
    if of.problems:
        details["problems"] = "\n".join(of.problems)
    return to_message(pb.CheckResult, of, details=details)


def result(state: ExecutionState, of: Candidate, ranked: RankedCandidate | None) -> pb.DeliberationResult:
    """A candidate with its evidence, its reviews and its rank; its patch as a reference, and without operations."""
    artifacts, report = of.artifacts, state.reports.get(of.candidate_id)
    delivered = state.delivered if of.candidate_id == state.winner_id else None
    tests = artifacts.tests or (report.tests if report else None)
    patch = None
    if artifacts.patch is not None:
        patch = pb.Patch(
            artifact=artifact(artifacts.patch, state.execution_id, f"{of.candidate_id}.patch"),
            files_changed=artifacts.files_changed,
            lines_added=artifacts.insertions,
            lines_removed=artifacts.deletions,
            base_commit=state.repository.commit,
        )
    return to_message(
        pb.DeliberationResult,
        ranked or _UNRANKED,
        proposal=pb.Proposal(
            author_id=of.author,
            author_role=str(of.role),
            content=of.summary,
            created_at_ms=milliseconds(of.submitted_at),
            revisions=earlier_summaries(state, of),
        ),
        checks=check_suite(report) if report else None,
        candidate_id=of.candidate_id,
        patch=patch,
        artifacts=pb.Artifacts(
            commit_sha=delivered.commit_sha if delivered else artifacts.commit_sha,
            branch=delivered.branch if delivered else artifacts.branch,
            patch=patch,
            files_changed=artifacts.files_changed,
            tests=to_message(pb.TestSummary, tests) if tests else None,
        ),
        stop_reason=to_enum(pb.StopReason, of.stop_reason),
        usage=to_message(pb.Usage, of.usage),
        audit_head=of.audit_head,
        operations=None,
        critiques=critiques(state, of.candidate_id),
        votes=votes(state, (of.candidate_id, *(ranked.duplicates if ranked else ()))),
        revises=of.revises,
        round=of.round,
        dropped_reason=drop_reasons(state).get(of.candidate_id, ""),
        **_verdict(report),
    )


def results(state: ExecutionState) -> list[pb.DeliberationResult]:
    """The candidates by rank. If the execution ended before ranking them, those not superseded, without ranks."""
    if state.ranking:
        return [result(state, state.candidates[ranked.candidate_id], ranked) for ranked in state.ranking]
    if not state.status.terminal:
        return []
    remaining = state.candidates.keys() - drop_reasons(state).keys()
    return [result(state, state.candidates[name], None) for name in sorted(remaining)]


def _verdict(report: CheckReport | None) -> dict[str, Any]:
    if report is None or report.verdict is None:
        return {}
    return {"verdict": to_enum(pb.EvidenceVerdict, report.verdict), "verdict_reasons": report.reasons}


def verdict(state: ExecutionState) -> dict[str, Any]:
    """The verdict on the winner, or without a winner on the best candidate."""
    return _verdict(state.best_report)


def baseline(state: ExecutionState) -> pb.Baseline | None:
    """The test results of the unchanged commit; None while they are unknown."""
    state_baseline = state.baseline
    if state_baseline is None:
        return pb.Baseline(error_message=state.baseline_error) if state.baseline_error else None
    return to_message(pb.Baseline, state_baseline, error_message=None)


def examination(state: ExecutionState) -> pb.Examination | None:
    """The results of candidates' new tests on each other's sources; None if none ran."""
    return to_message(pb.Examination, state.examination) if state.examination is not None else None


def operation(stored: StoredEvent, body: ToolFinished, step: int) -> pb.ToolOperation:
    """One tool call, from its audit entry and its result."""
    entry, outcome = body.entry, body.result
    full = pb.ArtifactRef(digest=outcome.artifact, size_bytes=entry.bytes_out, execution_id=stored.event.execution_id)
    return to_message(
        pb.ToolOperation,
        entry,
        success=outcome.success,
        output=outcome.content,
        error=outcome.error or entry.reason,
        exit_code=outcome.exit_code,
        started_at=datetime.fromisoformat(entry.at) - timedelta(milliseconds=entry.duration_ms),
        step=step,
        output_artifact=full if outcome.artifact else None,
    )


def winner_agent(state: ExecutionState) -> str:
    """The agent whose candidate won; empty without a winner."""
    winner = state.candidates.get(state.winner_id)
    return winner.author if winner else ""


def execution_message(state: ExecutionState, *, whole: bool = False) -> pb.Execution:
    """An execution without its candidates; `whole` adds the fields that lists leave out."""
    return pb.Execution(
        execution_id=state.execution_id,
        task_id=state.task.task_id,
        kind=to_enum(pb.ExecutionKind, state.task.kind),
        status=to_enum(pb.DeliberationStatus, state.status),
        role=to_enum(pb.Role, state.task.role),
        task_description=state.task.description,
        created_at_ms=milliseconds(state.started_at),
        updated_at_ms=milliseconds(state.updated_at),
        finished_at_ms=milliseconds(state.finished_at),
        agents=[to_message(pb.AgentProgress, agent) for agent in state.agents.values()],
        examination=examination(state) if whole else None,
        winner_id=winner_agent(state),
        error_message=state.error[:MAX_ERROR_CHARS],
        commit_sha=state.delivered.commit_sha if state.delivered else "",
        branch=state.delivered.branch if state.delivered else "",
        audit_heads=audit_heads(state),
        usage=total_usage(state),
        expenses=expense_messages(state) if whole and state.candidates else [],
        last_sequence=state.last_sequence,
        attempt=state.task.attempt,
        subtasks=subtask_results(state),
        parent_execution_id=state.task.parent_execution_id,
        # The number of seats of an accepted task. Lists have no agents' runs that could be counted.
        agent_count=0 if state.task.kind in (TaskKind.WORKFLOW, TaskKind.JUDGE) else state.task.num_agents,
        approval=to_enum(pb.ApprovalPolicy, state.task.approval),
        repository=state.repository.location if state.repository.location != SCRATCH else "",
        title=title(state.task),
        baseline=baseline(state),
        refused_ref=state.refused_kept.delivered.branch if state.refused_kept else "",
        hand_deliveries=[
            to_message(
                pb.HandDelivery, delivery, commit_sha=delivery.delivered.commit_sha, branch=delivery.delivered.branch
            )
            for delivery in state.hand_deliveries
        ],
        **verdict(state),
    )


def event(stored: StoredEvent) -> pb.ExecutionEvent:
    """A stored event, with its body as the codec's JSON."""
    body = stored.event.body
    return to_message(
        pb.ExecutionEvent,
        stored.event,
        sequence=stored.sequence,
        type=body.type,
        payload_json=to_json(body).decode(),
    )


def text_delta(execution_id: str, delta: TextDelta) -> pb.ExecutionEvent:
    """A piece of a model's live text as an event, which is not in the log."""
    return pb.ExecutionEvent(
        execution_id=execution_id, agent_id=delta.agent_id, type="text_delta", payload_json=to_json(delta).decode()
    )
