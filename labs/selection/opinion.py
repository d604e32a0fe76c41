"""Scripted reviewers and judges, and the ranking that comes of evidence and what they say.

A program that runs by the interpreter of any commit: `python opinion.py < requests > answers`, JSON a line. It imports
nothing but the ranking that it measures.

A council of as many agents as candidates has one round: up to three others review each candidate that the ranked code
would have reviewed, and who sees several side by side votes for one of them; then those vote, each without its own
candidate, of whom that code wants more votes. Whatever an agent says is the truth with a probability that is its
honesty. Else a review says the opposite, and a vote is for any other candidate on the ballot. No reviewer shows what it
says by a command, nobody revises and nobody answers.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, RankedCandidate
from swe_ai_fleet.domain.review import Critique, Finding, ReviewVerdict, Vote
from swe_ai_fleet.orchestrator.judging import MAX_BALLOT, MAX_JUDGES, PEER_SAMPLES, lone_samples, pairs
from swe_ai_fleet.orchestrator.ranking import rank

try:
    from swe_ai_fleet.domain.examination import Examination, Matrix
    from swe_ai_fleet.orchestrator.judging import peer_samples, peers_for
    from swe_ai_fleet.orchestrator.score import PARTS, ScorePart, lead, score_candidates, tier
except ImportError:  # a commit from before candidates were examined, and votes asked for only where they count
    Examination = Matrix = None

GOOD, BAD = 0.9, 0.2
"""The scores of a review that takes a candidate for right, and of one that takes it for wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Council:
    """The agents that wrote the candidates of one pool, and what they say.

    Attributes:
        right: The ids of the candidates that are right.
        honesty: With which probability what is said is true.
        seed: Equal seeds say the same.
    """

    candidates: Sequence[Candidate]
    right: Collection[str]
    honesty: float
    seed: str

    def critiques(self, reports: Mapping[str, CheckReport]) -> tuple[Critique, ...]:
        """A review by up to three others for each candidate that is reviewed."""
        authors = [candidate.author for candidate in self.candidates]
        diffs = {author: author for author in authors}
        if Matrix is None:
            return tuple(self._critique(reviewer, subject) for subject, reviewer in pairs(authors, diffs, authors))
        tiers = {candidate.author: tier(reports[candidate.candidate_id]) for candidate in self.candidates}
        best = max(tiers.values())
        subjects = [author for author, one in tiers.items() if one == best]
        chosen = pairs(authors, diffs, subjects, peers=peers_for(best, len(subjects)))
        return tuple(self._critique(reviewer, subject) for subject, reviewer in chosen)

    def first_votes(self, critiques: Sequence[Critique]) -> tuple[Vote, ...]:
        """The votes of those who reviewed several candidates side by side; none before that was done."""
        if Matrix is None:
            return ()
        seen: dict[str, list[str]] = {}
        for critique in critiques:
            seen.setdefault(critique.reviewer_id, []).append(critique.candidate_id)
        return tuple(self._vote(judge, 0, ballot) for judge, ballot in seen.items() if len(ballot) > 1)

    def further_votes(self, ranking: Sequence[RankedCandidate], samples: int, cast: Sequence[Vote]) -> tuple[Vote, ...]:
        """The votes over the accepted places of a ranking, so many of each peer with those that it has cast."""
        if not samples:
            return ()
        shown = [place for place in ranking if place.accepted][:MAX_BALLOT]
        authors = {candidate.candidate_id: candidate.author for candidate in self.candidates}
        ballots = [
            (judge, [place.candidate_id for place in shown if judge not in _authors(place, authors)])
            for judge in (candidate.author for candidate in self.candidates)
        ]
        ballots = [(judge, ballot) for judge, ballot in ballots if len(ballot) > 1][:MAX_JUDGES]
        alone = len(ballots) == 1
        known = Counter(vote.judge_id for vote in cast)
        return tuple(
            self._vote(judge, sample, ballot)
            for judge, ballot in ballots
            for sample in range(known[judge], lone_samples(len(ballot)) if alone else samples)
        )

    def _critique(self, reviewer: str, subject: str) -> Critique:
        chance = Random(f"{self.seed}/{reviewer}/{subject}")
        thinks_right = (subject in self.right) is (chance.random() < self.honesty)
        return Critique(
            reviewer_id=reviewer,
            candidate_id=subject,
            round=1,
            verdict=ReviewVerdict.ACCEPT if thinks_right else ReviewVerdict.REVISE,
            score=GOOD if thinks_right else BAD,
            findings=() if thinks_right else (Finding(text="it does not do what is asked", must_fix=True),),
        )

    def _vote(self, judge: str, sample: int, ballot: Sequence[str]) -> Vote:
        chance = Random(f"{self.seed}/{judge}/vote/{sample}")
        right = sorted(set(ballot) & set(self.right))
        others = sorted(set(ballot) - set(self.right))
        honest = chance.random() < self.honesty
        choice = chance.choice(right if right and (honest or not others) else others)
        return Vote(judge_id=judge, sample=sample, order=tuple(ballot), choice=choice)


