"""A trace goes through processes that make no spans, without anything of OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from services.gateway.observing import Observed
from swe_ai_fleet.telemetry import Telemetry

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


async def _stamped(*headers: tuple[bytes, bytes]) -> dict[str, str]:
    """What a gateway without a collector would send on with a request's calls."""
    telemetry, stamped = Telemetry(), dict[str, str]()

    async def app(scope, receive, send) -> None:
        stamped.update(telemetry.stamp())
        await send({"type": "http.response.start", "status": 200})

    async def silent(message=None) -> None:
        del message

    scope = {"type": "http", "method": "GET", "path": "/api/x", "scheme": "http", "headers": list(headers)}
    await Observed(app, telemetry)(scope, silent, silent)
    assert telemetry.stamp() == {}
    return stamped


async def test_a_gateway_without_a_collector_passes_a_callers_trace_on() -> None:
    sent = await _stamped((b"traceparent", PARENT.encode()), (b"tracestate", b"a=1"), (b"baggage", b"user=me"))
    assert sent == {"traceparent": PARENT, "tracestate": "a=1"}
    assert await _stamped() == {}
    assert await _stamped((b"traceparent", b"\xff" * 60_000), (b"tracestate", b"a=1")) == {}


async def test_calls_do_not_see_each_others_traces() -> None:
    one, other, none = await asyncio.gather(
        _stamped((b"traceparent", PARENT.encode())),
        _stamped((b"traceparent", PARENT.replace("a", "c").encode())),
        _stamped(),
    )
    assert (one["traceparent"], other["traceparent"], none) == (PARENT, PARENT.replace("a", "c"), {})


async def test_a_stream_that_is_closed_elsewhere_is_no_fault() -> None:
    telemetry = Telemetry()

    async def stream() -> AsyncGenerator[dict[str, str]]:
        with telemetry.passing({"traceparent": PARENT}):
            yield telemetry.stamp()

    replies = stream()
    assert await asyncio.create_task(anext(replies)) == {"traceparent": PARENT}
    await asyncio.create_task(replies.aclose())
    assert telemetry.stamp() == {}
