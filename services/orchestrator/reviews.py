"""What peers and judges said of candidates, and what became of revisions, as clients get it."""

from __future__ import annotations

from collections.abc import Collection

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.contract import to_enum, to_message
from swe_ai_fleet.domain import review
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.orchestrator.fates import fates


def critiques(state: ExecutionState, candidate_id: str) -> list[pb.Critique]:
    """What peers said of a candidate, those who had nothing to say among them."""
    return [_critique(one) for one in state.critiques if one.candidate_id == candidate_id]


def votes(state: ExecutionState, candidates: Collection[str]) -> list[pb.Vote]:
    """The votes for a candidate or for one that behaves the same."""
    return [to_message(pb.Vote, one) for one in state.votes if one.choice in candidates]


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
    verdict = None if of.error else of.verdict
    return to_message(
        pb.Critique, of, verdict=to_enum(pb.Verdict, verdict), findings=[_in_words(finding) for finding in of.findings]
    )


def _in_words(finding: review.Finding) -> str:
    place = f"{finding.file}:{finding.line}" if finding.line else finding.file
    return f"{place}: {finding.text}" if place else finding.text
