"""Judging of candidates: which peers review them, judges that vote, a verifier model that scores them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import structlog

from swe_ai_fleet.domain.assignment import JudgeAssignment, ScoreAssignment
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Perspective
from swe_ai_fleet.domain.council import Council
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import CandidateScored, VotesCast
from swe_ai_fleet.domain.memory import WorkOutcome
from swe_ai_fleet.domain.review import Critique, VerifierScore, Vote
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.orchestrator.calibration import calibrated, rated
from swe_ai_fleet.orchestrator.councils import assignments, seated
from swe_ai_fleet.orchestrator.execution_context import AgentRuns
from swe_ai_fleet.orchestrator.runs import TaskSpending, judge_run, score_run
from swe_ai_fleet.orchestrator.score import (
    ARCHITECT,
    PARTS,
    VERIFIED_TIER,
    ScoredCandidate,
    ScorePart,
    lead,
    score_candidates,
)

PEERS = 3
"""Reviewers of one candidate, and so about as many candidates side by side for one reviewer: with more of them less of
each fits, and a fourth reviewer finds little that the first three have not found."""
MAX_BALLOT = 5
"""Candidates on a ballot: with more of them less of each fits, and their order matters more."""
MAX_JUDGES = 5
"""Peers that vote; a small jury agrees with people as well as a large one (Verga et al., 2024, arXiv:2404.18796)."""
PEER_SAMPLES = 2
"""Votes of each peer where there are several and it is close: of two candidates, each is shown first once."""
LONE_SAMPLES = 3
"""The least votes of a single judge; rounded up so that each candidate is shown first equally often."""
MAX_LONE_SAMPLES = 6
_REASON_CHARS = 4_000
_ERROR_CHARS = 4_000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The candidates that judges choose among, with the evidence and the opinions about them.

    Attributes:
        candidates: The current ones, accepted or not; neither superseded nor dropped ones.
        votes: The reviewers' votes, one each.
        behaviours: The result of `behaviour_keys`, the same as for `rank`.
        scores: A verifier model's scores, the same as for `rank`.
    """

    candidates: Sequence[Candidate]
    reports: Mapping[str, CheckReport]
    critiques: Sequence[Critique] = ()
    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    votes: Sequence[Vote] = ()
    behaviours: Mapping[str, str] = field(default_factory=dict[str, str])
    scores: Mapping[str, float] = field(default_factory=dict[str, float])


async def vote(runs: AgentRuns, task: Task, contest: Contest) -> tuple[Vote, ...]:
    """Have judges choose among the accepted candidates of different behaviour, where their votes can change the winner.

    Reviewers have voted already for the candidate that they put first of those that they saw side by side. Judges vote
    on what that leaves open: in another order of the candidates where it is close, and where a peer has not seen two
    of them.

    With `architect_top_k` an architect alone chooses among the best candidates by evidence and reviews. Otherwise, if
    the task has any rounds of review, the council's agents vote, those that the fleet runs itself, whatever the results
    of their own runs. Models favour their own text (Panickssery et al., 2024, arXiv:2404.13076), so an agent's own
    candidate, and any of equal behaviour, is not on its ballot; a ballot with one candidate is not used. So two agents
    with a candidate each have no judge: their reviews of each other decide.

    There is no vote if the first candidate has a better verdict than all others, or leads by more than the weight of
    all votes; each judge votes once where it leads by half of that, else twice. Each judge's votes are written as
    `VotesCast` when they are complete. A lost judge costs only its votes.

    Args:
        runs: Runs the judges. Judges with votes under an earlier driver are not asked again.
        task: The task, with the limits of each judge.

    Returns:
        The votes for `rank`, judge by judge, including those that could not be read.

    Raises:
        Fenced: Another driver has taken over.
    """
    judgings = _judgings(task, runs.known.repository, contest, runs.known.council)
    async with asyncio.TaskGroup() as group:
        voting = [group.create_task(_voted(runs, judging, contest)) for judging in judgings]
    return (*contest.votes, *(vote for votes in voting for vote in votes.result()))


