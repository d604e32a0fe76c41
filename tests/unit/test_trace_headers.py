"""Trace context that strangers send, before anybody knows who they are, and where no spans are made of it."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from services.gateway.main import Observed
from swe_ai_fleet.telemetry import Telemetry

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
STATES = {
    "": True,
    "a=1": True,
    "vendor@tenant=x:1;y, b-1=2": True,
    "a=1" + " " * 500 + "x": False,
    "a=1" + " " * 60_000 + "x": False,
    ",".join(f"k{number}=v" for number in range(33)): False,
    ",".join(f"k{number}={'v' * 50}" for number in range(12)): False,
    "a=1,a=2": False,
    "no member": False,
    "a=b=c": False,
    "a=1\r\nauthorization: x": False,
    "\x00": False,
}
NO_PARENTS = ("", "x" * 60_000, PARENT.upper(), PARENT + "-" + "x" * 60_000, PARENT + "\n", f"00-{'a' * 32}")


async def _stamped(parent: str, state: str = "", **more: str) -> dict[str, str]:
    """What a gateway without a collector sends on with a request's calls."""
    telemetry, stamped = Telemetry(), dict[str, str]()

    async def app(scope, receive, send) -> None:
        stamped.update(telemetry.stamp())
        await send({"type": "http.response.start", "status": 200})

    async def silent(message=None) -> None:
        del message

    given_ = {"traceparent": parent, "tracestate": state, **more}
    headers = [(name.encode(), value.encode("utf-8", "replace")) for name, value in given_.items() if value]
    scope = {"type": "http", "method": "GET", "path": "/api/x", "scheme": "http", "headers": headers}
    await Observed(app, telemetry)(scope, silent, silent)
    assert telemetry.stamp() == {}
    return stamped


async def test_what_is_whole_is_passed_on_and_what_is_hostile_left_out_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for state, whole in STATES.items():
        began = time.perf_counter()
        kept = {"traceparent": PARENT, **({"tracestate": state} if state and whole else {})}
        assert await _stamped(PARENT, state, baggage="user=me") == kept
        # A pattern that backtracks would take minutes.
        assert time.perf_counter() - began < 5
    # Calls do not see each other's traces.
    stamped = await asyncio.gather(_stamped(PARENT), _stamped(PARENT.replace("a", "c")), _stamped(""))
    assert [one.get("traceparent") for one in stamped] == [PARENT, PARENT.replace("a", "c"), None]
    for parent in NO_PARENTS:
        assert await _stamped(parent, "a=1") == {}
    # Whoever is not let in cannot write to the log of operators either.
    assert not [one for one in caplog.records if one.name != "asyncio"]
