"""Live text of models on plain NATS: delivered to current listeners, stored nowhere.

A watcher says every few seconds on `agent.live.want.<tenant>.<execution>` that it listens, and hears
`agent.live.text.<tenant>.<execution>.<agent>`. Hosts publish only for executions that a watcher named lately, so that
an unwatched fleet pays nothing.
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
    """Publishes text deltas of executions that are watched. Made by `live_texts`.

    Watchers are heard tenant by tenant, from the first question about one on: no host of agents may hear all of them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._wanted: dict[str, float] = {}
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[TextDelta]] = {}
        self._news = asyncio.Event()

    def is_followed(self, tenant: str, execution_id: str) -> bool:
        if tenant not in self._listening:
            wants = live_want_subject(token(tenant), "*")
            self._listening[tenant] = asyncio.create_task(listen(self._connection, wants, self._hear_want))
        until = self._wanted.get(live_want_subject(token(tenant), token(execution_id)), 0.0)
        return until > time.monotonic()

    def say(self, tenant: str, execution_id: str, delta: TextDelta) -> None:
        """Queue a piece of text; where listeners can't keep up, pieces are dropped."""
        if sum(map(len, self._waiting.values())) < _MOST_WAITING:
            subject = live_text_subject(tenant, execution_id, delta.agent_id)
            self._waiting.setdefault(subject, []).append(delta)
            self._news.set()

    async def flush(self) -> None:
        """Send what is queued, again and again."""
        while True:
            await self._news.wait()
            self._news.clear()
            waiting, self._waiting = self._waiting, {}
            for subject, deltas in waiting.items():
                for delta in _joined(deltas):
                    with suppress(Unanswered):  # later it is not live any more
                        await self._connection.send(subject, to_json(delta))
            await asyncio.sleep(FLUSH_SECONDS)

    async def close(self) -> None:
        """Hear nothing more."""
        for task in self._listening.values():
            task.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)

    def _hear_want(self, message: NatsMessage) -> None:
        now = time.monotonic()
        self._wanted = {subject: until for subject, until in self._wanted.items() if until > now}
        self._wanted[message.subject] = now + WANTED_FOR_SECONDS


@asynccontextmanager
async def live_texts(connection: Connection) -> AsyncGenerator[LiveTexts]:
    """A publisher of live text for as long as the context lasts."""
    live = LiveTexts(connection)
    sending = asyncio.create_task(live.flush())
    try:
        yield live
    finally:
        sending.cancel()
        await asyncio.gather(sending, live.close(), return_exceptions=True)


async def watch_live(connection: Connection, tenant: str, execution_id: str) -> AsyncGenerator[TextDelta]:
    """What the models of an execution say from now on, without an end; gaps are possible."""
    texts: asyncio.Queue[bytes] = asyncio.Queue(maxsize=_MOST_WAITING)

    def hear(message: NatsMessage) -> None:
        if not texts.full():
            texts.put_nowait(message.data)

    asking = asyncio.create_task(_ask(connection, live_want_subject(token(tenant), token(execution_id))))
    hearing = asyncio.create_task(listen(connection, live_text_subject(tenant, execution_id, "*"), hear))
    try:
        while True:
            yield from_json(TextDelta, await texts.get())
    finally:
        asking.cancel()
        hearing.cancel()
        await asyncio.gather(asking, hearing, return_exceptions=True)


async def _ask(connection: Connection, subject: str) -> None:
    while True:
        with suppress(Unanswered):  # the next one goes through
            await connection.send(subject, b"")
        await asyncio.sleep(WANT_SECONDS)


def _joined(deltas: list[TextDelta]) -> list[TextDelta]:
    """Neighbouring pieces of one reply as one."""
    joined: list[TextDelta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if last is not None and not delta.begins and len(last.text) + len(delta.text) <= _MOST_CHARS:
            joined[-1] = TextDelta(agent_id=last.agent_id, text=last.text + delta.text, begins=last.begins)
        else:
            joined.append(delta)
    return joined
