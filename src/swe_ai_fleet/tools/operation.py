"""Operations: methods of a toolkit, whose schemas are made from their signatures, and calls with a given JSON schema.

A server or the author of a plug-in gives such a schema.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, cast, get_type_hints

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError
from jsonschema.exceptions import ValidationError as SchemaViolation
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from referencing import Registry
from referencing.exceptions import Unresolvable

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_object, mapping, parsed, strings
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import OperationSpec, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.definition import CalledToolkit, Definition, ToolFailure
from swe_ai_fleet.tools.pipeline import Pipeline

P = ParamSpec("P")
Kit = TypeVar("Kit", bound="Toolkit")
_MARK = "__operation__"
# An untrusted regular expression can run for ever, and the server that sent the schema checks its patterns anyway.
_WITHOUT_PATTERNS = {"pattern": None, "patternProperties": None, "format": None}
_MAX_PROBLEMS = 5


@dataclass(frozen=True, kw_only=True)
class TypedOperation:
    """A definition made from an async function: the schema from its annotations, the description from its docstring.

    The function's first parameter is the toolkit. The names of `bare` operations do not include their toolkit's.
    """

    function: Callable[..., Awaitable[ToolResult]]
    tool: str
    bare: bool
    traits: Mapping[str, Any]

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """The pydantic model of the arguments; it refuses unknown ones."""
        return arguments_model(self._name, self.function, skip=1)

    @property
    def _name(self) -> str:
        return self.function.__name__ if self.bare else f"{self.tool}_{self.function.__name__}"

    @cached_property
    def spec(self) -> OperationSpec:
        return OperationSpec(
            name=self._name,
            tool=self.tool,
            operation=self.function.__name__,
            description=inspect.getdoc(self.function) or "",
            parameters=parameters_schema(self.arguments),
            **self.traits,
        )

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        return checked_arguments(self.arguments, self.spec, arguments)

    def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> Awaitable[ToolResult]:
        return self.function(toolkit, **arguments)


def arguments_model(name: str, function: Callable[..., object], *, skip: int = 0) -> type[BaseModel]:
    """A pydantic model of a function's parameters, without the first `skip`; it refuses unknown ones."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter_name, parameter in list(inspect.signature(function).parameters.items())[skip:]:
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter_name] = (hints.get(parameter_name, Any), default)
    config = ConfigDict(extra="forbid", protected_namespaces=())
    return create_model(name, __config__=config, **fields)


def parameters_schema(model: type[BaseModel]) -> dict[str, object]:
    return _without_titles(model.model_json_schema())


def checked_arguments(
    model: type[BaseModel], spec: OperationSpec, arguments: Mapping[str, object]
) -> dict[str, object]:
    """The arguments as the model parses them. Raises ToolFailure naming each problem and the signature."""
    try:
        checked = model.model_validate(dict(arguments))
    except ValidationError as error:
        problems = "; ".join(_problem(detail) for detail in error.errors())
        raise ToolFailure(f"{problems}. Signature: {signature(spec)}") from None
    return {name: getattr(checked, name) for name in model.model_fields}


def signature(spec: OperationSpec) -> str:
    """The operation's signature for an error message: `files_mkdir(path: string)`."""
    properties = mapping(spec.parameters.get("properties"))
    parts: list[str] = []
    for name, schema in properties.items():
        default = f" = {schema['default']!r}" if isinstance(schema, Mapping) and "default" in schema else ""
        parts.append(f"{name}: {_kind(schema)}{default}")
    return f"{spec.name}({', '.join(parts)})"


class BareDirectory:
    """A directory on this host as a workspace; each command opens a sandbox over it and closes it again.

    For many commands open the workspace yourself (`sandbox.open_workspace`): that saves some milliseconds per command.
    """

    mount = "/workspace"
    environment = Environment()

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    async def run(self, command: Command) -> CommandResult:
        """Run a command on the strongest isolation level that the node supports. Raises PreconditionFailed."""
        async with open_workspace(self.root) as workspace:
            return await workspace.run(command)


