"""Tools that other distributions bring, announced as entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast, get_origin

from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.tools.registry.base_tool import BaseTool
from swe_ai_fleet.tools.registry.registry import ToolRegistry, as_tool

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
    found = entry.load()
    if _gives_a_list(found):
        found = cast("Callable[[], object]", found)()
        if not isinstance(found, list | tuple):
            raise InvalidRequest(
                f"{entry.value} returned {found!r:.100}, not a list of tools; a tool without parameters says what it "
                "returns in its annotation",
                field="plugin",
            )
    given = cast("Iterable[object]", found) if isinstance(found, list | tuple) else [found]
    tools: list[BaseTool] = [as_tool(each) for each in given]
    names = [tool.name for tool in tools]
    # A plug-in may add to the tools there are, never stand in for one of them.
    taken = sorted({name for name in names if name in registry.get_all_tools() or names.count(name) > 1})
    if taken:
        raise InvalidRequest(f"there is a tool {', '.join(taken)} already", field="name")
    registry.register_tools(*tools)
    return tuple(names)


def _gives_a_list(found: object) -> bool:
    if not inspect.isroutine(found) or inspect.signature(cast("Callable[..., object]", found)).parameters:
        return False
    annotation = cast("object", inspect.signature(cast("Callable[..., object]", found)).return_annotation)
    if annotation is inspect.Signature.empty:
        return True
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2] in _LISTS
    kind = cast("object", get_origin(annotation) or annotation)
    return getattr(kind, "__name__", "") in _LISTS
