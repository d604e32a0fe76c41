"""One watcher's way through an execution's messages: from where it wants to begin, without gap or repetition.

The parameters with which it asks are checked first; a fault names the parameter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.requests import HTTPConnection

from services.gateway.streams.feeds import SETTLED_SECONDS, Feed, steady_events
from services.gateway.streams.messages import Messages, StreamMessage
from services.gateway.streams.ring import BATCH_BYTES, BATCH_MESSAGES, Batch
from swe_ai_fleet.domain.errors import InvalidRequest

MAX_SEQUENCE = 2**63 - 1
_YES_NO = {"1": True, "true": True, "0": False, "false": False}


def check_names(connection: HTTPConnection, known: Sequence[str]) -> None:
    """Raises InvalidRequest naming a parameter that there is not, or that is given twice."""
    names = [name for name, _ in connection.query_params.multi_items()]
    for name in names:
        if name not in known:
            raise InvalidRequest(
                f"there is no parameter {name[:64]!r}", field=name[:64], hint=f"one of {', '.join(known)}"
            )
        if names.count(name) > 1:
            raise InvalidRequest(f"{name} is given twice", field=name)


def number(connection: HTTPConnection, name: str, default: int, *, least: int = 0, most: int = MAX_SEQUENCE) -> int:
    """A whole number of the query. Raises InvalidRequest."""
    text = connection.query_params.get(name)
    return default if text is None else number_of(text, name, least=least, most=most)


def number_of(text: str, name: str, *, least: int = 0, most: int = MAX_SEQUENCE) -> int:
    """The whole number that a text is. Raises InvalidRequest."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SEQUENCE)) and least <= int(text) <= most):
        raise InvalidRequest(f"{name} is {text[:40]!r}", field=name, hint=f"a whole number from {least} to {most}")
    return int(text)


def flag(connection: HTTPConnection, name: str, default: bool = False) -> bool:
    """A yes or no of the query. Raises InvalidRequest."""
    text = connection.query_params.get(name)
    if text is None:
        return default
    if text not in _YES_NO:
        raise InvalidRequest(f"{name} is {text[:40]!r}", field=name, hint="1 or 0")
    return _YES_NO[text]


class TooSlow(Exception):
    """A watcher that did not keep up; `resume_from` is the number that it may go on from."""

    def __init__(self, resume_from: int) -> None:
        super().__init__(f"too slow; resume with from={resume_from}")
        self.resume_from = resume_from


async def follow(
    feed: Feed, from_sequence: int, past: asyncio.Semaphore, *, wait: bool = True
) -> AsyncGenerator[Batch, None]:
    """Messages from a sequence number on until the execution ends.

    What the feed has no more is read again from the services. Who has once been at the present and then falls behind
    what the feed keeps is too slow.

    Args:
        from_sequence: The first number wanted; 0: all of them.
        past: How many may read the past at once.
        wait: Whether to wait for what has not happened yet.

    Raises:
        TooSlow: See above.
        grpc.aio.AioRpcError, FleetError: The events cannot be had.
    """
    sequence, present = max(from_sequence - 1, 0), False
    position: int | None = None
    while True:
        if position is None or position < feed.ring.start:
            if feed.ring.find(sequence) is None:
                if present:
                    raise TooSlow(sequence + 1)
                async with past, aclosing(_past(feed, sequence)) as batches:
                    async for batch in batches:
                        sequence = batch.sequence
                        yield batch
                continue
            # Until the feed has come to where this watcher stands, there is nothing new for it.
            position = feed.ring.find(sequence) if feed.ring.sequence >= sequence else None
        if position is not None:
            batch = feed.ring.batch(position, sequence)
            if batch.messages:
                position, sequence = batch.position, batch.sequence
                yield batch
                continue
        if feed.fault is not None:
            raise feed.fault
        if feed.ended or (not wait and feed.settled):
            return
        present = present or feed.settled
        await feed.changed(None if wait and present else SETTLED_SECONDS)


async def _past(feed: Feed, sequence: int) -> AsyncGenerator[Batch, None]:
    """What came behind an event, up to where the feed can go on."""
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
            joins = _joins(feed, message.sequence)
            if joins or size > BATCH_BYTES or len(messages) >= BATCH_MESSAGES:
                yield Batch(messages)
                messages, size = [], 0
            if joins and _joins(feed, message.sequence):
                return
    if messages:
        yield Batch(messages)


def _joins(feed: Feed, sequence: int) -> bool:
    """Whether a watcher that has this event can go on with the feed, and is not at once left behind by it."""
    return feed.ring.find(sequence) is not None and (feed.settled or sequence >= feed.ring.sequence)
