"""Tools by name: registering them, describing them to a model, executing them.

Other distributions announce tools of theirs as entry points.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MethodType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, get_origin

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, Risk, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry.base_tool import BaseTool, ToolParameter, jsonable
from swe_ai_fleet.tools.registry.function_tool import FunctionTool
from swe_ai_fleet.tools.registry.toolkit import RegisteredOperation, RegisteredTools

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Registrable = BaseTool | type[BaseTool] | Callable[..., object]
"""What can be registered: an instance, a class that can be made without arguments, a plain function."""
_ERROR = "Error: "
_UNKNOWN = OperationSpec(name="unknown", tool="unknown", operation="unknown", description="", parameters={})


class _OnDefault(Generic[P, R]):
    """A method that, called on the class, works on the default registry."""

    def __init__(self, function: Callable[Concatenate[ToolRegistry, P], R]) -> None:
        self._function = function
        update_wrapper(cast("Any", self), function)

    def __get__(self, instance: ToolRegistry | None, owner: type[ToolRegistry]) -> Callable[P, R]:
        return MethodType(self._function, ToolRegistry.default() if instance is None else instance)


class _Tools:
    """The tools of a registry by name; of the class, those of the default registry."""

    def __get__(self, instance: ToolRegistry | None, owner: type[ToolRegistry]) -> dict[str, BaseTool]:
        registry = owner.default() if instance is None else instance
        return {**registry.standard, **registry.registered}


class ToolRegistry:
    """Tools by name. Each method works on an instance and, called on the class, on the default registry.

    The default registry is made at first use, by the settings of the environment and over the directory that was the
    working directory then: the built-in tools, `request_tools`, `search_memory`, `research` and `call_planner`,
    `call_verifier`, `call_executor`, `call_generator`. Registering a tool of the same name replaces one of these.

    Args:
        tools: Registered at once.
        pipeline: The way every execution goes (policy, audit, masking); without one, its own.
        standard: Tools that stand behind the registered ones: registering the same name replaces them.
    """

    _default: ClassVar[ToolRegistry | None] = None
    _tools = _Tools()

    def __init__(
        self, tools: Iterable[Registrable] = (), *, pipeline: Pipeline | None = None, standard: Iterable[BaseTool] = ()
    ) -> None:
        self.pipeline = pipeline or Pipeline()
        self.standard = {tool.name: tool for tool in standard}
        self.registered: dict[str, BaseTool] = {}
        self._face = RegisteredTools((), pipeline=self.pipeline)
        self.register_tools(*tools)

    @classmethod
    def default(cls) -> ToolRegistry:
        """The registry that methods called on the class work on."""
        if ToolRegistry._default is None:
            # What settings say is known further out only.
            default_tools = import_module("swe_ai_fleet.runtime.default_tools").default_tools()
            ToolRegistry._default = ToolRegistry().over(default_tools)
        return ToolRegistry._default

    def over(self, standard: Iterable[BaseTool]) -> ToolRegistry:
        """What is registered here, with other tools behind it, and `request_tools` to tell of all of them."""
        registry = ToolRegistry(self.registered.values(), pipeline=self.pipeline, standard=standard)
        asking = RequestTools(registry)
        registry.standard[asking.name] = asking
        return registry

    @_OnDefault
    def register_tool(self, tool: T) -> T:
        """Register a tool and give it back, so that it can stand as a decorator above a class or a function.

        Raises InvalidRequest where the name is taken or the declaration is wrong. The same tool again is no fault.
        """
        self.register_tools(cast("Registrable", tool))
        return tool

    @_OnDefault
    def register_tools(self, *tools: Registrable) -> None:
        """Register several, all or none. Raises InvalidRequest as `register_tool` does."""
        added: dict[str, BaseTool] = {}
        for given in tools:
            tool = as_tool(given)
            known = added.get(tool.name) or self.registered.get(tool.name)
            if known is None:
                added[tool.name] = tool
            elif given not in (known, type(known), getattr(known, "function", None)):
                taken = ", ".join({**self.registered, **added})
                raise InvalidRequest(f"a tool {tool.name!r} already exists; names in use: {taken}", field="name")
        self.registered |= added

    @_OnDefault
    def get_tool(self, name: str) -> BaseTool:
        """The tool of that name. Raises NotFound naming those there are."""
        tool = self._tools.get(name)
        if tool is None:
            raise NotFound(self._no_tool(name), field="name")
        return tool

    @_OnDefault
    def get_all_tools(self) -> dict[str, BaseTool]:
        """All tools by name."""
        return self._tools

    @_OnDefault
    def get_tool_definitions(self, names: Sequence[str] | None = None) -> list[dict[str, object]]:
        """What a model is told of the named tools (None: of all), as OpenAI's function objects. Raises NotFound."""
        tools = self._tools.values() if names is None else [self.get_tool(name) for name in names]
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema()},
            }
            for tool in tools
        ]

    @_OnDefault
    async def execute_tool(self, name: str, /, **arguments: object) -> Any:
        """Execute a tool, by way of the pipeline; its own value, or in JSON's types where a secret had to be masked.

        It does not raise for what a model can get wrong: a failed call gives a dict whose `error` begins with
        `Error:` and says what would work, be it an unknown tool, wrong arguments, a refusal, a time-out or an
        exception of the tool's. Such a dict holds what the tool returned besides.
        """
        tool = self._tools.get(name)
        if tool is None:
            return {"error": self._rejected(name, arguments)}
        values: list[object] = []
        operation = RegisteredOperation(tool, keep=values.append)
        result = await self.pipeline.call(operation, self._face, arguments)
        if not values:
            return {"error": result.observation()}
        (value,) = values
        masked = result.metadata["value"]
        if not result.success:
            return {**mapping(masked), "error": f"{_ERROR}{result.error}"}
        return value if masked == jsonable(value) else masked

    @_OnDefault
    def toolkit(
        self,
        names: Sequence[str] | None = None,
        *,
        workspace: Workspace | None = None,
        pipeline: Pipeline | None = None,
    ) -> RegisteredTools:
        """The named tools (None: all) as operations of an agent. Raises NotFound."""
        tools = self._tools.values() if names is None else [self.get_tool(name) for name in names]
        return RegisteredTools(tools, workspace, pipeline)

    def _no_tool(self, name: str) -> str:
        close = difflib.get_close_matches(name[:64], self._tools, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        return f"there is no tool {name[:64]!r}.{guess} The tools are: {', '.join(self._tools) or 'none'}"

    def _rejected(self, name: str, arguments: Mapping[str, object]) -> str:
        """An audit entry for a call that reached no tool, and what to say about it."""
        failed = ToolResult(success=False, operation=name[:64], error=self._no_tool(name), outcome=Outcome.INVALID)
        self.pipeline.trail.open(_UNKNOWN, arguments={"name": name[:64]}, secret=arguments, call_id="").close(failed)
        return failed.observation()


class RequestTools(BaseTool):
    """`request_tools(names) -> {tools}`: what the named tools of a registry are, as a model is told of them.

    Among the tools of an agent it stands for all of its registry: they can be called, and are shown once asked for.
    """

    name = "request_tools"
    description = "Show what more tools do, which can then be called."
    parameters = (ToolParameter("names", "array", "Names of tools.", items="string"),)
    read_only = True
    risk = Risk.LOW
    network = False
    locks = frozenset[str]()

    def __init__(self, registry: ToolRegistry) -> None:
        self.registry = registry

    async def execute(self, names: list[str]) -> dict[str, object]:
        """Their definitions. Raises NotFound naming those there are."""
        return {"tools": self.registry.get_tool_definitions(names)}


def as_tool(given: object) -> BaseTool:
    """A tool out of what can be registered, its declaration checked. Raises InvalidRequest."""
    if isinstance(given, type) and issubclass(given, BaseTool):
        given = _instance(given)
    elif inspect.isroutine(cast("object", given)):
        given = FunctionTool(cast("Callable[..., object]", given))
    if not isinstance(given, BaseTool):
        raise InvalidRequest(
            f"{given!r:.120} can't be registered; give a BaseTool class or instance, or a function", field="tool"
        )
    given.verify()
    return given


def _instance(kind: type[BaseTool]) -> BaseTool:
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(cast("Any", kind).__abstractmethods__))
        raise InvalidRequest(f"{kind.__name__} is abstract: it does not define {missing}", field="tool")
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise InvalidRequest(
            f"{kind.__name__} can't be made without arguments ({error}); register an instance of it", field="tool"
        ) from None
    return kind()


