"""An event log whose writers are heard of: their ids in log lines, their work as spans, how long a write takes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from structlog.contextvars import bind_contextvars, reset_contextvars

from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, Event, EventBody, StoredEvent, Writer
from swe_ai_fleet.ports import EventLog, Journal

if TYPE_CHECKING:
    from swe_ai_fleet.telemetry.run_spans import WrittenSpans
    from swe_ai_fleet.telemetry.tracing import Tracing


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
            around.enter_context(_bound(writer))
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

    def heads(self, *, follow: bool = False) -> AsyncGenerator[StoredEvent | None, None]:
        """As the log's own."""
        return self._log.heads(follow=follow)


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


@contextmanager
def _bound(writer: Writer) -> Generator[None]:
    """Log lines within name who writes."""
    ids = {"tenant": writer.tenant, "execution_id": writer.execution_id}
    if writer.agent_id != EXECUTION_SUBJECT:
        ids["agent_id"] = writer.agent_id
    tokens = bind_contextvars(**ids)
    try:
        yield
    finally:
        reset_contextvars(**tokens)
