"""How a tool's method becomes an operation: one decorator, one schema made from the signature."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import OperationSpec, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.pipeline import Pipeline

P = ParamSpec("P")
Kit = TypeVar("Kit", bound="Toolkit")
_MARK = "__operation__"


class ToolFailure(FleetError):
    """An operation could not do what it was asked; the message is for the model and says what would work."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """An operation apart from any workspace: the function, its traits, its argument model."""

    function: Callable[..., Awaitable[ToolResult]]
    tool: str
    read_only: bool
    risk: Risk
    network: bool
    executes: bool
    locks: frozenset[str]
    time_limit_seconds: float
    roles: frozenset[Role]

    @property
    def operation(self) -> str:
        return self.function.__name__

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """The pydantic model of the arguments; unknown ones are refused."""
        hints = get_type_hints(self.function, include_extras=True)
        fields: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(self.function).parameters.items())[1:]:
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[name] = (hints[name], default)
        config = ConfigDict(extra="forbid", protected_namespaces=())
        return create_model(f"{self.tool}_{self.operation}", __config__=config, **fields)

    @cached_property
    def spec(self) -> OperationSpec:
        return OperationSpec(
            name=f"{self.tool}_{self.operation}",
            tool=self.tool,
            operation=self.operation,
            description=inspect.getdoc(self.function) or "",
            parameters=_without_titles(self.arguments.model_json_schema()),
            read_only=self.read_only,
            risk=self.risk,
            network=self.network,
            executes=self.executes,
            locks=self.locks,
            time_limit_seconds=self.time_limit_seconds,
            roles=self.roles,
        )

    @cached_property
    def signature(self) -> str:
        """The operation as one would write it, for an error message: `files_mkdir(path: string)`."""
        properties = cast("dict[str, dict[str, object]]", self.spec.parameters.get("properties", {}))
        parts: list[str] = []
        for name, schema in properties.items():
            kind = _kind(schema)
            parts.append(f"{name}: {kind} = {schema['default']!r}" if "default" in schema else f"{name}: {kind}")
        return f"{self.spec.name}({', '.join(parts)})"

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments as the function takes them. Raises ToolFailure naming each problem and the signature."""
        try:
            model = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(_problem(detail) for detail in error.errors())
            raise ToolFailure(f"{problems}. Signature: {self.signature}") from None
        return {name: getattr(model, name) for name in type(model).model_fields}


class Toolkit:
    """A named group of operations over one workspace; `FileTool`, `GitTool` and the others are its subclasses.

    Calling an operation as a method goes the whole way of every call (validation, policy, audit, limits, masking).
    """

    name: ClassVar[str]
    definitions: ClassVar[Mapping[str, Definition]]

    def __init_subclass__(cls) -> None:
        found: dict[str, Definition] = {}
        for attribute in vars(cls).values():
            traits = getattr(attribute, _MARK, None)
            if traits is not None:
                definition = Definition(tool=cls.name, **traits)
                found[definition.operation] = definition
        cls.definitions = found

    def __init__(self, workspace: Workspace, pipeline: Pipeline | None = None) -> None:
        self.workspace = workspace
        self.pipeline = pipeline or Pipeline()

    async def call(self, operation: str, arguments: Mapping[str, object], *, call_id: str = "") -> ToolResult:
        """Call an operation by its bare name with unchecked arguments."""
        return await self.pipeline.call(self.definitions[operation], self, arguments, call_id=call_id)

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The unchecked arguments as the audit may show them; tools whose arguments carry credentials mask those."""
        return arguments


def operation(
    *,
    read_only: bool = False,
    risk: Risk = Risk.LOW,
    network: bool = False,
    executes: bool = False,
    locks: tuple[str, ...] = ("workspace",),
    time_limit_seconds: float = 60.0,
    roles: frozenset[Role] = frozenset(Role),
) -> Callable[
    [Callable[Concatenate[Kit, P], Awaitable[ToolResult]]], Callable[Concatenate[Kit, P], Awaitable[ToolResult]]
]:
    """Make an async method of a Toolkit an operation. Its docstring and annotations are what the model reads.

    `executes` says that it runs commands of the repository; those keep their own time limit, counted from the moment a
    CPU slot is granted, so the operation has none on top.
    """

    def decorate(
        function: Callable[Concatenate[Kit, P], Awaitable[ToolResult]],
    ) -> Callable[Concatenate[Kit, P], Awaitable[ToolResult]]:
        names = list(inspect.signature(function).parameters)[1:]

        @wraps(function)
        async def through_the_pipeline(self: Kit, /, *args: P.args, **kwargs: P.kwargs) -> ToolResult:
            return await self.call(function.__name__, dict(zip(names, args, strict=False)) | kwargs)

        traits = {
            "function": function,
            "read_only": read_only,
            "risk": risk,
            "network": network,
            "executes": executes,
            "locks": frozenset(locks),
            "time_limit_seconds": time_limit_seconds,
            "roles": roles,
        }
        setattr(through_the_pipeline, _MARK, traits)
        return through_the_pipeline

    return decorate


def _problem(detail: Any) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "missing":
            return f"missing argument '{name}'"
        case "extra_forbidden":
            return f"unexpected argument '{name}'"
        case _:
            return f"argument '{name}': {detail['msg']}"


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(_kind(choice) for choice in schema["anyOf"])
    return str(schema.get("type", "any"))


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without pydantic's `title` noise, which costs prompt tokens and says nothing."""
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            cleaned[key] = {name: _without_titles(part) for name, part in value.items()}
        else:
            cleaned[key] = _without_titles(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
    return cleaned