class OperationCall(Coroutine[Any, Any, ToolResult]):
    """A call that runs once it is awaited; used like its result, it raises an error that says to await it."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, ToolResult]) -> None:
        self._name, self._coroutine = name, coroutine
        coroutine.__qualname__ = name  # pyrefly: ignore[missing-attribute]  # named in Python's warning where it is never awaited

    def __await__(self) -> Generator[Any, Any, ToolResult]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *fault: Any) -> Any:
        return self._coroutine.throw(*fault)

    def close(self) -> None:
        self._coroutine.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._name} has not run, so there is no {name!r} yet: operations are asynchronous. Write `await` before "
            f"the call, or `asyncio.run(...)` around it where no event loop runs"
        )


class Toolkit:
    """A named group of operations over one workspace; `FileTool`, `GitTool` and the others are its subclasses.

    A call of an operation as a method goes through the pipeline (validation, policy, audit, limits, masking) too.

    Args:
        workspace: An open workspace, or the path of a directory, in which each command gets its own sandbox.
        pipeline: The pipeline of every call; by default a new one.
    """

    name: ClassVar[str]
    bare: ClassVar[bool] = False
    """Whether the operations' names for a model do not begin with the toolkit's name."""
    chosen: bool = False
    """Whether each operation was named for the runs that have it: models are shown all of them at first."""
    lasting: bool = False
    """Whether a call may leave processes that still change the workspace after it has ended."""
    definitions: Mapping[str, Definition]
    """Definitions by operation: those of the class's methods, or those that an instance has set."""

    def __init_subclass__(cls) -> None:
        definitions: dict[str, Definition] = {}
        for name, attribute in vars(cls).items():
            if (marked := getattr(attribute, _MARK, None)) is not None:
                function, traits = marked
                definitions[name] = TypedOperation(function=function, tool=cls.name, bare=cls.bare, traits=traits)
        cls.definitions = definitions  # pyrefly: ignore[instance-var-assign]

    def __init__(self, workspace: Workspace | Path | str, pipeline: Pipeline | None = None) -> None:
        self.workspace: Workspace = BareDirectory(Path(workspace)) if isinstance(workspace, str | Path) else workspace
        self.pipeline = pipeline or Pipeline()

    async def __aenter__(self) -> Self:
        """Entered for as long as its run takes; what must be opened and closed with a run says so itself."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    @property
    def gaps(self) -> tuple[str, ...]:
        """What a run must do without, as its model is told."""
        return ()

    async def call(self, operation: str, arguments: Mapping[str, object], *, call_id: str = "") -> ToolResult:
        """Call an operation by its bare name with unchecked arguments."""
        return await self.pipeline.call(self.definitions[operation], self, arguments, call_id=call_id)

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """The unchecked arguments as the audit may record them: a toolkit masks the credentials in its arguments."""
        return arguments

    def shared_scope(self, spec: OperationSpec) -> str | None:
        """What the results of a cacheable operation depend on besides arguments, such as the policy or the server.

        Runs of a tenant share results of the same scope; None: they share none.
        """
        return None


def operation(
    *,
    read_only: bool = False,
    risk: Risk = Risk.LOW,
    network: bool = False,
    executes: bool = False,
    locks: tuple[str, ...] = ("workspace",),
    time_limit_seconds: float = 60.0,
    cache_seconds: float = 0.0,
    observation_chars: int = 0,
    roles: frozenset[Role] = frozenset(Role),
) -> Callable[
    [Callable[Concatenate[Kit, P], Awaitable[ToolResult]]], Callable[Concatenate[Kit, P], Awaitable[ToolResult]]
]:
    """Make an async method of a Toolkit an operation. The model reads its docstring and annotations.

    `executes` says that it runs commands of the repository; they have their own time limit, counted from the moment a
    CPU slot is granted, so the operation has none. `cache_seconds` says for how long a read-only operation's result
    from outside may be reused.
    """

    def decorate(
        function: Callable[Concatenate[Kit, P], Awaitable[ToolResult]],
    ) -> Callable[Concatenate[Kit, P], Awaitable[ToolResult]]:
        names = list(inspect.signature(function).parameters)[1:]

        @wraps(function)
        def through_the_pipeline(self: Kit, /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[ToolResult]:
            call = self.call(function.__name__, dict(zip(names, args, strict=False)) | kwargs)
            return OperationCall(function.__qualname__, call)

        traits = {
            "read_only": read_only,
            "risk": risk,
            "network": network,
            "executes": executes,
            "locks": frozenset(locks),
            "time_limit_seconds": time_limit_seconds,
            "cache_seconds": cache_seconds,
            "observation_chars": observation_chars,
            "roles": roles,
        }
        setattr(through_the_pipeline, _MARK, (function, traits))
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


def _kind(schema: Any) -> str:
    # A given schema may be just true or false.
    fields: Mapping[str, Any] = mapping(schema)
    if "anyOf" in fields:
        return " | ".join(_kind(choice) for choice in fields["anyOf"])
    return str(fields.get("type", "any"))


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without pydantic's `title` entries, which cost prompt tokens and carry no information."""
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            cleaned[key] = {name: _without_titles(part) for name, part in value.items()}
        else:
            cleaned[key] = _without_titles(value) if is_object(value) else value
    return cleaned


