from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("name", "version", "protocol_version", "supported_tasks", "languages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_TASKS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    protocol_version: int
    supported_tasks: _containers.RepeatedScalarFieldContainer[str]
    languages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., supported_tasks: _Optional[_Iterable[str]] = ..., languages: _Optional[_Iterable[str]] = ...) -> None: ...

class SolveRequest(_message.Message):
    __slots__ = ("assignment", "bundle", "revised_patch")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    REVISED_PATCH_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    bundle: bytes
    revised_patch: bytes
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., bundle: _Optional[bytes] = ..., revised_patch: _Optional[bytes] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("execution_id", "agent_id", "attempt", "task_id", "role", "task_description", "context", "constraints", "repository", "perspective", "revision")
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TASK_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    REPOSITORY_FIELD_NUMBER: _ClassVar[int]
    PERSPECTIVE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    execution_id: str
    agent_id: str
    attempt: int
    task_id: str
    role: str
    task_description: str
    context: str
    constraints: Constraints
    repository: Repository
    perspective: Perspective
    revision: Revision
    def __init__(self, execution_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., attempt: _Optional[int] = ..., task_id: _Optional[str] = ..., role: _Optional[str] = ..., task_description: _Optional[str] = ..., context: _Optional[str] = ..., constraints: _Optional[_Union[Constraints, _Mapping]] = ..., repository: _Optional[_Union[Repository, _Mapping]] = ..., perspective: _Optional[_Union[Perspective, _Mapping]] = ..., revision: _Optional[_Union[Revision, _Mapping]] = ...) -> None: ...

class Constraints(_message.Message):
    __slots__ = ("rubric", "requirements", "allowed_paths", "checks", "timeout_seconds", "max_tokens", "max_tool_calls", "max_cost", "metadata", "read_only")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUBRIC_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_PATHS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    rubric: str
    requirements: _containers.RepeatedScalarFieldContainer[str]
    allowed_paths: _containers.RepeatedScalarFieldContainer[str]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    timeout_seconds: int
    max_tokens: int
    max_tool_calls: int
    max_cost: float
    metadata: _containers.ScalarMap[str, str]
    read_only: bool
    def __init__(self, rubric: _Optional[str] = ..., requirements: _Optional[_Iterable[str]] = ..., allowed_paths: _Optional[_Iterable[str]] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ..., timeout_seconds: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_tool_calls: _Optional[int] = ..., max_cost: _Optional[float] = ..., metadata: _Optional[_Mapping[str, str]] = ..., read_only: _Optional[bool] = ...) -> None: ...

class Check(_message.Message):
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

class Repository(_message.Message):
    __slots__ = ("base_commit", "branch", "subdirectory", "bundle_bytes", "without_history")
    BASE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    SUBDIRECTORY_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_HISTORY_FIELD_NUMBER: _ClassVar[int]
    base_commit: str
    branch: str
    subdirectory: str
    bundle_bytes: int
    without_history: bool
    def __init__(self, base_commit: _Optional[str] = ..., branch: _Optional[str] = ..., subdirectory: _Optional[str] = ..., bundle_bytes: _Optional[int] = ..., without_history: _Optional[bool] = ...) -> None: ...

class Perspective(_message.Message):
    __slots__ = ("temperature", "seed", "instructions")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    seed: int
    instructions: str
    def __init__(self, temperature: _Optional[float] = ..., seed: _Optional[int] = ..., instructions: _Optional[str] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("round", "patch_bytes", "checks", "critiques")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    CRITIQUES_FIELD_NUMBER: _ClassVar[int]
    round: int
    patch_bytes: int
    checks: _containers.RepeatedCompositeFieldContainer[CheckResult]
    critiques: _containers.RepeatedCompositeFieldContainer[Critique]
    def __init__(self, round: _Optional[int] = ..., patch_bytes: _Optional[int] = ..., checks: _Optional[_Iterable[_Union[CheckResult, _Mapping]]] = ..., critiques: _Optional[_Iterable[_Union[Critique, _Mapping]]] = ...) -> None: ...

class CheckResult(_message.Message):
    __slots__ = ("name", "passed", "message", "output", "problems")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    name: str
    passed: bool
    message: str
    output: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., passed: _Optional[bool] = ..., message: _Optional[str] = ..., output: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ...) -> None: ...

class Critique(_message.Message):
    __slots__ = ("reviewer_id", "score", "content", "findings")
    REVIEWER_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    reviewer_id: str
    score: float
    content: str
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    def __init__(self, reviewer_id: _Optional[str] = ..., score: _Optional[float] = ..., content: _Optional[str] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("text", "file", "line", "must_fix")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    MUST_FIX_FIELD_NUMBER: _ClassVar[int]
    text: str
    file: str
    line: int
    must_fix: bool
    def __init__(self, text: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., must_fix: _Optional[bool] = ...) -> None: ...

class SolveResponse(_message.Message):
    __slots__ = ("progress", "result")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    result: Result
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("patch", "summary", "usage")
    PATCH_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    patch: bytes
    summary: str
    usage: Usage
    def __init__(self, patch: _Optional[bytes] = ..., summary: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "tool_calls", "cost", "cost_usd", "duration_ms")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    model_calls: int
    tool_calls: int
    cost: float
    cost_usd: float
    duration_ms: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., model_calls: _Optional[int] = ..., tool_calls: _Optional[int] = ..., cost: _Optional[float] = ..., cost_usd: _Optional[float] = ..., duration_ms: _Optional[int] = ...) -> None: ...
