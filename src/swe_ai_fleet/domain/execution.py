"""The state of an execution: a fold over its events and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain import event as events
from swe_ai_fleet.domain.approval import ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.audit import SignedHead
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Delivered, RankedCandidate, Verdict
from swe_ai_fleet.domain.checklist import Checklist
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.council import Council
from swe_ai_fleet.domain.environment import EnvironmentProposal, EnvironmentRun
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionStatus, StoredEvent
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.review import Critique, VerifierScore, Vote
from swe_ai_fleet.domain.run import AgentProgress, advance_agent, agent_ended
from swe_ai_fleet.domain.subtask import Derivation, SubtaskOutcome
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, Task
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.trajectory import StopReason

_STEPS = (events.MessageAdded, events.ModelReplied, events.ToolStarted, events.ToolFinished)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChecks:
    """Checks that started at `since` (ISO 8601, UTC). `command` is empty as long as it is not known."""

    command: str
    since: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionState:
    """The state of an execution. Times are ISO 8601, UTC; `last_sequence` is that of the last event folded.

    `requests` and `resolutions` are, by approval id, the questions to people and their decisions. `owner` is the
    orchestrator that drives it, empty before the first claim. `dropped` has the revisions that did not replace what
    they revise, `stopped` the agents that were ended early; both with the reason. `integration` is the repository with
    the subtasks merged so far. `context` is None until it is gathered. `nodes` has the last update of each workflow
    node, `steering` what people told the workflow, in order. `asked_approval` is the policy that the caller asked for
    where the tenant's rules require a stricter one; `refused` has pairs of an approval and a caller whose decision
    about it was refused. `checking` has the checks under way by candidate, those of the untouched commit under the
    empty name. `refused_kept` says where the best candidate is kept if nobody won, `hand_deliveries` are the deliveries
    that people ordered after the end. `examinations` are in the order in which they were made. `scores` are those of a
    verifier model, by candidate. Once there is a ranking, reports have its verdicts. `signed_heads` has the last signed
    head of each agent's last audit chain.
    """

    execution_id: str
    task: Task
    repository: PinnedRepository
    fingerprint: str
    started_at: str
    updated_at: str
    finished_at: str = ""
    status: ExecutionStatus = ExecutionStatus.PENDING
    generation: int = 0
    owner: str = ""
    council: Council | None = None
    asked_approval: ApprovalPolicy | None = None
    cancel_requested: bool = False
    cancel_reason: str = ""
    agents: Mapping[str, AgentProgress] = field(default_factory=dict[str, AgentProgress])
    signed_heads: Mapping[str, SignedHead] = field(default_factory=dict[str, SignedHead])
    candidates: Mapping[str, Candidate] = field(default_factory=dict[str, Candidate])
    reports: Mapping[str, CheckReport] = field(default_factory=dict[str, CheckReport])
    critiques: tuple[Critique, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict[str, str])
    stopped: Mapping[str, str] = field(default_factory=dict[str, str])
    judged: frozenset[str] = frozenset()
    votes: tuple[Vote, ...] = ()
    scores: Mapping[str, VerifierScore] = field(default_factory=dict[str, VerifierScore])
    derivation: Derivation | None = None
    subtask_executions: Mapping[str, str] = field(default_factory=dict[str, str])
    subtask_outcomes: Mapping[str, SubtaskOutcome] = field(default_factory=dict[str, SubtaskOutcome])
    integration: PinnedRepository | None = None
    ranking: tuple[RankedCandidate, ...] = ()
    winner_id: str = ""
    delivered: Delivered | None = None
    delivery_report: CheckReport | None = None
    refused_kept: events.RefusedKept | None = None
    hand_deliveries: tuple[events.CandidateDelivered, ...] = ()
    error: str = ""
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    result_published: bool = False
    context: GatheredContext | None = None
    baseline: Baseline | None = None
    baseline_error: str = ""
    environment_run: EnvironmentRun | None = None
    checklist: Checklist | None = None
    examinations: tuple[Examination, ...] = ()
    checking: Mapping[str, RunningChecks] = field(default_factory=dict[str, RunningChecks])
    nodes: Mapping[str, events.NodeUpdated] = field(default_factory=dict[str, events.NodeUpdated])
    steering: tuple[events.BreakpointsSet, ...] = ()
    output: events.WorkflowFinished | None = None
    requests: Mapping[str, ApprovalRequest] = field(default_factory=dict[str, ApprovalRequest])
    resolutions: Mapping[str, ApprovalResolution] = field(default_factory=dict[str, ApprovalResolution])
    refused: frozenset[tuple[str, str]] = frozenset()
    last_sequence: int = 0

    @property
    def proposal(self) -> EnvironmentProposal | None:
        """The proposal in use of an environment run, this execution's or an earlier one's; None: none is in use."""
        if self.environment_run is not None and self.environment_run.kept:
            return self.environment_run.proposal
        learned = self.baseline.report.learned if self.baseline is not None else None
        return learned if learned is not None and (learned.setup or learned.test_command) else None

    @property
    def examination(self) -> Examination | None:
        """The last cross-examination of candidates; None where there was none."""
        return self.examinations[-1] if self.examinations else None

    @property
    def best_report(self) -> CheckReport | None:
        """The evidence about the delivered commit, else about the winner, else about the best candidate.

        None before there is a ranking.
        """
        return self.delivery_report or self.reports.get(self._best)

    @property
    def _best(self) -> str:
        return self.winner_id or (self.ranking[0].candidate_id if self.ranking else "")

    @property
    def spent(self) -> Usage:
        """What its agents have spent so far, by the events of their runs."""
        return sum((agent.usage for agent in self.agents.values()), Usage())

    @property
    def audit_head(self) -> str:
        """The head of the winner's audit chain, else of the best candidate's, else of the first that there is."""
        if (best := self.candidates.get(self._best)) is not None:
            return best.audit_head
        return next((agent.audit_head for agent in self.agents.values() if agent.audit_head), "")

    @property
    def verdict(self) -> Verdict | None:
        """What evidence says of `best_report`'s candidate; None before there is one, and in logs without verdicts."""
        return self.best_report.verdict if self.best_report is not None else None

    @property
    def pending(self) -> tuple[ApprovalRequest, ...]:
        """The requests that wait for a person, oldest first; none once the execution has ended."""
        if self.status.terminal:
            return ()
        return tuple(request for name, request in self.requests.items() if name not in self.resolutions)


