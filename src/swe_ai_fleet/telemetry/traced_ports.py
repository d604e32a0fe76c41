"""Ports with tracing: spans around the calls of a fleet, of repositories and of the result bus.

An event log's writers have their ids in log lines, spans for their work, and metrics of the time of writes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from opentelemetry.trace import SpanKind
from structlog.contextvars import bound_contextvars

from swe_ai_fleet.domain.assignment import Assignment, AssignmentKind, CodingAssignment, RecordedAssignment
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, Event, EventBody, Writer
from swe_ai_fleet.ports import EventLog, Fleet, Journal, Repositories, ResultBus
from swe_ai_fleet.telemetry.run_spans import WrittenSpans, phase, written_spans
from swe_ai_fleet.telemetry.tracing import Tracing, stamp

T = TypeVar("T")
_PHASES = {
    AssignmentKind.RUN: "draft",
    AssignmentKind.BASELINE: "check",
    AssignmentKind.CHECK: "check",
    AssignmentKind.EXAMINE: "check",
    AssignmentKind.REVIEW: "review",
    AssignmentKind.JUDGE: "judge",
    AssignmentKind.SCORE: "judge",
    AssignmentKind.DERIVE: "derive",
    AssignmentKind.ANSWER: "nodes",
    AssignmentKind.OPERATE: "nodes",
    AssignmentKind.OPENING: "draft",
}
_TRACED_METHODS = {
    "pin": ("pin repository", "fleet.tenant"),
    "environment": ("environment", ""),
    "deliver": ("apply", "fleet.execution_id"),
    "publish": ("apply", "fleet.execution_id"),
    "merge": ("merge", ""),
}
"""The methods of repositories with spans: the span's name, and the attribute for the first argument."""


class ObservedLog:
    """An `EventLog` with spans for its writers, if there is `tracing`; `timed` is called with the seconds of writes."""

    def __init__(self, log: EventLog, tracing: Tracing | None, timed: Callable[[float], None] | None) -> None:
        self._log = log
        self._tracing = tracing
        self._timed = timed
        self.tell, self.read, self.heads = log.tell, log.read, log.heads

    @asynccontextmanager
    async def journal(self, writer: Writer, *, fresh: bool = False) -> AsyncGenerator[Journal]:
        """As the log's own `journal`."""
        with ExitStack() as around:
            ids = {"agent_id": writer.agent_id} if writer.agent_id != EXECUTION_SUBJECT else {}
            around.enter_context(bound_contextvars(tenant=writer.tenant, execution_id=writer.execution_id, **ids))
            spans: WrittenSpans | None = None
            if self._tracing is not None:
                spans = around.enter_context(written_spans(self._tracing, writer, fresh=fresh))
            async with self._log.journal(writer, fresh=fresh) as journal:
                observed = spans is not None or self._timed is not None
                yield ObservedJournal(journal, spans, self._timed) if observed else journal


class ObservedJournal:
    """A `Journal` that reports its writes to spans and metrics."""

    def __init__(self, journal: Journal, spans: WrittenSpans | None, timed: Callable[[float], None] | None) -> None:
        self._journal = journal
        self._spans = spans
        self._timed = timed

    def post(self, body: EventBody) -> Event:
        """As the journal's own `post`."""
        event = self._journal.post(body if self._spans is None else self._spans.before(body))
        if self._spans is not None:
            self._spans.after(event)
        return event

    async def append(self, body: EventBody) -> Event:
        """Write an event and everything posted before it. Raises as the journal does."""
        began = time.perf_counter()
        event = await self._journal.append(body if self._spans is None else self._spans.before(body))
        if self._timed is not None:
            self._timed(time.perf_counter() - began)
        if self._spans is not None:
            self._spans.after(event)
        return event

    async def flush(self) -> None:
        """Wait until everything posted is durable. Raises as the journal does."""
        await self._journal.flush()


class TracedFleet:
    """A `Fleet` with a span for each assignment, in a phase of its execution and passed on to the other process."""

    def __init__(self, fleet: Fleet, tracing: Tracing) -> None:
        self._fleet = fleet
        self._tracing = tracing

    async def run(self, assignment: Assignment[T]) -> T:
        """As the fleet's own `run`."""
        attributes = {
            "rpc.system": "ray",
            "fleet.tenant": assignment.task.tenant,
            "fleet.task_id": assignment.task.task_id,
            "fleet.execution_id": assignment.execution_id,
            "fleet.agent_id": assignment.agent_id if isinstance(assignment, RecordedAssignment) else "",
        }
        with phase(_phase(assignment)), self._tracing.span(f"ray {assignment.kind}", attributes, kind=SpanKind.CLIENT):
            traceparent = stamp().get("traceparent", "")
            return await self._fleet.run(replace(assignment, task=replace(assignment.task, traceparent=traceparent)))


def _phase(assignment: Assignment[object]) -> str:
    """The phase of an assignment in its execution."""
    revises = isinstance(assignment, CodingAssignment) and assignment.revision is not None
    return "revise" if revises else _PHASES[assignment.kind]


class TracedRepositories:
    """`Repositories` with spans for slow methods."""

    def __init__(self, repositories: Repositories, tracing: Tracing) -> None:
        self._inner = repositories
        self._tracing = tracing

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in _TRACED_METHODS:
            return method
        span, first = _TRACED_METHODS[name]

        async def traced(*args: Any, **kwargs: Any) -> Any:
            size = {"fleet.patch_bytes": len(args[2])} if name == "deliver" else {}
            with self._tracing.span(span, {first: args[0], **size} if first else {}):
                return await method(*args, **kwargs)

        return traced


class TracedResults:
    """A `ResultBus` with a span for each published message."""

    def __init__(self, results: ResultBus, tracing: Tracing) -> None:
        self._results = results
        self._tracing = tracing

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """As the bus's own `publish`."""
        attributes = {
            "messaging.system": "nats",
            "messaging.operation.type": "send",
            "messaging.destination.name": "agent.results",
            "messaging.message.body.size": len(payload),
            "fleet.tenant": tenant,
            "fleet.task_id": task_id,
            "fleet.execution_id": execution_id,
        }
        with self._tracing.span("send agent.results", attributes, kind=SpanKind.PRODUCER):
            return await self._results.publish(
                tenant=tenant, task_id=task_id, execution_id=execution_id, agent_id=agent_id, payload=payload
            )
