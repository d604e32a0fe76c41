from fleet.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_DEV: _ClassVar[Role]
    ROLE_QA: _ClassVar[Role]
    ROLE_ARCHITECT: _ClassVar[Role]
    ROLE_DEVOPS: _ClassVar[Role]
    ROLE_DATA: _ClassVar[Role]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PLAN: _ClassVar[Phase]
    PHASE_DESIGN: _ClassVar[Phase]
    PHASE_BUILD: _ClassVar[Phase]
    PHASE_TEST: _ClassVar[Phase]
    PHASE_REVIEW: _ClassVar[Phase]
    PHASE_DONE: _ClassVar[Phase]

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_OPEN: _ClassVar[TaskState]
    TASK_STATE_IN_PROGRESS: _ClassVar[TaskState]
    TASK_STATE_DONE: _ClassVar[TaskState]
    TASK_STATE_DROPPED: _ClassVar[TaskState]

class DecisionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_STATE_UNSPECIFIED: _ClassVar[DecisionState]
    DECISION_STATE_PROPOSED: _ClassVar[DecisionState]
    DECISION_STATE_ACCEPTED: _ClassVar[DecisionState]
    DECISION_STATE_SUPERSEDED: _ClassVar[DecisionState]

class RelationKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELATION_KIND_UNSPECIFIED: _ClassVar[RelationKind]
    RELATION_KIND_CONTAINS: _ClassVar[RelationKind]
    RELATION_KIND_DEPENDS_ON: _ClassVar[RelationKind]
    RELATION_KIND_AFFECTS: _ClassVar[RelationKind]
    RELATION_KIND_SUPERSEDES: _ClassVar[RelationKind]
    RELATION_KIND_WORKED_ON: _ClassVar[RelationKind]
    RELATION_KIND_CHANGED: _ClassVar[RelationKind]
    RELATION_KIND_PART_OF: _ClassVar[RelationKind]

class MemoryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_KIND_UNSPECIFIED: _ClassVar[MemoryKind]
    MEMORY_KIND_FACT: _ClassVar[MemoryKind]
    MEMORY_KIND_INTERACTION: _ClassVar[MemoryKind]
    MEMORY_KIND_OUTCOME: _ClassVar[MemoryKind]
ROLE_UNSPECIFIED: Role
ROLE_DEV: Role
ROLE_QA: Role
ROLE_ARCHITECT: Role
ROLE_DEVOPS: Role
ROLE_DATA: Role
PHASE_UNSPECIFIED: Phase
PHASE_PLAN: Phase
PHASE_DESIGN: Phase
PHASE_BUILD: Phase
PHASE_TEST: Phase
PHASE_REVIEW: Phase
PHASE_DONE: Phase
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_OPEN: TaskState
TASK_STATE_IN_PROGRESS: TaskState
TASK_STATE_DONE: TaskState
TASK_STATE_DROPPED: TaskState
DECISION_STATE_UNSPECIFIED: DecisionState
DECISION_STATE_PROPOSED: DecisionState
DECISION_STATE_ACCEPTED: DecisionState
DECISION_STATE_SUPERSEDED: DecisionState
RELATION_KIND_UNSPECIFIED: RelationKind
RELATION_KIND_CONTAINS: RelationKind
RELATION_KIND_DEPENDS_ON: RelationKind
RELATION_KIND_AFFECTS: RelationKind
RELATION_KIND_SUPERSEDES: RelationKind
RELATION_KIND_WORKED_ON: RelationKind
RELATION_KIND_CHANGED: RelationKind
RELATION_KIND_PART_OF: RelationKind
MEMORY_KIND_UNSPECIFIED: MemoryKind
MEMORY_KIND_FACT: MemoryKind
MEMORY_KIND_INTERACTION: MemoryKind
MEMORY_KIND_OUTCOME: MemoryKind