class Fold:
    """Folds the events of one execution, one after the other; `state` is the result, None before the first.

    Steps of agents, by far the most events, are put into the state when it is read, not one by one.
    """

    def __init__(self, state: ExecutionState | None = None) -> None:
        self._state = state
        self._agents: dict[str, AgentProgress] = {}
        self._last: StoredEvent | None = None

    @property
    def state(self) -> ExecutionState | None:
        if self._state is not None and self._last is not None:
            self._state = replace(
                self._state,
                last_sequence=self._last.sequence,
                updated_at=self._last.event.at,
                agents={**self._state.agents, **self._agents},
            )
            self._agents, self._last = {}, None
        return self._state

    def take(self, stored: StoredEvent) -> None:
        """Take in the next event; one seen before changes nothing."""
        state = self._state
        if state is None or state.status.terminal or not isinstance(stored.event.body, _STEPS):
            self._state = advance(self.state, stored)
        elif stored.sequence > (self._last.sequence if self._last else state.last_sequence):
            name = stored.event.agent_id
            agent = self._agents.get(name) or _progress(state, name)
            self._agents[name] = advance_agent(agent, stored)
            self._last = stored


def fold(log: Iterable[StoredEvent]) -> ExecutionState | None:
    """The state that these events of one execution, in their order, lead to; None without a first event."""
    folding = Fold()
    for stored in log:
        folding.take(stored)
    return folding.state


