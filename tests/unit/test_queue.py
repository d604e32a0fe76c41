"""Which execution begins next, how many may wait, and who may drive one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import MAX_PRIORITY
from swe_ai_fleet.orchestrator.projection import claimable, over
from swe_ai_fleet.orchestrator.queue import AGING_SECONDS, Caller, QueuedExecution, check_room, in_order
from tests.sampling import sample
from tests.tables import table

NOW = 100_000.0


def one(
    name: str, caller: str = "ada", *, priority: int = 0, waited: float = 0.0, tenant: str = "default"
) -> QueuedExecution:
    return QueuedExecution(execution_id=name, tenant=tenant, caller=caller, priority=priority, accepted_at=NOW - waited)


def names(waiting: list[QueuedExecution]) -> str:
    return "".join(each.execution_id for each in waiting)


def next_up(waiting: list[QueuedExecution], running: Mapping[Caller, int], **given: Any) -> QueuedExecution | None:
    return next(iter(in_order(waiting, running, **given)), None)


def test_urgency_comes_before_turns_and_turns_before_age():
    assert next_up([], {}, now=NOW) is None
    waiting = [one("a", waited=9), one("b", "bob", waited=5), one("c", "bob", priority=3), one("d", "eve", waited=2)]
    assert names(in_order(waiting, {("default", "ada"): 2}, now=NOW)) == "cdba"
    assert names(in_order(waiting, {}, now=NOW)) == "cadb"
    # A backlog waits behind the first task of somebody else; the same caller of two tenants is two callers.
    backlog = [one(f"{number:03}", "greedy", waited=200 - number) for number in range(100)]
    first = next_up([*backlog, one("x", "bob")], {("default", "greedy"): 1}, now=NOW)
    assert first is not None and first.execution_id == "x"
    waiting = [one("a", tenant="north", waited=9), one("b", tenant="south")]
    assert names(in_order(waiting, {("north", "ada"): 1}, now=NOW)) == "ba"


def test_waiting_makes_urgent_and_no_more_than_the_highest():
    assert one("a", waited=AGING_SECONDS - 1).level(NOW) == 0
    assert one("a", waited=AGING_SECONDS).level(NOW) == 1
    assert one("a", priority=8, waited=AGING_SECONDS * 50).level(NOW) == MAX_PRIORITY
    assert one("a", priority=4, waited=-500).level(NOW) == 4  # accepted by a clock that is ahead
    assert names(in_order([one("a", waited=3 * AGING_SECONDS), one("b", "bob", priority=2)], {}, now=NOW)) == "ab"


def test_a_line_that_has_its_turns_does_not_age():
    old = [one(f"{number}", waited=9 * AGING_SECONDS) for number in range(3)]
    assert old[0].level(NOW, NOW - AGING_SECONDS) == 1
    assert names(in_order([*old, one("x", "bob", priority=1)], {}, now=NOW)) == "0x12"
    served = {("default", "ada", 0): NOW - 1}
    assert names(in_order([*old, one("x", "bob")], {}, now=NOW, served=served)) == "x012"


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3), st.floats(0, 500))
def test_no_line_starves(priority: int, urgency: int, older: int, ahead: float):
    """Whoever waits has its turn however much else keeps coming in, urgent or not, its own caller's included."""
    line = [one(f"old-{number}", priority=priority, waited=older - number) for number in range(older)]
    served: dict[tuple[str, str, int], float] = {}
    waiting, step = list(line), 10.0
    for number in range(10_000):
        now = NOW + number * step
        for caller in ("ada", "bob", "eve"):
            newcomer = one(f"{caller}-{number}", caller, priority=urgency)
            waiting.append(replace(newcomer, accepted_at=now + ahead))
        chosen = next_up(waiting, {}, now=now, served=served)
        assert chosen is not None
        served[chosen.line] = now
        waiting.remove(chosen)
        if chosen == line[-1]:
            break
        if len(waiting) > 30:
            waiting = [each for each in waiting if each in line or each in waiting[-12:]]
    assert chosen == line[-1]
    # One turn for each whenever the line has reached the top, where it takes turns with three others.
    assert now - NOW <= older * ((MAX_PRIORITY - priority) * AGING_SECONDS + 4 * step)


def test_a_full_queue_refuses_and_says_what_to_do():
    check_room(9, 4, max_queued=10, max_queued_per_caller=5)
    with pytest.raises(ResourceExhausted, match="10 executions are waiting") as full:
        check_room(10, 0, max_queued=10, max_queued_per_caller=5)
    assert "at most 10" in full.value.hint
    with pytest.raises(ResourceExhausted, match="of this caller") as greedy:
        check_room(6, 5, max_queued=10, max_queued_per_caller=5)
    assert "at most 5" in greedy.value.hint


def a_state(**changes: object) -> ExecutionState:
    state = sample(ExecutionState, execution_id="e", started_at="2026-01-01T00:00:00+00:00", result_published=False)
    task = replace(state.task, tenant="default", caller="ada", priority=3)
    defaults = {"task": task, "owner": "", "status": ExecutionStatus.PENDING}
    return replace(state, **{**defaults, **changes})


@table(
    ("changes", "alive", "expected"),
    [
        ({}, {"me"}, True),
        ({}, {"other"}, False),
        ({"owner": "other"}, {"me", "other"}, False),
        ({"owner": "other"}, {"me"}, True),
        ({"owner": "me"}, {"me", "other"}, True),
        ({"status": ExecutionStatus.COMPLETED, "owner": "other"}, {"me"}, True),
        ({"status": ExecutionStatus.COMPLETED, "owner": "other"}, {"me", "other"}, False),
        ({"status": ExecutionStatus.COMPLETED, "owner": "other", "result_published": True}, {"me"}, False),
    ],
)
def test_who_may_take_an_execution(changes: dict[str, object], alive: set[str], expected: bool):
    state = a_state(**changes)
    assert claimable(state, alive, "me") is expected
    assert not (over(state) and claimable(state, alive, "me"))