def _judgings(
    task: Task, repository: PinnedRepository, contest: Contest, council: Council | None
) -> list[JudgeAssignment]:
    """The assignment of each judge; none where there is nothing to choose or no judge."""
    ranked = score_candidates(
        contest.candidates, contest.reports, contest.critiques, contest.votes, contest.behaviours, contest.scores
    )
    weight = PARTS[ScorePart.CHOICE if task.architect_top_k else ScorePart.VOTES]
    if (leads := lead(ranked)) > weight:
        return []
    places = [place for place in ranked if place.accepted]
    ballots: list[tuple[str, Perspective, list[ScoredCandidate]]] = []
    if task.architect_top_k:
        profile = task.profiles[0] if task.profiles else ""
        ballots = [(ARCHITECT, Perspective(model_profile=profile), places[: task.architect_top_k])]
    elif seated(task, council).rounds > 0:
        on_ballot = places[:MAX_BALLOT]
        written = {author for place in on_ballot for author in place.authors}
        # External agents only solve; they do not judge.
        peers = [peer for peer in assignments(task, repository, council) if not peer.perspective.endpoint]
        # Peers without a candidate on the ballot come first: they see all of it.
        ballots = [
            (peer.agent_id, peer.perspective, [place for place in on_ballot if peer.agent_id not in place.authors])
            for peer in sorted(peers, key=lambda peer: peer.agent_id in written)
        ]
    ballots = [ballot for ballot in ballots if len(ballot[2]) > 1][:MAX_JUDGES]
    alone = len(ballots) == 1
    votes_by_judge = Counter(vote.judge_id for vote in contest.votes)
    valid = Counter(vote.judge_id for vote in contest.votes if not vote.error)
    judgings = [
        JudgeAssignment(
            execution_id=task.execution_id,
            agent_id=judge_run(judge_id),
            judge_id=judge_id,
            task=task,
            repository=repository,
            candidates=tuple(place.candidate for place in ballot),
            reports=tuple(contest.reports[place.candidate.candidate_id] for place in ballot),
            critiques=_about(ballot, contest.critiques),
            answers={
                name: contest.answers[name]
                for name in (place.candidate.candidate_id for place in ballot)
                if name in contest.answers
            },
            samples=(lone_samples(len(ballot)) if alone else peer_samples(leads, weight)) - valid[judge_id],
            known=votes_by_judge[judge_id],
            seed=ballot_seed(task.execution_id, judge_id),
            perspective=perspective,
        )
        for judge_id, perspective, ballot in ballots
    ]
    return [judging for judging in judgings if judging.samples > 0]


def peer_samples(leads: float, weight: float) -> int:
    """How often a peer votes, where the first candidate leads by `leads` and all votes together have a `weight`."""
    return PEER_SAMPLES if leads < weight / 2 else 1


def lone_samples(candidates: int) -> int:
    """How often a single judge votes on so many candidates: in turns in which each is shown first once."""
    return min(MAX_LONE_SAMPLES, candidates * ceil(LONE_SAMPLES / candidates))


async def _voted(runs: AgentRuns, assignment: JudgeAssignment, contest: Contest) -> Sequence[Vote]:
    """A judge's votes, under an earlier driver or now; recorded together with its earlier votes as a reviewer."""
    cast = [vote for vote in runs.known.votes if vote.judge_id == assignment.judge_id]
    if new_votes := [vote for vote in cast if vote.sample > assignment.known]:
        return new_votes
    votes = await runs.or_loss(assignment.agent_id, runs.run(assignment))
    if isinstance(votes, FleetError):
        return ()
    ballot = [candidate.candidate_id for candidate in assignment.candidates]
    votes = tuple(as_cast(vote, assignment.judge_id, ballot) for vote in votes[: assignment.samples])
    if votes:
        before = (vote for vote in contest.votes if vote.judge_id == assignment.judge_id)
        await runs.journal.append(VotesCast(votes=(*before, *votes)))
    return votes


def as_cast(vote: Vote, judge_id: str, ballot: Sequence[str]) -> Vote:
    """The vote under this judge's name, restricted to the candidates on its ballot."""
    order = tuple(name for name in dict.fromkeys(vote.order) if name in ballot)
    error = vote.error
    if not error and vote.choice not in order:
        error = "it chose none of the candidates"
    return replace(
        vote,
        judge_id=judge_id,
        order=order,
        choice="" if error else vote.choice,
        reason=vote.reason[:_REASON_CHARS],
        error=error[:_REASON_CHARS],
    )


def _about(ballot: Iterable[ScoredCandidate], critiques: Iterable[Critique]) -> tuple[Critique, ...]:
    names = {place.candidate.candidate_id for place in ballot}
    return tuple(critique for critique in critiques if critique.candidate_id in names and not critique.error)


