"""One watcher's messages of an execution: from the sequence number it asks for, without gap or repetition.

Also checks the query parameters of watchers; errors name the parameter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.requests import HTTPConnection

from services.gateway.streams.feeds import QUIET_SECONDS, Feed, steady_events
from services.gateway.streams.messages import Messages, StreamMessage
from services.gateway.streams.ring import BATCH_BYTES, BATCH_MESSAGES, Batch
from swe_ai_fleet.domain.errors import InvalidRequest

MAX_SEQUENCE = 2**63 - 1
_YES_NO = {"1": True, "true": True, "0": False, "false": False}


def check_names(connection: HTTPConnection, known: Sequence[str]) -> None:
    """Raises InvalidRequest naming a query parameter that is unknown or given twice."""
    names = [name for name, _ in connection.query_params.multi_items()]
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"there is no parameter {name[:64]!r}", field=name[:64], hint=f"one of {', '.join(known)}"
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"{name} is given twice", field=name)


def number(connection: HTTPConnection, name: str, default: int, *, least: int = 0, most: int = MAX_SEQUENCE) -> int:
    """A query parameter as a whole number. Raises InvalidRequest."""
    text = connection.query_params.get(name)
    return default if text is None else number_of(text, name, least=least, most=most)


def number_of(text: str, name: str, *, least: int = 0, most: int = MAX_SEQUENCE) -> int:
    """A text as a whole number. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE)) and least <= int(text) <= most):
        raise InvalidRequest(f"{name} is {text[:40]!r}", field=name, hint=f"a whole number from {least} to {most}")
    return int(text)


def flag(connection: HTTPConnection, name: str, default: bool = False) -> bool:
    """A query parameter as a boolean. Raises InvalidRequest."""
    text = connection.query_params.get(name)
    if text is None:
        return default
    if text not in _YES_NO:
        raise InvalidRequest(f"{name} is {text[:40]!r}", field=name, hint="1 or 0")
    return _YES_NO[text]


class TooSlow(Exception):
    """A watcher did not keep up; `resume_from` is the sequence number from which it may continue."""

    def __init__(self, resume_from: int) -> None:
        super().__init__(f"too slow; resume with from={resume_from}")
        self.resume_from = resume_from


async def follow(
    feed: Feed, from_sequence: int, log_readers: asyncio.Semaphore, *, wait: bool = True
) -> AsyncGenerator[Batch, None]:
    """Messages from a sequence number on until the execution ends.

    Messages that the feed has dropped are read again from the services, until the watcher has caught up once.

    Args:
        from_sequence: The first number wanted; 0: all of them.
        log_readers: Limits how many watchers read dropped messages at once.
        wait: Whether to wait for new events.

    Raises:
        TooSlow: The watcher had caught up, and the feed has dropped messages that it did not read since.
        grpc.aio.AioRpcError, FleetError: The events cannot be read.
    """
    sequence, caught_up = max(from_sequence - 1, 0), False
    position: int | None = None
    while True:
        if position is None or position < feed.ring.start:
            if feed.ring.find(sequence) is None:
                if caught_up:
                    raise TooSlow(sequence + 1)
                async with log_readers, aclosing(_from_log(feed, sequence)) as batches:
                    async for batch in batches:
                        sequence = batch.sequence
                        yield batch
                continue
            # None until the feed has read as far as this watcher has.
            position = feed.ring.find(sequence) if feed.ring.sequence >= sequence else None
        if position is not None:
            batch = feed.ring.batch(position, sequence)
            if batch.messages:
                position, sequence = batch.position, batch.sequence
                yield batch
                continue
        if feed.fault is not None:
            raise feed.fault
        if feed.ended or (not wait and feed.caught_up):
            return
        caught_up = caught_up or feed.caught_up
        await feed.changed(None if wait and caught_up else QUIET_SECONDS)


async def _from_log(feed: Feed, sequence: int) -> AsyncGenerator[Batch, None]:
    """The messages after an event, read from the services, up to a point from which the feed has all the others."""
    fold, messages, size = Messages(), list[StreamMessage](), 0
    async with aclosing(steady_events(feed.open_events)) as events:
        async for event in events:
            if not event.sequence:
                continue
            message = fold.of(event)
            if message.sequence <= sequence:
                continue
            messages.append(message)
            size += message.size
            joins = _can_join(feed, message.sequence)
            if joins or size > BATCH_BYTES or len(messages) >= BATCH_MESSAGES:
                yield Batch(messages)
                messages, size = [], 0
            # Again, because the feed may have dropped messages during the yield.
            if joins and _can_join(feed, message.sequence):
                return
    if messages:
        yield Batch(messages)


def _can_join(feed: Feed, sequence: int) -> bool:
    """Whether a watcher that has this event can continue with the feed without falling behind at once."""
    return feed.ring.find(sequence) is not None and (feed.caught_up or sequence >= feed.ring.sequence)
