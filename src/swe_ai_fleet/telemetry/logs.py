"""Log lines for operators: structured, on standard error, set up once at a process edge."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, MutableMapping
from types import TracebackType
from typing import Any, Literal, cast

import structlog

from swe_ai_fleet.domain.json_values import is_mapping

LogFormat = Literal["auto", "json", "text"]

_HANDLER = "fleet"
_MAX_DEPTH = 6
_UVICORN = ("uvicorn", "uvicorn.error", "uvicorn.access")
_QUIET = ("httpx", "httpcore", "urllib3", "asyncio", "grpc._cython.cygrpc", "opentelemetry.exporter", "filelock")
"""Loggers whose lines below a warning are of no use to an operator."""

_Line = MutableMapping[str, Any]


def configure_logging(level: str, form: LogFormat = "auto", *, mask: Callable[[str], str] | None = None) -> None:
    """Write this process's log lines, including those of libraries, to standard error.

    A line has `ts`, `level`, `event`, and the known ids of its subject: `tenant`, `execution_id`, `agent_id`,
    `trace_id`, `span_id`.

    Args:
        level: The lowest level: debug, info, warning or error. Lines of libraries need at least warning.
        form: `json`, one object per line; `text`, for people; `auto`, text for terminals and JSON otherwise.

    Raises:
        ValueError: The level is unknown.
    """
    numbers = logging.getLevelNamesMapping()
    if level.upper() not in numbers:
        raise ValueError(f"{level!r} is not a log level: use debug, info, warning or error")
    number = numbers[level.upper()]
    readable = sys.stderr.isatty() if form == "auto" else form == "text"
    before = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _with_trace,
    ]
    last = _readable(mask) if readable else _as_json(mask)
    structlog.configure(
        processors=[*before, *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _libraries(number, before, last)
    if mask is not None:
        # Otherwise the interpreter prints the exception that ends the process unmasked.
        sys.excepthook = _crashed


def _crashed(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    structlog.get_logger(__name__).critical("the process ends", exc_info=(kind, error, traceback))


def _libraries(level: int, before: list[Any], last: list[Any]) -> None:
    """Configure the standard library's loggers to the same format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_HANDLER)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*before, _with_logger],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if handler.get_name() == _HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    for name in _UVICORN:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("asyncio").addFilter(_is_useful)
    # This driver writes hosts and ports of databases to standard error; our own lines say what failed.
    logging.getLogger("neo4j").setLevel(logging.CRITICAL)


def _is_useful(record: logging.LogRecord) -> bool:
    # asyncio warns so about the end of every connection upgraded to TLS; no one can do anything about it.
    return "returning true from eof_received()" not in str(record.msg)


def _with_trace(_: object, __: str, line: _Line) -> _Line:
    """Add the ids of the current span. OpenTelemetry is not imported for this if nothing is traced."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            line.setdefault("trace_id", f"{context.trace_id:032x}")
            line.setdefault("span_id", f"{context.span_id:016x}")
    return line


def _with_logger(_: object, __: str, line: _Line) -> _Line:
    record = cast("logging.LogRecord | None", line.get("_record"))
    if record is not None:
        line["logger"] = record.name
    return line


def _readable(mask: Callable[[str], str] | None) -> list[Any]:
    # Tracebacks without the values of variables, which may be tokens.
    console = structlog.dev.ConsoleRenderer(
        exception_formatter=structlog.dev.plain_traceback, timestamp_key="ts", colors=sys.stderr.isatty()
    )
    if mask is None:
        return [console]

    def masked(logger: Any, name: str, line: _Line) -> str:
        return mask(str(console(logger, name, line)))

    return [masked]


def _as_json(mask: Callable[[str], str] | None) -> list[Any]:
    renderer = structlog.processors.JSONRenderer()
    if mask is None:
        return [structlog.processors.format_exc_info, renderer]

    def masked(_: object, __: str, line: _Line, mask: Callable[[str], str] = mask) -> _Line:
        # Value by value: masking the finished line could remove a quote.
        return {key: _masked(value, mask, 0) for key, value in line.items()}

    return [structlog.processors.format_exc_info, masked, renderer]


def _masked(value: object, mask: Callable[[str], str], depth: int) -> object:
    if isinstance(value, str):
        return mask(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < _MAX_DEPTH and is_mapping(value):
        return {mask(str(key)): _masked(item, mask, depth + 1) for key, item in value.items()}
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [_masked(item, mask, depth + 1) for item in cast("Collection[object]", value)]
    # Any other value would be written as its repr, which may contain secrets.
    return mask(str(value))
