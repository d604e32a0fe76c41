"""Scores of candidates: the formula by which evidence and opinion make a score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import fsum, inf

from swe_ai_fleet.domain.candidate import Candidate, CheckKind, CheckReport, CheckResult, Verdict
from swe_ai_fleet.domain.review import Critique, Vote

WEIGHTS: Mapping[CheckKind, float] = {
    CheckKind.APPLY: 1.0,
    CheckKind.POLICY: 2.0,
    CheckKind.LINT: 1.0,
    CheckKind.DRY_RUN: 4.0,
    CheckKind.COMMAND: 4.0,
    CheckKind.RUBRIC: 2.0,
}
"""The weight of each single check in the evidence; only the items of a rubric share their kind's weight, so that a
model's opinion weighs less than what was run, however many items there are."""
ARCHITECT = "architect"
"""The judge whose choice among accepted candidates decides, where it is the only one."""
MUST_FIX_CEILING = 0.5
"""The highest score of a review whose must-fix was reproduced; and the lowest of one where the proof of each must-fix
passes on the candidate."""
NEUTRAL = 0.5
"""The value of an opinion part for a candidate without an opinion, where others have one."""
VERIFIED_TIER = 2
_DIGITS = 6


class ScorePart(StrEnum):
    """The parts of a score. The values are their names in explanations."""

    EVIDENCE = "evidence"
    TESTS = "new tests"
    AGREEMENT = "agreement"
    REVIEW = "reviews"
    VERIFIER = "verifier"
    VOTES = "votes"
    CHOICE = "the architect's choice"


PARTS: Mapping[ScorePart, float] = {
    ScorePart.EVIDENCE: 4.0,
    ScorePart.TESTS: 4.0,
    ScorePart.AGREEMENT: 0.5,
    ScorePart.REVIEW: 1.0,
    ScorePart.VERIFIER: 1.0,
    ScorePart.VOTES: 1.0,
    ScorePart.CHOICE: 6.0,
}
"""The weight of each part among accepted candidates. The architect's choice outweighs evidence, agreement and reviews
together; together with new tests or a verifier, these may outweigh it."""


_OPINIONS = (ScorePart.TESTS, ScorePart.REVIEW, ScorePart.VERIFIER)


def evidence(report: CheckReport) -> float:
    """The evidence in one number between 0 and 1: the weighted mean of the scores of the checks that ran.

    `evidence = sum(weight * score) / sum(weight)` over the checks that were not skipped; 0 for a patch that does not
    apply or when nothing ran.
    """
    ran = [result for result in report.results if not result.skipped_reason]
    if any(result.kind is CheckKind.APPLY and not result.passed for result in ran):
        return 0.0
    items = sum(result.kind is CheckKind.RUBRIC for result in ran)
    weights = [WEIGHTS[result.kind] / (items if result.kind is CheckKind.RUBRIC else 1) for result in ran]
    total = fsum(weights)
    return (
        fsum(weight * _share(result.score) for weight, result in zip(weights, ran, strict=True)) / total
        if total
        else 0.0
    )


