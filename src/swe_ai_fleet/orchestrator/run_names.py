"""What the runs of a deliberation are called in the log: one id, one subject, one audit chain each."""

from __future__ import annotations

import re

from swe_ai_fleet.domain.execution import ExecutionState

PLANNER = "planner"
ENVIRONMENT = "environment"
CHECKLIST = "checklist"
_MERGE = "merge-"
_REVIEWS = "-reviews-"
_SCORE = "-scored"
_SHORT_COMMIT = 12
_REVISION = re.compile(r"-r\d+$")


def revision_run(author_id: str, round_number: int) -> str:
    """The run in which an author revises its candidate; the candidate has the same id."""
    return f"{author_id}-r{round_number}"


def review_run(reviewer_id: str, round_number: int, *, again: bool = False) -> str:
    """The run in which a peer reviews others' candidates; `again`: what authors handed in since."""
    return f"{reviewer_id}{_REVIEWS}{round_number}{'-again' if again else ''}"


def is_review_run(agent_id: str, reviewer_id: str) -> bool:
    """Whether this peer reviews in a run."""
    return agent_id.startswith(f"{reviewer_id}{_REVIEWS}")


def reviewer_of(agent_id: str) -> str:
    """Who reviews in a run; empty where nobody does."""
    return agent_id.rpartition(_REVIEWS)[0]


def is_revision_run(agent_id: str) -> bool:
    """Whether an author revises in a run."""
    return _REVISION.search(agent_id) is not None


def judge_run(judge_id: str) -> str:
    """The run in which a judge votes."""
    return f"{judge_id}-judges"


def score_run(candidate_id: str) -> str:
    """The run in which the verifier model scores a candidate."""
    return f"{candidate_id}{_SCORE}"


def merge_run(subtask_id: str, head: str) -> str:
    """The run in which an agent resolves what a subtask conflicts with, on that head of the integration branch."""
    return f"{_MERGE}{subtask_id}-{head[:_SHORT_COMMIT]}"


def is_merge_run(agent_id: str) -> bool:
    """Whether a run resolves a conflict."""
    return agent_id.startswith(_MERGE)


def is_draft(state: ExecutionState, agent_id: str) -> bool:
    """Whether a run began with nothing but the task and the pinned commit; reviews, revisions and merges did not."""
    return not (is_merge_run(agent_id) or is_revision_run(agent_id) or agent_id in side_runs(state))


def side_runs(state: ExecutionState) -> frozenset[str]:
    """The runs of an execution that were never to leave a candidate: reviews, votes, plans, checklists and the like.

    In executions of earlier versions each review of a candidate was a run of its own.
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
