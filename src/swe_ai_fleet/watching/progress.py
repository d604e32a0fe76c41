"""An execution's progress for people (percentage, current step, agent), and states as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from swe_ai_fleet.domain import event as events
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionStatus, NodeUpdated, StoredEvent
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.json_values import parse_json
from swe_ai_fleet.domain.task import Task, TaskKind
from swe_ai_fleet.domain.workflow import JsonValue
from swe_ai_fleet.orchestrator.councils import seated
from swe_ai_fleet.orchestrator.runs import is_review_run, judge_run, revision_run, score_run

# The agents' work is most of the time, and the checks are most of the rest.
_SOLVING_PERCENT, _CHECKING_PERCENT, _RANKED_PERCENT, _DELIVERED_PERCENT = 60, 35, 96, 98
_SPLIT_PERCENT = 5
_DRAFTS_SHARE = 0.5
"""The share of the first candidates in the work before the ranking, if rounds of review follow them."""


class Progress:
    """Follows one execution's events from its first one on."""

    def __init__(self) -> None:
        self.percent = 0
        self.step = ""
        self.agent_id = ""
        self.candidate_id = ""
        self._state: ExecutionState | None = None
        self._task: Task | None = None
        self._round = 0
        self._phase = ""

    @property
    def state(self) -> ExecutionState:
        if self._state is None:
            raise RuntimeError("no events yet")
        return self._state

    def follow(self, stored: StoredEvent) -> None:
        """Take in one more event. `candidate_id` then names the candidate that the event is about, if there is one."""
        self._state = advance(self._state, stored)
        body = stored.event.body
        self.agent_id = "" if stored.event.agent_id == EXECUTION_SUBJECT else stored.event.agent_id
        self.candidate_id = ""
        match body:
            case events.CandidateSubmitted(candidate=candidate):
                self.agent_id, self.candidate_id = candidate.agent_id, candidate.candidate_id
                if candidate.revises:
                    self._phase, self._round = "revising", max(self._round, candidate.round)
            case events.ChecksFinished(report=report):
                self.agent_id = self.candidate_id = report.candidate_id
            case events.CandidateReviewed(critique=critique):
                self.agent_id, self.candidate_id = critique.reviewer_id, critique.candidate_id
                self._phase, self._round = "reviewing", max(self._round, critique.round)
            case events.RevisionJudged(candidate_id=candidate_id):
                self.agent_id = self.candidate_id = candidate_id
            case events.CandidatesRanked(ranking=ranking) if ranking:
                self.candidate_id = ranking[0].candidate_id
            case events.RunLost(lost_agent_id=agent_id):
                self.agent_id = agent_id
            case events.RunClaimed():
                self._phase = self._phase_of(stored.event.agent_id) or self._phase
            case _:
                pass
        if self.candidate_id not in self.state.candidates:
            self.candidate_id = ""
        self.step = self._step(stored)
        self.percent = max(self.percent, self._estimate(stored))

    def _phase_of(self, agent_id: str) -> str:
        """The phase that a run belongs to; empty for an author's first run."""
        for author in {candidate.author for candidate in self._drafts()}:
            if is_review_run(agent_id, author):
                return "reviewing"
            if agent_id in (revision_run(author, number) for number in range(1, self._whole.rounds + 1)):
                return "revising"
            if agent_id == judge_run(author):
                return "judging"
        return "judging" if agent_id in map(score_run, self.state.candidates) else ""

    def _step(self, stored: StoredEvent) -> str:
        state, body = self.state, stored.event.body
        if isinstance(body, events.ExecutionStarted):
            return "accepted"
        if state.status.terminal:
            return "finished"
        if state.cancel_requested or isinstance(body, events.CancelRequested):
            return "cancelling"
        if state.delivered is not None:
            return "applied"
        if state.status is ExecutionStatus.AWAITING_APPROVAL:
            return "awaiting approval"
        if any(agent.model_awaited_since for agent in state.agents.values()):
            return "waiting for a model server"
        if state.task.derive_subtasks and state.derivation is None:
            return "splitting"
        if state.task.derive_subtasks and state.derivation is not None:
            total = len(state.derivation.subtasks)
            left = total - len(state.subtask_outcomes)
            return f"solving {left} of {total} subtasks" if left else "checking the result"
        if state.ranking:
            return "applying" if state.winner_id and state.task.kind is TaskKind.ORCHESTRATE else "ranked"
        if state.task.kind is TaskKind.JUDGE:
            return "checking" if state.baseline or state.baseline_error else "testing the untouched commit"
        return self._phase or ("solving" if self._finished_agents() < self._seats else "checking")

    def _estimate(self, stored: StoredEvent) -> int:
        state, task = self.state, self._whole
        if isinstance(stored.event.body, events.ExecutionFinished):
            return 100
        if isinstance(stored.event.body, events.WinnerDelivered):
            return _DELIVERED_PERCENT
        if state.task.derive_subtasks:
            # The split itself is a small part of the work.
            parts = len(state.derivation.subtasks) if state.derivation is not None else 0
            rest = _RANKED_PERCENT - _SPLIT_PERCENT
            return _SPLIT_PERCENT + rest * len(state.subtask_outcomes) // parts if parts else 0
        if state.ranking:
            return _RANKED_PERCENT
        reviewed = task.rounds > 0 and self._seats > 1
        checked = sum(candidate.candidate_id in state.reports for candidate in self._drafts()) + self._lost()
        drafts = _SOLVING_PERCENT * self._finished_agents() + _CHECKING_PERCENT * min(checked, self._seats)
        percent = drafts / self._seats * (_DRAFTS_SHARE if reviewed else 1.0)
        if reviewed and self._round:
            rounds = min(task.rounds, self._round - (0.5 if self._phase == "revising" else 1.0))
            share = (_SOLVING_PERCENT + _CHECKING_PERCENT) * (1 - _DRAFTS_SHARE)
            percent += share * rounds / task.rounds
        return int(percent)

    @property
    def _whole(self) -> Task:
        """The task with the values of its council filled in."""
        if self._task is None:
            self._task = seated(self.state.task, self.state.council)
        return self._task

    @property
    def _seats(self) -> int:
        """The number of candidates in the first round: one for each agent, or the submitted patches."""
        return max(1, len(self.state.task.patches) or self._whole.num_agents, len(self._drafts()))

    def _drafts(self) -> list[Candidate]:
        return [candidate for candidate in self.state.candidates.values() if not candidate.revises]

    def _finished_agents(self) -> int:
        """The number of agents that submitted a candidate or are lost."""
        return min(len(self._drafts()) + self._lost(), self._seats)

    def _lost(self) -> int:
        """The number of agents that will not submit a candidate any more."""
        if self._phase:
            return self._seats - min(len(self._drafts()), self._seats)
        return sum(
            agent.status == "lost" and agent.agent_id not in self.state.candidates
            for agent in self.state.agents.values()
        )


