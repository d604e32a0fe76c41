from fleet.options.v1 import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Channel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANNEL_UNSPECIFIED: _ClassVar[Channel]
    CHANNEL_PLAIN: _ClassVar[Channel]
    CHANNEL_MARKDOWN: _ClassVar[Channel]
    CHANNEL_TELEGRAM: _ClassVar[Channel]

class ReferenceStanding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFERENCE_STANDING_UNSPECIFIED: _ClassVar[ReferenceStanding]
    REFERENCE_STANDING_RESOLVED: _ClassVar[ReferenceStanding]
    REFERENCE_STANDING_AMBIGUOUS: _ClassVar[ReferenceStanding]
    REFERENCE_STANDING_STALE: _ClassVar[ReferenceStanding]
    REFERENCE_STANDING_BEYOND: _ClassVar[ReferenceStanding]
    REFERENCE_STANDING_UNKNOWN: _ClassVar[ReferenceStanding]
CHANNEL_UNSPECIFIED: Channel
CHANNEL_PLAIN: Channel
CHANNEL_MARKDOWN: Channel
CHANNEL_TELEGRAM: Channel
REFERENCE_STANDING_UNSPECIFIED: ReferenceStanding
REFERENCE_STANDING_RESOLVED: ReferenceStanding
REFERENCE_STANDING_AMBIGUOUS: ReferenceStanding
REFERENCE_STANDING_STALE: ReferenceStanding
REFERENCE_STANDING_BEYOND: ReferenceStanding
REFERENCE_STANDING_UNKNOWN: ReferenceStanding

class SendRequest(_message.Message):
    __slots__ = ("session_id", "text", "channel", "message_id", "memory_namespaces", "seen_turn")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    SEEN_TURN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    text: str
    channel: Channel
    message_id: str
    memory_namespaces: _containers.RepeatedScalarFieldContainer[str]
    seen_turn: int
    def __init__(self, session_id: _Optional[str] = ..., text: _Optional[str] = ..., channel: _Optional[_Union[Channel, str]] = ..., message_id: _Optional[str] = ..., memory_namespaces: _Optional[_Iterable[str]] = ..., seen_turn: _Optional[int] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("tool_called", "tool_ended", "text_delta", "answer")
    TOOL_CALLED_FIELD_NUMBER: _ClassVar[int]
    TOOL_ENDED_FIELD_NUMBER: _ClassVar[int]
    TEXT_DELTA_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    tool_called: ToolCalled
    tool_ended: ToolEnded
    text_delta: str
    answer: Answer
    def __init__(self, tool_called: _Optional[_Union[ToolCalled, _Mapping]] = ..., tool_ended: _Optional[_Union[ToolEnded, _Mapping]] = ..., text_delta: _Optional[str] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ...) -> None: ...

class ToolCalled(_message.Message):
    __slots__ = ("tool",)
    TOOL_FIELD_NUMBER: _ClassVar[int]
    tool: str
    def __init__(self, tool: _Optional[str] = ...) -> None: ...

class ToolEnded(_message.Message):
    __slots__ = ("tool", "success")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    tool: str
    success: bool
    def __init__(self, tool: _Optional[str] = ..., success: _Optional[bool] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("session_id", "turn", "text", "pages", "tables", "success", "stop_reason", "references", "tools", "task_proposed", "execution_id", "repeated_message", "prompt_tokens", "completion_tokens", "model_calls")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TASK_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    REPEATED_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_CALLS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    turn: int
    text: str
    pages: _containers.RepeatedScalarFieldContainer[str]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    success: bool
    stop_reason: str
    references: _containers.RepeatedCompositeFieldContainer[Reference]
    tools: _containers.RepeatedScalarFieldContainer[str]
    task_proposed: bool
    execution_id: str
    repeated_message: bool
    prompt_tokens: int
    completion_tokens: int
    model_calls: int
    def __init__(self, session_id: _Optional[str] = ..., turn: _Optional[int] = ..., text: _Optional[str] = ..., pages: _Optional[_Iterable[str]] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., success: _Optional[bool] = ..., stop_reason: _Optional[str] = ..., references: _Optional[_Iterable[_Union[Reference, _Mapping]]] = ..., tools: _Optional[_Iterable[str]] = ..., task_proposed: _Optional[bool] = ..., execution_id: _Optional[str] = ..., repeated_message: _Optional[bool] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., model_calls: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("title", "columns", "rows")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    title: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    rows: _containers.RepeatedCompositeFieldContainer[TableRow]
    def __init__(self, title: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., rows: _Optional[_Iterable[_Union[TableRow, _Mapping]]] = ...) -> None: ...

class TableRow(_message.Message):
    __slots__ = ("cells",)
    CELLS_FIELD_NUMBER: _ClassVar[int]
    cells: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cells: _Optional[_Iterable[str]] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("phrase", "standing", "things")
    PHRASE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    THINGS_FIELD_NUMBER: _ClassVar[int]
    phrase: str
    standing: ReferenceStanding
    things: _containers.RepeatedCompositeFieldContainer[NamedThing]
    def __init__(self, phrase: _Optional[str] = ..., standing: _Optional[_Union[ReferenceStanding, str]] = ..., things: _Optional[_Iterable[_Union[NamedThing, _Mapping]]] = ...) -> None: ...

class NamedThing(_message.Message):
    __slots__ = ("kind", "name", "position")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    position: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("number", "text", "answer", "answered_at_ms", "tools", "success", "stop_reason", "execution_id", "tables", "references")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    number: int
    text: str
    answer: str
    answered_at_ms: int
    tools: _containers.RepeatedScalarFieldContainer[str]
    success: bool
    stop_reason: str
    execution_id: str
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    references: _containers.RepeatedCompositeFieldContainer[Reference]
    def __init__(self, number: _Optional[int] = ..., text: _Optional[str] = ..., answer: _Optional[str] = ..., answered_at_ms: _Optional[int] = ..., tools: _Optional[_Iterable[str]] = ..., success: _Optional[bool] = ..., stop_reason: _Optional[str] = ..., execution_id: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., references: _Optional[_Iterable[_Union[Reference, _Mapping]]] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("session_id", "started_at_ms", "updated_at_ms", "turn_count", "memory_namespaces", "last_text", "turns", "task_proposed")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TURN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    LAST_TEXT_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TASK_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    started_at_ms: int
    updated_at_ms: int
    turn_count: int
    memory_namespaces: _containers.RepeatedScalarFieldContainer[str]
    last_text: str
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    task_proposed: bool
    def __init__(self, session_id: _Optional[str] = ..., started_at_ms: _Optional[int] = ..., updated_at_ms: _Optional[int] = ..., turn_count: _Optional[int] = ..., memory_namespaces: _Optional[_Iterable[str]] = ..., last_text: _Optional[str] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ..., task_proposed: _Optional[bool] = ...) -> None: ...

class GetConversationRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetConversationResponse(_message.Message):
    __slots__ = ("conversation",)
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    conversation: Conversation
    def __init__(self, conversation: _Optional[_Union[Conversation, _Mapping]] = ...) -> None: ...

class ListConversationsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListConversationsResponse(_message.Message):
    __slots__ = ("conversations", "next_page_token")
    CONVERSATIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    conversations: _containers.RepeatedCompositeFieldContainer[Conversation]
    next_page_token: str
    def __init__(self, conversations: _Optional[_Iterable[_Union[Conversation, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class EndConversationRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class EndConversationResponse(_message.Message):
    __slots__ = ("existed",)
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    def __init__(self, existed: _Optional[bool] = ...) -> None: ...