def worse(before: CheckReport, after: CheckReport) -> str:
    """Why the evidence about a revision is worse than that about its predecessor; empty where it is not."""
    if before.accepted and not after.accepted:
        failed = [result.name for result in after.failed if result.required]
        return f"worse: it fails {', '.join(failed) or 'its checks'}, which its predecessor passed"
    if before.accepted and before.verdict is Verdict.VERIFIED and after.verdict is Verdict.UNVERIFIED:
        return "worse: it is unverified, its predecessor is verified"
    if before.accepted == after.accepted and before.verdict is after.verdict and evidence(after) < evidence(before):
        return f"worse: its evidence scores {evidence(after):.4f}, its predecessor's {evidence(before):.4f}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballots:
    """The votes about one candidate: it `won` that many of the `held` valid ones in which it could be chosen.

    `unreadable` counts the invalid ones.
    """

    won: int = 0
    held: int = 0
    unreadable: int = 0

    @property
    def share(self) -> float | None:
        return self.won / self.held if self.held else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCandidate:
    """One place of a ranking: a candidate, the `others` with equal behaviour, and the parts of their score.

    `verifier` is a verifier model's calibrated score, None without one. `values` are the parts that count in this
    ranking, each between 0 and 1. With `needs_proof` only verified candidates may win.
    """

    candidate: Candidate
    report: CheckReport
    others: tuple[Candidate, ...] = ()
    reviews: tuple[float, ...] = ()
    must_fix: int = 0
    verifier: float | None = None
    ballots: Ballots = field(default_factory=Ballots)
    needs_proof: bool = False
    values: Mapping[ScorePart, float] = field(default_factory=dict[ScorePart, float])

    @property
    def accepted(self) -> bool:
        """Whether it may win."""
        return self.report.accepted and (self.verified or not self.needs_proof)

    @property
    def verified(self) -> bool:
        return self.report.verdict is Verdict.VERIFIED

    @property
    def tier(self) -> int:
        return tier(self.report)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(candidate.candidate_id for candidate in (self.candidate, *self.others))

    @property
    def authors(self) -> frozenset[str]:
        return frozenset(candidate.author for candidate in (self.candidate, *self.others))

    @property
    def size(self) -> int:
        """How many candidates independently have this behaviour."""
        return 1 + len(self.others)

    @property
    def review(self) -> float | None:
        """The mean of its reviews; None where nobody reviewed it."""
        return fsum(self.reviews) / len(self.reviews) if self.reviews else None

    @property
    def opinions(self) -> Mapping[ScorePart, float | None]:
        """The parts that a candidate may lack, by others' tests, reviews, a verifier and votes; None where it does."""
        return {
            ScorePart.TESTS: self.report.foreign.value if self.report.foreign is not None else None,
            ScorePart.REVIEW: self.review,
            ScorePart.VERIFIER: self.verifier,
            ScorePart.VOTES: self.ballots.share,
        }

    @property
    def lines(self) -> int:
        return self.candidate.artifacts.insertions + self.candidate.artifacts.deletions

    @property
    def own_tests(self) -> int:
        """How many of its own tests fail without the change."""
        return sum(len(result.own) for result in self.report.results)

    @property
    def score(self) -> float:
        """The score, between 0 and 1; a better place never has a lower one.

        `score = (tier + merit) / 3`, and `merit = sum(weight * value) / sum(weight)` over `values`, with the weights of
        `PARTS`. A verified candidate ranks above every unverified one, which ranks above every refuted one; no opinion
        moves a candidate to another tier.
        """
        merit = self.weighed / fsum(PARTS[part] for part in self.values)
        return round((self.tier + merit) / 3, _DIGITS)

    @property
    def weighed(self) -> float:
        """The sum of weight times value over the parts that count."""
        return fsum(PARTS[part] * value for part, value in self.values.items())

    @property
    def tokens(self) -> int:
        return self.candidate.usage.total_tokens

    @property
    def order(self) -> tuple[int, float, float, bool, int, int, str]:
        """Sorts from best to worst: tier, score, evidence, own tests, fewer changed lines, fewer tokens, the id."""
        evidence = round(self.values[ScorePart.EVIDENCE], _DIGITS)
        return (
            -self.tier,
            -self.score,
            -evidence,
            not self.own_tests,
            self.lines,
            self.tokens,
            self.candidate.candidate_id,
        )


def tier(report: CheckReport) -> int:
    """2 for a verified candidate, 1 for another accepted one, 0 for the rest."""
    return 0 if not report.accepted else VERIFIED_TIER if report.verdict is Verdict.VERIFIED else 1


def lead(places: Sequence[ScoredCandidate]) -> float:
    """The lead in `weighed` of the first of a ranking over every other accepted one of its tier.

    Without a rival in its tier the lead is infinite: no later opinion can change the first place.
    """
    if not places:
        return inf
    first, *others = places
    rivals = [place for place in others if place.accepted and place.tier == first.tier]
    return min((first.weighed - rival.weighed for rival in rivals), default=inf)