Level = Literal["debug", "info", "warning", "error"]


def status_word(status: ExecutionStatus) -> str:
    """The word for an execution's status in messages: `running` while it is in progress, as for its nodes."""
    return "running" if status is ExecutionStatus.IN_PROGRESS else status.value


def node_state(update: NodeUpdated) -> Mapping[str, JsonValue]:
    """A node's state as JSON; `inputs` and `output` are values, null where there are none or they are in a blob."""
    return {
        "kind": "node",
        "status": update.status.value,
        "attempt": update.attempt,
        "failures": update.failures,
        "inputs": json_or_text(update.inputs),
        "output": json_or_text(update.output),
        "error": update.error,
        "label": update.label,
        "execution_id": update.execution_id,
        "duration_ms": update.duration_ms,
        "usage": usage_state(update.usage),
    }


def ended_state(
    status: ExecutionStatus,
    *,
    error: str,
    usage: Usage,
    duration_ms: int,
    output: JsonValue = None,
    winner_id: str = "",
    verdict: str = "",
    verdict_reasons: Sequence[str] = (),
    candidates: Sequence[JsonValue] = (),
) -> dict[str, JsonValue]:
    """The result of an ended execution as JSON; `output` has a workflow's outputs by name."""
    return {
        "status": status.value,
        "winner_id": winner_id,
        "verdict": verdict,
        "verdict_reasons": list(verdict_reasons),
        "error": error,
        "usage": usage_state(usage),
        "duration_ms": duration_ms,
        "candidates": list(candidates),
        **({} if output is None else {"output": output}),
    }


def json_or_text(text: str) -> JsonValue:
    """The value of a JSON text; None for an empty text, the text itself where it is not JSON."""
    try:
        return parse_json(text) if text else None
    except ValueError:
        return text


def usage_state(usage: Usage) -> Mapping[str, JsonValue]:
    """A usage as JSON."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "model_calls": usage.model_calls,
        "tool_calls": usage.tool_calls,
        "cost": usage.cost,
    }
