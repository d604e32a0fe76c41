"""Trace context that strangers send, before anybody knows who they are."""

from __future__ import annotations

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.telemetry.tracing import joined
from swe_ai_fleet.telemetry.w3c import w3c

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
HOSTILE = (
    "a=1" + " " * 500 + "x",
    "a=1" + " " * 60_000 + "x",
    ",".join(f"k{number}=v" for number in range(33)),
    "a=1,a=2",
    "no member",
    "a=b=c",
    "a=1\r\nauthorization: x",
    "\x00",
)


def test_what_is_whole_is_passed_on() -> None:
    for state in ("", "a=1", "vendor@tenant=x:1;y, b-1=2"):
        found = w3c({"traceparent": PARENT, "tracestate": state, "baggage": "user=me"})
        assert found == {"traceparent": PARENT, **({"tracestate": state} if state else {})}
        assert joined(found) is not None


@pytest.mark.parametrize("state", HOSTILE)
def test_a_hostile_state_is_left_out_without_a_word(state: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    began = time.perf_counter()
    assert joined({"traceparent": PARENT, "tracestate": state}) is not None
    assert time.perf_counter() - began < 5
    assert w3c({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}
    # Whoever is not let in cannot write to the log of operators either.
    assert not caplog.records


@pytest.mark.parametrize(
    "parent", ["", "x" * 60_000, PARENT.upper(), PARENT + "-" + "x" * 60_000, PARENT + "\n", f"00-{'a' * 32}"]
)
def test_what_is_no_parent_is_none(parent: str, caplog: pytest.LogCaptureFixture) -> None:
    assert w3c({"traceparent": parent, "tracestate": "a=1"}) == {}
    assert joined({"traceparent": parent}) is None
    assert not caplog.records


@pytest.mark.parametrize("parent", [f"00-{'0' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'0' * 16}-01"])
def test_ids_of_nothing_are_joined_by_nobody(parent: str) -> None:
    assert joined({"traceparent": parent}) is None


@given(st.text(max_size=80), st.text(max_size=80))
def test_whatever_is_sent_what_is_kept_is_small_and_printable(parent: str, state: str) -> None:
    for found in (w3c({"traceparent": parent, "tracestate": state}), w3c({"traceparent": PARENT, "tracestate": state})):
        assert all(value.isascii() and value.replace("\t", "").isprintable() for value in found.values())