def advance(state: ExecutionState | None, stored: StoredEvent) -> ExecutionState | None:
    """The state after one more event. An event seen before changes nothing."""
    event, body = stored.event, stored.event.body
    if isinstance(body, events.ExecutionStarted):
        if state is not None:
            return state
        return ExecutionState(
            execution_id=event.execution_id,
            task=body.task,
            repository=body.repository,
            fingerprint=body.fingerprint,
            council=body.council,
            asked_approval=body.asked_approval,
            started_at=event.at,
            updated_at=event.at,
            last_sequence=stored.sequence,
        )
    if isinstance(body, events.ExecutionErased) and event.agent_id == EXECUTION_SUBJECT:
        return None
    if state is None or stored.sequence <= state.last_sequence:
        return state
    if isinstance(body, _STEPS) and not state.status.terminal:
        folding = Fold(state)
        folding.take(stored)
        return folding.state
    state = replace(state, last_sequence=stored.sequence, updated_at=event.at)
    match body:
        case events.CandidateDelivered():
            return replace(state, hand_deliveries=(*state.hand_deliveries, body))
        case _ if state.status.terminal and not isinstance(body, events.ExecutionClaimed | events.ResultPublished):
            # Events that arrive after the end change nothing.
            return state
        case events.ExecutionClaimed(generation=generation, owner=owner):
            state = replace(state, generation=generation, owner=owner)
            return state if state.status.terminal else _with_status(replace(state, status=ExecutionStatus.IN_PROGRESS))
        case events.ApprovalRequested(request=request):
            return _with_request(state, request)
        case events.ApprovalAwaited(request=request):
            return _with_request(state, state.requests.get(request.approval_id, request))
        case events.ApprovalResolved(resolution=resolution):
            resolutions = {resolution.approval_id: resolution, **state.resolutions}
            requests = _without_material(state.requests, resolution.approval_id)
            return _with_status(replace(state, resolutions=resolutions, requests=requests))
        case events.ApprovalRefused(approval_id=approval_id, caller=caller):
            return replace(state, refused=state.refused | {(approval_id, caller)})
        case events.CancelRequested(reason=reason):
            return replace(state, cancel_requested=True, cancel_reason=state.cancel_reason or reason)
        case events.AuditHeadSigned(head=head):
            earlier = state.signed_heads.get(head.agent_id)
            later = earlier is None or (head.run, head.entries) > (earlier.run, earlier.entries)
            # Only the execution's word counts, not an agent's.
            if not later or event.agent_id != EXECUTION_SUBJECT:
                return state
            return replace(state, signed_heads={**state.signed_heads, head.agent_id: head})
        case events.CandidateSubmitted(candidate=candidate):
            return replace(state, candidates={**state.candidates, candidate.candidate_id: candidate})
        case events.ChecksStarted(candidate_id=candidate_id, command=command):
            running = RunningChecks(command=command, since=event.at)
            return replace(state, checking={**state.checking, candidate_id: running})
        case events.BaselineFinished(baseline=baseline, error=error):
            return replace(state, baseline=baseline, baseline_error=error, checking=_without(state.checking, ""))
        case events.EnvironmentRunFinished(run=run):
            return replace(state, environment_run=run)
        case events.ChecklistMade(checklist=checklist):
            return replace(state, checklist=checklist)
        case events.ChecksFinished(report=report):
            reports = {**state.reports, report.candidate_id: report}
            return replace(state, reports=reports, checking=_without(state.checking, report.candidate_id))
        case events.CandidateReviewed(critique=critique):
            # One with the same key replaces the earlier one.
            others = (other for other in state.critiques if other.key != critique.key)
            return replace(state, critiques=(*others, critique))
        case events.RevisionJudged(candidate_id=candidate_id, kept=kept, reason=reason):
            dropped = state.dropped if kept else {**state.dropped, candidate_id: reason}
            return replace(state, judged=state.judged | {candidate_id}, dropped=dropped)
        case events.VotesCast(votes=votes):
            voters = {vote.judge_id for vote in votes}
            kept_votes = tuple(vote for vote in state.votes if vote.judge_id not in voters)
            return replace(state, votes=(*kept_votes, *votes))
        case events.CandidateScored(score=score):
            return replace(state, scores={**state.scores, score.candidate_id: score})
        case events.ContextGathered(context=context):
            return replace(state, context=context)
        case events.NodeUpdated(node_id=node_id):
            return replace(state, nodes={**state.nodes, node_id: body})
        case events.BreakpointsSet():
            return replace(state, steering=(*state.steering, body))
        case events.WorkflowFinished():
            return replace(state, output=body)
        case events.SubtasksDerived(derivation=derivation):
            return replace(state, derivation=derivation)
        case events.SubtaskStarted(subtask_id=subtask_id, execution_id=execution_id):
            return replace(state, subtask_executions={**state.subtask_executions, subtask_id: execution_id})
        case events.SubtaskEnded(outcome=outcome, repository=repository):
            outcomes = {**state.subtask_outcomes, outcome.subtask_id: outcome}
            return replace(state, subtask_outcomes=outcomes, integration=repository or state.integration)
        case events.CandidatesExamined(examination=examination):
            return replace(state, examinations=(*state.examinations, examination))
        case events.CandidatesRanked(ranking=ranking, winner_id=winner_id):
            return replace(state, ranking=ranking, winner_id=winner_id, reports=_with_verdicts(state.reports, ranking))
        case events.WinnerDelivered(delivered=delivered, report=report):
            return replace(state, delivered=delivered, delivery_report=report, checking={})
        case events.RefusedKept():
            return replace(state, refused_kept=body)
        case events.RunLost(lost_agent_id=agent_id):
            lost = replace(_progress(state, agent_id), status="lost", stop_reason=StopReason.LOST)
            return _withdrawn(_with_agent(state, lost), agent_id)
        case events.RunStopped(stopped_agent_id=agent_id, reason=reason):
            ended = replace(_progress(state, agent_id), status="finished", stop_reason=StopReason.CANCELLED)
            state = replace(state, stopped={**state.stopped, agent_id: reason})
            return _withdrawn(_with_agent(state, ended), agent_id)
        case events.RunReassigned(lost_agent_id=agent_id, attempt=attempt):
            return _with_agent(state, replace(_progress(state, agent_id), status="running", attempt=attempt))
        case events.ExecutionFinished():
            return replace(
                state,
                agents={name: agent_ended(agent, body.status) for name, agent in state.agents.items()},
                checking={},
                status=body.status,
                winner_id=body.winner_id,
                error=body.error,
                # Cancelled and failed executions report no usage of their own; their agents' events do.
                usage=body.usage if body.usage != Usage() else state.spent,
                duration_ms=body.duration_ms,
                finished_at=event.at,
            )
        case events.ResultPublished():
            return replace(state, result_published=True)
        case events.RunClaimed(resumes=False) | events.RunFinished():
            # A run that starts again, or has ended, no longer waits for its earlier requests.
            agent = advance_agent(_progress(state, event.agent_id), stored)
            return _withdrawn(_with_agent(state, agent), event.agent_id)
        case _:
            return _with_agent(state, advance_agent(_progress(state, event.agent_id), stored))


