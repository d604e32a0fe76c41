"""A small fleet on virtual time: everything ends once, callers share, and what dies costs little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from labs.simulation.__main__ import plots, scaled, table
from labs.simulation.clock import Clock
from labs.simulation.figures import figures, jain, percentiles
from labs.simulation.scale import World
from labs.simulation.workload import URGENT
from swe_ai_fleet.orchestrator.executions import Room

SMALL = scaled(500)


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, World]]:
    found = {"fair": World(SMALL), "first come": World(replace(SMALL, order="first come"))}
    for world in found.values():
        world.run()
    yield found


def test_everything_accepted_ends_once_whatever_fails(worlds: dict[str, World]):
    for world in worlds.values():
        assert len(world.tally.jobs) == SMALL.executions
        assert {job.published for job in world.tally.jobs} == {1}
        assert all(run.over and run.done == run.steps for job in world.tally.jobs for run in job.runs)
        assert world.tally.crashes > 5
        assert world.nodes.failures > 0
        assert len(world.tally.take_overs) > world.tally.crashes
        assert world.nodes.busy == 0


def test_a_fair_order_serves_the_urgent_and_the_small_first(worlds: dict[str, World]):
    fair, plain = (figures(worlds[name]) for name in ("fair", "first come"))
    assert fair.by_priority[URGENT][1] < plain.by_priority[URGENT][1] / 4
    assert fair.waits["steady"][1] < plain.waits["steady"][1] / 2
    assert abs(fair.busy - plain.busy) < 0.05
    assert fair.lost < 0.03


def test_a_driver_that_is_gone_is_followed_by_another(worlds: dict[str, World]):
    first, *_, last = sorted(worlds["fair"].tally.take_overs)
    lease = SMALL.lease_seconds
    assert first >= lease * 0.9 + lease / 3
    # With every other replica full, places come with the restart at the latest.
    assert last < SMALL.restart_seconds * 3


def test_the_same_seed_is_the_same_history(worlds: dict[str, World]):
    again = World(SMALL)
    again.run()
    assert figures(again) == figures(worlds["fair"])
    other = World(replace(SMALL, seed=7))
    other.run()
    assert figures(other) != figures(again)


def test_a_full_queue_sends_callers_away_and_they_come_back():
    world = World(replace(SMALL, executions=200, nodes=2, driven=4))
    world.room = replace(Room(), queued=10, queued_per_caller=5)
    world.run()
    assert world.tally.refused["greedy-1"] > 3
    assert max(count for changes in world.tally.waiting.values() for _, count in changes) <= 5
    assert len(world.tally.jobs) == 200


def test_the_table_and_the_plots_are_made_of_the_figures(worlds: dict[str, World]):
    found = {name: figures(world) for name, world in worlds.items()}
    assert f"| executions that ended | {SMALL.executions} | {SMALL.executions} |" in table(found)
    drawn = plots(worlds, found)
    assert set(drawn) == {"waits", "waiting", "busy", "take-over"}
    for plot in drawn.values():
        assert plot.startswith("<svg ")
        assert "nan" not in plot
    assert drawn["waits"].count("<rect") == 2 * len(found["fair"].waits) + 3


def test_measures():
    assert percentiles([3, 1, 2], (0.0, 0.5, 1.0)) == (1, 2, 3)
    assert percentiles([]) == (0.0, 0.0, 0.0)
    assert jain([5, 5, 5]) == 1.0
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)


def test_the_clock_goes_by_time_then_by_order():
    clock, seen = Clock(), []
    clock.after(2, lambda: seen.append((clock.now, "b")))
    clock.after(1, lambda: (seen.append((clock.now, "a")), clock.after(1, lambda: seen.append((clock.now, "c")))))
    clock.after(1.5, lambda: seen.append((clock.now, "never"))).clear()
    clock.run(lambda: True)
    assert seen == [(1, "a"), (2, "b"), (2, "c")]
