import datetime

from fleet.options.v1 import options_pb2 as _options_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeliberationStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELIBERATION_STATUS_UNKNOWN: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_PENDING: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_IN_PROGRESS: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_COMPLETED: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_FAILED: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_TIMEOUT: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_CANCELLED: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_AWAITING_APPROVAL: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_REJECTED: _ClassVar[DeliberationStatus]
    DELIBERATION_STATUS_NO_WINNER: _ClassVar[DeliberationStatus]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_DEV: _ClassVar[Role]
    ROLE_QA: _ClassVar[Role]
    ROLE_ARCHITECT: _ClassVar[Role]
    ROLE_DEVOPS: _ClassVar[Role]
    ROLE_DATA: _ClassVar[Role]

class ExecutionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTION_KIND_UNSPECIFIED: _ClassVar[ExecutionKind]
    EXECUTION_KIND_DELIBERATION: _ClassVar[ExecutionKind]
    EXECUTION_KIND_ORCHESTRATION: _ClassVar[ExecutionKind]
    EXECUTION_KIND_WORKFLOW: _ClassVar[ExecutionKind]
    EXECUTION_KIND_JUDGEMENT: _ClassVar[ExecutionKind]
    EXECUTION_KIND_PLAN: _ClassVar[ExecutionKind]
    EXECUTION_KIND_CHAT: _ClassVar[ExecutionKind]

class ApprovalPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPROVAL_POLICY_UNSPECIFIED: _ClassVar[ApprovalPolicy]
    APPROVAL_POLICY_NONE: _ClassVar[ApprovalPolicy]
    APPROVAL_POLICY_PLAN: _ClassVar[ApprovalPolicy]
    APPROVAL_POLICY_RISKY: _ClassVar[ApprovalPolicy]
    APPROVAL_POLICY_EVERY: _ClassVar[ApprovalPolicy]

class ApprovalDecision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPROVAL_DECISION_UNSPECIFIED: _ClassVar[ApprovalDecision]
    APPROVAL_DECISION_APPROVED: _ClassVar[ApprovalDecision]
    APPROVAL_DECISION_REJECTED: _ClassVar[ApprovalDecision]
    APPROVAL_DECISION_ADJUSTED: _ClassVar[ApprovalDecision]

class PlanningMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLANNING_MODE_UNSPECIFIED: _ClassVar[PlanningMode]
    PLANNING_MODE_SIMPLE: _ClassVar[PlanningMode]
    PLANNING_MODE_AGENTIC: _ClassVar[PlanningMode]
    PLANNING_MODE_HYBRID: _ClassVar[PlanningMode]