def clusters(
    candidates: Iterable[Candidate], reports: Mapping[str, CheckReport], behaviours: Mapping[str, str]
) -> tuple[tuple[Candidate, ...], ...]:
    """Candidates of equal behaviour together, in each cluster the representative first.

    Equal are those with equal keys in `behaviours` (without one: the same bytes) *and* the same outcome of every check:
    blanks that matter after all (a heredoc, a Makefile, Markdown) are distinguished where a check can do so. The
    representative has the best evidence, then the smaller diff, fewer tokens, the lower id.
    """
    by_outcome: dict[tuple[str, tuple[object, ...]], list[Candidate]] = {}
    for candidate in candidates:
        key = behaviours.get(candidate.candidate_id, candidate.diff_digest)
        by_outcome.setdefault((key, _outcomes(reports.get(candidate.candidate_id))), []).append(candidate)
    return tuple(
        tuple(sorted(members, key=lambda candidate: _from_cluster((candidate,), reports).order))
        for members in by_outcome.values()
    )


def score_candidates(
    candidates: Iterable[Candidate],
    reports: Mapping[str, CheckReport],
    critiques: Iterable[Critique],
    votes: Iterable[Vote],
    behaviours: Mapping[str, str],
    scores: Mapping[str, float] | None = None,
    *,
    needs_proof: bool = False,
) -> list[ScoredCandidate]:
    """The places from best to worst; the order of the candidates given does not matter.

    With `needs_proof` only verified candidates are accepted.

    A part counts once it has a value for any accepted candidate:

    - *new tests*: the rating by the new tests of all authors, `domain.examination.Matrix.value`.
    - *agreement*, where several candidates have the same change: the share of the accepted ones that have it. That
      samples which agree are right more often is self-consistency (Wang et al., 2022, arXiv:2203.11171); after
      filtering by tests, AlphaCode submits from the largest clusters of equal behaviour (Li et al., 2022,
      arXiv:2203.07814), CodeT scores by tests passed and size of the agreeing set (Chen et al., 2022,
      arXiv:2207.10397), Agentless votes over normalised patches (Xia et al., 2024, arXiv:2407.01489). Agents of one
      model make the same errors, so its weight is small.
    - *reviews*: the mean score of the valid critiques by others, each reviewer's last one.
    - *verifier*: the calibrated score of a verifier model, in `scores` by candidate.
    - *votes*: won of those held, see `Ballots`; or, where the architect alone votes, 1 for its choice.
    """
    places = [
        replace(_from_cluster(members, reports), needs_proof=needs_proof)
        for members in clusters(candidates, reports, behaviours)
    ]
    reviews, cast = list(critiques), list(votes)
    valid = [vote for vote in cast if _valid(vote, places)]
    places = [_with_votes(_with_verifier(_with_reviews(place, reviews), scores or {}), cast, valid) for place in places]
    accepted = [place for place in places if place.accepted]
    decides = all(vote.judge_id == ARCHITECT for vote in valid)
    counted = {
        **{part: any(place.opinions[part] is not None for place in accepted) for part in _OPINIONS},
        ScorePart.EVIDENCE: True,
        ScorePart.AGREEMENT: any(place.others for place in accepted),
        ScorePart.VOTES: not decides and bool(valid),
        ScorePart.CHOICE: decides and bool(valid),
    }
    total = sum(place.size for place in accepted)
    most = max((place.ballots.won for place in accepted), default=0)
    return sorted((_with_values(place, counted, total, most) for place in places), key=lambda place: place.order)


def _from_cluster(members: Sequence[Candidate], reports: Mapping[str, CheckReport]) -> ScoredCandidate:
    candidate, *others = members
    report = reports.get(candidate.candidate_id, CheckReport(candidate_id=candidate.candidate_id))
    return ScoredCandidate(
        candidate=candidate, report=report, others=tuple(others), values={ScorePart.EVIDENCE: evidence(report)}
    )