class SchemaOperation:
    """A definition with a given schema; implements `Definition`.

    Args:
        spec: Its `parameters` must be a JSON schema (draft 2020-12) of type object. References are resolved within
            the schema only; patterns and formats are not checked. Unknown arguments are refused unless the schema has
            `additionalProperties`.
        call: Runs one call with checked arguments.

    Raises:
        InvalidRequest: The parameters are not such a schema.
    """

    def __init__(self, spec: OperationSpec, call: Callable[[dict[str, object]], Awaitable[ToolResult]]) -> None:
        self.spec = spec
        self._call = call
        if spec.parameters.get("type") != "object":
            raise InvalidRequest(f"the schema of {spec.name} is not of type object", field="parameters")
        try:
            Draft202012Validator.check_schema(dict(spec.parameters))
        except SchemaError as error:
            raise InvalidRequest(f"the schema of {spec.name}: {error.message}", field="parameters") from None

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        schema = self.spec.parameters
        properties = arguments if "additionalProperties" in schema else mapping(schema.get("properties"))
        problems = [f"unexpected argument {name[:64]!r}" for name in arguments if name not in properties]
        try:
            first = islice(self._validator.iter_errors(dict(arguments)), max(0, _MAX_PROBLEMS - len(problems)))
            problems += map(_violation, parsed(list, first))
        except (Unresolvable, ValueError) as error:
            raise ToolFailure(f"the schema of {self.spec.name} can't be followed: {error}") from None
        if problems:
            raise ToolFailure(f"{'; '.join(problems)}. Signature: {signature(self.spec)}")
        return dict(arguments)

    def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> Awaitable[ToolResult]:
        return self._call(dict(arguments))

    @cached_property
    def _validator(self) -> Any:
        # An empty registry: the default one would fetch references from the network.
        registry: Registry[Any] = Registry()
        kind = cast("Any", validators).extend(Draft202012Validator, _WITHOUT_PATTERNS)
        return kind(dict(self.spec.parameters), registry=registry)


def _violation(error: SchemaViolation) -> str:
    name = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "required" and not name:
        missing = [key for key in strings(error.validator_value) if key not in mapping(error.instance)]
        return f"missing argument {', '.join(repr(key) for key in missing)}"
    return f"argument {name!r}: {error.message[:300]}" if name else error.message[:300]