GROUP = "swe_ai_fleet.tools"
"""The entry point group: `[project.entry-points."swe_ai_fleet.tools"]` in a distribution's pyproject.toml."""
_MAX_REASON_CHARS = 500
_LISTS = ("list", "tuple", "Sequence", "Iterable", "Collection")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """An entry point whose tools are registered now."""

    name: str
    distribution: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPlugin:
    """An entry point that brought nothing, and why."""

    name: str
    distribution: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReport:
    """What became of each entry point."""

    loaded: tuple[LoadedPlugin, ...] = ()
    broken: tuple[BrokenPlugin, ...] = ()


def load_plugins(registry: ToolRegistry, *, only: Collection[str] | None = None) -> PluginReport:
    """Register the tools of the installed plug-ins; each brings all of its tools or none.

    An entry point is a BaseTool class or instance, a function, a list of these, or a function without parameters that
    returns such a list (say so in its annotation, or leave the annotation out). This imports the plug-ins, which runs
    their code in this process: name those you trust in `only` (entry points' names; None: all that are installed).
    """
    loaded: list[LoadedPlugin] = []
    broken: list[BrokenPlugin] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        if only is not None and entry.name not in only:
            continue
        distribution = entry.dist.name if entry.dist is not None else ""
        try:
            names = _register(registry, entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the edge to foreign code: others go on)
            reason = str(error) if isinstance(error, FleetError) else f"{type(error).__name__}: {error}"
            broken.append(BrokenPlugin(name=entry.name, distribution=distribution, reason=reason[:_MAX_REASON_CHARS]))
        else:
            loaded.append(LoadedPlugin(name=entry.name, distribution=distribution, tools=names))
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
    given = cast("Iterable[object]", loaded) if isinstance(loaded, list | tuple) else [loaded]
    tools: list[BaseTool] = [as_tool(each) for each in given]
    names = [tool.name for tool in tools]
    # A plug-in may add to the tools there are, never stand in for one of them.
    taken = sorted({name for name in names if name in registry.get_all_tools() or names.count(name) > 1})
    if taken:
        raise InvalidRequest(f"there is a tool {', '.join(taken)} already", field="name")
    registry.register_tools(*tools)
    return tuple(names)


def _gives_a_list(loaded: object) -> bool:
    if not inspect.isroutine(loaded) or inspect.signature(cast("Callable[..., object]", loaded)).parameters:
        return False
    annotation = cast("object", inspect.signature(cast("Callable[..., object]", loaded)).return_annotation)
    if annotation is inspect.Signature.empty:
        return True
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2] in _LISTS
    kind = cast("object", get_origin(annotation) or annotation)
    return getattr(kind, "__name__", "") in _LISTS
