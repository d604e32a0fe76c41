"""The base class of added tools: a name, declared parameters, and `execute`.

The value that `execute` returns becomes plain text for the model and JSON for programs.
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import to_jsonable_python

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_list, is_mapping, is_object, mapping, mappings, strings
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, Risk, ToolResult
from swe_ai_fleet.tools.operation import checked_arguments

_MAX_DEPTH = 8
_ERROR = "Error: "
_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}
_NAMES: Mapping[object, str] = {
    **{name: name for name in _TYPES},
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object",
    str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object",
}  # fmt: skip
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def presented(operation: str, value: object) -> ToolResult:
    """Any value as the result of a call.

    The text says so if the value is None or empty. A dict with a text under `error` is a failed call.
    """
    if isinstance(value, ToolResult):
        return value
    plain = jsonable(value)
    fields: dict[str, object] = plain if is_object(plain) else {"value": plain}
    error = fields.get("error") if fields is plain else None
    if isinstance(error, str) and error:
        rest = {name: part for name, part in fields.items() if name != "error" and part not in (None, "")}
        return ToolResult(
            success=False,
            operation=operation,
            content=as_text(rest) if rest else "",
            error=error.removeprefix(_ERROR),
            outcome=Outcome.ERROR,
            metadata=fields,
        )
    emptiness = empty_value(plain)
    content = f"{operation} returned {emptiness}." if emptiness else as_text(plain)
    return ToolResult(success=True, operation=operation, content=content, metadata=fields)


def jsonable(value: object) -> object:
    """The value in JSON's types: models and dataclasses as objects, sets and tuples as arrays, others as text."""
    try:
        return _finite(to_jsonable_python(value, by_alias=True, bytes_mode="base64", serialize_unknown=True))
    except ValueError:
        return repr(value)


def empty_value(value: object) -> str:
    """The kind of an empty value (None, blank text, empty collection) in words; "" for all others, 0 and False too."""
    if value is None:
        return "nothing (None)"
    if isinstance(value, str | bytes) and not value.strip():
        return "an empty text"
    if isinstance(value, list | tuple | Set | Mapping) and not cast("Collection[object]", value):
        return f"an empty {'object' if isinstance(value, Mapping) else 'list'}"
    return ""


def as_text(value: object) -> str:
    """A JSON value as lines of `key: value` and `- item`; strings are not escaped."""
    return "\n".join(_lines(value, 0))


