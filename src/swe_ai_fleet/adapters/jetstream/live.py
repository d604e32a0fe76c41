"""Live text of models on plain NATS: delivered to current watchers, stored nowhere.

A watcher announces itself every few seconds on `agent.live.want.<tenant>.<execution>`, and subscribes to
`agent.live.text.<tenant>.<execution>.<agent>`. Hosts publish only for recently announced executions, so that an
unwatched fleet pays nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import (
    NatsMessage,
    Unanswered,
    live_text_subject,
    live_want_subject,
    token,
)
from swe_ai_fleet.adapters.jetstream.requests import listen
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.message import TextDelta

WANT_SECONDS = 2.0
WANTED_FOR_SECONDS = 7.0
FLUSH_SECONDS = 0.05
_MOST_WAITING = 1000
_MOST_CHARS = 32_768


class LiveTexts:
    """Publishes text deltas of watched executions. Made by `live_texts`.

    It subscribes to the watchers of a tenant at the tenant's first `is_followed`: agent hosts may not subscribe to all.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wanted: dict[str, float] = {}
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[TextDelta]] = {}
        self._queued = asyncio.Event()

    def is_followed(self, tenant: str, execution_id: str) -> bool:
        if tenant not in self._listening:
            wants = live_want_subject(token(tenant), "*")
            self._listening[tenant] = asyncio.create_task(listen(self._connection, wants, self._on_want))
        until = self._wanted.get(live_want_subject(token(tenant), token(execution_id)), 0.0)
        return until > time.monotonic()

    def say(self, tenant: str, execution_id: str, delta: TextDelta) -> None:
        """Queue a piece of text; it is dropped when the queue is full."""
        if sum(map(len, self._waiting.values())) < _MOST_WAITING:
            subject = live_text_subject(tenant, execution_id, delta.agent_id)
            self._waiting.setdefault(subject, []).append(delta)
            self._queued.set()

    async def flush(self) -> None:
        """Send queued texts until cancelled."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            waiting, self._waiting = self._waiting, {}
            for subject, deltas in waiting.items():
                for delta in _joined(deltas):
                    with suppress(Unanswered):  # not repeated: it would no longer be live
                        await self._connection.send(subject, to_json(delta))
            await asyncio.sleep(FLUSH_SECONDS)

    async def close(self) -> None:
        """End all subscriptions."""
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)

    def _on_want(self, message: NatsMessage) -> None:
        now = time.monotonic()
        self._wanted = {subject: until for subject, until in self._wanted.items() if until > now}
        self._wanted[message.subject] = now + WANTED_FOR_SECONDS


@asynccontextmanager
async def live_texts(connection: Connection) -> AsyncGenerator[LiveTexts]:
    """A publisher of live text until the context ends."""
    live = LiveTexts(connection)
    sending = asyncio.create_task(live.flush())
    try:
        yield live
    finally:
        sending.cancel()
        await asyncio.gather(sending, live.close(), return_exceptions=True)


async def watch_live(connection: Connection, tenant: str, execution_id: str) -> AsyncGenerator[TextDelta]:
    """The text of an execution's models from now on, without an end; gaps are possible."""
    texts: asyncio.Queue[bytes] = asyncio.Queue(maxsize=_MOST_WAITING)

    def deliver(message: NatsMessage) -> None:
        if not texts.full():
            texts.put_nowait(message.data)

    announcing = asyncio.create_task(_announce(connection, live_want_subject(token(tenant), token(execution_id))))
    listening = asyncio.create_task(listen(connection, live_text_subject(tenant, execution_id, "*"), deliver))
    try:
        while True:
            yield from_json(TextDelta, await texts.get())
    finally:
        announcing.cancel()
        listening.cancel()
        await asyncio.gather(announcing, listening, return_exceptions=True)


async def _announce(connection: Connection, subject: str) -> None:
    while True:
        with suppress(Unanswered):  # repeated in a moment
            await connection.send(subject, b"")
        await asyncio.sleep(WANT_SECONDS)


def _joined(deltas: list[TextDelta]) -> list[TextDelta]:
    """Joins adjacent pieces of the same reply."""
    joined: list[TextDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if last is not None and not delta.begins and len(last.text) + len(delta.text) <= _MOST_CHARS:
            joined[-1] = TextDelta(agent_id=last.agent_id, text=last.text + delta.text, begins=last.begins)
        else:
            joined.append(delta)
    return joined
