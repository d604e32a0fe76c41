"""An execution's events from the services behind the gateway, for as long as it takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import grpc
import grpc.aio
import structlog

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.messages import TERMINAL
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.following import waits

Events = AsyncGenerator[pb.ExecutionEvent, None]
OpenEvents = Callable[[int], Events]
"""An execution's events from a sequence number on."""
PAUSES = (0.1, 0.3, 1.0, 2.0)
"""Seconds before each further attempt; the last one again and again."""
OUTAGE_TIMEOUT_SECONDS = 30.0
LOOK_SECONDS = 0.5
_FINAL = frozenset(
    (
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
)

_log = structlog.get_logger(__name__)


async def steady_events(
    open_events: OpenEvents,
    *,
    outage_timeout: float = OUTAGE_TIMEOUT_SECONDS,
    reachable: Callable[[], bool] = lambda: False,
    lost: Callable[[str], None] = lambda _: None,
    back: Callable[[], None] = lambda: None,
) -> Events:
    """All events of an execution, once each and in order, until it ends, across failures of the service.

    Args:
        open_events: Streams them from a sequence number on.
        outage_timeout: Seconds without the service after which it is given up.
        reachable: Whether the service can be reached now; a service that is back may have nothing to tell.
        lost: Told why, when the service begins to fail.
        back: Told when it answers again.

    Raises:
        grpc.aio.AioRpcError: What no other attempt can fix, such as an execution that does not exist.
        Unavailable: The service does not answer.
    """
    last, ended, loop = 0, False, asyncio.get_running_loop()
    failing_since: float | None = None
    pauses = waits(PAUSES)

    def answered() -> None:
        nonlocal failing_since, pauses
        if failing_since is not None:
            failing_since, pauses = None, waits(PAUSES)
            back()

    while True:
        looking = asyncio.create_task(_reached(reachable, answered)) if failing_since is not None else None
        try:
            async with aclosing(open_events(last + 1 if last else 0)) as events:
                async for event in events:
                    answered()
                    if event.sequence:
                        if event.sequence <= last:
                            continue
                        last = event.sequence
                    yield event
                    # What people had delivered after the end comes behind it.
                    ended = ended or event.type == TERMINAL
            if ended:
                return
            reason = "the events ended before the execution did"
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            if ended:
                return
            if isinstance(error, grpc.aio.UsageError):
                raise Unavailable("the orchestrator can no longer be reached") from error
            if error.code() in _FINAL:
                raise
            reason = f"{error.code().name}: {error.details() or ''}"
        finally:
            if looking is not None:
                looking.cancel()
        if failing_since is None:
            failing_since = loop.time()
            lost("the orchestrator does not answer")
            _log.warning("watching.source_lost", reason=reason)
        pause = next(pauses)
        if loop.time() - failing_since + pause > outage_timeout:
            raise Unavailable("the orchestrator does not answer", hint="try again later")
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, not a secret


async def _reached(reachable: Callable[[], bool], answered: Callable[[], None]) -> None:
    """Tell once the service can be reached, for as long as a stream that was just opened does not fail."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if reachable():
            answered()
            return
