"""Outcomes of ended executions and plan sessions, as the learning uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from swe_ai_fleet.agents.plan_session.session import PlanOutcome
from swe_ai_fleet.domain.event import ExecutionStatus, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import (
    BEST_RATING,
    LEAST_RATING,
    MAX_REASON_CHARS,
    PART_OF,
    VERDICT,
    VERIFIER_MODEL,
    VERIFIER_SCORE,
    Outcome,
    goal_type,
)
from swe_ai_fleet.domain.run import tool_calls
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.text import without_login
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.learning.recommending import PLANNED

MEMORY_OPERATIONS = frozenset({"search_memory", "remember"})
RESEARCH_OPERATIONS = frozenset({"research", "web_search", "read_webpage", "search_wikipedia", "get"})
DIALOGUE_OPERATIONS = frozenset({"propose_approach", "final_answer", "request_tools", "ask_user"})
_GOAL_CHARS = 500
_LIMITS = frozenset(StopReason) - {StopReason.FINAL_ANSWER, StopReason.NO_TOOL_CALLS}
"""A plan that ended with one of these was not completed."""


def approach_of(task: Task) -> str:
    """The approach of a task: its kind, and its planning mode if it names one."""
    mode = f"/{task.planning_mode}" if task.planning_mode is not None else ""
    return f"{task.kind}{mode}"


def outcome_of(state: ExecutionState, events: Iterable[StoredEvent]) -> Outcome:
    """The outcome of an execution that ended, from its state and all of its events."""
    task = state.task
    winner = state.candidates.get(state.winner_id)
    facts = {PART_OF: task.parent_execution_id, VERDICT: state.verdict or "", **_scored(state)}
    outcome = Outcome(
        subject_id=state.execution_id,
        tenant=task.tenant,
        goal=" ".join(task.description.split())[:_GOAL_CHARS],
        goal_type=goal_type(task.description),
        role=task.role,
        repository=without_login(task.repo.location),
        approach=approach_of(task),
        council=state.council.council_id if state.council is not None else "",
        model=winner.model if winner is not None else _models(state),
        model_profile=task.model_profile,
        agents=task.num_agents,
        agents_used=tuple(sorted({candidate.author for candidate in state.candidates.values()})),
        rounds=max(0, task.rounds),
        success=state.status is ExecutionStatus.COMPLETED,
        status=state.status,
        evidence=_evidence(state),
        reason=state.error[:MAX_REASON_CHARS],
        usage=state.usage,
        duration_ms=state.duration_ms,
        ended_at=state.finished_at,
        metadata={name: text for name, text in facts.items() if text},
    )
    return _shared(outcome, (entry.operation for entry in tool_calls(events)))


def planned_outcome(planned: PlanOutcome, *, ended_at: str, tenant: str) -> Outcome:
    """The outcome of a plan session; its sub-agents are the agents used."""
    outcome = Outcome(
        subject_id=planned.session_id,
        tenant=tenant,
        goal=" ".join(planned.goal.split())[:_GOAL_CHARS],
        goal_type=planned.goal_type,
        approach=PLANNED,
        agents=1,
        agents_used=planned.agents_used,
        success=planned.status is ExecutionStatus.COMPLETED and planned.stop_reason not in _LIMITS,
        status=planned.status,
        approach_ratio=planned.approach_ratio,
        reason=planned.reason[:MAX_REASON_CHARS],
        rating=0 if planned.rating is None else round(LEAST_RATING + planned.rating * (BEST_RATING - LEAST_RATING)),
        usage=planned.usage,
        duration_ms=planned.usage.duration_ms,
        ended_at=ended_at,
    )
    return _shared(outcome, (name for name in planned.operations if name not in DIALOGUE_OPERATIONS))


def _scored(state: ExecutionState) -> dict[str, str]:
    """A verifier model's score of the winner, or of a candidate of equal behaviour."""
    place = next((place for place in state.ranking if place.candidate_id == state.winner_id), None)
    names = (place.candidate_id, *place.duplicates) if place is not None else ()
    score = next((state.scores[name] for name in names if name in state.scores), None)
    if score is None or score.raw is None:
        return {}
    return {VERIFIER_SCORE: f"{score.raw:.6f}", VERIFIER_MODEL: score.model}


def _shared(outcome: Outcome, operations: Iterable[str]) -> Outcome:
    """The outcome with the shares of its calls for memory, research and other tools."""
    calls = Counter(_kind(operation) for operation in operations)
    total = max(1, calls.total())
    return replace(
        outcome,
        memory_share=calls["memory"] / total,
        research_share=calls["research"] / total,
        tool_share=calls["tool"] / total,
    )


def _kind(operation: str) -> str:
    if operation in MEMORY_OPERATIONS:
        return "memory"
    return "research" if operation in RESEARCH_OPERATIONS else "tool"


def _models(state: ExecutionState) -> str:
    return ", ".join(sorted({agent.model for agent in state.agents.values() if agent.model}))


def _evidence(state: ExecutionState) -> float:
    """The share of the checks that passed: the winner's, or those of what subtasks came to; 0 where none ran."""
    report = state.reports.get(state.winner_id) or state.delivery_report
    ran = [result for result in report.results if not result.skipped_reason] if report is not None else []
    return sum(result.passed for result in ran) / len(ran) if ran else 0.0