def _with_verdicts(
    reports: Mapping[str, CheckReport], ranking: tuple[RankedCandidate, ...]
) -> Mapping[str, CheckReport]:
    """The reports with the verdicts of the ranking, which compared the candidates."""
    changed = {
        name: replace(report, verdict=ranked.verdict, reasons=ranked.verdict_reasons)
        for ranked in ranking
        if ranked.verdict_reasons
        for name in (ranked.candidate_id, *ranked.duplicates)
        if (report := reports.get(name)) is not None
    }
    return {**reports, **changed}


def _without(checking: Mapping[str, RunningChecks], candidate_id: str) -> Mapping[str, RunningChecks]:
    return {name: checks for name, checks in checking.items() if name != candidate_id}


def _with_request(state: ExecutionState, request: ApprovalRequest) -> ExecutionState:
    """The state once an agent waits for a person."""
    if request.approval_id in state.resolutions:
        return state
    agent = replace(_progress(state, request.agent_id), status="awaiting_approval")
    requests = {**state.requests, request.approval_id: request}
    return _with_status(replace(_with_agent(state, agent), requests=requests))


def _without_material(requests: Mapping[str, ApprovalRequest], decided: str) -> Mapping[str, ApprovalRequest]:
    """The requests; the decided one without the long texts for its decision, since states are kept in memory."""
    if (request := requests.get(decided)) is None:
        return requests
    return {**requests, decided: replace(request, memory="", diff="")}


def _withdrawn(state: ExecutionState, agent_id: str) -> ExecutionState:
    remaining = {
        name: request
        for name, request in state.requests.items()
        if request.agent_id != agent_id or name in state.resolutions
    }
    return _with_status(replace(state, requests=remaining)) if len(remaining) < len(state.requests) else state


def _with_status(state: ExecutionState) -> ExecutionState:
    """The state with the status that its pending requests imply; agents that wait for none are running again."""
    if state.status not in (ExecutionStatus.IN_PROGRESS, ExecutionStatus.AWAITING_APPROVAL):
        return state
    waiting = {request.agent_id for request in state.pending}
    agents = {
        name: replace(agent, status="running")
        if agent.status == "awaiting_approval" and agent.agent_id not in waiting
        else agent
        for name, agent in state.agents.items()
    }
    status = ExecutionStatus.AWAITING_APPROVAL if waiting else ExecutionStatus.IN_PROGRESS
    return replace(state, status=status, agents=agents)


def _progress(state: ExecutionState, agent_id: str) -> AgentProgress:
    return state.agents.get(agent_id) or AgentProgress(agent_id=agent_id)


def _with_agent(state: ExecutionState, agent: AgentProgress) -> ExecutionState:
    return replace(state, agents={**state.agents, agent.agent_id: agent})