def _with_reviews(place: ScoredCandidate, critiques: Iterable[Critique]) -> ScoredCandidate:
    """The place with the reviews of others; authors' reviews of their own work do not count."""
    last: dict[tuple[str, str], Critique] = {}
    for critique in sorted(critiques, key=lambda critique: critique.round):
        if critique.candidate_id in place.ids and critique.reviewer_id not in place.authors and not critique.error:
            last[critique.reviewer_id, critique.candidate_id] = critique
    must_fix = sum(
        finding.must_fix and finding.reproduced for critique in last.values() for finding in critique.findings
    )
    return replace(place, reviews=tuple(_worth(critique) for critique in last.values()), must_fix=must_fix)


def _with_verifier(place: ScoredCandidate, scores: Mapping[str, float]) -> ScoredCandidate:
    """The place with the verifier's score; of several with equal behaviour that of the first by name."""
    values = [_share(scores[name]) for name in sorted(place.ids) if name in scores]
    return replace(place, verifier=values[0]) if values and place.accepted else place


def _valid(vote: Vote, places: Iterable[ScoredCandidate]) -> bool:
    """Whether a vote is for an accepted candidate that was shown, and that is not its judge's own."""
    if vote.error or vote.choice not in vote.order:
        return False
    return any(place.accepted and vote.choice in place.ids and vote.judge_id not in place.authors for place in places)


def _with_votes(place: ScoredCandidate, votes: Iterable[Vote], valid: Iterable[Vote]) -> ScoredCandidate:
    """The place with the votes about it."""

    def about(vote: Vote) -> bool:
        return not place.ids.isdisjoint(vote.order) and vote.judge_id not in place.authors

    if not place.accepted:
        return place
    counted = [vote for vote in valid if about(vote)]
    lost = sum(about(vote) for vote in votes) - len(counted)
    won = sum(vote.choice in place.ids for vote in counted)
    return replace(place, ballots=Ballots(won=won, held=len(counted), unreadable=lost))


def _with_values(
    place: ScoredCandidate, counted: Mapping[ScorePart, bool], accepted: int, most: int
) -> ScoredCandidate:
    """The place with a value for every part that counts; a refused one has only its evidence."""
    if not place.accepted:
        return place
    values = {
        **{part: NEUTRAL if value is None else value for part, value in place.opinions.items()},
        ScorePart.EVIDENCE: place.values[ScorePart.EVIDENCE],
        ScorePart.AGREEMENT: place.size / accepted,
        ScorePart.CHOICE: float(place.ballots.won == most),
    }
    return replace(place, values={part: values[part] for part in ScorePart if counted[part]})


def _outcomes(report: CheckReport | None) -> tuple[object, ...]:
    """The outcome of each check, with the tests that failed; without a model's opinion, which may vary."""
    if report is None:
        return ()
    return tuple(sorted(_outcome(result) for result in report.results if result.kind is not CheckKind.RUBRIC))


def _outcome(result: CheckResult) -> tuple[str, str, str, tuple[str, ...]]:
    passed = "skipped" if result.skipped_reason else str(result.passed)
    failing = tuple(sorted(result.tests.failing)) if result.tests else ()
    return (result.kind, result.name, passed, failing)


def _worth(critique: Critique) -> float:
    score, must_fix = _share(critique.score), [finding for finding in critique.findings if finding.must_fix]
    if any(finding.reproduced for finding in must_fix):
        return min(score, MUST_FIX_CEILING)
    if must_fix and all(finding.contradicted for finding in must_fix):
        return max(score, MUST_FIX_CEILING)
    return score


def _share(number: float) -> float:
    """The number, bounded to 0 and 1; 0 for NaN."""
    return min(1.0, max(0.0, number)) if number == number else 0.0
