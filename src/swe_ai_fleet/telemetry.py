"""Log lines for operators: structured, on standard error, set up once at a process edge."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging(level: str) -> None:
    """Send this process's log lines of `level` (debug, info, warning, error) and above to standard error.

    A terminal gets readable lines, anything else one JSON object a line. Raises ValueError for another level.
    """
    numbers = logging.getLevelNamesMapping()
    if level.upper() not in numbers:
        raise ValueError(f"{level!r} is no log level: use debug, info, warning or error")
    # Drivers that write hosts and ports of databases to standard error themselves; our own lines say what failed.
    logging.getLogger("neo4j").setLevel(logging.CRITICAL)
    readable = sys.stderr.isatty()
    # Without the values of variables, which may be tokens.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    renderer = console if readable else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(() if readable else (structlog.processors.format_exc_info,)),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(numbers[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
