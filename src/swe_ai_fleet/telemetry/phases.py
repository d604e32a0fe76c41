"""The phases of a driven execution, such as drafts, reviews, checks: each lasts while anything of it goes on."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.trace import Span

from swe_ai_fleet.telemetry.tracing import Tracing, current


class Phases:
    """Opens the span of a phase with the first thing that belongs to it, and ends it with the last.

    Args:
        tracing: Makes spans.
        attributes: Of each of them.
    """

    def __init__(self, tracing: Tracing, attributes: Mapping[str, str]) -> None:
        self._tracing = tracing
        self._attributes = attributes
        self._spans: dict[str, Span] = {}
        self._ends: dict[str, int] = {}

    @contextmanager
    def open(self) -> Generator[None]:
        """Within, `phase` means these; afterwards they have ended."""
        token = _phases.set(self)
        try:
            yield
        finally:
            _phases.reset(token)
            for name, span in self._spans.items():
                span.end(end_time=self._ends.get(name) or time.time_ns())

    @contextmanager
    def within(self, name: str) -> Generator[None]:
        """Something of a phase goes on within."""
        if name not in self._spans:
            self._spans[name] = self._tracing.begin(name, {**self._attributes, "fleet.phase": name})
        try:
            with current(trace.set_span_in_context(self._spans[name])):
                yield
        finally:
            self._ends[name] = time.time_ns()


@contextmanager
def phase(name: str) -> Generator[None]:
    """Something of a phase of the current execution goes on within; nothing happens where none is traced."""
    phases = _phases.get()
    if phases is None:
        yield
        return
    with phases.within(name):
        yield


_phases: ContextVar[Phases | None] = ContextVar("phases", default=None)