def _finite(value: object) -> object:
    """The value with infinities and NaN as text, since JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_object(value):
        return {name: _finite(part) for name, part in value.items()}
    if is_list(value):
        return [_finite(part) for part in value]
    return value


def _lines(value: object, depth: int) -> list[str]:
    if isinstance(value, str):
        return value.split("\n")
    if value == [] or value == {}:
        return ["(empty)"]
    lines: list[str] = []
    if depth < _MAX_DEPTH and is_mapping(value):
        for name, part in value.items():
            lines += _entry(f"{name}:", part, depth)
    elif depth < _MAX_DEPTH and is_list(value):
        for part in value:
            first, *rest = _lines(part, depth + 1)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
    else:
        lines.append(str(value))
    return lines


def _entry(name: str, value: object, depth: int) -> list[str]:
    below = _lines(value, depth + 1)
    if len(below) == 1 and (not isinstance(value, list | dict) or not value):
        return [f"{name} {below[0]}".rstrip()]
    # A text keeps its own indentation: it may be code.
    margin = "" if isinstance(value, str) and not depth else "  "
    return [name, *(f"{margin}{line}" for line in below)]


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """One declared parameter of a tool.

    `type` is a JSON name (`string`, `integer`, `number`, `boolean`, `array`, `object`) or Python's (`"int"`, `int`).
    `default` is only shown to the model; `execute` has its own. If there are `choices`, no other value is allowed.
    `items` is the type of an array's items. Raises InvalidRequest for any other type and for an invalid name.
    """

    name: str
    type: str | type
    description: str = ""
    required: bool = True
    default: object = field(default=None, kw_only=True)
    choices: tuple[object, ...] = field(default=(), kw_only=True)
    items: str | type = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_"):
            raise InvalidRequest(f"{self.name!r} is not a valid parameter name", field="parameters")
        object.__setattr__(self, "type", _json_type(self.type, self.name))
        if self.items:
            object.__setattr__(self, "items", _json_type(self.items, self.name))
            if self.type != "array":
                raise InvalidRequest(f"parameter {self.name}: only an array has items", field="parameters")

    def schema(self) -> dict[str, object]:
        schema: dict[str, object] = {"type": self.type}
        if self.description:
            schema["description"] = self.description
        if self.items:
            schema["items"] = {"type": self.items}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return schema

    def annotation(self) -> Any:
        """The type by which pydantic checks values."""
        if self.choices:
            kind: Any = Literal[self.choices]  # pyrefly: ignore[invalid-literal]
        else:
            kind = list[_TYPES[str(self.items)]] if self.items else _TYPES[str(self.type)]
        return kind if self.required else kind | None


def declared(schema: Mapping[str, object]) -> tuple[ToolParameter, ...]:
    """The parameters of a schema, simplified to name, type, description and whether they are required."""
    required = strings(schema.get("required"))
    tool_parameters: list[ToolParameter] = []
    for name, value in mapping(schema, "properties").items():
        part = mapping(value)
        kinds = [part, *mappings(part.get("anyOf"))]
        kind = next((str(each["type"]) for each in kinds if each.get("type", "null") != "null"), "string")
        tool_parameters.append(ToolParameter(name, kind, str(part.get("description", "")), name in required))
    return tuple(tool_parameters)


class BaseTool(ABC):
    """A tool of your own: set `name`, `description` and `parameters`, write `execute`, and register it.

    Policy and scheduling depend on the traits. The defaults are cautious (the tool changes things and uses the
    network), so set them where your tool does less.

    Attributes:
        name: The name by which a model calls it; letters, digits, `_` and `-`.
        description: Its description for the model.
        parameters: The keyword arguments of `execute`.
        read_only: Whether it changes nothing, here or elsewhere.
        risk: How much harm a wrong call can do.
        network: Whether it uses the network.
        executes: Whether it runs commands in a sandbox. They have their own time limits, so the tool has none.
        locks: Resources that two concurrent calls must not share, unless both only read.
        roles: The roles that get the tool.
        time_limit_seconds: When a call is cancelled.
        late_note: A note for the model about a call that was cancelled for its time limit.
        cache_seconds: For how long a result may be reused, also by other runs of the tenant, if the tool only reads.
        cache_scope: What results depend on besides the arguments, such as the server that is queried.
    """

    name: str = ""
    description: str = ""
    parameters: Sequence[ToolParameter] = ()
    read_only: bool = False
    risk: Risk = Risk.MEDIUM
    network: bool = True
    executes: bool = False
    locks: frozenset[str] = frozenset({"workspace"})
    roles: frozenset[Role] = frozenset(Role)
    time_limit_seconds: float = 30.0
    late_note: str = ""
    cache_seconds: float = 0.0
    cache_scope: str = ""

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> object:
        """Run one call with checked keyword arguments and return its value.

        To report a failure, raise ToolFailure with a text that says what would work, or return a dict with a text under
        `error`.
        """
        ...

    def schema(self) -> dict[str, object]:
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    def checked(self, arguments: Mapping[str, object], spec: OperationSpec) -> dict[str, object]:
        """The arguments for `execute`. Raises ToolFailure naming each problem and the signature.

        A null for an optional parameter counts as omitted.
        """
        optional = {parameter.name for parameter in self.parameters if not parameter.required}
        present = {name: value for name, value in arguments.items() if value is not None or name not in optional}
        checked = checked_arguments(self._model, spec, present)
        return {name: value for name, value in checked.items() if name in present}

    def present(self, value: object) -> ToolResult:
        """A value as a result for the agent: plain text for the model, the complete value as metadata."""
        return presented(self.name, value)

    def verify(self) -> None:
        """Check the declaration. Raises InvalidRequest naming the first problem."""
        if not _TOOL_NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name[:80]!r} is not a tool name: letters, digits, '_' and '-', at most 64, a letter first",
                field="name",
            )
        if not inspect.iscoroutinefunction(self.execute):
            raise InvalidRequest(
                f"execute of {self.name} must be `async def`; a plain function can be registered as it is",
                field="execute",
            )
        foreign = [part for part in self.parameters if not isinstance(cast("object", part), ToolParameter)]
        if foreign:
            raise InvalidRequest(
                f"the parameters of {self.name} must be ToolParameter(name, type, description, required); "
                f"{foreign[0]!r:.80} is not one",
                field="parameters",
            )
        names = [parameter.name for parameter in self.parameters]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidRequest(f"{self.name} declares twice: {', '.join(twice)}", field="parameters")
        self._verify_signature(frozenset(names))

    def _verify_signature(self, declared: frozenset[str]) -> None:
        parameters = inspect.signature(self.execute).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        named = {
            parameter.name: parameter.default is parameter.empty
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        unknown = declared - named.keys() if inspect.Parameter.VAR_KEYWORD not in kinds else frozenset[str]()
        needed = {name for name, required in named.items() if required}
        missing = needed - {parameter.name for parameter in self.parameters if parameter.required}
        verbs = {"does not take": unknown, "requires": missing}
        problems = "; ".join(f"execute {verb} {', '.join(sorted(names))}" for verb, names in verbs.items() if names)
        if problems:
            raise InvalidRequest(
                f"the parameters of {self.name} do not fit its execute: {problems}", field="parameters"
            )

    @cached_property
    def _model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {
            each.name: (each.annotation(), ... if each.required else None) for each in self.parameters
        }
        config = ConfigDict(extra="forbid", protected_namespaces=())
        return create_model(self.name, __config__=config, **fields)


class LocalTool(BaseTool):
    """A tool that changes nothing and uses nothing outside this process."""

    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()


def _json_type(kind: object, name: str) -> str:
    json_name = _NAMES.get(kind) if isinstance(kind, str | type) else None
    if json_name is None:
        raise InvalidRequest(
            f"parameter {name}: {kind!r:.80} is not a type; the types are: {', '.join(_TYPES)}", field="parameters"
        )
    return json_name
