"""The registry of tools by name, and plug-ins; the public names are in `swe_ai_fleet.tools`."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import update_wrapper
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from types import MethodType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, get_origin

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.base_tool import BaseTool, LocalTool, ToolParameter, empty_value, jsonable
from swe_ai_fleet.tools.definition import CalledToolkit, ToolFailure, ToolTimeout
from swe_ai_fleet.tools.function_tool import as_tool
from swe_ai_fleet.tools.http import without_credentials
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline

MAX_METADATA_CHARS = 64 * 1024
"""The size, as JSON, of a value's fields in an agent's events; the model reads the text of all fields anyway."""
FINAL_ANSWER = "final_answer"
_MAX_MESSAGE_CHARS = 1_000
_MAX_NAMED = 20
_OTHERWISE = "Call another tool, or this one with other arguments."
_MAYBE_DONE = "It may have had its effect: look with another tool before you call it again, or use other arguments."
# A tool's own time limit is enforced here, with an explanation; the pipeline's comes later, as a fallback.
_SPARE_SECONDS = 5.0


class RegisteredOperation:
    """A registered tool as a definition; implements `Definition`.

    Args:
        tool: The tool to call.
        keep: Called with each value that the tool returns. The metadata then hold the complete value, under `value`.
        time_limit_seconds: When a call is cancelled; None: the tool's own limit.
        needs_value: Whether a call that returns None or something empty has failed.
    """

    def __init__(
        self,
        tool: BaseTool,
        *,
        keep: Callable[[object], None] | None = None,
        time_limit_seconds: float | None = None,
        needs_value: bool = False,
    ) -> None:
        self.tool = tool
        self._keep = keep
        self._needs_value = needs_value
        self._seconds = tool.time_limit_seconds if time_limit_seconds is None else time_limit_seconds
        self.spec = OperationSpec(
            name=tool.name,
            tool=tool.name,
            operation=tool.name,
            description=tool.description,
            parameters=tool.schema(),
            read_only=tool.read_only,
            risk=tool.risk,
            network=tool.network,
            executes=tool.executes,
            locks=frozenset(tool.locks),
            time_limit_seconds=self._seconds + _SPARE_SECONDS,
            cache_seconds=tool.cache_seconds,
            roles=frozenset(tool.roles),
        )

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        return self.tool.checked(arguments, self.spec)

    async def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> ToolResult:
        """Execute the tool. Raises ToolFailure for any exception of the tool."""
        tool = self.tool
        scope = asyncio.timeout(None if tool.executes else self._seconds)
        try:
            async with scope:
                value = await tool.execute(**arguments)
        except FleetError:
            raise
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # This call was not cancelled: a cancellation inside the tool must not end the run.
            raise ToolFailure(f"{tool.name} failed: it was cancelled from within") from None
        except (Exception, SystemExit) as error:  # (the edge to foreign code: a plug-in must not end an agent)
            if isinstance(error, TimeoutError) and scope.expired():
                note = f"; {tool.late_note}" if tool.late_note else ""
                raise ToolTimeout(f"{tool.name} did not finish within {self._seconds:g} seconds{note}") from None
            text = f"{type(error).__name__}: {str(error)[:_MAX_MESSAGE_CHARS]}".removesuffix(": ")
            raise ToolFailure(f"{tool.name} failed: {text}") from error
        if self._needs_value and (emptiness := empty_value(value)):
            raise ToolFailure(f"{tool.name} returned {emptiness}. {_OTHERWISE if tool.read_only else _MAYBE_DONE}")
        result = replace(tool.present(value), operation=tool.name)
        if self._keep is None:
            return _bounded(result)
        self._keep(value)
        return replace(result, metadata={"value": jsonable(value)})


class RegisteredTools(Toolkit):
    """Registered tools as the operations of an agent, each under its own name.

    `final_answer` is omitted, since the agent's loop has it.

    Args:
        tools: The tools, with distinct names.
        workspace: The agent's workspace, for tools that need it.
    """

    name: ClassVar[str] = "registered"
    bare: ClassVar[bool] = True

    def __init__(
        self, tools: Iterable[BaseTool], workspace: Workspace | None = None, pipeline: Pipeline | None = None
    ) -> None:
        if workspace is not None:
            self.workspace = workspace
        self.pipeline = pipeline or Pipeline()
        self.definitions = {tool.name: RegisteredOperation(tool) for tool in tools if tool.name != FINAL_ANSWER}

    def shared_scope(self, spec: OperationSpec) -> str | None:
        definition = self.definitions.get(spec.name)
        if not isinstance(definition, RegisteredOperation):
            return None
        kind = type(definition.tool)
        return f"{kind.__module__}.{kind.__qualname__} {definition.tool.cache_scope}"

    def recorded(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        # URLs may hold credentials, whatever the tool.
        return without_credentials(arguments)


def _bounded(result: ToolResult) -> ToolResult:
    """The result with as many metadata fields as an agent's events may hold, the smallest first."""
    sizes = {name: len(json.dumps(value, default=str)) for name, value in result.metadata.items()}
    room, keys = MAX_METADATA_CHARS, set[str]()
    for name in sorted(sizes, key=lambda each: sizes[each]):
        room -= sizes[name]
        if room >= 0:
            keys.add(name)
    left_out = {name: f"{size} characters as JSON" for name, size in sizes.items() if name not in keys}
    if not left_out:
        return result
    metadata = {name: value for name, value in result.metadata.items() if name in keys}
    return replace(result, metadata={**metadata, "left_out": dict(islice(left_out.items(), _MAX_NAMED))})


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Registrable = BaseTool | type[BaseTool] | Callable[..., object]
"""What can be registered: an instance, a class that can be made without arguments, a plain function."""
_ERROR = "Error: "
_UNKNOWN = OperationSpec(name="unknown", tool="unknown", operation="unknown", description="", parameters={})