def _authors(place: RankedCandidate, authors: Mapping[str, str]) -> set[str]:
    return {authors[name] for name in (place.candidate_id, *place.duplicates)}


def samples_of(
    candidates: Sequence[Candidate],
    reports: Mapping[str, CheckReport],
    critiques: Sequence[Critique],
    behaviours: Mapping[str, str],
    cast: Sequence[Vote],
) -> int:
    """How many votes each peer is to have."""
    if Matrix is None:
        return PEER_SAMPLES
    weight, leads = PARTS[ScorePart.VOTES], lead(score_candidates(candidates, reports, critiques, cast, behaviours))
    return 0 if leads > weight else peer_samples(leads, weight)


def selected(pool: Mapping[str, Any]) -> Iterator[tuple[float, str, str, int]]:
    """For each honesty and draw of a pool: the honesty, the winner's id (empty: none), its verdict (None: it has
    none), and how many conversations about candidates there were, reviews and votes.

    Args:
        pool: `name`, `candidates`, `reports` and `examination` (None: there was none) as the log has them, `probes`
            (an examination of probes only, or None), `behaviours`, `right` (ids), `honesties`, `draws`.
    """
    candidates = [from_plain(Candidate, plain) for plain in pool["candidates"]]
    reports = {plain["candidate_id"]: from_plain(CheckReport, plain) for plain in pool["reports"]}
    behaviours = pool["behaviours"]
    examined = [pool[name] for name in ("examination", "probes") if pool.get(name) is not None]
    if Matrix is not None and examined:
        sets = [tests for plain in examined for tests in plain["sets"]]
        matrix = Matrix(from_plain(Examination, {"candidates": examined[0]["candidates"], "sets": sets}))
        reports = {
            name: matrix.judged(place.candidate_id, reports[name])
            for place in rank(candidates, reports, behaviours=behaviours)
            for name in (place.candidate_id, *place.duplicates)
        }
    for honesty in pool["honesties"]:
        for draw in range(pool["draws"]):
            seed = f"{pool['name']}/{honesty}/{draw}"
            council = Council(candidates=candidates, right=pool["right"], honesty=honesty, seed=seed)
            critiques = council.critiques(reports)
            cast = council.first_votes(critiques)
            samples = samples_of(candidates, reports, critiques, behaviours, cast)
            ranking = rank(candidates, reports, critiques=critiques, votes=cast, behaviours=behaviours)
            further = council.further_votes(ranking, samples, cast)
            votes = (*cast, *further)
            first = rank(candidates, reports, critiques=critiques, votes=votes, behaviours=behaviours)[0]
            winner = first.candidate_id if first.accepted else ""
            reviews = critiques if Matrix is None else {critique.reviewer_id for critique in critiques}
            yield honesty, winner, getattr(first, "verdict", None), len(reviews) + len(further)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(list(selected(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
