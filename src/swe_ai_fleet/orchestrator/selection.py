"""Ranking candidates: evidence first, then the smaller diff, then the cheaper run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swe_ai_fleet.domain.candidate import Candidate, CheckKind, CheckReport, CheckResult, RankedCandidate

WEIGHTS: Mapping[CheckKind, float] = {
    CheckKind.APPLY: 1.0,
    CheckKind.POLICY: 2.0,
    CheckKind.LINT: 1.0,
    CheckKind.DRY_RUN: 4.0,
    CheckKind.COMMAND: 4.0,
}
"""What each kind of check weighs in a score; every single check of a kind has the kind's whole weight."""


def score(report: CheckReport) -> float:
    """The evidence in one number between 0 and 1: the weighted mean of the scores of the checks that ran.

    `score = sum(weight(kind) * score) / sum(weight(kind))` over the checks that were not skipped; 0 for a patch that
    does not apply or when nothing ran.
    """
    ran = [result for result in report.results if not result.skipped_reason]
    if any(result.kind is CheckKind.APPLY and not result.passed for result in ran):
        return 0.0
    total = sum(WEIGHTS[result.kind] for result in ran)
    return sum(WEIGHTS[result.kind] * result.score for result in ran) / total if total else 0.0


def representatives(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """The first candidate of each distinct diff, by the diff's digest; the others with that diff are duplicates."""
    first: dict[str, Candidate] = {}
    for candidate in candidates:
        first.setdefault(diff_key(candidate), candidate)
    return first


def diff_key(candidate: Candidate) -> str:
    """Equal for candidates that hand in the same diff."""
    return candidate.artifacts.patch.digest if candidate.artifacts.patch else ""


def rank(candidates: Iterable[Candidate], reports: Mapping[str, CheckReport]) -> tuple[RankedCandidate, ...]:
    """Candidates from best to worst, one for each distinct diff, each saying why it stands there.

    Order: accepted before not accepted, then score, then fewer changed lines, then fewer tokens, then the id. Only an
    accepted candidate can win; opinion cannot lift a failing one above a passing one.

    Args:
        candidates: In the order in which they were submitted.
        reports: The evidence by candidate id; a candidate without any ranks last.
    """
    ordered = list(candidates)
    groups = representatives(ordered)
    duplicates = {
        key: tuple(c.candidate_id for c in ordered if diff_key(c) == key and c is not first)
        for key, first in groups.items()
    }

    def report_of(candidate: Candidate) -> CheckReport:
        return reports.get(candidate.candidate_id, CheckReport(candidate_id=candidate.candidate_id))

    def order(candidate: Candidate) -> tuple[bool, float, int, int, str]:
        report, artifacts = report_of(candidate), candidate.artifacts
        lines = artifacts.insertions + artifacts.deletions
        return (not report.accepted, -score(report), lines, candidate.usage.total_tokens, candidate.candidate_id)

    return tuple(
        RankedCandidate(
            candidate_id=candidate.candidate_id,
            rank=place,
            score=round(score(report_of(candidate)), 4),
            accepted=report_of(candidate).accepted,
            duplicates=duplicates[diff_key(candidate)],
            reason=_reason(candidate, report_of(candidate)),
        )
        for place, candidate in enumerate(sorted(groups.values(), key=order), start=1)
    )


def _reason(candidate: Candidate, report: CheckReport) -> str:
    if not report.results:
        return "no evidence could be gathered"
    failed = [result for result in report.results if not result.passed and not result.skipped_reason]
    lines = candidate.artifacts.insertions + candidate.artifacts.deletions
    if not failed:
        return f"every check passed; {lines} changed lines"
    return "; ".join(_complaint(result) for result in failed) + f"; {lines} changed lines"


def _complaint(result: CheckResult) -> str:
    weight = "" if result.required else " (not required)"
    return f"{result.name} failed{weight}: {result.message}" if result.message else f"{result.name} failed{weight}"