class Story(_message.Message):
    __slots__ = ("story_id", "title", "description", "acceptance_criteria", "case_id", "phase", "notes", "created_at_ms", "updated_at_ms")
    class NotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_CRITERIA_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    story_id: str
    title: str
    description: str
    acceptance_criteria: _containers.RepeatedScalarFieldContainer[str]
    case_id: str
    phase: Phase
    notes: _containers.ScalarMap[str, str]
    created_at_ms: int
    updated_at_ms: int
    def __init__(self, story_id: _Optional[str] = ..., title: _Optional[str] = ..., description: _Optional[str] = ..., acceptance_criteria: _Optional[_Iterable[str]] = ..., case_id: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., notes: _Optional[_Mapping[str, str]] = ..., created_at_ms: _Optional[int] = ..., updated_at_ms: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "story_id", "title", "description", "role", "state", "depends_on", "created_at_ms", "updated_at_ms")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    story_id: str
    title: str
    description: str
    role: Role
    state: TaskState
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    created_at_ms: int
    updated_at_ms: int
    def __init__(self, task_id: _Optional[str] = ..., story_id: _Optional[str] = ..., title: _Optional[str] = ..., description: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., state: _Optional[_Union[TaskState, str]] = ..., depends_on: _Optional[_Iterable[str]] = ..., created_at_ms: _Optional[int] = ..., updated_at_ms: _Optional[int] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("decision_id", "story_id", "title", "rationale", "alternatives", "state", "decided_by", "supersedes", "roles", "task_ids", "created_at_ms")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    RATIONALE_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDES_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    story_id: str
    title: str
    rationale: str
    alternatives: _containers.RepeatedScalarFieldContainer[str]
    state: DecisionState
    decided_by: str
    supersedes: str
    roles: _containers.RepeatedScalarFieldContainer[Role]
    task_ids: _containers.RepeatedScalarFieldContainer[str]
    created_at_ms: int
    def __init__(self, decision_id: _Optional[str] = ..., story_id: _Optional[str] = ..., title: _Optional[str] = ..., rationale: _Optional[str] = ..., alternatives: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[DecisionState, str]] = ..., decided_by: _Optional[str] = ..., supersedes: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[Role, str]]] = ..., task_ids: _Optional[_Iterable[str]] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class TestSummary(_message.Message):
    __slots__ = ("passed", "failed", "errors", "skipped", "duration_ms", "failing")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    passed: int
    failed: int
    errors: int
    skipped: int
    duration_ms: int
    failing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, passed: _Optional[int] = ..., failed: _Optional[int] = ..., errors: _Optional[int] = ..., skipped: _Optional[int] = ..., duration_ms: _Optional[int] = ..., failing: _Optional[_Iterable[str]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "tool_calls", "duration_ms", "cost", "cost_usd")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    model_calls: int
    tool_calls: int
    duration_ms: int
    cost: float
    cost_usd: float
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., model_calls: _Optional[int] = ..., tool_calls: _Optional[int] = ..., duration_ms: _Optional[int] = ..., cost: _Optional[float] = ..., cost_usd: _Optional[float] = ...) -> None: ...

class WorkRecord(_message.Message):
    __slots__ = ("execution_id", "task_id", "story_id", "case_id", "plan_id", "kind", "role", "repository", "instruction", "status", "summary", "commits", "branch", "files_changed", "operations", "tests", "checks", "parent_execution_id", "usage", "duration_ms", "ended_at_ms", "verdict")
    class OperationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ChecksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    PLAN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    FILES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    PARENT_EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    task_id: str
    story_id: str
    case_id: str
    plan_id: str
    kind: str
    role: str
    repository: str
    instruction: str
    status: str
    summary: str
    commits: _containers.RepeatedScalarFieldContainer[str]
    branch: str
    files_changed: _containers.RepeatedScalarFieldContainer[str]
    operations: _containers.ScalarMap[str, int]
    tests: TestSummary
    checks: _containers.ScalarMap[str, str]
    parent_execution_id: str
    usage: Usage
    duration_ms: int
    ended_at_ms: int
    verdict: str
    def __init__(self, execution_id: _Optional[str] = ..., task_id: _Optional[str] = ..., story_id: _Optional[str] = ..., case_id: _Optional[str] = ..., plan_id: _Optional[str] = ..., kind: _Optional[str] = ..., role: _Optional[str] = ..., repository: _Optional[str] = ..., instruction: _Optional[str] = ..., status: _Optional[str] = ..., summary: _Optional[str] = ..., commits: _Optional[_Iterable[str]] = ..., branch: _Optional[str] = ..., files_changed: _Optional[_Iterable[str]] = ..., operations: _Optional[_Mapping[str, int]] = ..., tests: _Optional[_Union[TestSummary, _Mapping]] = ..., checks: _Optional[_Mapping[str, str]] = ..., parent_execution_id: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., duration_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., verdict: _Optional[str] = ...) -> None: ...

