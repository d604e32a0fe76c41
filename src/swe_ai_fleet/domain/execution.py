"""The state of an execution: a fold over its events and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered, RankedCandidate
from swe_ai_fleet.domain.event import (
    CancelRequested,
    CandidatesRanked,
    CandidateSubmitted,
    ChecksFinished,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ModelReplied,
    ResultPublished,
    RunFinished,
    RunLost,
    RunStarted,
    StoredEvent,
    ToolFinished,
    ToolStarted,
    WinnerDelivered,
)
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.tool import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgress:
    """Where one agent run stands. `status` is running, finished or lost."""

    agent_id: str
    status: str = "running"
    step: int = 0
    last_tool: str = ""
    last_outcome: str = ""
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    audit_head: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionState:
    """An execution as its events tell it. Times are ISO 8601, UTC; `last_sequence` is that of the last event folded."""

    execution_id: str
    task: Task
    repository: PinnedRepository
    fingerprint: str
    started_at: str
    updated_at: str
    finished_at: str = ""
    status: ExecutionStatus = ExecutionStatus.PENDING
    generation: int = 0
    cancel_requested: bool = False
    agents: Mapping[str, AgentProgress] = field(default_factory=dict[str, AgentProgress])
    candidates: Mapping[str, Candidate] = field(default_factory=dict[str, Candidate])
    reports: Mapping[str, CheckReport] = field(default_factory=dict[str, CheckReport])
    ranking: tuple[RankedCandidate, ...] = ()
    winner_id: str = ""
    delivered: Delivered | None = None
    delivery_report: CheckReport | None = None
    error: str = ""
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    result_published: bool = False
    last_sequence: int = 0


def fold(events: Iterable[StoredEvent]) -> ExecutionState | None:
    """The state that these events of one execution, in their order, lead to; None without a first event."""
    state: ExecutionState | None = None
    for stored in events:
        state = advance(state, stored)
    return state


def advance(state: ExecutionState | None, stored: StoredEvent) -> ExecutionState | None:
    """The state after one more event. An event seen before changes nothing."""
    event, body = stored.event, stored.event.body
    if isinstance(body, ExecutionStarted):
        if state is not None:
            return state
        return ExecutionState(
            execution_id=event.execution_id,
            task=body.task,
            repository=body.repository,
            fingerprint=body.fingerprint,
            started_at=event.at,
            updated_at=event.at,
            last_sequence=stored.sequence,
        )
    if state is None or stored.sequence <= state.last_sequence:
        return state
    state = replace(state, last_sequence=stored.sequence, updated_at=event.at)
    match body:
        case ExecutionClaimed(generation=generation):
            return replace(state, generation=generation, status=ExecutionStatus.IN_PROGRESS)
        case CancelRequested():
            return replace(state, cancel_requested=True)
        case CandidateSubmitted(candidate=candidate):
            return replace(state, candidates={**state.candidates, candidate.candidate_id: candidate})
        case ChecksFinished(report=report):
            return replace(state, reports={**state.reports, report.candidate_id: report})
        case CandidatesRanked(ranking=ranking, winner_id=winner_id):
            return replace(state, ranking=ranking, winner_id=winner_id)
        case WinnerDelivered(delivered=delivered, report=report):
            return replace(state, delivered=delivered, delivery_report=report)
        case RunLost(lost_agent_id=agent_id):
            lost = replace(_progress(state, agent_id), status="lost", stop_reason="lost")
            return _with_agent(state, lost)
        case ExecutionFinished():
            return replace(
                state,
                status=body.status,
                winner_id=body.winner_id,
                error=body.error,
                usage=body.usage,
                duration_ms=body.duration_ms,
                finished_at=event.at,
            )
        case ResultPublished():
            return replace(state, result_published=True)
        case _:
            return _with_agent(state, _advance_agent(_progress(state, event.agent_id), stored))


def _advance_agent(agent: AgentProgress, stored: StoredEvent) -> AgentProgress:
    match stored.event.body:
        case RunStarted(model=model):
            return AgentProgress(agent_id=agent.agent_id, model=model)
        case ModelReplied(step=step, reply=reply):
            return replace(agent, step=step, usage=agent.usage + reply.usage)
        case ToolStarted(entry=entry):
            return replace(agent, last_tool=f"{entry.tool}_{entry.operation}", last_outcome=Outcome.STARTED)
        case ToolFinished(entry=entry):
            return replace(
                agent,
                last_tool=f"{entry.tool}_{entry.operation}",
                last_outcome=entry.outcome,
                audit_head=entry.hash,
                usage=agent.usage + Usage(tool_calls=1),
            )
        case RunFinished(stop_reason=stop_reason, usage=usage, audit_head=audit_head):
            spent = usage if usage.model_calls else agent.usage
            return replace(agent, status="finished", stop_reason=stop_reason, usage=spent, audit_head=audit_head)
        case _:
            return agent


def _progress(state: ExecutionState, agent_id: str) -> AgentProgress:
    return state.agents.get(agent_id) or AgentProgress(agent_id=agent_id)


def _with_agent(state: ExecutionState, agent: AgentProgress) -> ExecutionState:
    return replace(state, agents={**state.agents, agent.agent_id: agent})
