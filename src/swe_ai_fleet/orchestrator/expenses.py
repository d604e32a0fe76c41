"""What an execution's tokens were spent on, and what each part of them bought."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT
from swe_ai_fleet.domain.execution import AgentProgress, ExecutionState
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.orchestrator.run_names import (
    CHECKLIST,
    ENVIRONMENT,
    PLANNER,
    is_draft,
    is_merge_run,
    is_review_run,
    judge_run,
    score_run,
    side_runs,
)

_JUDGES = "-judges"


class Purpose(StrEnum):
    """What runs are for."""

    DRAFTS = "drafts"
    CHECKLIST = "checklist"
    ENVIRONMENT = "environment"
    PLAN = "plan"
    REVIEWS = "reviews"
    REVISIONS = "revisions"
    SCORES = "scores"
    VOTES = "votes"
    MERGES = "merges"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expense:
    """What the runs of one purpose spent together. `bought` says in words what came of it."""

    purpose: Purpose
    runs: int
    usage: Usage
    bought: str


def expenses(state: ExecutionState) -> tuple[Expense, ...]:
    """What the agents of an execution have spent so far, by purpose; purposes without a run are left out."""
    agents: dict[Purpose, list[AgentProgress]] = {}
    sides = side_runs(state)
    for name, agent in state.agents.items():
        if name != EXECUTION_SUBJECT:
            agents.setdefault(_purpose(state, name, sides), []).append(agent)
    return tuple(
        Expense(
            purpose=purpose,
            runs=len(found),
            usage=sum((agent.usage for agent in found), Usage()),
            bought=_BOUGHT[purpose](state),
        )
        for purpose in Purpose
        if (found := agents.get(purpose))
    )


def _purpose(state: ExecutionState, name: str, sides: Iterable[str]) -> Purpose:
    if name in _NAMED:
        return _NAMED[name]
    if name in map(score_run, state.candidates):
        return Purpose.SCORES
    if is_merge_run(name):
        return Purpose.MERGES
    authors = {candidate.author for candidate in state.candidates.values()}
    if name in sides or any(is_review_run(name, author) or name == judge_run(author) for author in authors):
        return Purpose.VOTES if name.endswith(_JUDGES) else Purpose.REVIEWS
    return Purpose.DRAFTS if is_draft(state, name) else Purpose.REVISIONS


def _drafts(state: ExecutionState) -> str:
    handed_in = _candidates(state, revised=False)
    shown = sum(_verdict(state, one) is Verdict.VERIFIED for one in handed_in)
    refuted = sum(_verdict(state, one) is Verdict.REFUTED for one in handed_in)
    said = [_counted(len(handed_in), "candidate"), f"{shown} verified", f"{refuted} refuted"]
    return ", ".join([*said, f"{len(state.stopped)} stopped"] if state.stopped else said)


def _checklist(state: ExecutionState) -> str:
    if (made := state.checklist) is None or made.error:
        return made.error if made is not None else ""
    return f"{_counted(len(made.requirements), 'requirement')}, {_counted(len(made.telling), 'telling probe')}"


def _environment(state: ExecutionState) -> str:
    return run.reason if (run := state.environment_run) is not None else ""


def _plan(state: ExecutionState) -> str:
    made = state.derivation
    return _counted(len(made.subtasks), "subtask") if made is not None else ""


def _reviews(state: ExecutionState) -> str:
    said = [one for one in state.critiques if not one.error]
    asked = [finding for one in said for finding in one.findings if finding.must_fix]
    shown = sum(finding.reproduced for finding in asked)
    return f"{_counted(len(said), 'review')}, {_counted(len(asked), 'must-fix')}, {shown} reproduced"


def _revisions(state: ExecutionState) -> str:
    handed_in = _candidates(state, revised=True)
    kept = sum(one.candidate_id not in state.dropped for one in handed_in)
    winner = state.candidates.get(state.winner_id)
    won = ", one won" if winner is not None and winner.revises else ""
    return f"{_counted(len(handed_in), 'revision')}, {kept} kept{won}"


def _scores(state: ExecutionState) -> str:
    said = [one for one in state.scores.values() if one.score is not None]
    winner = state.scores.get(state.winner_id)
    won = f", {winner.score:.2f} for the winner" if winner is not None and winner.score is not None else ""
    return f"{_counted(len(said), 'score')}{won}"


def _votes(state: ExecutionState) -> str:
    valid = [vote for vote in state.votes if not vote.error]
    return f"{_counted(len(valid), 'vote')}, {sum(vote.choice == state.winner_id for vote in valid)} for the winner"


def _merges(state: ExecutionState) -> str:
    return _counted(sum(is_merge_run(name) for name in state.agents), "conflict")


def _candidates(state: ExecutionState, *, revised: bool) -> list[Candidate]:
    return [one for one in state.candidates.values() if bool(one.revises) is revised]


def _verdict(state: ExecutionState, candidate: Candidate) -> Verdict | None:
    report = state.reports.get(candidate.candidate_id)
    return report.verdict if report is not None else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('x') else 's'}"


_NAMED = {PLANNER: Purpose.PLAN, ENVIRONMENT: Purpose.ENVIRONMENT, CHECKLIST: Purpose.CHECKLIST}
_BOUGHT: Mapping[Purpose, Callable[[ExecutionState], str]] = {
    Purpose.DRAFTS: _drafts,
    Purpose.CHECKLIST: _checklist,
    Purpose.ENVIRONMENT: _environment,
    Purpose.PLAN: _plan,
    Purpose.REVIEWS: _reviews,
    Purpose.REVISIONS: _revisions,
    Purpose.SCORES: _scores,
    Purpose.VOTES: _votes,
    Purpose.MERGES: _merges,
}
