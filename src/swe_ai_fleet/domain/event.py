"""Events of an execution. Their log is progress stream, audit trail and trajectory at once.

Wire types: they only ever gain optional fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.audit import AuditEntry, RedactedChain, SignedHead
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import RequestLimits, Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckReport, Delivered, RankedCandidate
from swe_ai_fleet.domain.checklist import Checklist
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.council import Council
from swe_ai_fleet.domain.environment import EnvironmentRun
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.message import Message, ModelReply
from swe_ai_fleet.domain.review import Critique, VerifierScore, Vote
from swe_ai_fleet.domain.subtask import Derivation, SubtaskOutcome
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, Task
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import Plan, StopReason
from swe_ai_fleet.domain.workflow import NodeStatus

EXECUTION_SUBJECT = "_"
"""The `agent_id` of events that the execution itself writes, not one of its agents."""
CONTROL_SUBJECT = "~"
"""The `agent_id` of events that callers write to an execution, through any replica."""


class ExecutionStatus(StrEnum):
    """The status of an execution. `no_winner` is a regular end: every candidate was judged and none passed."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    NO_WINNER = "no_winner"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    AWAITING_APPROVAL = "awaiting_approval"
    REJECTED = "rejected"

    @property
    def terminal(self) -> bool:
        return self not in (
            ExecutionStatus.PENDING,
            ExecutionStatus.IN_PROGRESS,
            ExecutionStatus.AWAITING_APPROVAL,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStarted:
    """The execution was accepted. `fingerprint` tells a repeated request from a different one with the same id.

    `council` is the task's council as it was stored then; None: one is made for the task. `asked_approval` is the
    policy that the caller asked for where the tenant's rules require a stricter one; None: the task has what was asked
    for.
    """

    task: Task
    repository: PinnedRepository
    fingerprint: str
    council: Council | None = None
    asked_approval: ApprovalPolicy | None = None
    type: Literal["execution_started"] = "execution_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionClaimed:
    """An orchestrator drives this execution from here on; a higher generation fences the lower ones."""

    generation: int
    owner: str
    type: Literal["execution_claimed"] = "execution_claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """An agent has its workspace and its first messages; `tools` are the names offered to the model."""

    role: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    temperature: float | None = None
    seed: int | None = None
    environment: str = ""
    type: Literal["run_started"] = "run_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClaimed:
    """A host takes over the subject of a run; writers of a lower generation are fenced from here on.

    With `resumes` the conversation and the audit chain continue; otherwise both start again.
    """

    generation: int
    host: str
    resumes: bool = False
    type: Literal["run_claimed"] = "run_claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied:
    step: int
    reply: ModelReply
    duration_ms: int
    type: Literal["model_replied"] = "model_replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAwaited:
    """The run waits because no model server is available; with `waited_ms` the wait is over."""

    waited_ms: int = 0
    type: Literal["model_awaited"] = "model_awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAdded:
    """The fleet itself added a message for the model (a reminder, a correction)."""

    step: int
    message: Message
    type: Literal["message_added"] = "message_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRepaired:
    """A call was repaired before it ran; `call_id` is empty where the reply as a whole was repaired."""

    step: int
    repairs: tuple[str, ...]
    call_id: str = ""
    type: Literal["call_repaired"] = "call_repaired"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCondensed:
    """The conversation was rewritten to fit; `messages` are the whole of it from here on. Tokens are estimates."""

    step: int
    method: str
    messages: tuple[Message, ...]
    tokens_before: int
    tokens_after: int
    type: Literal["history_condensed"] = "history_condensed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopNoticed:
    """The agent goes in circles; `advice` is what was done about it."""

    step: int
    pattern: str
    advice: str
    type: Literal["loop_noticed"] = "loop_noticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """The agent has a plan, the first or a new one."""

    step: int
    plan: Plan
    reason: str = ""
    type: Literal["plan_made"] = "plan_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCheckpointed:
    """A checkpoint of the clone: `commit` holds the tree with untracked files, on top of `head`; `bundle` has both.

    Without a bundle nothing differs from the base commit.
    """

    step: int
    revision: int
    commit: str
    head: str
    branch: str = ""
    bundle: BlobRef | None = None
    type: Literal["workspace_checkpointed"] = "workspace_checkpointed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceNotKept:
    """The clone is too large for a checkpoint; if the run is lost, it resumes from the checkpoint before."""

    step: int
    reason: str
    type: Literal["workspace_not_kept"] = "workspace_not_kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    """An agent waits for a person; its run resumes from here after the decision."""

    request: ApprovalRequest
    usage: Usage = field(default_factory=Usage)
    type: Literal["approval_requested"] = "approval_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalResolved:
    """A person decided, or the request expired. Written by the execution itself."""

    resolution: ApprovalResolution
    type: Literal["approval_resolved"] = "approval_resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRefused:
    """A decision was refused: the authenticated `caller` had submitted the task. Once per approval and caller."""

    approval_id: str
    decision: ApprovalDecision
    caller: str
    type: Literal["approval_refused"] = "approval_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """Written before a side effect; without a matching `ToolFinished` the effect may or may not have happened."""

    entry: AuditEntry
    type: Literal["tool_started"] = "tool_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished:
    entry: AuditEntry
    result: ToolResult
    type: Literal["tool_finished"] = "tool_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    stop_reason: StopReason
    artifacts: Artifacts
    usage: Usage
    audit_head: str
    answer: str = ""
    error: str = ""
    type: Literal["run_finished"] = "run_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHeadSigned:
    """The orchestrator has recomputed an agent's audit chain and signed its head."""

    head: SignedHead
    type: Literal["audit_head_signed"] = "audit_head_signed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLost:
    """An agent's process died; the execution goes on with the others."""

    lost_agent_id: str
    reason: str
    type: Literal["run_lost"] = "run_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """The execution ended an agent early, because another candidate is convincing already."""

    stopped_agent_id: str
    reason: str
    type: Literal["run_stopped"] = "run_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReassigned:
    """An agent's process died; another one resumes the run from its log. `attempt` counts from 2."""

    lost_agent_id: str
    reason: str
    attempt: int
    type: Literal["run_reassigned"] = "run_reassigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAwaited:
    """The execution has recorded that an agent waits for a person."""

    request: ApprovalRequest
    type: Literal["approval_awaited"] = "approval_awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateReviewed:
    """A peer has reviewed a candidate."""

    critique: Critique
    type: Literal["candidate_reviewed"] = "candidate_reviewed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionJudged:
    """Whether a revision replaces the candidate that it revises, and why."""

    candidate_id: str
    revises: str
    kept: bool
    reason: str
    type: Literal["revision_judged"] = "revision_judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class VotesCast:
    """One judge has voted; votes that could not be read are among them."""

    votes: tuple[Vote, ...]
    type: Literal["votes_cast"] = "votes_cast"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScored:
    """A verifier model has scored a candidate, or has failed to (`score.error`)."""

    score: VerifierScore
    type: Literal["candidate_scored"] = "candidate_scored"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtasksDerived:
    """The task is split."""

    derivation: Derivation
    type: Literal["subtasks_derived"] = "subtasks_derived"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskStarted:
    """A subtask was submitted as an execution of its own; `base_commit` has its dependencies merged in."""

    subtask_id: str
    execution_id: str
    base_commit: str = ""
    type: Literal["subtask_started"] = "subtask_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskEnded:
    """A subtask is merged, has failed, or is skipped. `repository` is the integration branch from here on."""

    outcome: SubtaskOutcome
    repository: PinnedRepository | None = None
    type: Literal["subtask_ended"] = "subtask_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGathered:
    """The context that agents get beside their task: the project's, and memories. Untrusted text.

    `error` says why there is none although it was wanted; the execution continues without.
    """

    context: GatheredContext
    error: str = ""
    type: Literal["context_gathered"] = "context_gathered"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUpdated:
    """The status of a workflow's node changed. `inputs` and `output` are exact JSON, large ones by reference.

    The item of a map is written `<node>[<index>]`, a node of a sub-workflow `<node>/<its node>`. `attempt` counts from
    1, `failures` is how many attempts failed; `execution_id` names the execution that does the node's work, if there
    is one.
    """

    node_id: str
    status: NodeStatus
    attempt: int = 1
    failures: int = 0
    inputs: str = ""
    output: str = ""
    output_blob: BlobRef | None = None
    error: str = ""
    execution_id: str = ""
    label: str = ""
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    type: Literal["node_updated"] = "node_updated"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakpointsSet:
    """A person steers a workflow; written by callers. `action` is pause, step or continue.

    `pause` holds before every node that has not started; `step` releases one paused node (`node_id`, empty: all that
    are paused now) and holds again; `continue` runs to the next breakpoint. An approved plan runs from a `continue` on,
    within `limits`, and holds where its model server failed.
    """

    action: str
    node_id: str = ""
    by: str = ""
    limits: RequestLimits | None = None
    type: Literal["breakpoints_set"] = "breakpoints_set"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFinished:
    """The output of a workflow, as exact JSON; a large one by reference."""

    output: str = ""
    output_blob: BlobRef | None = None
    type: Literal["workflow_finished"] = "workflow_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSubmitted:
    candidate: Candidate
    type: Literal["candidate_submitted"] = "candidate_submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksStarted:
    """Tests and checks begin: those of a candidate, or, without one, those of the untouched commit.

    `command` is empty where the repository's own test command is not known yet.
    """

    candidate_id: str = ""
    command: str = ""
    type: Literal["checks_started"] = "checks_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFinished:
    """The test results of the untouched commit; `error` says why there are none."""

    baseline: Baseline | None = None
    error: str = ""
    type: Literal["baseline_finished"] = "baseline_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRunFinished:
    """The result of an environment run; where its proposal is kept, the new baseline follows."""

    run: EnvironmentRun
    type: Literal["environment_run_finished"] = "environment_run_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistMade:
    """What the task's statement asks for, with probes and their results on the untouched commit."""

    checklist: Checklist
    type: Literal["checklist_made"] = "checklist_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksFinished:
    report: CheckReport
    type: Literal["checks_finished"] = "checks_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesExamined:
    """The new tests of each accepted candidate ran on the sources of the others."""

    examination: Examination
    type: Literal["candidates_examined"] = "candidates_examined"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesRanked:
    ranking: tuple[RankedCandidate, ...]
    winner_id: str = ""
    type: Literal["candidates_ranked"] = "candidates_ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class WinnerDelivered:
    """The winner is in the target repository; `report` has the checks of the delivered commit."""

    delivered: Delivered
    report: CheckReport
    type: Literal["winner_delivered"] = "winner_delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedKept:
    """Nobody won; the best candidate's commit is kept under a reference that is not a branch."""

    candidate_id: str
    delivered: Delivered
    type: Literal["refused_kept"] = "refused_kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDelivered:
    """A person had a candidate of an ended execution delivered, whatever the evidence says; written by callers."""

    candidate_id: str
    delivered: Delivered
    by: str
    reason: str = ""
    type: Literal["candidate_delivered"] = "candidate_delivered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    reason: str = ""
    type: Literal["cancel_requested"] = "cancel_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFinished:
    status: ExecutionStatus
    winner_id: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    type: Literal["execution_finished"] = "execution_finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPublished:
    """The result was published; without this event a restart publishes it again (the result bus drops duplicates)."""

    type: Literal["result_published"] = "result_published"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionErased:
    """All that was stored of an execution is erased, including every other event; of audit chains the hashes remain.

    `scope` is what was erased as a whole: `execution`, `caller`, `tenant` or `retention`; `by` is who asked for it.
    """

    scope: str
    by: str
    reason: str
    chains: tuple[RedactedChain, ...] = ()
    type: Literal["execution_erased"] = "execution_erased"


EventBody = (
    ExecutionStarted
    | ExecutionClaimed
    | RunStarted
    | RunClaimed
    | ModelReplied
    | ModelAwaited
    | MessageAdded
    | CallRepaired
    | HistoryCondensed
    | LoopNoticed
    | PlanMade
    | WorkspaceCheckpointed
    | WorkspaceNotKept
    | ApprovalRequested
    | ApprovalResolved
    | ApprovalRefused
    | ToolStarted
    | ToolFinished
    | RunFinished
    | AuditHeadSigned
    | RunLost
    | RunStopped
    | RunReassigned
    | ApprovalAwaited
    | ContextGathered
    | NodeUpdated
    | BreakpointsSet
    | WorkflowFinished
    | CandidateSubmitted
    | ChecksStarted
    | BaselineFinished
    | EnvironmentRunFinished
    | ChecklistMade
    | ChecksFinished
    | CandidateReviewed
    | RevisionJudged
    | VotesCast
    | CandidateScored
    | SubtasksDerived
    | SubtaskStarted
    | SubtaskEnded
    | CandidatesExamined
    | CandidatesRanked
    | WinnerDelivered
    | RefusedKept
    | CandidateDelivered
    | CancelRequested
    | ExecutionFinished
    | ResultPublished
    | ExecutionErased
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes: one agent run of one execution, or the execution itself. Each has a subject of its own.

    Traces use `traceparent` and `since`, when the execution was accepted (UTC, ISO 8601).
    """

    tenant: str
    execution_id: str
    task_id: str
    agent_id: str = EXECUTION_SUBJECT
    generation: int = 1
    traceparent: str = ""
    since: str = ""

    def event(self, body: EventBody, *, ordinal: int, at: str) -> Event:
        """The event that holds `body`, the `ordinal`-th (from 1) of this writer and generation."""
        return Event(
            id=f"{self.execution_id}/{self.agent_id}/{self.generation}/{ordinal}",
            tenant=self.tenant,
            execution_id=self.execution_id,
            task_id=self.task_id,
            agent_id=self.agent_id,
            at=at,
            body=body,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. `id` is deterministic: `execution/agent/generation/ordinal`; `at` is UTC, ISO 8601."""

    id: str
    tenant: str
    execution_id: str
    task_id: str
    agent_id: str
    at: str
    body: EventBody


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event at its place in the log; `sequence` grows over all executions and starts at 1."""

    sequence: int
    event: Event
