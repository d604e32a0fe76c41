"""Answering requests on plain NATS, on every new connection too, in turns with others of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from swe_ai_fleet.adapters.jetstream.backoff import Backoff
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Unanswered
from swe_ai_fleet.adapters.jetstream.messages import Message
from swe_ai_fleet.domain.errors import Unavailable

_AT_ONCE = 64


async def respond(
    connection: Connection,
    subject: str,
    answer: Callable[[Message], Awaitable[bytes]],
    *,
    queue: str,
    heard: asyncio.Event | None = None,
) -> None:
    """Answer every request on a subject until cancelled.

    Args:
        connection: Where they come in.
        subject: Wildcards allowed.
        answer: What is answered; it raises nothing.
        queue: Of those that share the requests.
        heard: Set once requests are heard.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def answered(message: Message) -> None:
        async with room:
            payload = await answer(message)
        with suppress(Unanswered):  # whoever asked asks again
            await connection.send(message.reply, payload)

    async with asyncio.TaskGroup() as group:
        backoff = Backoff.lasting(None)
        while True:
            lost = asyncio.Event()

            def deliver(message: Message | None, lost: asyncio.Event = lost) -> None:
                if message is None:
                    lost.set()
                elif message.reply:
                    group.create_task(answered(message))

            try:
                await connection.subscribe(subject, deliver, queue=queue)
            except Unanswered as reason:
                with suppress(Unavailable):
                    await backoff.wait(reason)
                continue
            backoff = Backoff.lasting(None)
            if heard is not None:
                heard.set()
            await lost.wait()
