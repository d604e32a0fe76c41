"""What peers and judges said of candidates, and what became of revisions, as clients get it."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.quantities import usage
from swe_ai_fleet.domain import review
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.moment import milliseconds
from swe_ai_fleet.orchestrator.fates import fates


def critiques(state: ExecutionState, candidate_id: str) -> list[pb.Critique]:
    """What peers said of a candidate, those who had nothing to say among them."""
    return [_critique(one) for one in state.critiques if one.candidate_id == candidate_id]


def votes(state: ExecutionState, candidates: Collection[str]) -> list[pb.Vote]:
    """The votes for a candidate or for one that behaves the same."""
    return [_vote(one) for one in state.votes if one.choice in candidates]


def earlier_summaries(state: ExecutionState, of: Candidate) -> list[str]:
    """What the author said of what a candidate revises, oldest first."""
    told: list[str] = []
    seen = {of.candidate_id}
    before = state.candidates.get(of.revises)
    while before is not None and before.candidate_id not in seen:
        seen.add(before.candidate_id)
        told.insert(0, before.summary)
        before = state.candidates.get(before.revises)
    return told


def superseded(state: ExecutionState) -> list[Candidate]:
    """The candidates that do not stand: dropped revisions, and what a revision took the place of."""
    found = fates(state)
    return [one for name, one in state.candidates.items() if name in found]


def _critique(of: review.Critique) -> pb.Critique:
    return pb.Critique(
        reviewer_id=of.reviewer_id,
        round=of.round,
        verdict=pb.VERDICT_UNSPECIFIED
        if of.error
        else cast("pb.Verdict", pb.Verdict.Value(f"VERDICT_{of.verdict.name}")),
        score=of.score,
        content=of.content,
        findings=[_in_words(finding) for finding in of.findings],
        created_at_ms=milliseconds(of.at),
        details=[_finding(finding) for finding in of.findings],
        usage=usage(of.usage),
        error_message=of.error,
    )


def _finding(of: review.Finding) -> pb.Finding:
    found = pb.Finding(text=of.text, file=of.file, line=of.line, must_fix=of.must_fix)
    if (proof := of.proof) is not None:
        found.proof.CopyFrom(
            pb.Proof(
                command=proof.command,
                expected=proof.expected,
                outcome=proof.outcome,
                seen=proof.seen,
                passes_on_own=proof.passes_on_own,
                passes_on=proof.passes_on,
                fails_on=proof.fails_on,
            )
        )
    return found


def _in_words(finding: review.Finding) -> str:
    place = f"{finding.file}:{finding.line}" if finding.line else finding.file
    return f"{place}: {finding.text}" if place else finding.text


def _vote(of: review.Vote) -> pb.Vote:
    return pb.Vote(
        judge_id=of.judge_id,
        sample=of.sample,
        order=of.order,
        choice=of.choice,
        reason=of.reason,
        error_message=of.error,
        usage=usage(of.usage),
    )