def ballot_seed(execution_id: str, judge_id: str) -> int:
    """The seed of the orders in which a judge sees candidates: equal on every replica, small enough for JSON."""
    return int.from_bytes(hashlib.sha256(f"{execution_id}/{judge_id}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """The verifier model of a fleet.

    Attributes:
        outcomes: The outcomes of a tenant's ended executions. Raises Unavailable.
    """

    outcomes: Callable[[str], Sequence[WorkOutcome]]

    async def scores(self, runs: AgentRuns, spending: TaskSpending, contest: Contest) -> Mapping[str, float]:
        """The calibrated scores of the accepted candidates by id, one for each place.

        A single accepted candidate is not scored. Each score is written as `CandidateScored` when it is complete.
        Candidates that were scored under an earlier driver, or whose scoring was lost, are not scored again. A failed
        scoring costs only its score; none starts where too little is left of the task's totals.

        Raises:
            Fenced: Another driver has taken over.
        """
        scores = dict(runs.known.scores)
        for judged in scores.values():
            spending.usage += judged.usage
        places = score_candidates(
            contest.candidates,
            contest.reports,
            contest.critiques,
            contest.votes,
            contest.behaviours,
            needs_proof=spending.task.constraints.require_verified,
        )
        accepted = [place for place in places if place.accepted]
        # A single one stays first, whatever its score.
        unscored = [place for place in accepted if not self._was_asked(place, runs)] if len(accepted) > 1 else []
        task = spending.granted(len(unscored)) if unscored else None
        if task is not None:
            async with asyncio.TaskGroup() as group:
                scorings = [group.create_task(self._score(runs, task, place)) for place in unscored]
            for score in (scoring.result() for scoring in scorings):
                if score is not None:
                    scores[score.candidate_id] = score
                    spending.usage += score.usage
        return {name: score.score for name, score in scores.items() if score.score is not None}

    def _was_asked(self, place: ScoredCandidate, runs: AgentRuns) -> bool:
        """Whether the log has its score, or the loss of its scoring."""
        agents = [runs.known.agents.get(score_run(name)) for name in place.ids]
        lost = any(agent is not None and agent.status == "lost" for agent in agents)
        return lost or not place.ids.isdisjoint(runs.known.scores)

    async def _score(self, runs: AgentRuns, task: Task, place: ScoredCandidate) -> VerifierScore | None:
        """The score of a place, recorded; None where the scoring was lost."""
        assignment = ScoreAssignment(
            execution_id=task.execution_id,
            agent_id=score_run(place.candidate.candidate_id),
            task=task,
            repository=runs.known.repository,
            candidate=place.candidate,
            report=place.report,
        )
        score = await runs.or_loss(assignment.agent_id, runs.run(assignment))
        if isinstance(score, FleetError):
            return None
        score = self._calibrated(replace(score, candidate_id=assignment.candidate.candidate_id), assignment.task.tenant)
        await runs.journal.append(CandidateScored(score=score))
        return score

    def _calibrated(self, score: VerifierScore, tenant: str) -> VerifierScore:
        """A host's score, checked and calibrated."""
        if score.raw is None or not 0.0 <= score.raw <= 1.0:
            error = score.error[:_ERROR_CHARS] or "its score is not between 0 and 1"
            return replace(score, raw=None, score=None, outcomes=0, error=error)
        try:
            rates = rated(self.outcomes(tenant), score.model)
        except FleetError as error:
            _log.warning("a verifier's score is not calibrated", reason=str(error))
            rates = []
        return replace(score, score=round(calibrated(score.raw, rates), 6), outcomes=len(rates), error="")


def peers_for(best: int, subjects: int) -> int:
    """How many peers review each of `subjects` candidates of the tier `best`."""
    return 1 if best == VERIFIED_TIER and subjects == 1 else PEERS


def pairs(
    authors: Sequence[str], diffs: Mapping[str, str], subjects: Sequence[str], *, turn: int = 0, peers: int = PEERS
) -> list[tuple[str, str]]:
    """(subject, reviewer) for each review of a round: up to `peers` others for each subject.

    The authors form a ring, and a candidate goes to the authors after its own: where all diffs differ, all review
    equally often. With each `turn` it goes further along. Authors of the same diff do not review it, and authors with
    a full share are skipped as long as others are left.

    Args:
        authors: All authors, in a fixed order.
        peers: Reviewers of one candidate, at most.
    """
    load, chosen = dict.fromkeys(authors, 0), list[tuple[str, str]]()
    share = ceil(len(subjects) * min(peers, len(authors) - 1) / len(authors))
    for subject in subjects:
        at = authors.index(subject)
        others = [author for author in (*authors[at + 1 :], *authors[:at]) if diffs[author] != diffs[subject]]
        start = turn * peers % len(others) if others else 0
        for reviewer in sorted((*others[start:], *others[:start]), key=lambda peer: load[peer] >= share)[:peers]:
            load[reviewer] += 1
            chosen.append((subject, reviewer))
    return chosen
