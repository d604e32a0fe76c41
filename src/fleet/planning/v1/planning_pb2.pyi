from fleet.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutePlanRequest(_message.Message):
    __slots__ = ("goal", "selected_entities", "session_id", "repository", "ref", "limits")
    GOAL_FIELD_NUMBER: _ClassVar[int]
    SELECTED_ENTITIES_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    goal: str
    selected_entities: _containers.RepeatedScalarFieldContainer[str]
    session_id: str
    repository: str
    ref: str
    limits: PlanLimits
    def __init__(self, goal: _Optional[str] = ..., selected_entities: _Optional[_Iterable[str]] = ..., session_id: _Optional[str] = ..., repository: _Optional[str] = ..., ref: _Optional[str] = ..., limits: _Optional[_Union[PlanLimits, _Mapping]] = ...) -> None: ...

class PlanLimits(_message.Message):
    __slots__ = ("max_iterations", "max_tool_calls", "timeout_seconds", "max_tokens")
    MAX_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_iterations: int
    max_tool_calls: int
    timeout_seconds: int
    max_tokens: int
    def __init__(self, max_iterations: _Optional[int] = ..., max_tool_calls: _Optional[int] = ..., timeout_seconds: _Optional[int] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class ExecutePlanResponse(_message.Message):
    __slots__ = ("status", "session_id", "goal", "approach", "reasoning", "memory_results", "error", "proposal", "question")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    APPROACH_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    status: str
    session_id: str
    goal: str
    approach: str
    reasoning: str
    memory_results: MemoryResults
    error: str
    proposal: int
    question: str
    def __init__(self, status: _Optional[str] = ..., session_id: _Optional[str] = ..., goal: _Optional[str] = ..., approach: _Optional[str] = ..., reasoning: _Optional[str] = ..., memory_results: _Optional[_Union[MemoryResults, _Mapping]] = ..., error: _Optional[str] = ..., proposal: _Optional[int] = ..., question: _Optional[str] = ...) -> None: ...

class MemoryResults(_message.Message):
    __slots__ = ("coverage", "content", "gaps", "sources", "research")
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    RESEARCH_FIELD_NUMBER: _ClassVar[int]
    coverage: float
    content: str
    gaps: _containers.RepeatedScalarFieldContainer[str]
    sources: _containers.RepeatedScalarFieldContainer[str]
    research: Research
    def __init__(self, coverage: _Optional[float] = ..., content: _Optional[str] = ..., gaps: _Optional[_Iterable[str]] = ..., sources: _Optional[_Iterable[str]] = ..., research: _Optional[_Union[Research, _Mapping]] = ...) -> None: ...

class Research(_message.Message):
    __slots__ = ("summary", "sources", "data_points", "coverage", "error")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DATA_POINTS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    summary: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    data_points: _containers.RepeatedScalarFieldContainer[str]
    coverage: float
    error: str
    def __init__(self, summary: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ..., data_points: _Optional[_Iterable[str]] = ..., coverage: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class ApproveApproachRequest(_message.Message):
    __slots__ = ("session_id", "decision", "adjustment", "proposal", "limits")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    ADJUSTMENT_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    decision: str
    adjustment: str
    proposal: int
    limits: PlanLimits
    def __init__(self, session_id: _Optional[str] = ..., decision: _Optional[str] = ..., adjustment: _Optional[str] = ..., proposal: _Optional[int] = ..., limits: _Optional[_Union[PlanLimits, _Mapping]] = ...) -> None: ...

class ApproveApproachResponse(_message.Message):
    __slots__ = ("status", "session_id", "message", "goal", "approach", "reasoning", "memory_results", "error", "proposal", "question")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    APPROACH_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    status: str
    session_id: str
    message: str
    goal: str
    approach: str
    reasoning: str
    memory_results: MemoryResults
    error: str
    proposal: int
    question: str
    def __init__(self, status: _Optional[str] = ..., session_id: _Optional[str] = ..., message: _Optional[str] = ..., goal: _Optional[str] = ..., approach: _Optional[str] = ..., reasoning: _Optional[str] = ..., memory_results: _Optional[_Union[MemoryResults, _Mapping]] = ..., error: _Optional[str] = ..., proposal: _Optional[int] = ..., question: _Optional[str] = ...) -> None: ...

class ContinuePlanRequest(_message.Message):
    __slots__ = ("session_id", "limits")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    limits: PlanLimits
    def __init__(self, session_id: _Optional[str] = ..., limits: _Optional[_Union[PlanLimits, _Mapping]] = ...) -> None: ...

class ContinuePlanResponse(_message.Message):
    __slots__ = ("status", "session_id", "goal", "final_plan", "results", "tool_calls_made", "iterations", "stop_reason", "usage", "error")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    FINAL_PLAN_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_MADE_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    status: str
    session_id: str
    goal: str
    final_plan: str
    results: str
    tool_calls_made: _containers.RepeatedCompositeFieldContainer[ToolCallMade]
    iterations: int
    stop_reason: str
    usage: Usage
    error: str
    def __init__(self, status: _Optional[str] = ..., session_id: _Optional[str] = ..., goal: _Optional[str] = ..., final_plan: _Optional[str] = ..., results: _Optional[str] = ..., tool_calls_made: _Optional[_Iterable[_Union[ToolCallMade, _Mapping]]] = ..., iterations: _Optional[int] = ..., stop_reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., error: _Optional[str] = ...) -> None: ...

class ToolCallMade(_message.Message):
    __slots__ = ("step", "tool", "arguments", "success", "outcome", "result")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    step: int
    tool: str
    arguments: str
    success: bool
    outcome: str
    result: str
    def __init__(self, step: _Optional[int] = ..., tool: _Optional[str] = ..., arguments: _Optional[str] = ..., success: _Optional[bool] = ..., outcome: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "model_calls", "tool_calls", "cost", "duration_ms", "cached_tokens", "cost_usd")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    model_calls: int
    tool_calls: int
    cost: float
    duration_ms: int
    cached_tokens: int
    cost_usd: float
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., model_calls: _Optional[int] = ..., tool_calls: _Optional[int] = ..., cost: _Optional[float] = ..., duration_ms: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ...) -> None: ...

class PlanSession(_message.Message):
    __slots__ = ("session_id", "goal", "selected_entities", "status", "approach", "reasoning", "memory_results", "results", "tool_calls_made", "iterations", "stop_reason", "usage", "error", "proposals", "started_at_ms", "updated_at_ms", "working", "repository", "ref", "rejection", "question")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    SELECTED_ENTITIES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    APPROACH_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESULTS_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_MADE_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    REF_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    goal: str
    selected_entities: _containers.RepeatedScalarFieldContainer[str]
    status: str
    approach: str
    reasoning: str
    memory_results: MemoryResults
    results: str
    tool_calls_made: _containers.RepeatedCompositeFieldContainer[ToolCallMade]
    iterations: int
    stop_reason: str
    usage: Usage
    error: str
    proposals: int
    started_at_ms: int
    updated_at_ms: int
    working: bool
    repository: str
    ref: str
    rejection: str
    question: str
    def __init__(self, session_id: _Optional[str] = ..., goal: _Optional[str] = ..., selected_entities: _Optional[_Iterable[str]] = ..., status: _Optional[str] = ..., approach: _Optional[str] = ..., reasoning: _Optional[str] = ..., memory_results: _Optional[_Union[MemoryResults, _Mapping]] = ..., results: _Optional[str] = ..., tool_calls_made: _Optional[_Iterable[_Union[ToolCallMade, _Mapping]]] = ..., iterations: _Optional[int] = ..., stop_reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., error: _Optional[str] = ..., proposals: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., updated_at_ms: _Optional[int] = ..., working: _Optional[bool] = ..., repository: _Optional[str] = ..., ref: _Optional[str] = ..., rejection: _Optional[str] = ..., question: _Optional[str] = ...) -> None: ...

class GetPlanSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetPlanSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: PlanSession
    def __init__(self, session: _Optional[_Union[PlanSession, _Mapping]] = ...) -> None: ...

class ListPlanSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPlanSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[PlanSession]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[PlanSession, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
