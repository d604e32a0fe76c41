"""Plain functions as tools: the schema is made from the signature, the descriptions from the docstring."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import OperationSpec, Risk
from swe_ai_fleet.tools.base_tool import BaseTool, declared
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.operation import arguments_model, checked_arguments, parameters_schema

_GOOGLE = frozenset({"args:", "arguments:", "parameters:", "params:", "keyword args:", "other parameters:"})
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:(?:\s+(.*))?")
_NUMPY_ENTRY = re.compile(r"(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_REST = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_MAX_CHARS = 20_000
MAX_ABANDONED = 4
"""With this many calls of a function still running after their time limit, the function is not called again."""
_LATE = "it runs in a thread, which nobody can stop: it may still be at work"


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """The first line of a docstring, its whole text, and the descriptions of parameters by name.

    Parameters are found in Google's `Args:`, NumPy's underlined `Parameters` and reStructuredText's `:param name:`.
    """

    first_line: str = ""
    whole: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def parse(cls, text: str) -> Docstring:
        """Parse a docstring whose common indentation is already removed (`inspect.getdoc`)."""
        lines = text[:_MAX_CHARS].splitlines()
        sections: dict[str, list[str]] = {}
        for number, line in enumerate(lines):
            below = lines[number + 1 :]
            if line.strip().lower() in _GOOGLE:
                _google(below, _indent(line), sections)
            elif line.strip().lower() in ("parameters", "other parameters") and below and _underlines(below[0]):
                _numpy(below[1:], _indent(line), sections)
            elif entry := _REST.fullmatch(line.strip()):
                sections[entry[1]] = [entry[2], *_deeper(below, _indent(line))]
        paragraphs = text.strip().splitlines()
        return cls(
            first_line=paragraphs[0].strip() if paragraphs else "",
            whole=text.strip(),
            parameters={name: joined for name, parts in sections.items() if (joined := " ".join(filter(None, parts)))},
        )


def _google(lines: list[str], margin: int, sections: dict[str, list[str]]) -> None:
    depth = 0
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        if _indent(line) <= margin:
            return
        depth = depth or _indent(line)
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == depth else None
        if entry:
            sections[entry[1]] = [(entry[2] or "").strip(), *_deeper(lines[number + 1 :], depth)]


def _numpy(lines: list[str], margin: int, sections: dict[str, list[str]]) -> None:
    for number, line in enumerate(lines):
        if not line.strip() or _indent(line) > margin:
            continue
        if _indent(line) < margin or _underlines("".join(lines[number + 1 : number + 2])):
            return
        entry = _NUMPY_ENTRY.fullmatch(line.strip())
        if entry is None:
            return
        for name in entry[1].split(","):
            sections[name.strip()] = _deeper(lines[number + 1 :], margin)


def _deeper(lines: list[str], margin: int) -> list[str]:
    lines_below: list[str] = []
    for line in lines:
        if line.strip() and _indent(line) <= margin:
            break
        lines_below.append(line.strip())
    return lines_below


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _underlines(line: str) -> bool:
    return len(line.strip()) >= 3 and not line.strip().strip("-")


class FunctionTool(BaseTool):
    """A function as a tool. A sync function runs in a new thread, an async one on the event loop.

    Args:
        function: Any function or method whose parameters can be given by name.
        name: The tool's name; by default the function's.
        description: The tool's description; by default the docstring's.
        one_line_doc: Whether the default description is the docstring's first line only, or all of it.
        read_only, risk, network, locks, roles, time_limit_seconds: See BaseTool.

    Raises:
        InvalidRequest: No schema can be made from the function's signature.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str = "",
        description: str = "",
        one_line_doc: bool = True,
        read_only: bool = False,
        risk: Risk = Risk.MEDIUM,
        network: bool = True,
        locks: frozenset[str] = frozenset({"workspace"}),
        roles: frozenset[Role] = frozenset(Role),
        time_limit_seconds: float = 30.0,
    ) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", ""))
        self._docstring = Docstring.parse(inspect.getdoc(function) or "")
        description_text = self._docstring.first_line if one_line_doc else self._docstring.whole
        self.description = description or description_text
        self.read_only = read_only
        self.risk = risk
        self.network = network
        self.locks = locks
        self.roles = roles
        self.time_limit_seconds = time_limit_seconds
        self._abandoned = 0
        self._asynchronous = inspect.iscoroutinefunction(function)
        self.late_note = "" if self._asynchronous else _LATE
        self._model = self._made_model()
        self.parameters = declared(self._schema)

    async def execute(self, *args: Any, **kwargs: Any) -> object:
        if self._asynchronous:
            return await cast("Any", self.function)(*args, **kwargs)
        if self._abandoned >= MAX_ABANDONED:
            raise ToolFailure(
                f"{self._abandoned} earlier calls of {self.name} ran out of time and have not ended; it is not called "
                "again until they do"
            )
        value = await self._in_thread(functools.partial(self.function, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value

    def schema(self) -> dict[str, object]:
        return self._schema

    def checked(self, arguments: Mapping[str, object], spec: OperationSpec) -> dict[str, object]:
        return checked_arguments(self._model, spec, arguments)

    @cached_property
    def _schema(self) -> dict[str, object]:
        schema = parameters_schema(self._model)
        properties = cast("dict[str, dict[str, object]]", schema.setdefault("properties", {}))
        for name, part in properties.items():
            if name in self._docstring.parameters:
                part.setdefault("description", self._docstring.parameters[name])
        return schema

    def _made_model(self) -> type[BaseModel]:
        if not inspect.isroutine(self.function) or not self.name.isidentifier():
            raise InvalidRequest(
                f"{self.function!r:.120} is not a function with a name; give a function, or a name", field="function"
            )
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise InvalidRequest(f"{self.name} is a generator; a tool returns one value", field="function")
        try:
            for parameter in inspect.signature(self.function).parameters.values():
                named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
                if not named or parameter.name.startswith("_"):
                    raise InvalidRequest(
                        f"{self.name} takes {parameter}, which has no schema; name each parameter, without a leading _",
                        field="parameters",
                    )
            model = arguments_model(self.name, self.function)
            model.model_json_schema()
        except (NameError, TypeError, ValueError, PydanticUserError) as error:
            raise InvalidRequest(
                f"no schema can be made of {self.name}: {str(error)[:300]}", field="parameters"
            ) from error
        return model

    def verify(self) -> None:
        """Nothing to check: the schema was made from the function."""

    async def _in_thread(self, call: Callable[[], object]) -> object:
        # Not asyncio.to_thread: calls that never end would use up its few workers, which are also joined at exit.
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()
        context = contextvars.copy_context()
        ended = given_up = False

        def work() -> None:
            try:
                value, fault = context.run(call), None
            except Exception as error:  # noqa: BLE001 (the edge to foreign code)
                value, fault = None, error
            except BaseException as error:  # noqa: BLE001 (sys.exit in a tool is its failure, not ours)
                value, fault = None, ToolFailure(f"{self.name} raised {type(error).__name__}")
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(finish, value, fault)

        def finish(value: object, fault: Exception | None) -> None:
            nonlocal ended
            ended = True
            if given_up:
                self._abandoned -= 1
            elif not done.done():
                if isinstance(fault, StopIteration):
                    fault = ToolFailure(f"{self.name} raised StopIteration")
                done.set_exception(fault) if fault is not None else done.set_result(value)

        threading.Thread(target=work, name=f"tool-{self.name}", daemon=True).start()
        try:
            return await done
        except asyncio.CancelledError:
            if not ended:
                given_up = True
                self._abandoned += 1
            raise


def as_tool(candidate: object) -> BaseTool:
    """A tool made from anything that can be registered, its declaration checked. Raises InvalidRequest."""
    if isinstance(candidate, type) and issubclass(candidate, BaseTool):
        candidate = _instance(candidate)
    elif inspect.isroutine(candidate):
        candidate = FunctionTool(cast("Callable[..., object]", candidate))
    if not isinstance(candidate, BaseTool):
        raise InvalidRequest(
            f"{candidate!r:.120} can't be registered; give a BaseTool class or instance, or a function", field="tool"
        )
    candidate.verify()
    return candidate


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
