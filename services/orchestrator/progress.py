"""An execution's progress for people: how far, what is being done, by whom."""

from __future__ import annotations

from swe_ai_fleet.domain.event import (
    CancelRequested,
    CandidatesRanked,
    CandidateSubmitted,
    ChecksFinished,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    RunLost,
    StoredEvent,
    WinnerDelivered,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import TaskKind

# The agents' work is most of the time, and the checks are most of the rest.
_SOLVING_PERCENT, _CHECKING_PERCENT, _RANKED_PERCENT, _DELIVERED_PERCENT = 60, 35, 96, 98


class Progress:
    """Follows one execution's events from its first one on."""

    def __init__(self) -> None:
        self.percent = 0
        self.step = ""
        self.agent_id = ""
        self.candidate_id = ""
        self._state: ExecutionState | None = None

    @property
    def state(self) -> ExecutionState:
        """The execution after the last event."""
        if self._state is None:
            raise RuntimeError("no event has been seen")
        return self._state

    def follow(self, stored: StoredEvent) -> None:
        """Take in one more event. `candidate_id` then names a candidate that is new, or of which more is known."""
        self._state = advance(self._state, stored)
        body = stored.event.body
        self.agent_id = "" if stored.event.agent_id == "_" else stored.event.agent_id
        self.candidate_id = ""
        match body:
            case CandidateSubmitted(candidate=candidate):
                self.agent_id, self.candidate_id = candidate.agent_id, candidate.candidate_id
            case ChecksFinished(report=report):
                self.agent_id = self.candidate_id = report.candidate_id
            case CandidatesRanked(ranking=ranking) if ranking:
                self.candidate_id = ranking[0].candidate_id
            case RunLost(lost_agent_id=agent_id):
                self.agent_id = agent_id
            case _:
                pass
        if self.candidate_id not in self.state.candidates:
            self.candidate_id = ""
        self.step = self._step(stored)
        self.percent = max(self.percent, self._estimate(stored))

    def _step(self, stored: StoredEvent) -> str:
        state, body = self.state, stored.event.body
        if isinstance(body, ExecutionStarted):
            return "accepted"
        if state.status.terminal:
            return "finished"
        if state.cancel_requested or isinstance(body, CancelRequested):
            return "cancelling"
        if state.delivered is not None:
            return "applied"
        if state.status is ExecutionStatus.AWAITING_APPROVAL:
            return "awaiting approval"
        if state.ranking:
            return "applying" if state.winner_id and state.task.kind is TaskKind.ORCHESTRATE else "ranked"
        return "solving" if self._done() < state.task.num_agents else "checking"

    def _estimate(self, stored: StoredEvent) -> int:
        state, agents = self.state, self.state.task.num_agents
        if isinstance(stored.event.body, ExecutionFinished):
            return 100
        if isinstance(stored.event.body, WinnerDelivered):
            return _DELIVERED_PERCENT
        if state.ranking:
            return _RANKED_PERCENT
        checked = len(state.reports) + self._lost()
        return (_SOLVING_PERCENT * self._done() + _CHECKING_PERCENT * min(checked, agents)) // agents

    def _done(self) -> int:
        """Agents that will not add anything: they handed in a candidate, or are lost."""
        return min(len(self.state.candidates) + self._lost(), self.state.task.num_agents)

    def _lost(self) -> int:
        return sum(
            agent.status == "lost" and agent.agent_id not in self.state.candidates
            for agent in self.state.agents.values()
        )