class UncommittedChanges(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNCOMMITTED_CHANGES_UNSPECIFIED: _ClassVar[UncommittedChanges]
    UNCOMMITTED_CHANGES_INCLUDE: _ClassVar[UncommittedChanges]
    UNCOMMITTED_CHANGES_IGNORE: _ClassVar[UncommittedChanges]

class AgentStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGENT_STATUS_UNSPECIFIED: _ClassVar[AgentStatus]
    AGENT_STATUS_PENDING: _ClassVar[AgentStatus]
    AGENT_STATUS_RUNNING: _ClassVar[AgentStatus]
    AGENT_STATUS_AWAITING_APPROVAL: _ClassVar[AgentStatus]
    AGENT_STATUS_FINISHED: _ClassVar[AgentStatus]
    AGENT_STATUS_LOST: _ClassVar[AgentStatus]

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_FINAL_ANSWER: _ClassVar[StopReason]
    STOP_REASON_NO_TOOL_CALLS: _ClassVar[StopReason]
    STOP_REASON_MAX_ITERATIONS: _ClassVar[StopReason]
    STOP_REASON_MAX_TOOL_CALLS: _ClassVar[StopReason]
    STOP_REASON_MAX_TOKENS: _ClassVar[StopReason]
    STOP_REASON_TIMEOUT: _ClassVar[StopReason]
    STOP_REASON_CONTEXT_TOO_LONG: _ClassVar[StopReason]
    STOP_REASON_TOOL_ERROR: _ClassVar[StopReason]
    STOP_REASON_MODEL_ERROR: _ClassVar[StopReason]
    STOP_REASON_CANCELLED: _ClassVar[StopReason]
    STOP_REASON_LOST: _ClassVar[StopReason]
    STOP_REASON_MAX_COST: _ClassVar[StopReason]
    STOP_REASON_MODEL_STOPPED: _ClassVar[StopReason]
    STOP_REASON_MALFORMED_REPLIES: _ClassVar[StopReason]
    STOP_REASON_LOOP: _ClassVar[StopReason]
    STOP_REASON_PLAN_FAILED: _ClassVar[StopReason]
    STOP_REASON_AWAITING_APPROVAL: _ClassVar[StopReason]
    STOP_REASON_REJECTED: _ClassVar[StopReason]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ACCEPT: _ClassVar[Verdict]
    VERDICT_REVISE: _ClassVar[Verdict]
    VERDICT_REJECT: _ClassVar[Verdict]

class EvidenceVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVIDENCE_VERDICT_UNSPECIFIED: _ClassVar[EvidenceVerdict]
    EVIDENCE_VERDICT_VERIFIED: _ClassVar[EvidenceVerdict]
    EVIDENCE_VERDICT_UNVERIFIED: _ClassVar[EvidenceVerdict]
    EVIDENCE_VERDICT_REFUTED: _ClassVar[EvidenceVerdict]

class ComponentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPONENT_STATE_UNSPECIFIED: _ClassVar[ComponentState]
    COMPONENT_STATE_UP: _ClassVar[ComponentState]
    COMPONENT_STATE_DEGRADED: _ClassVar[ComponentState]
    COMPONENT_STATE_DOWN: _ClassVar[ComponentState]

class DrainTarget(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_TARGET_UNSPECIFIED: _ClassVar[DrainTarget]
    DRAIN_TARGET_ORCHESTRATOR: _ClassVar[DrainTarget]
    DRAIN_TARGET_HOST: _ClassVar[DrainTarget]
    DRAIN_TARGET_NODE: _ClassVar[DrainTarget]
DELIBERATION_STATUS_UNKNOWN: DeliberationStatus
DELIBERATION_STATUS_PENDING: DeliberationStatus
DELIBERATION_STATUS_IN_PROGRESS: DeliberationStatus
DELIBERATION_STATUS_COMPLETED: DeliberationStatus
DELIBERATION_STATUS_FAILED: DeliberationStatus
DELIBERATION_STATUS_TIMEOUT: DeliberationStatus
DELIBERATION_STATUS_CANCELLED: DeliberationStatus
DELIBERATION_STATUS_AWAITING_APPROVAL: DeliberationStatus
DELIBERATION_STATUS_REJECTED: DeliberationStatus
DELIBERATION_STATUS_NO_WINNER: DeliberationStatus
ROLE_UNSPECIFIED: Role
ROLE_DEV: Role
ROLE_QA: Role
ROLE_ARCHITECT: Role
ROLE_DEVOPS: Role
ROLE_DATA: Role
EXECUTION_KIND_UNSPECIFIED: ExecutionKind
EXECUTION_KIND_DELIBERATION: ExecutionKind
EXECUTION_KIND_ORCHESTRATION: ExecutionKind
EXECUTION_KIND_WORKFLOW: ExecutionKind
EXECUTION_KIND_JUDGEMENT: ExecutionKind
EXECUTION_KIND_PLAN: ExecutionKind
EXECUTION_KIND_CHAT: ExecutionKind
APPROVAL_POLICY_UNSPECIFIED: ApprovalPolicy
APPROVAL_POLICY_NONE: ApprovalPolicy
APPROVAL_POLICY_PLAN: ApprovalPolicy
APPROVAL_POLICY_RISKY: ApprovalPolicy
APPROVAL_POLICY_EVERY: ApprovalPolicy
APPROVAL_DECISION_UNSPECIFIED: ApprovalDecision
APPROVAL_DECISION_APPROVED: ApprovalDecision
APPROVAL_DECISION_REJECTED: ApprovalDecision
APPROVAL_DECISION_ADJUSTED: ApprovalDecision
PLANNING_MODE_UNSPECIFIED: PlanningMode
PLANNING_MODE_SIMPLE: PlanningMode
PLANNING_MODE_AGENTIC: PlanningMode
PLANNING_MODE_HYBRID: PlanningMode
UNCOMMITTED_CHANGES_UNSPECIFIED: UncommittedChanges
UNCOMMITTED_CHANGES_INCLUDE: UncommittedChanges
UNCOMMITTED_CHANGES_IGNORE: UncommittedChanges
AGENT_STATUS_UNSPECIFIED: AgentStatus
AGENT_STATUS_PENDING: AgentStatus
AGENT_STATUS_RUNNING: AgentStatus
AGENT_STATUS_AWAITING_APPROVAL: AgentStatus
AGENT_STATUS_FINISHED: AgentStatus
AGENT_STATUS_LOST: AgentStatus
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_FINAL_ANSWER: StopReason
STOP_REASON_NO_TOOL_CALLS: StopReason
STOP_REASON_MAX_ITERATIONS: StopReason
STOP_REASON_MAX_TOOL_CALLS: StopReason
STOP_REASON_MAX_TOKENS: StopReason
STOP_REASON_TIMEOUT: StopReason
STOP_REASON_CONTEXT_TOO_LONG: StopReason
STOP_REASON_TOOL_ERROR: StopReason
STOP_REASON_MODEL_ERROR: StopReason
STOP_REASON_CANCELLED: StopReason
STOP_REASON_LOST: StopReason
STOP_REASON_MAX_COST: StopReason
STOP_REASON_MODEL_STOPPED: StopReason
STOP_REASON_MALFORMED_REPLIES: StopReason
STOP_REASON_LOOP: StopReason
STOP_REASON_PLAN_FAILED: StopReason
STOP_REASON_AWAITING_APPROVAL: StopReason
STOP_REASON_REJECTED: StopReason
VERDICT_UNSPECIFIED: Verdict
VERDICT_ACCEPT: Verdict
VERDICT_REVISE: Verdict
VERDICT_REJECT: Verdict
EVIDENCE_VERDICT_UNSPECIFIED: EvidenceVerdict
EVIDENCE_VERDICT_VERIFIED: EvidenceVerdict
EVIDENCE_VERDICT_UNVERIFIED: EvidenceVerdict
EVIDENCE_VERDICT_REFUTED: EvidenceVerdict
COMPONENT_STATE_UNSPECIFIED: ComponentState
COMPONENT_STATE_UP: ComponentState
COMPONENT_STATE_DEGRADED: ComponentState
COMPONENT_STATE_DOWN: ComponentState
DRAIN_TARGET_UNSPECIFIED: DrainTarget
DRAIN_TARGET_ORCHESTRATOR: DrainTarget
DRAIN_TARGET_HOST: DrainTarget
DRAIN_TARGET_NODE: DrainTarget

class DeliberateRequest(_message.Message):
    __slots__ = ("task_id", "task_description", "role", "constraints", "rounds", "num_agents", "repo", "context", "model_profile", "approval", "enable_tools", "planning_mode", "environment", "memory", "tools", "attempt", "priority", "architect_top_k", "enable_peer_review", "max_agents", "probes", "seats")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_AGENTS_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    ENABLE_TOOLS_FIELD_NUMBER: _ClassVar[int]
    PLANNING_MODE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARCHITECT_TOP_K_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PEER_REVIEW_FIELD_NUMBER: _ClassVar[int]
    MAX_AGENTS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    task_description: str
    role: str
    constraints: TaskConstraints
    rounds: int
    num_agents: int
    repo: RepoRef
    context: str
    model_profile: str
    approval: ApprovalPolicy
    enable_tools: bool
    planning_mode: PlanningMode
    environment: EnvironmentSpec
    memory: MemoryOptions
    tools: _containers.RepeatedScalarFieldContainer[str]
    attempt: int
    priority: int
    architect_top_k: int
    enable_peer_review: bool
    max_agents: int
    probes: bool
    seats: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_id: _Optional[str] = ..., task_description: _Optional[str] = ..., role: _Optional[str] = ..., constraints: _Optional[_Union[TaskConstraints, _Mapping]] = ..., rounds: _Optional[int] = ..., num_agents: _Optional[int] = ..., repo: _Optional[_Union[RepoRef, _Mapping]] = ..., context: _Optional[str] = ..., model_profile: _Optional[str] = ..., approval: _Optional[_Union[ApprovalPolicy, str]] = ..., enable_tools: _Optional[bool] = ..., planning_mode: _Optional[_Union[PlanningMode, str]] = ..., environment: _Optional[_Union[EnvironmentSpec, _Mapping]] = ..., memory: _Optional[_Union[MemoryOptions, _Mapping]] = ..., tools: _Optional[_Iterable[str]] = ..., attempt: _Optional[int] = ..., priority: _Optional[int] = ..., architect_top_k: _Optional[int] = ..., enable_peer_review: _Optional[bool] = ..., max_agents: _Optional[int] = ..., probes: _Optional[bool] = ..., seats: _Optional[_Iterable[str]] = ...) -> None: ...

class DeliberateResponse(_message.Message):
    __slots__ = ("task_id", "results", "winner_id", "duration_ms", "metadata", "execution_id", "status", "audit_head", "usage", "verdict", "verdict_reasons", "audit_heads", "expenses")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    WINNER_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEAD_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASONS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEADS_FIELD_NUMBER: _ClassVar[int]
    EXPENSES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    results: _containers.RepeatedCompositeFieldContainer[DeliberationResult]
    winner_id: str
    duration_ms: int
    metadata: _containers.ScalarMap[str, str]
    execution_id: str
    status: DeliberationStatus
    audit_head: str
    usage: Usage
    verdict: EvidenceVerdict
    verdict_reasons: _containers.RepeatedScalarFieldContainer[str]
    audit_heads: _containers.RepeatedCompositeFieldContainer[AuditHead]
    expenses: _containers.RepeatedCompositeFieldContainer[Expense]
    def __init__(self, task_id: _Optional[str] = ..., results: _Optional[_Iterable[_Union[DeliberationResult, _Mapping]]] = ..., winner_id: _Optional[str] = ..., duration_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., execution_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., audit_head: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., verdict: _Optional[_Union[EvidenceVerdict, str]] = ..., verdict_reasons: _Optional[_Iterable[str]] = ..., audit_heads: _Optional[_Iterable[_Union[AuditHead, _Mapping]]] = ..., expenses: _Optional[_Iterable[_Union[Expense, _Mapping]]] = ...) -> None: ...

class DeliberationUpdate(_message.Message):
    __slots__ = ("status", "progress_percent", "current_step", "current_agent", "partial_result", "sequence", "event", "final")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_STEP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_AGENT_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RESULT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    status: DeliberationStatus
    progress_percent: int
    current_step: str
    current_agent: str
    partial_result: DeliberationResult
    sequence: int
    event: ExecutionEvent
    final: DeliberateResponse
    def __init__(self, status: _Optional[_Union[DeliberationStatus, str]] = ..., progress_percent: _Optional[int] = ..., current_step: _Optional[str] = ..., current_agent: _Optional[str] = ..., partial_result: _Optional[_Union[DeliberationResult, _Mapping]] = ..., sequence: _Optional[int] = ..., event: _Optional[_Union[ExecutionEvent, _Mapping]] = ..., final: _Optional[_Union[DeliberateResponse, _Mapping]] = ...) -> None: ...

class DeliberationResult(_message.Message):
    __slots__ = ("proposal", "checks", "score", "rank", "candidate_id", "patch", "artifacts", "operations", "critiques", "stop_reason", "usage", "audit_head", "duplicates", "reason", "evidence_score", "review_score", "vote_share", "votes", "revises", "round", "dropped_reason", "verdict", "verdict_reasons", "tests_score", "verifier_score")
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    CRITIQUES_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEAD_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    REVIEW_SCORE_FIELD_NUMBER: _ClassVar[int]
    VOTE_SHARE_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    REVISES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DROPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASONS_FIELD_NUMBER: _ClassVar[int]
    TESTS_SCORE_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_SCORE_FIELD_NUMBER: _ClassVar[int]
    proposal: Proposal
    checks: CheckSuite
    score: float
    rank: int
    candidate_id: str
    patch: Patch
    artifacts: Artifacts
    operations: _containers.RepeatedCompositeFieldContainer[ToolOperation]
    critiques: _containers.RepeatedCompositeFieldContainer[Critique]
    stop_reason: StopReason
    usage: Usage
    audit_head: str
    duplicates: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    evidence_score: float
    review_score: float
    vote_share: float
    votes: _containers.RepeatedCompositeFieldContainer[Vote]
    revises: str
    round: int
    dropped_reason: str
    verdict: EvidenceVerdict
    verdict_reasons: _containers.RepeatedScalarFieldContainer[str]
    tests_score: float
    verifier_score: float
    def __init__(self, proposal: _Optional[_Union[Proposal, _Mapping]] = ..., checks: _Optional[_Union[CheckSuite, _Mapping]] = ..., score: _Optional[float] = ..., rank: _Optional[int] = ..., candidate_id: _Optional[str] = ..., patch: _Optional[_Union[Patch, _Mapping]] = ..., artifacts: _Optional[_Union[Artifacts, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[ToolOperation, _Mapping]]] = ..., critiques: _Optional[_Iterable[_Union[Critique, _Mapping]]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., audit_head: _Optional[str] = ..., duplicates: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., evidence_score: _Optional[float] = ..., review_score: _Optional[float] = ..., vote_share: _Optional[float] = ..., votes: _Optional[_Iterable[_Union[Vote, _Mapping]]] = ..., revises: _Optional[str] = ..., round: _Optional[int] = ..., dropped_reason: _Optional[str] = ..., verdict: _Optional[_Union[EvidenceVerdict, str]] = ..., verdict_reasons: _Optional[_Iterable[str]] = ..., tests_score: _Optional[float] = ..., verifier_score: _Optional[float] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("author_id", "author_role", "content", "created_at_ms", "revisions")
    AUTHOR_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    author_id: str
    author_role: str
    content: str
    created_at_ms: int
    revisions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, author_id: _Optional[str] = ..., author_role: _Optional[str] = ..., content: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., revisions: _Optional[_Iterable[str]] = ...) -> None: ...

class Critique(_message.Message):
    __slots__ = ("reviewer_id", "round", "verdict", "score", "content", "findings", "created_at_ms", "details", "usage", "error_message")
    REVIEWER_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reviewer_id: str
    round: int
    verdict: Verdict
    score: float
    content: str
    findings: _containers.RepeatedScalarFieldContainer[str]
    created_at_ms: int
    details: _containers.RepeatedCompositeFieldContainer[Finding]
    usage: Usage
    error_message: str
    def __init__(self, reviewer_id: _Optional[str] = ..., round: _Optional[int] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., score: _Optional[float] = ..., content: _Optional[str] = ..., findings: _Optional[_Iterable[str]] = ..., created_at_ms: _Optional[int] = ..., details: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., error_message: _Optional[str] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("text", "file", "line", "must_fix", "proof")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    MUST_FIX_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    text: str
    file: str
    line: int
    must_fix: bool
    proof: Proof
    def __init__(self, text: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., must_fix: _Optional[bool] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("command", "expected", "outcome", "seen", "passes_on_own", "passes_on", "fails_on")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    PASSES_ON_OWN_FIELD_NUMBER: _ClassVar[int]
    PASSES_ON_FIELD_NUMBER: _ClassVar[int]
    FAILS_ON_FIELD_NUMBER: _ClassVar[int]
    command: str
    expected: str
    outcome: str
    seen: str
    passes_on_own: bool
    passes_on: _containers.RepeatedScalarFieldContainer[str]
    fails_on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, command: _Optional[str] = ..., expected: _Optional[str] = ..., outcome: _Optional[str] = ..., seen: _Optional[str] = ..., passes_on_own: _Optional[bool] = ..., passes_on: _Optional[_Iterable[str]] = ..., fails_on: _Optional[_Iterable[str]] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("judge_id", "sample", "order", "choice", "reason", "error_message", "usage")
    JUDGE_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    judge_id: str
    sample: int
    order: _containers.RepeatedScalarFieldContainer[str]
    choice: str
    reason: str
    error_message: str
    usage: Usage
    def __init__(self, judge_id: _Optional[str] = ..., sample: _Optional[int] = ..., order: _Optional[_Iterable[str]] = ..., choice: _Optional[str] = ..., reason: _Optional[str] = ..., error_message: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class GetDeliberationResultRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class GetDeliberationResultResponse(_message.Message):
    __slots__ = ("task_id", "status", "results", "winner_id", "duration_ms", "error_message", "metadata", "verdict", "verdict_reasons")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    WINNER_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASONS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    status: DeliberationStatus
    results: _containers.RepeatedCompositeFieldContainer[DeliberationResult]
    winner_id: str
    duration_ms: int
    error_message: str
    metadata: _containers.ScalarMap[str, str]
    verdict: EvidenceVerdict
    verdict_reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., results: _Optional[_Iterable[_Union[DeliberationResult, _Mapping]]] = ..., winner_id: _Optional[str] = ..., duration_ms: _Optional[int] = ..., error_message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., verdict: _Optional[_Union[EvidenceVerdict, str]] = ..., verdict_reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class JudgePatchesRequest(_message.Message):
    __slots__ = ("task_id", "repo", "patches", "task_description", "constraints", "environment", "attempt", "priority")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    repo: RepoRef
    patches: _containers.RepeatedCompositeFieldContainer[SubmittedPatch]
    task_description: str
    constraints: TaskConstraints
    environment: EnvironmentSpec
    attempt: int
    priority: int
    def __init__(self, task_id: _Optional[str] = ..., repo: _Optional[_Union[RepoRef, _Mapping]] = ..., patches: _Optional[_Iterable[_Union[SubmittedPatch, _Mapping]]] = ..., task_description: _Optional[str] = ..., constraints: _Optional[_Union[TaskConstraints, _Mapping]] = ..., environment: _Optional[_Union[EnvironmentSpec, _Mapping]] = ..., attempt: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class SubmittedPatch(_message.Message):
    __slots__ = ("name", "diff", "summary")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    diff: bytes
    summary: str
    def __init__(self, name: _Optional[str] = ..., diff: _Optional[bytes] = ..., summary: _Optional[str] = ...) -> None: ...

class JudgePatchesResponse(_message.Message):
    __slots__ = ("task_id", "execution_id", "status", "results", "winner_id", "baseline", "duration_ms", "error_message", "examination")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    WINNER_ID_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXAMINATION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    execution_id: str
    status: DeliberationStatus
    results: _containers.RepeatedCompositeFieldContainer[DeliberationResult]
    winner_id: str
    baseline: Baseline
    duration_ms: int
    error_message: str
    examination: Examination
    def __init__(self, task_id: _Optional[str] = ..., execution_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., results: _Optional[_Iterable[_Union[DeliberationResult, _Mapping]]] = ..., winner_id: _Optional[str] = ..., baseline: _Optional[_Union[Baseline, _Mapping]] = ..., duration_ms: _Optional[int] = ..., error_message: _Optional[str] = ..., examination: _Optional[_Union[Examination, _Mapping]] = ...) -> None: ...

class Examination(_message.Message):
    __slots__ = ("candidates", "sets", "conflicts", "notes", "duration_ms")
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedScalarFieldContainer[str]
    sets: _containers.RepeatedCompositeFieldContainer[ExaminedTests]
    conflicts: _containers.RepeatedCompositeFieldContainer[TestConflict]
    notes: _containers.RepeatedScalarFieldContainer[str]
    duration_ms: int
    def __init__(self, candidates: _Optional[_Iterable[str]] = ..., sets: _Optional[_Iterable[_Union[ExaminedTests, _Mapping]]] = ..., conflicts: _Optional[_Iterable[_Union[TestConflict, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class ExaminedTests(_message.Message):
    __slots__ = ("candidates", "tests", "crossings")
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    CROSSINGS_FIELD_NUMBER: _ClassVar[int]
    candidates: _containers.RepeatedScalarFieldContainer[str]
    tests: _containers.RepeatedScalarFieldContainer[str]
    crossings: _containers.RepeatedCompositeFieldContainer[TestCrossing]
    def __init__(self, candidates: _Optional[_Iterable[str]] = ..., tests: _Optional[_Iterable[str]] = ..., crossings: _Optional[_Iterable[_Union[TestCrossing, _Mapping]]] = ...) -> None: ...

class TestCrossing(_message.Message):
    __slots__ = ("candidate_id", "passed", "failed", "unsaid", "note")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    UNSAID_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    passed: int
    failed: _containers.RepeatedCompositeFieldContainer[ForeignFailure]
    unsaid: int
    note: str
    def __init__(self, candidate_id: _Optional[str] = ..., passed: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[ForeignFailure, _Mapping]]] = ..., unsaid: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class ForeignFailure(_message.Message):
    __slots__ = ("test", "message", "unchanged")
    TEST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    test: str
    message: str
    unchanged: bool
    def __init__(self, test: _Optional[str] = ..., message: _Optional[str] = ..., unchanged: _Optional[bool] = ...) -> None: ...

class TestConflict(_message.Message):
    __slots__ = ("candidate_id", "test", "other_id", "other_test")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    TEST_FIELD_NUMBER: _ClassVar[int]
    OTHER_ID_FIELD_NUMBER: _ClassVar[int]
    OTHER_TEST_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    test: str
    other_id: str
    other_test: str
    def __init__(self, candidate_id: _Optional[str] = ..., test: _Optional[str] = ..., other_id: _Optional[str] = ..., other_test: _Optional[str] = ...) -> None: ...

class Baseline(_message.Message):
    __slots__ = ("summary", "suites", "error_message")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SUITES_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    summary: str
    suites: _containers.RepeatedCompositeFieldContainer[SuiteBaseline]
    error_message: str
    def __init__(self, summary: _Optional[str] = ..., suites: _Optional[_Iterable[_Union[SuiteBaseline, _Mapping]]] = ..., error_message: _Optional[str] = ...) -> None: ...

class SuiteBaseline(_message.Message):
    __slots__ = ("command", "tests", "uncollected", "hung", "exit_code", "stopped", "unusable", "notes", "duration_ms")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    UNCOLLECTED_FIELD_NUMBER: _ClassVar[int]
    HUNG_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    UNUSABLE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    command: str
    tests: TestSummary
    uncollected: _containers.RepeatedScalarFieldContainer[str]
    hung: _containers.RepeatedScalarFieldContainer[str]
    exit_code: int
    stopped: str
    unusable: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    duration_ms: int
    def __init__(self, command: _Optional[str] = ..., tests: _Optional[_Union[TestSummary, _Mapping]] = ..., uncollected: _Optional[_Iterable[str]] = ..., hung: _Optional[_Iterable[str]] = ..., exit_code: _Optional[int] = ..., stopped: _Optional[str] = ..., unusable: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class DeliverCandidateRequest(_message.Message):
    __slots__ = ("execution_id", "candidate_id", "branch", "push", "reason", "approver")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    APPROVER_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    candidate_id: str
    branch: str
    push: bool
    reason: str
    approver: str
    def __init__(self, execution_id: _Optional[str] = ..., candidate_id: _Optional[str] = ..., branch: _Optional[str] = ..., push: _Optional[bool] = ..., reason: _Optional[str] = ..., approver: _Optional[str] = ...) -> None: ...

class DeliverCandidateResponse(_message.Message):
    __slots__ = ("execution_id", "commit_sha", "branch")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SHA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    commit_sha: str
    branch: str
    def __init__(self, execution_id: _Optional[str] = ..., commit_sha: _Optional[str] = ..., branch: _Optional[str] = ...) -> None: ...

class OrchestrateRequest(_message.Message):
    __slots__ = ("task_id", "task_description", "role", "constraints", "options", "case_id", "story_id", "plan_id", "context_options", "repo", "context", "model_profile", "approval", "delivery", "enable_tools", "planning_mode", "environment", "memory", "tools", "attempt", "priority", "seats")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ENABLE_TOOLS_FIELD_NUMBER: _ClassVar[int]
    PLANNING_MODE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    task_description: str
    role: str
    constraints: TaskConstraints
    options: OrchestratorOptions
    case_id: str
    story_id: str
    plan_id: str
    context_options: ContextOptions
    repo: RepoRef
    context: str
    model_profile: str
    approval: ApprovalPolicy
    delivery: Delivery
    enable_tools: bool
    planning_mode: PlanningMode
    environment: EnvironmentSpec
    memory: MemoryOptions
    tools: _containers.RepeatedScalarFieldContainer[str]
    attempt: int
    priority: int
    seats: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task_id: _Optional[str] = ..., task_description: _Optional[str] = ..., role: _Optional[str] = ..., constraints: _Optional[_Union[TaskConstraints, _Mapping]] = ..., options: _Optional[_Union[OrchestratorOptions, _Mapping]] = ..., case_id: _Optional[str] = ..., story_id: _Optional[str] = ..., plan_id: _Optional[str] = ..., context_options: _Optional[_Union[ContextOptions, _Mapping]] = ..., repo: _Optional[_Union[RepoRef, _Mapping]] = ..., context: _Optional[str] = ..., model_profile: _Optional[str] = ..., approval: _Optional[_Union[ApprovalPolicy, str]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., enable_tools: _Optional[bool] = ..., planning_mode: _Optional[_Union[PlanningMode, str]] = ..., environment: _Optional[_Union[EnvironmentSpec, _Mapping]] = ..., memory: _Optional[_Union[MemoryOptions, _Mapping]] = ..., tools: _Optional[_Iterable[str]] = ..., attempt: _Optional[int] = ..., priority: _Optional[int] = ..., seats: _Optional[_Iterable[str]] = ...) -> None: ...

class OrchestrateResponse(_message.Message):
    __slots__ = ("winner", "candidates", "execution_id", "duration_ms", "metadata", "status", "commit_sha", "branch", "subtasks", "audit_head", "usage", "verdict", "verdict_reasons", "audit_heads", "expenses")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WINNER_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SHA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEAD_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASONS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEADS_FIELD_NUMBER: _ClassVar[int]
    EXPENSES_FIELD_NUMBER: _ClassVar[int]
    winner: DeliberationResult
    candidates: _containers.RepeatedCompositeFieldContainer[DeliberationResult]
    execution_id: str
    duration_ms: int
    metadata: _containers.ScalarMap[str, str]
    status: DeliberationStatus
    commit_sha: str
    branch: str
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskResult]
    audit_head: str
    usage: Usage
    verdict: EvidenceVerdict
    verdict_reasons: _containers.RepeatedScalarFieldContainer[str]
    audit_heads: _containers.RepeatedCompositeFieldContainer[AuditHead]
    expenses: _containers.RepeatedCompositeFieldContainer[Expense]
    def __init__(self, winner: _Optional[_Union[DeliberationResult, _Mapping]] = ..., candidates: _Optional[_Iterable[_Union[DeliberationResult, _Mapping]]] = ..., execution_id: _Optional[str] = ..., duration_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., commit_sha: _Optional[str] = ..., branch: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskResult, _Mapping]]] = ..., audit_head: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., verdict: _Optional[_Union[EvidenceVerdict, str]] = ..., verdict_reasons: _Optional[_Iterable[str]] = ..., audit_heads: _Optional[_Iterable[_Union[AuditHead, _Mapping]]] = ..., expenses: _Optional[_Iterable[_Union[Expense, _Mapping]]] = ...) -> None: ...

class OrchestrationUpdate(_message.Message):
    __slots__ = ("status", "progress_percent", "current_step", "current_agent", "partial_result", "sequence", "event", "final")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CURRENT_STEP_FIELD_NUMBER: _ClassVar[int]
    CURRENT_AGENT_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_RESULT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    status: DeliberationStatus
    progress_percent: int
    current_step: str
    current_agent: str
    partial_result: DeliberationResult
    sequence: int
    event: ExecutionEvent
    final: OrchestrateResponse
    def __init__(self, status: _Optional[_Union[DeliberationStatus, str]] = ..., progress_percent: _Optional[int] = ..., current_step: _Optional[str] = ..., current_agent: _Optional[str] = ..., partial_result: _Optional[_Union[DeliberationResult, _Mapping]] = ..., sequence: _Optional[int] = ..., event: _Optional[_Union[ExecutionEvent, _Mapping]] = ..., final: _Optional[_Union[OrchestrateResponse, _Mapping]] = ...) -> None: ...

class OrchestratorOptions(_message.Message):
    __slots__ = ("enable_peer_review", "deliberation_rounds", "enable_architect_selection", "custom_params", "num_agents", "derive_subtasks", "architect_top_k", "max_agents", "probes")
    class CustomParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENABLE_PEER_REVIEW_FIELD_NUMBER: _ClassVar[int]
    DELIBERATION_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_ARCHITECT_SELECTION_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_PARAMS_FIELD_NUMBER: _ClassVar[int]
    NUM_AGENTS_FIELD_NUMBER: _ClassVar[int]
    DERIVE_SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECT_TOP_K_FIELD_NUMBER: _ClassVar[int]
    MAX_AGENTS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    enable_peer_review: bool
    deliberation_rounds: int
    enable_architect_selection: bool
    custom_params: _containers.ScalarMap[str, str]
    num_agents: int
    derive_subtasks: bool
    architect_top_k: int
    max_agents: int
    probes: bool
    def __init__(self, enable_peer_review: _Optional[bool] = ..., deliberation_rounds: _Optional[int] = ..., enable_architect_selection: _Optional[bool] = ..., custom_params: _Optional[_Mapping[str, str]] = ..., num_agents: _Optional[int] = ..., derive_subtasks: _Optional[bool] = ..., architect_top_k: _Optional[int] = ..., max_agents: _Optional[int] = ..., probes: _Optional[bool] = ...) -> None: ...

class SubtaskResult(_message.Message):
    __slots__ = ("task", "execution_id", "status", "commit_sha", "error_message")
    TASK_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SHA_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    task: AtomicTask
    execution_id: str
    status: DeliberationStatus
    commit_sha: str
    error_message: str
    def __init__(self, task: _Optional[_Union[AtomicTask, _Mapping]] = ..., execution_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., commit_sha: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("branch", "push", "author_name", "author_email", "message")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_NAME_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_EMAIL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    branch: str
    push: bool
    author_name: str
    author_email: str
    message: str
    def __init__(self, branch: _Optional[str] = ..., push: _Optional[bool] = ..., author_name: _Optional[str] = ..., author_email: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class TaskConstraints(_message.Message):
    __slots__ = ("rubric", "requirements", "metadata", "max_iterations", "timeout_seconds", "max_tool_calls", "max_tokens", "allowed_tools", "denied_tools", "allowed_paths", "checks", "network", "abort_on_error", "mcp_servers", "max_cost", "total_max_tokens", "total_max_tool_calls", "total_max_cost", "require_verified")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUBRIC_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    DENIED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_PATHS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    ABORT_ON_ERROR_FIELD_NUMBER: _ClassVar[int]
    MCP_SERVERS_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MAX_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MAX_COST_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    rubric: str
    requirements: _containers.RepeatedScalarFieldContainer[str]
    metadata: _containers.ScalarMap[str, str]
    max_iterations: int
    timeout_seconds: int
    max_tool_calls: int
    max_tokens: int
    allowed_tools: _containers.RepeatedScalarFieldContainer[str]
    denied_tools: _containers.RepeatedScalarFieldContainer[str]
    allowed_paths: _containers.RepeatedScalarFieldContainer[str]
    checks: _containers.RepeatedCompositeFieldContainer[CheckSpec]
    network: NetworkPolicy
    abort_on_error: bool
    mcp_servers: _containers.RepeatedCompositeFieldContainer[McpServer]
    max_cost: float
    total_max_tokens: int
    total_max_tool_calls: int
    total_max_cost: float
    require_verified: bool
    def __init__(self, rubric: _Optional[str] = ..., requirements: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., max_iterations: _Optional[int] = ..., timeout_seconds: _Optional[int] = ..., max_tool_calls: _Optional[int] = ..., max_tokens: _Optional[int] = ..., allowed_tools: _Optional[_Iterable[str]] = ..., denied_tools: _Optional[_Iterable[str]] = ..., allowed_paths: _Optional[_Iterable[str]] = ..., checks: _Optional[_Iterable[_Union[CheckSpec, _Mapping]]] = ..., network: _Optional[_Union[NetworkPolicy, _Mapping]] = ..., abort_on_error: _Optional[bool] = ..., mcp_servers: _Optional[_Iterable[_Union[McpServer, _Mapping]]] = ..., max_cost: _Optional[float] = ..., total_max_tokens: _Optional[int] = ..., total_max_tool_calls: _Optional[int] = ..., total_max_cost: _Optional[float] = ..., require_verified: _Optional[bool] = ...) -> None: ...

class McpServer(_message.Message):
    __slots__ = ("name", "command", "url", "variables", "tools", "allowed_hosts")
    class VariablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: _containers.RepeatedScalarFieldContainer[str]
    url: str
    variables: _containers.ScalarMap[str, str]
    tools: _containers.RepeatedScalarFieldContainer[str]
    allowed_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., url: _Optional[str] = ..., variables: _Optional[_Mapping[str, str]] = ..., tools: _Optional[_Iterable[str]] = ..., allowed_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckSpec(_message.Message):
    __slots__ = ("name", "command", "timeout_seconds", "required", "expected_exit_code")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    command: str
    timeout_seconds: int
    required: bool
    expected_exit_code: int
    def __init__(self, name: _Optional[str] = ..., command: _Optional[str] = ..., timeout_seconds: _Optional[int] = ..., required: _Optional[bool] = ..., expected_exit_code: _Optional[int] = ...) -> None: ...

class NetworkPolicy(_message.Message):
    __slots__ = ("allowed_hosts",)
    ALLOWED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    allowed_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allowed_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class EnvironmentSpec(_message.Message):
    __slots__ = ("setup_commands", "variables", "path_directories", "container_image", "disable_detection", "test_command", "image_credential_ref")
    class VariablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETUP_COMMANDS_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    PATH_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_IMAGE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_DETECTION_FIELD_NUMBER: _ClassVar[int]
    TEST_COMMAND_FIELD_NUMBER: _ClassVar[int]
    IMAGE_CREDENTIAL_REF_FIELD_NUMBER: _ClassVar[int]
    setup_commands: _containers.RepeatedScalarFieldContainer[str]
    variables: _containers.ScalarMap[str, str]
    path_directories: _containers.RepeatedScalarFieldContainer[str]
    container_image: str
    disable_detection: bool
    test_command: str
    image_credential_ref: str
    def __init__(self, setup_commands: _Optional[_Iterable[str]] = ..., variables: _Optional[_Mapping[str, str]] = ..., path_directories: _Optional[_Iterable[str]] = ..., container_image: _Optional[str] = ..., disable_detection: _Optional[bool] = ..., test_command: _Optional[str] = ..., image_credential_ref: _Optional[str] = ...) -> None: ...

class RepoRef(_message.Message):
    __slots__ = ("url", "path", "upload_id", "ref", "commit", "subdirectory", "credential_ref", "uncommitted")
    URL_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SUBDIRECTORY_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_REF_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    url: str
    path: str
    upload_id: str
    ref: str
    commit: str
    subdirectory: str
    credential_ref: str
    uncommitted: UncommittedChanges
    def __init__(self, url: _Optional[str] = ..., path: _Optional[str] = ..., upload_id: _Optional[str] = ..., ref: _Optional[str] = ..., commit: _Optional[str] = ..., subdirectory: _Optional[str] = ..., credential_ref: _Optional[str] = ..., uncommitted: _Optional[_Union[UncommittedChanges, str]] = ...) -> None: ...

class MemoryOptions(_message.Message):
    __slots__ = ("namespaces", "read", "write", "entities")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    read: bool
    write: bool
    entities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespaces: _Optional[_Iterable[str]] = ..., read: _Optional[bool] = ..., write: _Optional[bool] = ..., entities: _Optional[_Iterable[str]] = ...) -> None: ...

class ContextOptions(_message.Message):
    __slots__ = ("phase", "token_budget", "include_repository_map", "include_decisions", "include_history", "include_instructions")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REPOSITORY_MAP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DECISIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_HISTORY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    token_budget: int
    include_repository_map: bool
    include_decisions: bool
    include_history: bool
    include_instructions: bool
    def __init__(self, phase: _Optional[str] = ..., token_budget: _Optional[int] = ..., include_repository_map: _Optional[bool] = ..., include_decisions: _Optional[bool] = ..., include_history: _Optional[bool] = ..., include_instructions: _Optional[bool] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "tool_calls", "cost_usd", "duration_ms")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    model_calls: int
    tool_calls: int
    cost_usd: float
    duration_ms: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., model_calls: _Optional[int] = ..., tool_calls: _Optional[int] = ..., cost_usd: _Optional[float] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class Expense(_message.Message):
    __slots__ = ("purpose", "runs", "usage", "bought")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    BOUGHT_FIELD_NUMBER: _ClassVar[int]
    purpose: str
    runs: int
    usage: Usage
    bought: str
    def __init__(self, purpose: _Optional[str] = ..., runs: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., bought: _Optional[str] = ...) -> None: ...

class ArtifactRef(_message.Message):
    __slots__ = ("digest", "size_bytes", "media_type", "name", "execution_id")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    media_type: str
    name: str
    execution_id: str
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., media_type: _Optional[str] = ..., name: _Optional[str] = ..., execution_id: _Optional[str] = ...) -> None: ...

class Patch(_message.Message):
    __slots__ = ("text", "artifact", "files_changed", "lines_added", "lines_removed", "base_commit")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    FILES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    LINES_ADDED_FIELD_NUMBER: _ClassVar[int]
    LINES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    BASE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    artifact: ArtifactRef
    files_changed: _containers.RepeatedScalarFieldContainer[str]
    lines_added: int
    lines_removed: int
    base_commit: str
    def __init__(self, text: _Optional[bytes] = ..., artifact: _Optional[_Union[ArtifactRef, _Mapping]] = ..., files_changed: _Optional[_Iterable[str]] = ..., lines_added: _Optional[int] = ..., lines_removed: _Optional[int] = ..., base_commit: _Optional[str] = ...) -> None: ...

class Artifacts(_message.Message):
    __slots__ = ("commit_sha", "branch", "patch", "files_changed", "tests")
    COMMIT_SHA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    FILES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    commit_sha: str
    branch: str
    patch: Patch
    files_changed: _containers.RepeatedScalarFieldContainer[str]
    tests: TestSummary
    def __init__(self, commit_sha: _Optional[str] = ..., branch: _Optional[str] = ..., patch: _Optional[_Union[Patch, _Mapping]] = ..., files_changed: _Optional[_Iterable[str]] = ..., tests: _Optional[_Union[TestSummary, _Mapping]] = ...) -> None: ...

class TestSummary(_message.Message):
    __slots__ = ("passed", "failed", "errors", "skipped", "duration_ms", "failing_tests")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    FAILING_TESTS_FIELD_NUMBER: _ClassVar[int]
    passed: int
    failed: int
    errors: int
    skipped: int
    duration_ms: int
    failing_tests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, passed: _Optional[int] = ..., failed: _Optional[int] = ..., errors: _Optional[int] = ..., skipped: _Optional[int] = ..., duration_ms: _Optional[int] = ..., failing_tests: _Optional[_Iterable[str]] = ...) -> None: ...

class ToolOperation(_message.Message):
    __slots__ = ("tool", "operation", "params", "success", "output", "error", "exit_code", "duration_ms", "started_at", "step", "audit_seq", "output_artifact", "call_id")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AUDIT_SEQ_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    tool: str
    operation: str
    params: _struct_pb2.Struct
    success: bool
    output: str
    error: str
    exit_code: int
    duration_ms: int
    started_at: _timestamp_pb2.Timestamp
    step: int
    audit_seq: int
    output_artifact: ArtifactRef
    call_id: str
    def __init__(self, tool: _Optional[str] = ..., operation: _Optional[str] = ..., params: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., success: _Optional[bool] = ..., output: _Optional[str] = ..., error: _Optional[str] = ..., exit_code: _Optional[int] = ..., duration_ms: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., step: _Optional[int] = ..., audit_seq: _Optional[int] = ..., output_artifact: _Optional[_Union[ArtifactRef, _Mapping]] = ..., call_id: _Optional[str] = ...) -> None: ...

class CheckSuite(_message.Message):
    __slots__ = ("policy", "lint", "dryrun", "additional_checks", "all_passed", "duration_ms", "skipped_reason")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LINT_FIELD_NUMBER: _ClassVar[int]
    DRYRUN_FIELD_NUMBER: _ClassVar[int]
    ADDITIONAL_CHECKS_FIELD_NUMBER: _ClassVar[int]
    ALL_PASSED_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    policy: PolicyResult
    lint: LintResult
    dryrun: DryRunResult
    additional_checks: _containers.RepeatedCompositeFieldContainer[CheckResult]
    all_passed: bool
    duration_ms: int
    skipped_reason: str
    def __init__(self, policy: _Optional[_Union[PolicyResult, _Mapping]] = ..., lint: _Optional[_Union[LintResult, _Mapping]] = ..., dryrun: _Optional[_Union[DryRunResult, _Mapping]] = ..., additional_checks: _Optional[_Iterable[_Union[CheckResult, _Mapping]]] = ..., all_passed: _Optional[bool] = ..., duration_ms: _Optional[int] = ..., skipped_reason: _Optional[str] = ...) -> None: ...

class PolicyResult(_message.Message):
    __slots__ = ("passed", "violations", "message", "duration_ms", "skipped_reason")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    passed: bool
    violations: _containers.RepeatedScalarFieldContainer[str]
    message: str
    duration_ms: int
    skipped_reason: str
    def __init__(self, passed: _Optional[bool] = ..., violations: _Optional[_Iterable[str]] = ..., message: _Optional[str] = ..., duration_ms: _Optional[int] = ..., skipped_reason: _Optional[str] = ...) -> None: ...

class LintResult(_message.Message):
    __slots__ = ("passed", "error_count", "warning_count", "errors", "duration_ms", "skipped_reason")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    WARNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    passed: bool
    error_count: int
    warning_count: int
    errors: _containers.RepeatedScalarFieldContainer[str]
    duration_ms: int
    skipped_reason: str
    def __init__(self, passed: _Optional[bool] = ..., error_count: _Optional[int] = ..., warning_count: _Optional[int] = ..., errors: _Optional[_Iterable[str]] = ..., duration_ms: _Optional[int] = ..., skipped_reason: _Optional[str] = ...) -> None: ...

class DryRunResult(_message.Message):
    __slots__ = ("passed", "output", "exit_code", "message", "duration_ms", "skipped_reason")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    passed: bool
    output: str
    exit_code: int
    message: str
    duration_ms: int
    skipped_reason: str
    def __init__(self, passed: _Optional[bool] = ..., output: _Optional[str] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., duration_ms: _Optional[int] = ..., skipped_reason: _Optional[str] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("check_type", "passed", "score", "message", "details", "duration_ms", "skipped_reason")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHECK_TYPE_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    check_type: str
    passed: bool
    score: float
    message: str
    details: _containers.ScalarMap[str, str]
    duration_ms: int
    skipped_reason: str
    def __init__(self, check_type: _Optional[str] = ..., passed: _Optional[bool] = ..., score: _Optional[float] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ..., duration_ms: _Optional[int] = ..., skipped_reason: _Optional[str] = ...) -> None: ...

class SubmitTaskRequest(_message.Message):
    __slots__ = ("deliberate", "orchestrate", "judge")
    DELIBERATE_FIELD_NUMBER: _ClassVar[int]
    ORCHESTRATE_FIELD_NUMBER: _ClassVar[int]
    JUDGE_FIELD_NUMBER: _ClassVar[int]
    deliberate: DeliberateRequest
    orchestrate: OrchestrateRequest
    judge: JudgePatchesRequest
    def __init__(self, deliberate: _Optional[_Union[DeliberateRequest, _Mapping]] = ..., orchestrate: _Optional[_Union[OrchestrateRequest, _Mapping]] = ..., judge: _Optional[_Union[JudgePatchesRequest, _Mapping]] = ...) -> None: ...

class SubmitTaskResponse(_message.Message):
    __slots__ = ("execution_id", "task_id", "status", "already_existed", "approval")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    task_id: str
    status: DeliberationStatus
    already_existed: bool
    approval: ApprovalPolicy
    def __init__(self, execution_id: _Optional[str] = ..., task_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., already_existed: _Optional[bool] = ..., approval: _Optional[_Union[ApprovalPolicy, str]] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("execution_id", "task_id", "kind", "status", "role", "task_description", "created_at_ms", "updated_at_ms", "finished_at_ms", "agents", "results", "winner_id", "error_message", "commit_sha", "branch", "audit_heads", "usage", "last_sequence", "pending_approvals", "subtasks", "parent_execution_id", "attempt", "priority", "caller", "owner", "superseded", "agent_count", "approval", "baseline", "verdict", "verdict_reasons", "refused_ref", "hand_deliveries", "examination", "expenses", "repository", "title")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    WINNER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SHA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    AUDIT_HEADS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PENDING_APPROVALS_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    PARENT_EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_FIELD_NUMBER: _ClassVar[int]
    AGENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_REASONS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REF_FIELD_NUMBER: _ClassVar[int]
    HAND_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    EXAMINATION_FIELD_NUMBER: _ClassVar[int]
    EXPENSES_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    task_id: str
    kind: ExecutionKind
    status: DeliberationStatus
    role: Role
    task_description: str
    created_at_ms: int
    updated_at_ms: int
    finished_at_ms: int
    agents: _containers.RepeatedCompositeFieldContainer[AgentProgress]
    results: _containers.RepeatedCompositeFieldContainer[DeliberationResult]
    winner_id: str
    error_message: str
    commit_sha: str
    branch: str
    audit_heads: _containers.RepeatedCompositeFieldContainer[AuditHead]
    usage: Usage
    last_sequence: int
    pending_approvals: _containers.RepeatedCompositeFieldContainer[PendingApproval]
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskResult]
    parent_execution_id: str
    attempt: int
    priority: int
    caller: str
    owner: str
    superseded: _containers.RepeatedCompositeFieldContainer[DeliberationResult]
    agent_count: int
    approval: ApprovalPolicy
    baseline: Baseline
    verdict: EvidenceVerdict
    verdict_reasons: _containers.RepeatedScalarFieldContainer[str]
    refused_ref: str
    hand_deliveries: _containers.RepeatedCompositeFieldContainer[HandDelivery]
    examination: Examination
    expenses: _containers.RepeatedCompositeFieldContainer[Expense]
    repository: str
    title: str
    def __init__(self, execution_id: _Optional[str] = ..., task_id: _Optional[str] = ..., kind: _Optional[_Union[ExecutionKind, str]] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., role: _Optional[_Union[Role, str]] = ..., task_description: _Optional[str] = ..., created_at_ms: _Optional[int] = ..., updated_at_ms: _Optional[int] = ..., finished_at_ms: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[AgentProgress, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[DeliberationResult, _Mapping]]] = ..., winner_id: _Optional[str] = ..., error_message: _Optional[str] = ..., commit_sha: _Optional[str] = ..., branch: _Optional[str] = ..., audit_heads: _Optional[_Iterable[_Union[AuditHead, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., last_sequence: _Optional[int] = ..., pending_approvals: _Optional[_Iterable[_Union[PendingApproval, _Mapping]]] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskResult, _Mapping]]] = ..., parent_execution_id: _Optional[str] = ..., attempt: _Optional[int] = ..., priority: _Optional[int] = ..., caller: _Optional[str] = ..., owner: _Optional[str] = ..., superseded: _Optional[_Iterable[_Union[DeliberationResult, _Mapping]]] = ..., agent_count: _Optional[int] = ..., approval: _Optional[_Union[ApprovalPolicy, str]] = ..., baseline: _Optional[_Union[Baseline, _Mapping]] = ..., verdict: _Optional[_Union[EvidenceVerdict, str]] = ..., verdict_reasons: _Optional[_Iterable[str]] = ..., refused_ref: _Optional[str] = ..., hand_deliveries: _Optional[_Iterable[_Union[HandDelivery, _Mapping]]] = ..., examination: _Optional[_Union[Examination, _Mapping]] = ..., expenses: _Optional[_Iterable[_Union[Expense, _Mapping]]] = ..., repository: _Optional[str] = ..., title: _Optional[str] = ...) -> None: ...

class HandDelivery(_message.Message):
    __slots__ = ("candidate_id", "commit_sha", "branch", "by", "reason")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SHA_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    commit_sha: str
    branch: str
    by: str
    reason: str
    def __init__(self, candidate_id: _Optional[str] = ..., commit_sha: _Optional[str] = ..., branch: _Optional[str] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AgentProgress(_message.Message):
    __slots__ = ("agent_id", "status", "step", "last_tool", "usage", "stop_reason", "model_awaited_since")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_TOOL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    MODEL_AWAITED_SINCE_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    status: AgentStatus
    step: int
    last_tool: str
    usage: Usage
    stop_reason: StopReason
    model_awaited_since: str
    def __init__(self, agent_id: _Optional[str] = ..., status: _Optional[_Union[AgentStatus, str]] = ..., step: _Optional[int] = ..., last_tool: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., model_awaited_since: _Optional[str] = ...) -> None: ...

class AuditHead(_message.Message):
    __slots__ = ("agent_id", "hash", "signature", "key_id", "entries", "run")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    hash: str
    signature: bytes
    key_id: str
    entries: int
    run: int
    def __init__(self, agent_id: _Optional[str] = ..., hash: _Optional[str] = ..., signature: _Optional[bytes] = ..., key_id: _Optional[str] = ..., entries: _Optional[int] = ..., run: _Optional[int] = ...) -> None: ...

class AuditKey(_message.Message):
    __slots__ = ("key_id", "public_key")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    public_key: bytes
    def __init__(self, key_id: _Optional[str] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class PendingApproval(_message.Message):
    __slots__ = ("approval_id", "agent_id", "policy", "proposal", "operation", "requested_at_ms", "goal", "memory", "diff", "whole_diff", "reasons", "expires_at_ms", "memory_results")
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    WHOLE_DIFF_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESULTS_FIELD_NUMBER: _ClassVar[int]
    approval_id: str
    agent_id: str
    policy: ApprovalPolicy
    proposal: str
    operation: ToolOperation
    requested_at_ms: int
    goal: str
    memory: str
    diff: str
    whole_diff: ArtifactRef
    reasons: _containers.RepeatedScalarFieldContainer[str]
    expires_at_ms: int
    memory_results: MemoryFindings
    def __init__(self, approval_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., policy: _Optional[_Union[ApprovalPolicy, str]] = ..., proposal: _Optional[str] = ..., operation: _Optional[_Union[ToolOperation, _Mapping]] = ..., requested_at_ms: _Optional[int] = ..., goal: _Optional[str] = ..., memory: _Optional[str] = ..., diff: _Optional[str] = ..., whole_diff: _Optional[_Union[ArtifactRef, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ..., expires_at_ms: _Optional[int] = ..., memory_results: _Optional[_Union[MemoryFindings, _Mapping]] = ...) -> None: ...

class MemoryFindings(_message.Message):
    __slots__ = ("coverage", "gaps", "sources", "content")
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    coverage: float
    gaps: _containers.RepeatedScalarFieldContainer[str]
    sources: _containers.RepeatedScalarFieldContainer[str]
    content: str
    def __init__(self, coverage: _Optional[float] = ..., gaps: _Optional[_Iterable[str]] = ..., sources: _Optional[_Iterable[str]] = ..., content: _Optional[str] = ...) -> None: ...

class ExecutionEvent(_message.Message):
    __slots__ = ("sequence", "event_id", "execution_id", "task_id", "agent_id", "type", "at_ms", "payload_json")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    event_id: str
    execution_id: str
    task_id: str
    agent_id: str
    type: str
    at_ms: int
    payload_json: str
    def __init__(self, sequence: _Optional[int] = ..., event_id: _Optional[str] = ..., execution_id: _Optional[str] = ..., task_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., type: _Optional[str] = ..., at_ms: _Optional[int] = ..., payload_json: _Optional[str] = ...) -> None: ...

class GetExecutionRequest(_message.Message):
    __slots__ = ("execution_id",)
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    def __init__(self, execution_id: _Optional[str] = ...) -> None: ...

class GetExecutionResponse(_message.Message):
    __slots__ = ("execution", "audit_keys")
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    AUDIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    execution: Execution
    audit_keys: _containers.RepeatedCompositeFieldContainer[AuditKey]
    def __init__(self, execution: _Optional[_Union[Execution, _Mapping]] = ..., audit_keys: _Optional[_Iterable[_Union[AuditKey, _Mapping]]] = ...) -> None: ...

class ListExecutionsRequest(_message.Message):
    __slots__ = ("task_id", "role", "statuses", "created_after_ms", "created_before_ms", "page_size", "page_token", "text")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    role: Role
    statuses: _containers.RepeatedScalarFieldContainer[DeliberationStatus]
    created_after_ms: int
    created_before_ms: int
    page_size: int
    page_token: str
    text: str
    def __init__(self, task_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., statuses: _Optional[_Iterable[_Union[DeliberationStatus, str]]] = ..., created_after_ms: _Optional[int] = ..., created_before_ms: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ListExecutionsResponse(_message.Message):
    __slots__ = ("executions", "next_page_token")
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    executions: _containers.RepeatedCompositeFieldContainer[Execution]
    next_page_token: str
    def __init__(self, executions: _Optional[_Iterable[_Union[Execution, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class StreamExecutionRequest(_message.Message):
    __slots__ = ("execution_id", "from_sequence", "include_text")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TEXT_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    from_sequence: int
    include_text: bool
    def __init__(self, execution_id: _Optional[str] = ..., from_sequence: _Optional[int] = ..., include_text: _Optional[bool] = ...) -> None: ...

class CancelExecutionRequest(_message.Message):
    __slots__ = ("execution_id", "reason")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    reason: str
    def __init__(self, execution_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelExecutionResponse(_message.Message):
    __slots__ = ("execution_id", "status", "already_ended")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ALREADY_ENDED_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    status: DeliberationStatus
    already_ended: bool
    def __init__(self, execution_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., already_ended: _Optional[bool] = ...) -> None: ...

class ResolveApprovalRequest(_message.Message):
    __slots__ = ("execution_id", "decision", "adjustment", "approver", "approval_id", "comment")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    ADJUSTMENT_FIELD_NUMBER: _ClassVar[int]
    APPROVER_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    decision: ApprovalDecision
    adjustment: str
    approver: str
    approval_id: str
    comment: str
    def __init__(self, execution_id: _Optional[str] = ..., decision: _Optional[_Union[ApprovalDecision, str]] = ..., adjustment: _Optional[str] = ..., approver: _Optional[str] = ..., approval_id: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class ResolveApprovalResponse(_message.Message):
    __slots__ = ("execution_id", "status", "pending_approvals")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PENDING_APPROVALS_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    status: DeliberationStatus
    pending_approvals: int
    def __init__(self, execution_id: _Optional[str] = ..., status: _Optional[_Union[DeliberationStatus, str]] = ..., pending_approvals: _Optional[int] = ...) -> None: ...

class GetArtifactRequest(_message.Message):
    __slots__ = ("execution_id", "digest", "offset_bytes")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    digest: str
    offset_bytes: int
    def __init__(self, execution_id: _Optional[str] = ..., digest: _Optional[str] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class GetArtifactResponse(_message.Message):
    __slots__ = ("artifact", "chunk")
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    artifact: ArtifactRef
    chunk: bytes
    def __init__(self, artifact: _Optional[_Union[ArtifactRef, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadRepositoryRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UploadRepositoryHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[UploadRepositoryHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class UploadRepositoryHeader(_message.Message):
    __slots__ = ("digest", "size_bytes", "ref", "commit", "subdirectory")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SUBDIRECTORY_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    ref: str
    commit: str
    subdirectory: str
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., ref: _Optional[str] = ..., commit: _Optional[str] = ..., subdirectory: _Optional[str] = ...) -> None: ...

class RegisterAgentRequest(_message.Message):
    __slots__ = ("agent_id", "role", "capabilities", "endpoint", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    role: str
    capabilities: AgentCapabilities
    endpoint: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, agent_id: _Optional[str] = ..., role: _Optional[str] = ..., capabilities: _Optional[_Union[AgentCapabilities, _Mapping]] = ..., endpoint: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RegisterAgentResponse(_message.Message):
    __slots__ = ("success", "message", "council_id")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COUNCIL_ID_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    council_id: str
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ..., council_id: _Optional[str] = ...) -> None: ...

class AgentCapabilities(_message.Message):
    __slots__ = ("supported_tasks", "model_profile", "max_concurrent_tasks", "languages")
    SUPPORTED_TASKS_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_TASKS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    supported_tasks: _containers.RepeatedScalarFieldContainer[str]
    model_profile: str
    max_concurrent_tasks: int
    languages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, supported_tasks: _Optional[_Iterable[str]] = ..., model_profile: _Optional[str] = ..., max_concurrent_tasks: _Optional[int] = ..., languages: _Optional[_Iterable[str]] = ...) -> None: ...

class UnregisterAgentRequest(_message.Message):
    __slots__ = ("agent_id", "role")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    role: str
    def __init__(self, agent_id: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class UnregisterAgentResponse(_message.Message):
    __slots__ = ("success", "message")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class CreateCouncilRequest(_message.Message):
    __slots__ = ("role", "num_agents", "config")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NUM_AGENTS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    role: str
    num_agents: int
    config: CouncilConfig
    def __init__(self, role: _Optional[str] = ..., num_agents: _Optional[int] = ..., config: _Optional[_Union[CouncilConfig, _Mapping]] = ...) -> None: ...

class CreateCouncilResponse(_message.Message):
    __slots__ = ("council_id", "agents_created", "agent_ids")
    COUNCIL_ID_FIELD_NUMBER: _ClassVar[int]
    AGENTS_CREATED_FIELD_NUMBER: _ClassVar[int]
    AGENT_IDS_FIELD_NUMBER: _ClassVar[int]
    council_id: str
    agents_created: int
    agent_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, council_id: _Optional[str] = ..., agents_created: _Optional[int] = ..., agent_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CouncilConfig(_message.Message):
    __slots__ = ("deliberation_rounds", "enable_peer_review", "model_profile", "custom_params", "agent_type")
    class CustomParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DELIBERATION_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_PEER_REVIEW_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_PARAMS_FIELD_NUMBER: _ClassVar[int]
    AGENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    deliberation_rounds: int
    enable_peer_review: bool
    model_profile: str
    custom_params: _containers.ScalarMap[str, str]
    agent_type: str
    def __init__(self, deliberation_rounds: _Optional[int] = ..., enable_peer_review: _Optional[bool] = ..., model_profile: _Optional[str] = ..., custom_params: _Optional[_Mapping[str, str]] = ..., agent_type: _Optional[str] = ...) -> None: ...

class ListCouncilsRequest(_message.Message):
    __slots__ = ("role_filter", "include_agents")
    ROLE_FILTER_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_AGENTS_FIELD_NUMBER: _ClassVar[int]
    role_filter: str
    include_agents: bool
    def __init__(self, role_filter: _Optional[str] = ..., include_agents: _Optional[bool] = ...) -> None: ...

class ListCouncilsResponse(_message.Message):
    __slots__ = ("councils",)
    COUNCILS_FIELD_NUMBER: _ClassVar[int]
    councils: _containers.RepeatedCompositeFieldContainer[CouncilInfo]
    def __init__(self, councils: _Optional[_Iterable[_Union[CouncilInfo, _Mapping]]] = ...) -> None: ...

class CouncilInfo(_message.Message):
    __slots__ = ("council_id", "role", "num_agents", "agents", "status", "model")
    COUNCIL_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NUM_AGENTS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    council_id: str
    role: str
    num_agents: int
    agents: _containers.RepeatedCompositeFieldContainer[AgentInfo]
    status: str
    model: str
    def __init__(self, council_id: _Optional[str] = ..., role: _Optional[str] = ..., num_agents: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[AgentInfo, _Mapping]]] = ..., status: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class AgentInfo(_message.Message):
    __slots__ = ("agent_id", "capabilities", "endpoint", "metadata", "registered_at_ms", "running_tasks")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_TASKS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    capabilities: AgentCapabilities
    endpoint: str
    metadata: _containers.ScalarMap[str, str]
    registered_at_ms: int
    running_tasks: int
    def __init__(self, agent_id: _Optional[str] = ..., capabilities: _Optional[_Union[AgentCapabilities, _Mapping]] = ..., endpoint: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., registered_at_ms: _Optional[int] = ..., running_tasks: _Optional[int] = ...) -> None: ...

class DeleteCouncilRequest(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: str
    def __init__(self, role: _Optional[str] = ...) -> None: ...

class DeleteCouncilResponse(_message.Message):
    __slots__ = ("success", "message", "agents_removed")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    agents_removed: int
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ..., agents_removed: _Optional[int] = ...) -> None: ...

class ProcessPlanningEventRequest(_message.Message):
    __slots__ = ("event_id", "event_type", "case_id", "story_id", "plan_id", "task_id", "task_description", "roles", "repo", "payload", "dispatch", "occurred_at_ms")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_FIELD_NUMBER: _ClassVar[int]
    OCCURRED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    event_type: str
    case_id: str
    story_id: str
    plan_id: str
    task_id: str
    task_description: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    repo: RepoRef
    payload: _struct_pb2.Struct
    dispatch: bool
    occurred_at_ms: int
    def __init__(self, event_id: _Optional[str] = ..., event_type: _Optional[str] = ..., case_id: _Optional[str] = ..., story_id: _Optional[str] = ..., plan_id: _Optional[str] = ..., task_id: _Optional[str] = ..., task_description: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., repo: _Optional[_Union[RepoRef, _Mapping]] = ..., payload: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., dispatch: _Optional[bool] = ..., occurred_at_ms: _Optional[int] = ...) -> None: ...

class ProcessPlanningEventResponse(_message.Message):
    __slots__ = ("event_id", "accepted", "message", "derivation_id", "tasks", "execution_id")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DERIVATION_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    accepted: bool
    message: str
    derivation_id: str
    tasks: _containers.RepeatedCompositeFieldContainer[AtomicTask]
    execution_id: str
    def __init__(self, event_id: _Optional[str] = ..., accepted: _Optional[bool] = ..., message: _Optional[str] = ..., derivation_id: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[AtomicTask, _Mapping]]] = ..., execution_id: _Optional[str] = ...) -> None: ...

class DeriveSubtasksRequest(_message.Message):
    __slots__ = ("case_id", "plan_id", "roles", "strategy", "task_description", "repo")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    plan_id: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    strategy: str
    task_description: str
    repo: RepoRef
    def __init__(self, case_id: _Optional[str] = ..., plan_id: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., strategy: _Optional[str] = ..., task_description: _Optional[str] = ..., repo: _Optional[_Union[RepoRef, _Mapping]] = ...) -> None: ...

class DeriveSubtasksResponse(_message.Message):
    __slots__ = ("tasks", "derivation_id", "total_tasks")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DERIVATION_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[AtomicTask]
    derivation_id: str
    total_tasks: int
    def __init__(self, tasks: _Optional[_Iterable[_Union[AtomicTask, _Mapping]]] = ..., derivation_id: _Optional[str] = ..., total_tasks: _Optional[int] = ...) -> None: ...

class AtomicTask(_message.Message):
    __slots__ = ("task_id", "role", "description", "dependencies", "constraints", "case_id", "plan_id", "priority")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    role: str
    description: str
    dependencies: _containers.RepeatedScalarFieldContainer[str]
    constraints: TaskConstraints
    case_id: str
    plan_id: str
    priority: int
    def __init__(self, task_id: _Optional[str] = ..., role: _Optional[str] = ..., description: _Optional[str] = ..., dependencies: _Optional[_Iterable[str]] = ..., constraints: _Optional[_Union[TaskConstraints, _Mapping]] = ..., case_id: _Optional[str] = ..., plan_id: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class GetTaskContextRequest(_message.Message):
    __slots__ = ("task_id", "case_id", "story_id", "role", "phase", "options", "repo", "token_budget")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REPO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    case_id: str
    story_id: str
    role: str
    phase: str
    options: GetContextOptions
    repo: RepoRef
    token_budget: int
    def __init__(self, task_id: _Optional[str] = ..., case_id: _Optional[str] = ..., story_id: _Optional[str] = ..., role: _Optional[str] = ..., phase: _Optional[str] = ..., options: _Optional[_Union[GetContextOptions, _Mapping]] = ..., repo: _Optional[_Union[RepoRef, _Mapping]] = ..., token_budget: _Optional[int] = ...) -> None: ...

class GetTaskContextResponse(_message.Message):
    __slots__ = ("context_text", "blocks", "token_count", "version_hash", "model")
    CONTEXT_TEXT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERSION_HASH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    context_text: str
    blocks: ContextBlocks
    token_count: int
    version_hash: str
    model: str
    def __init__(self, context_text: _Optional[str] = ..., blocks: _Optional[_Union[ContextBlocks, _Mapping]] = ..., token_count: _Optional[int] = ..., version_hash: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class ContextBlocks(_message.Message):
    __slots__ = ("system", "context", "tools", "history")
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    system: str
    context: str
    tools: str
    history: str
    def __init__(self, system: _Optional[str] = ..., context: _Optional[str] = ..., tools: _Optional[str] = ..., history: _Optional[str] = ...) -> None: ...

class GetContextOptions(_message.Message):
    __slots__ = ("include_repository_map", "include_decisions", "include_history", "include_instructions", "model_profile")
    INCLUDE_REPOSITORY_MAP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DECISIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_HISTORY_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    include_repository_map: bool
    include_decisions: bool
    include_history: bool
    include_instructions: bool
    model_profile: str
    def __init__(self, include_repository_map: _Optional[bool] = ..., include_decisions: _Optional[bool] = ..., include_history: _Optional[bool] = ..., include_instructions: _Optional[bool] = ..., model_profile: _Optional[str] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("include_stats", "include_fleet")
    INCLUDE_STATS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FLEET_FIELD_NUMBER: _ClassVar[int]
    include_stats: bool
    include_fleet: bool
    def __init__(self, include_stats: _Optional[bool] = ..., include_fleet: _Optional[bool] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status", "uptime_seconds", "stats", "components", "hosts", "nodes", "model_endpoints", "queue", "replicas", "storage", "measured_at_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MODEL_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    status: str
    uptime_seconds: int
    stats: OrchestratorStats
    components: _containers.RepeatedCompositeFieldContainer[ComponentStatus]
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    model_endpoints: _containers.RepeatedCompositeFieldContainer[ModelEndpointStatus]
    queue: QueueStatus
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaStatus]
    storage: _containers.RepeatedCompositeFieldContainer[StorageStatus]
    measured_at_ms: int
    def __init__(self, status: _Optional[str] = ..., uptime_seconds: _Optional[int] = ..., stats: _Optional[_Union[OrchestratorStats, _Mapping]] = ..., components: _Optional[_Iterable[_Union[ComponentStatus, _Mapping]]] = ..., hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., model_endpoints: _Optional[_Iterable[_Union[ModelEndpointStatus, _Mapping]]] = ..., queue: _Optional[_Union[QueueStatus, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaStatus, _Mapping]]] = ..., storage: _Optional[_Iterable[_Union[StorageStatus, _Mapping]]] = ..., measured_at_ms: _Optional[int] = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("host_id", "node_id", "replica", "running", "slots", "started_at_ms", "alive", "memory_bytes", "draining", "version")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    node_id: str
    replica: str
    running: int
    slots: int
    started_at_ms: int
    alive: bool
    memory_bytes: int
    draining: bool
    version: str
    def __init__(self, host_id: _Optional[str] = ..., node_id: _Optional[str] = ..., replica: _Optional[str] = ..., running: _Optional[int] = ..., slots: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., alive: _Optional[bool] = ..., memory_bytes: _Optional[int] = ..., draining: _Optional[bool] = ..., version: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "name", "alive", "cpus", "cpu_percent", "memory_total_bytes", "memory_used_bytes", "gpu_count", "gpus", "draining", "unfit")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    name: str
    alive: bool
    cpus: int
    cpu_percent: float
    memory_total_bytes: int
    memory_used_bytes: int
    gpu_count: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuStatus]
    draining: bool
    unfit: str
    def __init__(self, node_id: _Optional[str] = ..., name: _Optional[str] = ..., alive: _Optional[bool] = ..., cpus: _Optional[int] = ..., cpu_percent: _Optional[float] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., gpu_count: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuStatus, _Mapping]]] = ..., draining: _Optional[bool] = ..., unfit: _Optional[str] = ...) -> None: ...

class GpuStatus(_message.Message):
    __slots__ = ("index", "name", "utilization_percent", "memory_total_bytes", "memory_used_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    name: str
    utilization_percent: float
    memory_total_bytes: int
    memory_used_bytes: int
    def __init__(self, index: _Optional[int] = ..., name: _Optional[str] = ..., utilization_percent: _Optional[float] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ...) -> None: ...

class ModelEndpointStatus(_message.Message):
    __slots__ = ("url", "state", "message", "model", "profiles", "running", "waiting", "kv_cache_usage", "prefix_cache_hit_rate", "in_flight", "sessions", "latency_ms")
    URL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    url: str
    state: ComponentState
    message: str
    model: str
    profiles: _containers.RepeatedScalarFieldContainer[str]
    running: int
    waiting: int
    kv_cache_usage: float
    prefix_cache_hit_rate: float
    in_flight: int
    sessions: int
    latency_ms: float
    def __init__(self, url: _Optional[str] = ..., state: _Optional[_Union[ComponentState, str]] = ..., message: _Optional[str] = ..., model: _Optional[str] = ..., profiles: _Optional[_Iterable[str]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., prefix_cache_hit_rate: _Optional[float] = ..., in_flight: _Optional[int] = ..., sessions: _Optional[int] = ..., latency_ms: _Optional[float] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("waiting", "waiting_by_priority", "oldest_wait_ms", "max_waiting", "driven", "awaiting_approval")
    class WaitingByPriorityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    DRIVEN_FIELD_NUMBER: _ClassVar[int]
    AWAITING_APPROVAL_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    waiting_by_priority: _containers.ScalarMap[int, int]
    oldest_wait_ms: int
    max_waiting: int
    driven: int
    awaiting_approval: int
    def __init__(self, waiting: _Optional[int] = ..., waiting_by_priority: _Optional[_Mapping[int, int]] = ..., oldest_wait_ms: _Optional[int] = ..., max_waiting: _Optional[int] = ..., driven: _Optional[int] = ..., awaiting_approval: _Optional[int] = ...) -> None: ...

class ReplicaStatus(_message.Message):
    __slots__ = ("name", "driven", "answering", "started_at_ms", "draining", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRIVEN_FIELD_NUMBER: _ClassVar[int]
    ANSWERING_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    driven: int
    answering: bool
    started_at_ms: int
    draining: bool
    version: str
    def __init__(self, name: _Optional[str] = ..., driven: _Optional[int] = ..., answering: _Optional[bool] = ..., started_at_ms: _Optional[int] = ..., draining: _Optional[bool] = ..., version: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("target", "name", "undo", "within_seconds")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    WITHIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    target: DrainTarget
    name: str
    undo: bool
    within_seconds: int
    def __init__(self, target: _Optional[_Union[DrainTarget, str]] = ..., name: _Optional[str] = ..., undo: _Optional[bool] = ..., within_seconds: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("name", "draining", "waits_for")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    draining: bool
    waits_for: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., draining: _Optional[bool] = ..., waits_for: _Optional[_Iterable[str]] = ...) -> None: ...

class StorageStatus(_message.Message):
    __slots__ = ("name", "messages", "bytes", "max_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    messages: int
    bytes: int
    max_bytes: int
    def __init__(self, name: _Optional[str] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class OrchestratorStats(_message.Message):
    __slots__ = ("total_deliberations", "total_orchestrations", "avg_deliberation_time_ms", "active_councils", "role_counts")
    class RoleCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_DELIBERATIONS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ORCHESTRATIONS_FIELD_NUMBER: _ClassVar[int]
    AVG_DELIBERATION_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_COUNCILS_FIELD_NUMBER: _ClassVar[int]
    ROLE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    total_deliberations: int
    total_orchestrations: int
    avg_deliberation_time_ms: float
    active_councils: int
    role_counts: _containers.ScalarMap[str, int]
    def __init__(self, total_deliberations: _Optional[int] = ..., total_orchestrations: _Optional[int] = ..., avg_deliberation_time_ms: _Optional[float] = ..., active_councils: _Optional[int] = ..., role_counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ComponentStatus(_message.Message):
    __slots__ = ("name", "state", "message", "version", "latency_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LATENCY_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: ComponentState
    message: str
    version: str
    latency_ms: float
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[ComponentState, str]] = ..., message: _Optional[str] = ..., version: _Optional[str] = ..., latency_ms: _Optional[float] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ("start_time_ms", "end_time_ms", "role", "step_seconds")
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    start_time_ms: int
    end_time_ms: int
    role: Role
    step_seconds: int
    def __init__(self, start_time_ms: _Optional[int] = ..., end_time_ms: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., step_seconds: _Optional[int] = ...) -> None: ...

class GetMetricsResponse(_message.Message):
    __slots__ = ("start_time_ms", "end_time_ms", "latencies", "agents", "councils", "usage", "cache_hit_rate", "executions", "series", "step_seconds", "models", "tools", "quantile_error", "incomplete", "takeovers")
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    LATENCIES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    COUNCILS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_RATE_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    QUANTILE_ERROR_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    TAKEOVERS_FIELD_NUMBER: _ClassVar[int]
    start_time_ms: int
    end_time_ms: int
    latencies: _containers.RepeatedCompositeFieldContainer[LatencySummary]
    agents: AgentMetrics
    councils: CouncilMetrics
    usage: Usage
    cache_hit_rate: float
    executions: _containers.RepeatedCompositeFieldContainer[StatusCount]
    series: _containers.RepeatedCompositeFieldContainer[MetricsPoint]
    step_seconds: int
    models: _containers.RepeatedCompositeFieldContainer[ModelMetrics]
    tools: _containers.RepeatedCompositeFieldContainer[ToolMetrics]
    quantile_error: float
    incomplete: bool
    takeovers: int
    def __init__(self, start_time_ms: _Optional[int] = ..., end_time_ms: _Optional[int] = ..., latencies: _Optional[_Iterable[_Union[LatencySummary, _Mapping]]] = ..., agents: _Optional[_Union[AgentMetrics, _Mapping]] = ..., councils: _Optional[_Union[CouncilMetrics, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., cache_hit_rate: _Optional[float] = ..., executions: _Optional[_Iterable[_Union[StatusCount, _Mapping]]] = ..., series: _Optional[_Iterable[_Union[MetricsPoint, _Mapping]]] = ..., step_seconds: _Optional[int] = ..., models: _Optional[_Iterable[_Union[ModelMetrics, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ToolMetrics, _Mapping]]] = ..., quantile_error: _Optional[float] = ..., incomplete: _Optional[bool] = ..., takeovers: _Optional[int] = ...) -> None: ...

class MetricsPoint(_message.Message):
    __slots__ = ("start_time_ms", "accepted", "ended", "agents_running", "executions_running", "queue_length", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "model_calls", "tool_calls", "tool_failures", "model_call_p50_ms", "model_call_p95_ms")
    START_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    EXECUTIONS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_FAILURES_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALL_P50_MS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALL_P95_MS_FIELD_NUMBER: _ClassVar[int]
    start_time_ms: int
    accepted: int
    ended: _containers.RepeatedCompositeFieldContainer[StatusCount]
    agents_running: int
    executions_running: int
    queue_length: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float
    model_calls: int
    tool_calls: int
    tool_failures: int
    model_call_p50_ms: float
    model_call_p95_ms: float
    def __init__(self, start_time_ms: _Optional[int] = ..., accepted: _Optional[int] = ..., ended: _Optional[_Iterable[_Union[StatusCount, _Mapping]]] = ..., agents_running: _Optional[int] = ..., executions_running: _Optional[int] = ..., queue_length: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ..., model_calls: _Optional[int] = ..., tool_calls: _Optional[int] = ..., tool_failures: _Optional[int] = ..., model_call_p50_ms: _Optional[float] = ..., model_call_p95_ms: _Optional[float] = ...) -> None: ...

class ModelMetrics(_message.Message):
    __slots__ = ("model", "calls", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "p50_ms", "p95_ms")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost_usd: float
    p50_ms: float
    p95_ms: float
    def __init__(self, model: _Optional[str] = ..., calls: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ..., p50_ms: _Optional[float] = ..., p95_ms: _Optional[float] = ...) -> None: ...

class ToolMetrics(_message.Message):
    __slots__ = ("name", "calls", "failures", "p50_ms", "p95_ms", "cached", "outcomes")
    class OutcomesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    calls: int
    failures: int
    p50_ms: float
    p95_ms: float
    cached: int
    outcomes: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., calls: _Optional[int] = ..., failures: _Optional[int] = ..., p50_ms: _Optional[float] = ..., p95_ms: _Optional[float] = ..., cached: _Optional[int] = ..., outcomes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LatencySummary(_message.Message):
    __slots__ = ("operation", "count", "p50_ms", "p95_ms", "p99_ms")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P95_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    operation: str
    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    def __init__(self, operation: _Optional[str] = ..., count: _Optional[int] = ..., p50_ms: _Optional[float] = ..., p95_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ...) -> None: ...

class AgentMetrics(_message.Message):
    __slots__ = ("running", "started", "succeeded", "failed", "cancelled", "lost", "stops", "loops")
    class StopsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LoopsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    LOOPS_FIELD_NUMBER: _ClassVar[int]
    running: int
    started: int
    succeeded: int
    failed: int
    cancelled: int
    lost: int
    stops: _containers.ScalarMap[str, int]
    loops: _containers.ScalarMap[str, int]
    def __init__(self, running: _Optional[int] = ..., started: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., lost: _Optional[int] = ..., stops: _Optional[_Mapping[str, int]] = ..., loops: _Optional[_Mapping[str, int]] = ...) -> None: ...

class CouncilMetrics(_message.Message):
    __slots__ = ("total", "active", "agents")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    total: int
    active: int
    agents: int
    def __init__(self, total: _Optional[int] = ..., active: _Optional[int] = ..., agents: _Optional[int] = ...) -> None: ...

class StatusCount(_message.Message):
    __slots__ = ("status", "count")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    status: DeliberationStatus
    count: int
    def __init__(self, status: _Optional[_Union[DeliberationStatus, str]] = ..., count: _Optional[int] = ...) -> None: ...

class EraseRequest(_message.Message):
    __slots__ = ("execution_id", "caller", "tenant", "memories", "reason", "dry_run", "cancel")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MEMORIES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    caller: str
    tenant: str
    memories: ErasedMemories
    reason: str
    dry_run: bool
    cancel: bool
    def __init__(self, execution_id: _Optional[str] = ..., caller: _Optional[str] = ..., tenant: _Optional[str] = ..., memories: _Optional[_Union[ErasedMemories, _Mapping]] = ..., reason: _Optional[str] = ..., dry_run: _Optional[bool] = ..., cancel: _Optional[bool] = ...) -> None: ...

class ErasedMemories(_message.Message):
    __slots__ = ("memory_ids", "namespaces")
    MEMORY_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    memory_ids: _containers.RepeatedScalarFieldContainer[str]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, memory_ids: _Optional[_Iterable[str]] = ..., namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class EraseResponse(_message.Message):
    __slots__ = ("record_id", "execution_ids", "stores")
    RECORD_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_IDS_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    record_id: str
    execution_ids: _containers.RepeatedScalarFieldContainer[str]
    stores: _containers.RepeatedCompositeFieldContainer[ErasedStore]
    def __init__(self, record_id: _Optional[str] = ..., execution_ids: _Optional[_Iterable[str]] = ..., stores: _Optional[_Iterable[_Union[ErasedStore, _Mapping]]] = ...) -> None: ...

class ErasedStore(_message.Message):
    __slots__ = ("store", "items", "bytes")
    STORE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    store: str
    items: int
    bytes: int
    def __init__(self, store: _Optional[str] = ..., items: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
