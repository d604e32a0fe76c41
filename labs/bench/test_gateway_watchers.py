"""Many watchers at once, the gateway and they in processes of their own: every event, once and in order, to each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.bench.watchers import BUSY, MANY, SMALL, Load, loaded

MOST_GROWTH_MIB = 64.0


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(SMALL, id="50 watchers"),
        pytest.param(BUSY, id="500 watchers", marks=pytest.mark.slow),
        pytest.param(MANY, id="50 executions", marks=pytest.mark.slow),
        pytest.param(replace(BUSY, events_per_second=2_000.0), id="as fast as it goes", marks=pytest.mark.slow),
    ],
)
async def test_every_watcher_gets_every_event_once_and_in_order(load: Load) -> None:
    outcome = await loaded(load)
    assert outcome.watchers == load.executions * load.watchers
    assert outcome.whole == outcome.watchers
    assert outcome.upstream_streams == load.executions
    assert outcome.pss_peak_mib - outcome.pss_before_mib < MOST_GROWTH_MIB
