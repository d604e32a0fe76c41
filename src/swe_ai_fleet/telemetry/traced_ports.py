"""Ports that are traced: spans around what an execution asks of its fleet, its repositories and the result bus.

An event log's writers are heard of: their ids in log lines, their work as spans, how long a write takes.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from opentelemetry.trace import SpanKind
from structlog.contextvars import bound_contextvars

from swe_ai_fleet.domain.assignment import Assignment, AssignmentKind, CodingAssignment, RecordedAssignment
from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, Event, EventBody, StoredEvent, Writer
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Clone, EventLog, Exported, Fleet, Journal, Merge, MergeRequest, Repositories, ResultBus
from swe_ai_fleet.telemetry.run_spans import phase
from swe_ai_fleet.telemetry.tracing import Tracing, stamp

if TYPE_CHECKING:
    from swe_ai_fleet.telemetry.run_spans import WrittenSpans
    from swe_ai_fleet.telemetry.tracing import Tracing

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


class ObservedLog:
    """An `EventLog`.

    Args:
        log: Where events go.
        tracing: Makes spans of them; None: nobody does.
        timed: Hears how many seconds each write took; None: nobody does.
    """

    def __init__(self, log: EventLog, tracing: Tracing | None, timed: Callable[[float], None] | None) -> None:
        self._log = log
        self._tracing = tracing
        self._timed = timed

    @asynccontextmanager
    async def journal(self, writer: Writer, *, fresh: bool = False) -> AsyncGenerator[Journal]:
        """The journal of a writer's subject, as the log's own."""
        with ExitStack() as around:
            ids = {"agent_id": writer.agent_id} if writer.agent_id != EXECUTION_SUBJECT else {}
            around.enter_context(bound_contextvars(tenant=writer.tenant, execution_id=writer.execution_id, **ids))
            spans: WrittenSpans | None = None
            if self._tracing is not None:
                from swe_ai_fleet.telemetry.run_spans import written_spans

                spans = around.enter_context(written_spans(self._tracing, writer, fresh=fresh))
            async with self._log.journal(writer, fresh=fresh) as journal:
                heard = spans is not None or self._timed is not None
                yield ObservedJournal(journal, spans, self._timed) if heard else journal

    async def tell(self, writer: Writer, body: EventBody) -> StoredEvent:
        """As the log's own."""
        return await self._log.tell(writer, body)

    def read(
        self, tenant: str, execution_id: str, *, agent_id: str = "", from_sequence: int = 0, follow: bool = False
    ) -> AsyncGenerator[StoredEvent, None]:
        """As the log's own."""
        return self._log.read(tenant, execution_id, agent_id=agent_id, from_sequence=from_sequence, follow=follow)

    def heads(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncGenerator[StoredEvent | None, None]:
        """As the log's own."""
        return self._log.heads(from_sequence=from_sequence, follow=follow)


class ObservedJournal:
    """A `Journal` that tells of what is written through it."""

    def __init__(self, journal: Journal, spans: WrittenSpans | None, timed: Callable[[float], None] | None) -> None:
        self._journal = journal
        self._spans = spans
        self._timed = timed

    def post(self, body: EventBody) -> Event:
        """Queue an event behind the others."""
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
    """A `Fleet`; what goes to it belongs to a phase of its execution, and carries the span on to another process."""

    def __init__(self, fleet: Fleet, tracing: Tracing) -> None:
        self._fleet = fleet
        self._tracing = tracing

    async def run(self, assignment: Assignment[T]) -> T:
        """As the fleet does."""
        attributes = {
            "rpc.system": "ray",
            "fleet.tenant": assignment.task.tenant,
            "fleet.task_id": assignment.task.task_id,
            "fleet.execution_id": assignment.execution_id,
            "fleet.agent_id": _agent(assignment),
        }
        with phase(_phase(assignment)), self._tracing.span(f"ray {assignment.kind}", attributes, kind=SpanKind.CLIENT):
            traceparent = stamp().get("traceparent", "")
            return await self._fleet.run(replace(assignment, task=replace(assignment.task, traceparent=traceparent)))


def _phase(assignment: Assignment[object]) -> str:
    """The part of its execution that an assignment belongs to."""
    revises = isinstance(assignment, CodingAssignment) and assignment.revision is not None
    return "revise" if revises else _PHASES[assignment.kind]


def _agent(assignment: Assignment[object]) -> str:
    return assignment.agent_id if isinstance(assignment, RecordedAssignment) else ""


class TracedRepositories:
    """`Repositories` whose slow ways have spans."""

    def __init__(self, repositories: Repositories, tracing: Tracing) -> None:
        self._inner = repositories
        self._tracing = tracing

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """As they do."""
        with self._tracing.span("pin repository", {"fleet.tenant": tenant}):
            return await self._inner.pin(tenant, repo)

    async def pin_image(self, tenant: str, spec: EnvironmentSpec) -> EnvironmentSpec:
        """As they do."""
        return await self._inner.pin_image(tenant, spec)

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """As they do."""
        with self._tracing.span("environment", {}):
            return await self._inner.environment(repository, spec)

    def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """As they do."""
        return self._inner.open(execution_id, name, repository, environment)

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """As they do."""
        with self._tracing.span("apply", {"fleet.execution_id": execution_id, "fleet.patch_bytes": len(patch)}):
            return await self._inner.deliver(execution_id, repository, patch, delivery)

    async def release(self, execution_id: str) -> None:
        """As they do."""
        await self._inner.release(execution_id)

    async def merge(self, request: MergeRequest) -> Merge:
        """As they do."""
        with self._tracing.span("merge", {}):
            return await self._inner.merge(request)

    async def keep(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, ref: str, message: str
    ) -> Delivered:
        """As they do."""
        return await self._inner.keep(execution_id, repository, patch, ref, message)

    async def publish(
        self, execution_id: str, repository: PinnedRepository, since: str, delivery: Delivery
    ) -> Delivered:
        """As they do."""
        with self._tracing.span("apply", {"fleet.execution_id": execution_id}):
            return await self._inner.publish(execution_id, repository, since, delivery)

    async def export(self, repository: PinnedRepository, base: str, branch: str, *, since: str = "") -> Exported:
        """As they do."""
        return await self._inner.export(repository, base, branch, since=since)


class TracedResults:
    """A `ResultBus` whose messages belong to the span that they are published in."""

    def __init__(self, results: ResultBus, tracing: Tracing) -> None:
        self._results = results
        self._tracing = tracing

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """As the bus does."""
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
