"""Ranking candidates: evidence first, then what peers and judges think, then the smaller diff, then the cheaper run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swe_ai_fleet.domain.candidate import Candidate, CheckReport, RankedCandidate
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.orchestrator.behaviour import behaviour_keys, diff_key
from swe_ai_fleet.orchestrator.explanation import reasons
from swe_ai_fleet.orchestrator.standing import ARCHITECT, Part, clusters, evidence, standings

__all__ = ["ARCHITECT", "behaviour_keys", "diff_key", "evidence", "rank", "representatives"]


def representatives(
    candidates: Iterable[Candidate],
    reports: Mapping[str, CheckReport] | None = None,
    *,
    behaviours: Mapping[str, str] | None = None,
) -> dict[str, Candidate]:
    """By its id, one candidate for each behaviour: the one that `rank` tells of, the others are its duplicates."""
    found = clusters(candidates, reports or {}, behaviours or {})
    return {members[0].candidate_id: members[0] for members in found}


def rank(
    candidates: Iterable[Candidate],
    reports: Mapping[str, CheckReport],
    *,
    critiques: Iterable[Critique] = (),
    votes: Iterable[Vote] = (),
    behaviours: Mapping[str, str] | None = None,
    scores: Mapping[str, float] | None = None,
    needs_proof: bool = False,
) -> tuple[RankedCandidate, ...]:
    """Candidates from best to worst, one for each behaviour, each saying why it stands there.

    Order: verified, unverified, refuted; then the score (the formula is `Standing.score`), then evidence, fewer changed
    lines, fewer tokens, the id; it does not depend on the order in which anything is given. Only an accepted candidate
    can win, and opinion counts among accepted ones only.

    Args:
        candidates: Those that stand; superseded and dropped ones are left out.
        reports: The evidence by candidate id, as `Matrix.judged` gives it where candidates were examined; a candidate
            without any ranks last.
        critiques: What peers said; critiques of candidates that are not ranked count for nothing.
        votes: What judges said; where all are the `ARCHITECT`'s, its choice decides among accepted candidates.
        behaviours: What `behaviour_keys` gave; without it only diffs equal to the byte are duplicates.
        scores: What a verifier model finds candidates worth, calibrated, from 0 to 1, by candidate id.
        needs_proof: Whether only what is verified may win.
    """
    places = standings(candidates, reports, critiques, votes, behaviours or {}, scores, needs_proof=needs_proof)
    return tuple(
        RankedCandidate(
            candidate_id=place.candidate.candidate_id,
            rank=number,
            score=round(place.score, 4),
            accepted=place.accepted,
            duplicates=tuple(one.candidate_id for one in place.others),
            reason=reason,
            evidence=round(place.values[Part.EVIDENCE], 4),
            review=None if place.review is None else round(place.review, 4),
            votes=None if place.ballots.share is None else round(place.ballots.share, 4),
            verdict=place.report.verdict,
            tests=None if place.report.foreign is None else round(place.report.foreign.value, 4),
            verdict_reasons=() if place.report.foreign is None else place.report.reasons,
            verifier=None if place.verifier is None else round(place.verifier, 4),
        )
        for number, (place, reason) in enumerate(zip(places, reasons(places), strict=True), start=1)
    )
