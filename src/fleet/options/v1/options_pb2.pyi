from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor
BOUNDS_FIELD_NUMBER: _ClassVar[int]
bounds: _descriptor.FieldDescriptor

class Bounds(_message.Message):
    __slots__ = ("max_chars", "max_items", "min", "max", "pattern", "form", "required")
    MAX_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    max_chars: int
    max_items: int
    min: float
    max: float
    pattern: str
    form: str
    required: bool
    def __init__(self, max_chars: _Optional[int] = ..., max_items: _Optional[int] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., pattern: _Optional[str] = ..., form: _Optional[str] = ..., required: _Optional[bool] = ...) -> None: ...
