"""The runs of an execution: their ids in the log, their common totals, and their expenses by purpose.

Each run has one id, one subject, one audit chain.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.candidate import Candidate, Verdict
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.run import AgentProgress
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import counted

PLANNER = "planner"
ENVIRONMENT = "environment"
CHECKLIST = "checklist"
_MERGE = "merge-"
_REVIEWS = "-reviews-"
_SCORE = "-scored"
_JUDGES = "-judges"
_SHORT_COMMIT = 12
_REVISION = re.compile(r"-r\d+$")


def revision_run(author_id: str, round_number: int) -> str:
    """The run in which an author revises its candidate; the candidate has the same id."""
    return f"{author_id}-r{round_number}"


def review_run(reviewer_id: str, round_number: int, *, again: bool = False) -> str:
    """The run in which a peer reviews others' candidates; `again`: their revisions and answers."""
    return f"{reviewer_id}{_REVIEWS}{round_number}{'-again' if again else ''}"


def is_review_run(agent_id: str, reviewer_id: str) -> bool:
    """Whether a run is a review by this peer."""
    return agent_id.startswith(f"{reviewer_id}{_REVIEWS}")


def reviewer_of(agent_id: str) -> str:
    """The reviewer of a review run; empty for any other run."""
    return agent_id.rpartition(_REVIEWS)[0]


def is_revision_run(agent_id: str) -> bool:
    """Whether a run is an author's revision."""
    return _REVISION.search(agent_id) is not None


def judge_run(judge_id: str) -> str:
    """The run in which a judge votes."""
    return f"{judge_id}{_JUDGES}"


def score_run(candidate_id: str) -> str:
    """The run in which the verifier model scores a candidate."""
    return f"{candidate_id}{_SCORE}"


def merge_run(subtask_id: str, head: str) -> str:
    """The run in which an agent resolves a subtask's conflict with that head of the integration branch."""
    return f"{_MERGE}{subtask_id}-{head[:_SHORT_COMMIT]}"


def is_merge_run(agent_id: str) -> bool:
    """Whether a run resolves a merge conflict."""
    return agent_id.startswith(_MERGE)


def is_draft(state: ExecutionState, agent_id: str) -> bool:
    """Whether a run started from only the task and the pinned commit; reviews, revisions and merges did not."""
    return not (is_merge_run(agent_id) or is_revision_run(agent_id) or agent_id in side_runs(state))


def side_runs(state: ExecutionState) -> frozenset[str]:
    """The runs of an execution that make no candidate: reviews, votes, plans, checklists and the like.

    In executions of early versions each review of a candidate was a run of its own.
    """
    reviews = [
        name
        for critique in state.critiques
        for name in (
            review_run(critique.reviewer_id, critique.round),
            review_run(critique.reviewer_id, critique.round, again=True),
            f"{critique.reviewer_id}{_REVIEWS}{critique.candidate_id}-{critique.round}",
        )
    ]
    votes = (judge_run(vote.judge_id) for vote in state.votes)
    return frozenset((PLANNER, ENVIRONMENT, CHECKLIST, *reviews, *votes, *map(score_run, state.candidates)))


@dataclass(kw_only=True)
class TaskSpending:
    """The usage of runs; later runs share what is left of the task's totals."""

    task: Task
    usage: Usage = field(default_factory=Usage)

    def granted(self, parts: int) -> Task | None:
        """The task with the limits of one of `parts` further runs; None where too little is left for all of them."""
        constraints = self.task.constraints
        totals, spent = constraints.totals, self.usage
        tokens = totals.max_tokens - spent.total_tokens
        calls = totals.max_tool_calls - spent.tool_calls
        cost = totals.max_cost - spent.cost
        if (totals.max_tokens and tokens < parts) or (totals.max_tool_calls and calls < parts):
            return None
        if totals.max_cost and cost <= 0:
            return None
        remaining = Totals(
            max_tokens=totals.max_tokens and tokens,
            max_tool_calls=totals.max_tool_calls and calls,
            max_cost=totals.max_cost and cost,
        )
        limits = remaining.share(constraints.limits, parts=parts)
        return replace(self.task, constraints=replace(constraints, limits=limits))


class RunPurpose(StrEnum):
    """The purpose of a run."""

    DRAFTS = "drafts"
    CHECKLIST = "checklist"
    ENVIRONMENT = "environment"
    PLAN = "plan"
    REVIEWS = "reviews"
    REVISIONS = "revisions"
    SCORES = "scores"
    VOTES = "votes"
    MERGES = "merges"