class Relation(_message.Message):
    __slots__ = ("source", "kind", "target")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    source: str
    kind: RelationKind
    target: str
    def __init__(self, source: _Optional[str] = ..., kind: _Optional[_Union[RelationKind, str]] = ..., target: _Optional[str] = ...) -> None: ...

class ContextBlock(_message.Message):
    __slots__ = ("kind", "title", "text", "tokens", "relevance")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    title: str
    text: str
    tokens: int
    relevance: float
    def __init__(self, kind: _Optional[str] = ..., title: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[int] = ..., relevance: _Optional[float] = ...) -> None: ...

class GetContextRequest(_message.Message):
    __slots__ = ("case_id", "story_id", "task_id", "role", "phase", "query", "token_budget", "include_decisions", "include_history", "namespaces", "entities")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DECISIONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_HISTORY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    story_id: str
    task_id: str
    role: Role
    phase: Phase
    query: str
    token_budget: int
    include_decisions: bool
    include_history: bool
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    entities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, case_id: _Optional[str] = ..., story_id: _Optional[str] = ..., task_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., phase: _Optional[_Union[Phase, str]] = ..., query: _Optional[str] = ..., token_budget: _Optional[int] = ..., include_decisions: _Optional[bool] = ..., include_history: _Optional[bool] = ..., namespaces: _Optional[_Iterable[str]] = ..., entities: _Optional[_Iterable[str]] = ...) -> None: ...