class _OnDefault(Generic[P, R]):
    """A method that uses the default registry when it is called on the class."""

    def __init__(self, function: Callable[Concatenate[ToolRegistry, P], R]) -> None:
        self._function = function
        update_wrapper(cast("Any", self), function)

    def __get__(self, instance: ToolRegistry | None, owner: type[ToolRegistry]) -> Callable[P, R]:
        bound: Any = MethodType(self._function, ToolRegistry.default() if instance is None else instance)
        return bound


class _Tools:
    """The tools of a registry by name; on the class, those of the default registry."""

    def __get__(self, instance: ToolRegistry | None, owner: type[ToolRegistry]) -> dict[str, BaseTool]:
        registry = owner.default() if instance is None else instance
        return {**registry.standard, **registry.registered}


class ToolRegistry:
    """Tools by name. Methods called on an instance use that registry; called on the class, the default registry.

    The default registry is made at first use, from the environment's settings and for the working directory at that
    time. It has the built-in tools, `request_tools`, `search_memory`, `research` and `call_planner`, `call_verifier`,
    `call_executor`, `call_generator`. Registering a tool of the same name replaces one of these.

    Args:
        tools: Tools to register at once.
        pipeline: The pipeline of every execution (policy, audit, masking); by default a new one.
        standard: Default tools: a registered tool of the same name replaces one.
    """

    _default: ClassVar[ToolRegistry | None] = None
    _tools = _Tools()

    def __init__(
        self, tools: Iterable[Registrable] = (), *, pipeline: Pipeline | None = None, standard: Iterable[BaseTool] = ()
    ) -> None:
        self.pipeline = pipeline or Pipeline()
        self.standard = {tool.name: tool for tool in standard}
        self.registered: dict[str, BaseTool] = {}
        self._toolkit = RegisteredTools((), pipeline=self.pipeline)
        self.register_tools(*tools)

    @classmethod
    def default(cls) -> ToolRegistry:
        """The registry that methods use when they are called on the class."""
        if ToolRegistry._default is None:
            # Imported late: the default tools need settings, which are in an outer layer.
            default_tools = import_module("swe_ai_fleet.runtime.default_tools").default_tools()
            ToolRegistry._default = ToolRegistry().over(default_tools)
        return ToolRegistry._default

    def over(self, standard: Iterable[BaseTool]) -> ToolRegistry:
        """A registry with the tools registered here, other `standard` tools, and `request_tools` for all of them."""
        registry = ToolRegistry(self.registered.values(), pipeline=self.pipeline, standard=standard)
        registry.standard[RequestTools.name] = RequestTools(registry)
        return registry

    @_OnDefault
    def register_tool(self, tool: T) -> T:
        """Register a tool and return it, so that this works as a decorator of a class or a function.

        Raises InvalidRequest if the name is taken or the declaration is wrong. Registering a tool twice is allowed.
        """
        self.register_tools(cast("Registrable", tool))
        return tool

    @_OnDefault
    def register_tools(self, *tools: Registrable) -> None:
        """Register several tools, all or none. Raises InvalidRequest like `register_tool`."""
        added: dict[str, BaseTool] = {}
        for candidate in tools:
            tool = as_tool(candidate)
            existing = added.get(tool.name) or self.registered.get(tool.name)
            if existing is None:
                added[tool.name] = tool
            elif candidate not in (existing, type(existing), getattr(existing, "function", None)):
                names = ", ".join({**self.registered, **added})
                raise InvalidRequest(f"a tool {tool.name!r} already exists; names in use: {names}", field="name")
        self.registered |= added

    @_OnDefault
    def get_tool(self, name: str) -> BaseTool:
        """The tool of that name. Raises NotFound naming the registered ones."""
        tool = self._tools.get(name)
        if tool is None:
            raise NotFound(self._no_tool(name), field="name")
        return tool

    @_OnDefault
    def get_all_tools(self) -> dict[str, BaseTool]:
        return self._tools

    @_OnDefault
    def get_tool_definitions(self, names: Sequence[str] | None = None) -> list[dict[str, object]]:
        """The definitions of the named tools (None: all) as OpenAI function objects. Raises NotFound."""
        tools = self._tools.values() if names is None else [self.get_tool(name) for name in names]
        functions = [
            {"name": tool.name, "description": tool.description, "parameters": tool.schema()} for tool in tools
        ]
        return [{"type": "function", "function": function} for function in functions]

    @_OnDefault
    async def execute_tool(self, name: str, /, **arguments: object) -> Any:
        """Execute a tool through the pipeline; its value, in JSON's types if a secret had to be masked.

        A failed call returns a dict whose `error` begins with `Error:` and says what would work: for an unknown tool,
        wrong arguments, a refusal, a timeout or an exception of the tool. Other fields that the tool returned with an
        error are in that dict too.
        """
        tool = self._tools.get(name)
        if tool is None:
            unknown = ToolResult(success=False, operation=name[:64], error=self._no_tool(name), outcome=Outcome.INVALID)
            record = self.pipeline.trail.open(_UNKNOWN, arguments={"name": name[:64]}, secret=arguments, call_id="")
            return {"error": record.close(unknown).observation()}
        values: list[object] = []
        operation = RegisteredOperation(tool, keep=values.append)
        result = await self.pipeline.call(operation, self._toolkit, arguments)
        if not values:
            return {"error": result.observation()}
        (value,) = values
        masked = result.metadata["value"]
        if not result.success:
            return {**mapping(masked), "error": f"{_ERROR}{result.error}"}
        return value if masked == jsonable(value) else masked

    def _no_tool(self, name: str) -> str:
        close = difflib.get_close_matches(name[:64], self._tools, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        return f"there is no tool {name[:64]!r}.{guess} The tools are: {', '.join(self._tools) or 'none'}"


class RequestTools(LocalTool):
    """`request_tools(names) -> {tools}`: the definitions of the named tools of a registry.

    An agent with this tool can call all tools of the registry; the model sees their definitions once it requests them.
    """

    name = "request_tools"
    description = "Show what more tools do, which can then be called."
    parameters = (ToolParameter("names", "array", "Names of tools.", items="string"),)

    def __init__(self, registry: ToolRegistry) -> None:
        self.registry = registry

    async def execute(self, names: list[str]) -> dict[str, object]:
        return {"tools": self.registry.get_tool_definitions(names)}


GROUP = "swe_ai_fleet.tools"
"""The entry point group: `[project.entry-points."swe_ai_fleet.tools"]` in a distribution's pyproject.toml."""
_MAX_REASON_CHARS = 500
_LISTS = ("list", "tuple", "Sequence", "Iterable", "Collection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """An entry point: the tools that were registered, or the reason why none were."""

    name: str
    distribution: str
    tools: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """The entry points that were loaded, and those that failed."""

    loaded: tuple[Plugin, ...] = ()
    broken: tuple[Plugin, ...] = ()


def load_plugins(registry: ToolRegistry, *, only: Collection[str] | None = None) -> PluginReport:
    """Register the tools of the installed plug-ins, all or none of each plug-in's.

    An entry point is a BaseTool class or instance, a function, a list of these, or a function without parameters that
    returns such a list (as its annotation says, or without an annotation). Plug-ins are imported, which runs their code
    in this process: name those you trust in `only` (names of entry points; None: all installed ones).
    """
    loaded: list[Plugin] = []
    broken: list[Plugin] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        if only is not None and entry.name not in only:
            continue
        distribution = entry.dist.name if entry.dist is not None else ""
        try:
            names = _register(registry, entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the edge to foreign code: other plug-ins still load)
            reason = str(error) if isinstance(error, FleetError) else f"{type(error).__name__}: {error}"
            broken.append(Plugin(name=entry.name, distribution=distribution, reason=reason[:_MAX_REASON_CHARS]))
        else:
            loaded.append(Plugin(name=entry.name, distribution=distribution, tools=names))
    return PluginReport(loaded=tuple(loaded), broken=tuple(broken))


def _register(registry: ToolRegistry, entry: EntryPoint) -> tuple[str, ...]:
    loaded = entry.load()
    if _gives_a_list(loaded):
        loaded = cast("Callable[[], object]", loaded)()
        if not isinstance(loaded, list | tuple):
            raise InvalidRequest(
                f"{entry.value} returned {loaded!r:.100}, not a list of tools; a tool without parameters says what it "
                "returns in its annotation",
                field="plugin",
            )
    candidates = cast("Iterable[object]", loaded) if isinstance(loaded, list | tuple) else [loaded]
    tools: list[BaseTool] = [as_tool(each) for each in candidates]
    names = [tool.name for tool in tools]
    # A plug-in may add tools, but never replace one.
    duplicates = sorted({name for name in names if name in registry.get_all_tools() or names.count(name) > 1})
    if duplicates:
        raise InvalidRequest(f"there is a tool {', '.join(duplicates)} already", field="name")
    registry.register_tools(*tools)
    return tuple(names)


def _gives_a_list(loaded: object) -> bool:
    if not inspect.isroutine(loaded) or inspect.signature(cast("Callable[..., object]", loaded)).parameters:
        return False
    annotation = cast("object", inspect.signature(cast("Callable[..., object]", loaded)).return_annotation)
    named = annotation if isinstance(annotation, str) else getattr(get_origin(annotation) or annotation, "__name__", "")
    return annotation is inspect.Signature.empty or named.partition("[")[0].rpartition(".")[2] in _LISTS