_PURPOSES = {PLANNER: RunPurpose.PLAN, ENVIRONMENT: RunPurpose.ENVIRONMENT, CHECKLIST: RunPurpose.CHECKLIST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expense:
    """The total usage of the runs of one purpose. `bought` describes their result in words."""

    purpose: RunPurpose
    runs: int
    usage: Usage
    bought: str


def expenses(state: ExecutionState) -> tuple[Expense, ...]:
    """The expenses of an execution so far, by purpose; purposes without a run are left out."""
    agents: dict[RunPurpose, list[AgentProgress]] = {}
    purpose_of = _purposes(state)
    for name, agent in state.agents.items():
        if name != EXECUTION_SUBJECT:
            agents.setdefault(purpose_of(name), []).append(agent)
    return tuple(
        Expense(
            purpose=purpose,
            runs=len(runs),
            usage=sum((agent.usage for agent in runs), Usage()),
            bought=_bought(purpose, state),
        )
        for purpose in RunPurpose
        if (runs := agents.get(purpose))
    )


def _purposes(state: ExecutionState) -> Callable[[str], RunPurpose]:
    """A function that gives the purpose of a run by its id, even of a run without a result yet."""
    sides, scores = side_runs(state), set(map(score_run, state.candidates))
    authors = {candidate.author for candidate in state.candidates.values()}
    judges = set(map(judge_run, authors))

    def purpose_of(name: str) -> RunPurpose:
        if name in _PURPOSES:
            return _PURPOSES[name]
        if name in scores:
            return RunPurpose.SCORES
        if is_merge_run(name):
            return RunPurpose.MERGES
        if name in sides or name in judges or reviewer_of(name) in authors:
            return RunPurpose.VOTES if name.endswith(_JUDGES) else RunPurpose.REVIEWS
        return RunPurpose.REVISIONS if is_revision_run(name) else RunPurpose.DRAFTS

    return purpose_of


def _bought(purpose: RunPurpose, state: ExecutionState) -> str:
    """The result of the runs of one purpose, in words."""
    match purpose:
        case RunPurpose.DRAFTS:
            verdicts = [_verdict(state, candidate) for candidate in _candidates(state, revised=False)]
            verified, refuted = verdicts.count(Verdict.VERIFIED), verdicts.count(Verdict.REFUTED)
            stopped = f", {len(state.stopped)} stopped" if state.stopped else ""
            return f"{counted(len(verdicts), 'candidate')}, {verified} verified, {refuted} refuted{stopped}"
        case RunPurpose.CHECKLIST:
            if (checklist := state.checklist) is None or checklist.error:
                return checklist.error if checklist is not None else ""
            telling = counted(len(checklist.telling), "telling probe")
            return f"{counted(len(checklist.requirements), 'requirement')}, {telling}"
        case RunPurpose.ENVIRONMENT:
            return run.reason if (run := state.environment_run) is not None else ""
        case RunPurpose.PLAN:
            return counted(len(state.derivation.subtasks), "subtask") if state.derivation is not None else ""
        case RunPurpose.REVIEWS:
            reviews = [critique for critique in state.critiques if not critique.error]
            findings = [finding for review in reviews for finding in review.findings if finding.must_fix]
            must_fix = counted(len(findings), "must-fix", "must-fixes")
            reproduced = sum(finding.reproduced for finding in findings)
            return f"{counted(len(reviews), 'review')}, {must_fix}, {reproduced} reproduced"
        case RunPurpose.REVISIONS:
            revisions, winner = _candidates(state, revised=True), state.candidates.get(state.winner_id)
            improved = sum(revision.candidate_id not in state.dropped for revision in revisions)
            won = ", one won" if winner is not None and winner.revises else ""
            return f"{counted(len(revisions), 'revision')}, {improved} kept{won}"
        case RunPurpose.SCORES:
            scores = {name: score.score for name, score in state.scores.items() if score.score is not None}
            won = f", {scores[state.winner_id]:.2f} for the winner" if state.winner_id in scores else ""
            return f"{counted(len(scores), 'score')}{won}"
        case RunPurpose.VOTES:
            choices = [vote.choice for vote in state.votes if not vote.error]
            return f"{counted(len(choices), 'vote')}, {choices.count(state.winner_id)} for the winner"
        case RunPurpose.MERGES:
            return counted(sum(is_merge_run(name) for name in state.agents), "conflict")


def _candidates(state: ExecutionState, *, revised: bool) -> list[Candidate]:
    return [candidate for candidate in state.candidates.values() if bool(candidate.revises) is revised]


def _verdict(state: ExecutionState, candidate: Candidate) -> Verdict | None:
    report = state.reports.get(candidate.candidate_id)
    return report.verdict if report is not None else None