class GetContextResponse(_message.Message):
    __slots__ = ("context_text", "blocks", "token_count", "version_hash", "omitted", "recalled", "version")
    CONTEXT_TEXT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERSION_HASH_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    context_text: str
    blocks: _containers.RepeatedCompositeFieldContainer[ContextBlock]
    token_count: int
    version_hash: str
    omitted: _containers.RepeatedScalarFieldContainer[str]
    recalled: _containers.RepeatedCompositeFieldContainer[Recollection]
    version: int
    def __init__(self, context_text: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[ContextBlock, _Mapping]]] = ..., token_count: _Optional[int] = ..., version_hash: _Optional[str] = ..., omitted: _Optional[_Iterable[str]] = ..., recalled: _Optional[_Iterable[_Union[Recollection, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class Texts(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateContextRequest(_message.Message):
    __slots__ = ("story_id", "task_id", "title", "description", "acceptance_criteria", "state", "notes", "role", "depends_on", "decision_id", "decision_state", "expected_version")
    class NotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_CRITERIA_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_STATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    story_id: str
    task_id: str
    title: str
    description: str
    acceptance_criteria: Texts
    state: TaskState
    notes: _containers.ScalarMap[str, str]
    role: Role
    depends_on: Texts
    decision_id: str
    decision_state: DecisionState
    expected_version: int
    def __init__(self, story_id: _Optional[str] = ..., task_id: _Optional[str] = ..., title: _Optional[str] = ..., description: _Optional[str] = ..., acceptance_criteria: _Optional[_Union[Texts, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., notes: _Optional[_Mapping[str, str]] = ..., role: _Optional[_Union[Role, str]] = ..., depends_on: _Optional[_Union[Texts, _Mapping]] = ..., decision_id: _Optional[str] = ..., decision_state: _Optional[_Union[DecisionState, str]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class UpdateContextResponse(_message.Message):
    __slots__ = ("version", "story", "task", "decision")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    version: int
    story: Story
    task: Task
    decision: Decision
    def __init__(self, version: _Optional[int] = ..., story: _Optional[_Union[Story, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...

class RehydrateSessionRequest(_message.Message):
    __slots__ = ("case_id", "story_id", "role", "token_budget")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    story_id: str
    role: Role
    token_budget: int
    def __init__(self, case_id: _Optional[str] = ..., story_id: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., token_budget: _Optional[int] = ...) -> None: ...

class RehydrateSessionResponse(_message.Message):
    __slots__ = ("case_id", "stories", "context")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    stories: _containers.RepeatedCompositeFieldContainer[StorySession]
    context: GetContextResponse
    def __init__(self, case_id: _Optional[str] = ..., stories: _Optional[_Iterable[_Union[StorySession, _Mapping]]] = ..., context: _Optional[_Union[GetContextResponse, _Mapping]] = ...) -> None: ...

class StorySession(_message.Message):
    __slots__ = ("story", "version", "open_tasks", "ready", "decisions", "work", "phases", "next_steps")
    STORY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_TASKS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEPS_FIELD_NUMBER: _ClassVar[int]
    story: Story
    version: int
    open_tasks: _containers.RepeatedCompositeFieldContainer[Task]
    ready: _containers.RepeatedScalarFieldContainer[str]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    work: _containers.RepeatedCompositeFieldContainer[WorkRecord]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseStep]
    next_steps: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, story: _Optional[_Union[Story, _Mapping]] = ..., version: _Optional[int] = ..., open_tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., ready: _Optional[_Iterable[str]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., work: _Optional[_Iterable[_Union[WorkRecord, _Mapping]]] = ..., phases: _Optional[_Iterable[_Union[PhaseStep, _Mapping]]] = ..., next_steps: _Optional[_Iterable[str]] = ...) -> None: ...

class PhaseStep(_message.Message):
    __slots__ = ("phase", "at_ms", "version", "reason", "by")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    at_ms: int
    version: int
    reason: str
    by: str
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., at_ms: _Optional[int] = ..., version: _Optional[int] = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class ValidateScopeRequest(_message.Message):
    __slots__ = ("role", "phase", "scopes", "story_id")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    role: Role
    phase: Phase
    scopes: _containers.RepeatedScalarFieldContainer[str]
    story_id: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., phase: _Optional[_Union[Phase, str]] = ..., scopes: _Optional[_Iterable[str]] = ..., story_id: _Optional[str] = ...) -> None: ...

class ValidateScopeResponse(_message.Message):
    __slots__ = ("allowed", "missing", "extra")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    missing: _containers.RepeatedScalarFieldContainer[str]
    extra: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allowed: _Optional[bool] = ..., missing: _Optional[_Iterable[str]] = ..., extra: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateStoryRequest(_message.Message):
    __slots__ = ("story",)
    STORY_FIELD_NUMBER: _ClassVar[int]
    story: Story
    def __init__(self, story: _Optional[_Union[Story, _Mapping]] = ...) -> None: ...

class CreateStoryResponse(_message.Message):
    __slots__ = ("version", "story")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    version: int
    story: Story
    def __init__(self, version: _Optional[int] = ..., story: _Optional[_Union[Story, _Mapping]] = ...) -> None: ...

class ListStoriesRequest(_message.Message):
    __slots__ = ("case_id", "phases", "page_size", "page_token")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    case_id: str
    phases: _containers.RepeatedScalarFieldContainer[Phase]
    page_size: int
    page_token: str
    def __init__(self, case_id: _Optional[str] = ..., phases: _Optional[_Iterable[_Union[Phase, str]]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStoriesResponse(_message.Message):
    __slots__ = ("stories", "next_page_token")
    STORIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    stories: _containers.RepeatedCompositeFieldContainer[StoryCard]
    next_page_token: str
    def __init__(self, stories: _Optional[_Iterable[_Union[StoryCard, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class StoryCard(_message.Message):
    __slots__ = ("story_id", "title", "case_id", "phase", "version", "task_count", "open_task_count", "decision_count", "created_at_ms", "changed_at_ms")
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPEN_TASK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECISION_COUNT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    story_id: str
    title: str
    case_id: str
    phase: Phase
    version: int
    task_count: int
    open_task_count: int
    decision_count: int
    created_at_ms: int
    changed_at_ms: int
    def __init__(self, story_id: _Optional[str] = ..., title: _Optional[str] = ..., case_id: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., version: _Optional[int] = ..., task_count: _Optional[int] = ..., open_task_count: _Optional[int] = ..., decision_count: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., changed_at_ms: _Optional[int] = ...) -> None: ...

class CreateTaskRequest(_message.Message):
    __slots__ = ("task", "expected_version")
    TASK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    task: Task
    expected_version: int
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class CreateTaskResponse(_message.Message):
    __slots__ = ("version", "task")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    version: int
    task: Task
    def __init__(self, version: _Optional[int] = ..., task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class AddProjectDecisionRequest(_message.Message):
    __slots__ = ("decision", "expected_version")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    expected_version: int
    def __init__(self, decision: _Optional[_Union[Decision, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class AddProjectDecisionResponse(_message.Message):
    __slots__ = ("version", "decision")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    version: int
    decision: Decision
    def __init__(self, version: _Optional[int] = ..., decision: _Optional[_Union[Decision, _Mapping]] = ...) -> None: ...

class TransitionPhaseRequest(_message.Message):
    __slots__ = ("story_id", "phase", "reason", "expected_version")
    STORY_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    story_id: str
    phase: Phase
    reason: str
    expected_version: int
    def __init__(self, story_id: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., reason: _Optional[str] = ..., expected_version: _Optional[int] = ...) -> None: ...

class TransitionPhaseResponse(_message.Message):
    __slots__ = ("version", "story", "previous")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    version: int
    story: Story
    previous: Phase
    def __init__(self, version: _Optional[int] = ..., story: _Optional[_Union[Story, _Mapping]] = ..., previous: _Optional[_Union[Phase, str]] = ...) -> None: ...

class GetGraphRelationshipsRequest(_message.Message):
    __slots__ = ("node", "kinds", "depth", "page_size", "page_token")
    NODE_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    node: str
    kinds: _containers.RepeatedScalarFieldContainer[RelationKind]
    depth: int
    page_size: int
    page_token: str
    def __init__(self, node: _Optional[str] = ..., kinds: _Optional[_Iterable[_Union[RelationKind, str]]] = ..., depth: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetGraphRelationshipsResponse(_message.Message):
    __slots__ = ("relations", "nodes", "truncated", "next_page_token", "version")
    RELATIONS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    relations: _containers.RepeatedCompositeFieldContainer[Relation]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    truncated: bool
    next_page_token: str
    version: int
    def __init__(self, relations: _Optional[_Iterable[_Union[Relation, _Mapping]]] = ..., nodes: _Optional[_Iterable[str]] = ..., truncated: _Optional[bool] = ..., next_page_token: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class RecordOperationsRequest(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: WorkRecord
    def __init__(self, record: _Optional[_Union[WorkRecord, _Mapping]] = ...) -> None: ...

class RecordOperationsResponse(_message.Message):
    __slots__ = ("version", "already_existed")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    version: int
    already_existed: bool
    def __init__(self, version: _Optional[int] = ..., already_existed: _Optional[bool] = ...) -> None: ...

class Memory(_message.Message):
    __slots__ = ("memory_id", "namespace", "text", "kind", "metadata", "source", "created_at_ms")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    memory_id: str
    namespace: str
    text: str
    kind: MemoryKind
    metadata: _containers.ScalarMap[str, str]
    source: str
    created_at_ms: int
    def __init__(self, memory_id: _Optional[str] = ..., namespace: _Optional[str] = ..., text: _Optional[str] = ..., kind: _Optional[_Union[MemoryKind, str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., source: _Optional[str] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class Recollection(_message.Message):
    __slots__ = ("memory", "score", "found_by")
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    memory: Memory
    score: float
    found_by: str
    def __init__(self, memory: _Optional[_Union[Memory, _Mapping]] = ..., score: _Optional[float] = ..., found_by: _Optional[str] = ...) -> None: ...

class AddInteractionRequest(_message.Message):
    __slots__ = ("namespace", "user", "assistant", "metadata", "source")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ASSISTANT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    user: str
    assistant: str
    metadata: _containers.ScalarMap[str, str]
    source: str
    def __init__(self, namespace: _Optional[str] = ..., user: _Optional[str] = ..., assistant: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., source: _Optional[str] = ...) -> None: ...

class AddInteractionResponse(_message.Message):
    __slots__ = ("memory_id", "already_existed")
    MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    memory_id: str
    already_existed: bool
    def __init__(self, memory_id: _Optional[str] = ..., already_existed: _Optional[bool] = ...) -> None: ...

class AddFactRequest(_message.Message):
    __slots__ = ("namespace", "text", "metadata", "kind", "source")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    text: str
    metadata: _containers.ScalarMap[str, str]
    kind: MemoryKind
    source: str
    def __init__(self, namespace: _Optional[str] = ..., text: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., kind: _Optional[_Union[MemoryKind, str]] = ..., source: _Optional[str] = ...) -> None: ...

class AddFactResponse(_message.Message):
    __slots__ = ("memory_id", "already_existed")
    MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    memory_id: str
    already_existed: bool
    def __init__(self, memory_id: _Optional[str] = ..., already_existed: _Optional[bool] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("query", "namespaces", "kinds", "metadata", "limit")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    QUERY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    query: str
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[MemoryKind]
    metadata: _containers.ScalarMap[str, str]
    limit: int
    def __init__(self, query: _Optional[str] = ..., namespaces: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[MemoryKind, str]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., limit: _Optional[int] = ...) -> None: ...

class RecallResponse(_message.Message):
    __slots__ = ("recollections",)
    RECOLLECTIONS_FIELD_NUMBER: _ClassVar[int]
    recollections: _containers.RepeatedCompositeFieldContainer[Recollection]
    def __init__(self, recollections: _Optional[_Iterable[_Union[Recollection, _Mapping]]] = ...) -> None: ...

class ClearMemoryRequest(_message.Message):
    __slots__ = ("namespaces", "kinds", "metadata", "memory_ids", "everywhere")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MEMORY_IDS_FIELD_NUMBER: _ClassVar[int]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[MemoryKind]
    metadata: _containers.ScalarMap[str, str]
    memory_ids: _containers.RepeatedScalarFieldContainer[str]
    everywhere: bool
    def __init__(self, namespaces: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[MemoryKind, str]]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., memory_ids: _Optional[_Iterable[str]] = ..., everywhere: _Optional[bool] = ...) -> None: ...

class ClearMemoryResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("subject_id", "goal", "goal_type", "role", "repository", "approach", "council", "model", "model_profile", "agents", "agents_used", "rounds", "memory_share", "research_share", "tool_share", "success", "status", "evidence", "usage", "duration_ms", "rating", "rated_by", "ended_at_ms", "metadata", "comment", "approach_ratio", "reason")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    GOAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    APPROACH_FIELD_NUMBER: _ClassVar[int]
    COUNCIL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_USED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SHARE_FIELD_NUMBER: _ClassVar[int]
    RESEARCH_SHARE_FIELD_NUMBER: _ClassVar[int]
    TOOL_SHARE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    RATED_BY_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    APPROACH_RATIO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    subject_id: str
    goal: str
    goal_type: str
    role: str
    repository: str
    approach: str
    council: str
    model: str
    model_profile: str
    agents: int
    agents_used: _containers.RepeatedScalarFieldContainer[str]
    rounds: int
    memory_share: float
    research_share: float
    tool_share: float
    success: bool
    status: str
    evidence: float
    usage: Usage
    duration_ms: int
    rating: int
    rated_by: str
    ended_at_ms: int
    metadata: _containers.ScalarMap[str, str]
    comment: str
    approach_ratio: float
    reason: str
    def __init__(self, subject_id: _Optional[str] = ..., goal: _Optional[str] = ..., goal_type: _Optional[str] = ..., role: _Optional[str] = ..., repository: _Optional[str] = ..., approach: _Optional[str] = ..., council: _Optional[str] = ..., model: _Optional[str] = ..., model_profile: _Optional[str] = ..., agents: _Optional[int] = ..., agents_used: _Optional[_Iterable[str]] = ..., rounds: _Optional[int] = ..., memory_share: _Optional[float] = ..., research_share: _Optional[float] = ..., tool_share: _Optional[float] = ..., success: _Optional[bool] = ..., status: _Optional[str] = ..., evidence: _Optional[float] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., duration_ms: _Optional[int] = ..., rating: _Optional[int] = ..., rated_by: _Optional[str] = ..., ended_at_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., comment: _Optional[str] = ..., approach_ratio: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Rating(_message.Message):
    __slots__ = ("subject_id", "rating", "comment")
    SUBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    subject_id: str
    rating: int
    comment: str
    def __init__(self, subject_id: _Optional[str] = ..., rating: _Optional[int] = ..., comment: _Optional[str] = ...) -> None: ...

class RecordOutcomeRequest(_message.Message):
    __slots__ = ("outcome", "rating")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RATING_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    rating: Rating
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ..., rating: _Optional[_Union[Rating, _Mapping]] = ...) -> None: ...

class RecordOutcomeResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class GetOutcomeRequest(_message.Message):
    __slots__ = ("subject_id",)
    SUBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    subject_id: str
    def __init__(self, subject_id: _Optional[str] = ...) -> None: ...

class GetOutcomeResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    def __init__(self, outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class RecommendApproachRequest(_message.Message):
    __slots__ = ("goal", "role", "repository", "councils", "model_profiles", "agents", "approaches", "seed")
    GOAL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    COUNCILS_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    APPROACHES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    goal: str
    role: Role
    repository: str
    councils: _containers.RepeatedScalarFieldContainer[str]
    model_profiles: _containers.RepeatedScalarFieldContainer[str]
    agents: _containers.RepeatedScalarFieldContainer[int]
    approaches: _containers.RepeatedScalarFieldContainer[str]
    seed: int
    def __init__(self, goal: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., repository: _Optional[str] = ..., councils: _Optional[_Iterable[str]] = ..., model_profiles: _Optional[_Iterable[str]] = ..., agents: _Optional[_Iterable[int]] = ..., approaches: _Optional[_Iterable[str]] = ..., seed: _Optional[int] = ...) -> None: ...

class Option(_message.Message):
    __slots__ = ("value", "tried", "expected", "low", "high", "best")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TRIED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    value: str
    tried: float
    expected: float
    low: float
    high: float
    best: float
    def __init__(self, value: _Optional[str] = ..., tried: _Optional[float] = ..., expected: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., best: _Optional[float] = ...) -> None: ...

class Advice(_message.Message):
    __slots__ = ("choice", "value", "options", "reason")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    choice: str
    value: str
    options: _containers.RepeatedCompositeFieldContainer[Option]
    reason: str
    def __init__(self, choice: _Optional[str] = ..., value: _Optional[str] = ..., options: _Optional[_Iterable[_Union[Option, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class RecommendApproachResponse(_message.Message):
    __slots__ = ("goal_type", "council", "model_profile", "agents", "approach", "outcomes")
    GOAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    COUNCIL_FIELD_NUMBER: _ClassVar[int]
    MODEL_PROFILE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    APPROACH_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    goal_type: str
    council: Advice
    model_profile: Advice
    agents: Advice
    approach: Advice
    outcomes: int
    def __init__(self, goal_type: _Optional[str] = ..., council: _Optional[_Union[Advice, _Mapping]] = ..., model_profile: _Optional[_Union[Advice, _Mapping]] = ..., agents: _Optional[_Union[Advice, _Mapping]] = ..., approach: _Optional[_Union[Advice, _Mapping]] = ..., outcomes: _Optional[int] = ...) -> None: ...
