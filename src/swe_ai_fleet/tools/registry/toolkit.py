"""Registered tools as operations: of a registry, and of an agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.tools.definition import Holder, ToolFailure
from swe_ai_fleet.tools.http import HttpTool
from swe_ai_fleet.tools.operation import Toolkit
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.registry.base_tool import BaseTool, jsonable, lacking

MAX_METADATA_CHARS = 64 * 1024
"""What the events of an agent carry of a value, as JSON; the model reads the text of the rest anyway."""
FINAL_ANSWER = "final_answer"
_MAX_MESSAGE_CHARS = 1_000
_MAX_NAMED = 20
_OTHERWISE = "Call another tool, or this one with other arguments."
_PERHAPS_DONE = "It may have had its effect: look with another tool before you call it again, or use other arguments."
# The tool's own limit is kept here, where it can be explained; the pipeline's stands behind it.
_SPARE_SECONDS = 5.0


class RegisteredOperation:
    """A registered tool as a definition; implements `Definition`.

    Args:
        tool: What is called.
        keep: Is given each value as the tool returned it. The metadata then hold the whole of it, under `value`.
        time_limit_seconds: When a call is given up; None: the tool's own limit.
        needs_value: Whether a call that gives None or something empty has failed.
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
        """The arguments as `execute` takes them. Raises ToolFailure naming each problem and the signature."""
        return self.tool.checked(arguments, self.spec)

    async def run(self, toolkit: Holder, arguments: Mapping[str, object]) -> ToolResult:
        """Execute the tool. Whatever it raises becomes a ToolFailure that says so."""
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
            # Nobody cancelled this call: what the tool itself cancelled must not end the run.
            raise ToolFailure(f"{tool.name} failed: it was cancelled from within") from None
        except (Exception, SystemExit) as error:  # (the edge to foreign code: a plug-in must not end an agent)
            if isinstance(error, TimeoutError) and scope.expired():
                return self._late()
            raise ToolFailure(f"{tool.name} failed: {_error_text(error)}") from error
        if self._needs_value and (lack := lacking(value)):
            raise ToolFailure(f"{tool.name} returned {lack}. {_OTHERWISE if tool.read_only else _PERHAPS_DONE}")
        result = replace(tool.present(value), operation=tool.name)
        if self._keep is None:
            return _bounded(result)
        self._keep(value)
        return replace(result, metadata={"value": jsonable(value)})

    def _late(self) -> ToolResult:
        note = f"; {self.tool.late_note}" if self.tool.late_note else ""
        error = f"{self.tool.name} did not finish within {self._seconds:g} seconds{note}"
        return ToolResult(success=False, operation=self.tool.name, error=error, outcome=Outcome.TIMEOUT)


class RegisteredTools(Toolkit):
    """Registered tools as the operations of an agent, each under its bare name.

    `final_answer` is left out: an agent's own loop has it.

    Args:
        tools: What it offers; the names must differ.
        workspace: Where the agent works, for tools that ask; not used otherwise.
        pipeline: The way every call goes; without one, its own.
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
        # URLs carry credentials whatever tool they are given to, and the HTTP tool knows where.
        return HttpTool(pipeline=self.pipeline).recorded(arguments)


def _error_text(error: BaseException) -> str:
    text = str(error)[:_MAX_MESSAGE_CHARS]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _bounded(result: ToolResult) -> ToolResult:
    """The result with as many of its fields as the events of an agent carry, the smallest first."""
    sizes = {name: len(json.dumps(value, default=str)) for name, value in result.metadata.items()}
    room, kept = MAX_METADATA_CHARS, set[str]()
    for name in sorted(sizes, key=lambda each: sizes[each]):
        room -= sizes[name]
        if room >= 0:
            kept.add(name)
    if len(kept) == len(sizes):
        return result
    metadata = {name: value for name, value in result.metadata.items() if name in kept}
    left_out = {name: f"{size} characters as JSON" for name, size in sizes.items() if name not in kept}
    return replace(result, metadata={**metadata, "left_out": dict(list(left_out.items())[:_MAX_NAMED])})
