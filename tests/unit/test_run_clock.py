"""The clock of a run: it stands while the run waits for a model server, and so do the limits on its time."""

from __future__ import annotations

import asyncio

import pytest

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.domain.budget import Limits


async def test_limits_end_work_and_stand_while_all_that_wait_wait() -> None:
    budget = Budget(Limits(timeout_seconds=0.2))
    reached: list[str] = []
    with pytest.raises(TimeoutError):
        async with budget.time_limit():
            assert (budget.clock.stop(), budget.clock.stop()) == (True, False)
            left = budget.seconds_left
            with budget.child(Limits(timeout_seconds=60.0)) as child, pytest.raises(TimeoutError):
                async with child.time_limit(most=0.1):
                    # It begins while the clock stands; twice as long as both may take passes.
                    await asyncio.sleep(0.4)
                    assert budget.seconds_left == left == child.seconds_left
                    assert budget.clock.go() == 0.0
                    await asyncio.sleep(0.1)
                    assert budget.clock.go() >= 0.5
                    await asyncio.Event().wait()
            reached.append("child")
            await asyncio.Event().wait()
    assert reached == ["child"]
    assert budget.total().duration_ms >= 200
    assert budget.seconds_left == 0.0
