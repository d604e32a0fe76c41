"""The figures of the log as Prometheus gets them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from services.orchestrator.fleet_figures import fleet_figures
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.event import LoopNoticed, RunReassigned, StoredEvent
from swe_ai_fleet.domain.fleet_status import FleetStatus, StorageStatus
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.metrics import RELATIVE_ERROR, Meter, Sketch
from swe_ai_fleet.orchestrator.metrics.meter import MOST_TENANTS
from swe_ai_fleet.telemetry.exposition import Exposition
from swe_ai_fleet.telemetry.log_figures import log_figures
from tests.unit.test_metrics_figures import SPENT, Log

BOUNDS = (10.0, 100.0, 1_000.0, 60_000.0)


@given(st.lists(st.integers(min_value=0, max_value=200_000), max_size=60))
def test_a_histogram_counts_what_a_sketch_counted(durations: Sequence[int]) -> None:
    sketch = Sketch()
    for duration in durations:
        sketch.add(duration)
    counts, total = sketch.histogram(BOUNDS)
    assert counts == sorted(counts) and (not counts or counts[-1] <= len(durations))
    assert total == pytest.approx(sum(durations), rel=RELATIVE_ERROR + 1e-9, abs=1e-9)
    for bound, count in zip(BOUNDS, counts, strict=True):
        # A duration that is within the error of a bound may count on either side of it.
        surely = sum(duration * (1 + 2 * RELATIVE_ERROR) < bound for duration in durations)
        possibly = sum(duration * (1 - 2 * RELATIVE_ERROR) <= bound for duration in durations)
        assert surely <= count <= possibly


def test_what_befell_runs_is_counted_by_kind() -> None:
    log = Log().started(0).claimed(2).begun(3).called(5).called(6, outcome=Outcome.TIMEOUT)
    log.say(7, LoopNoticed(step=3, pattern="same call", advice="replan"), "a")
    log.say(8, RunReassigned(lost_agent_id="a", reason="gone", attempt=2)).claimed(9, generation=2)
    found = log.finished(13, SPENT, StopReason.LOOP).ended(14).folded()
    assert (found.loops, found.stops) == ({"replan": 1}, {"loop": 1})
    assert (found.lost, found.takeovers, found.agents_failed) == (1, 1, 1)
    assert found.tools["files_x"].outcomes == {Outcome.SUCCESS: 1, Outcome.TIMEOUT: 1}


def _meter(*logs: Log) -> Meter:
    async def nothing(_: int) -> AsyncGenerator[StoredEvent | None, None]:
        yield None

    meter, number = Meter(nothing, clock=lambda: 2_000_000_000.0), 0
    for log in logs:
        for stored in log.events:
            number += 1
            meter.take(StoredEvent(sequence=number, event=stored.event))
    return meter


def _told(families: Sequence[Metric]) -> dict[str, float]:
    return {
        f"{one.name} {' '.join(one.labels.values())}".strip(): one.value
        for family in families
        for one in family.samples
    }


def test_totals_are_told_by_tenant() -> None:
    ours = Log().started(0).claimed(2).begun(3).replied(4, 900).called(5).finished(13, SPENT).ended(14)
    theirs = Log(tenant="acme").started(0)
    told = _told(list(log_figures(_meter(ours, theirs))))
    assert told["fleet_executions_accepted_total default"] == told["fleet_executions_accepted_total acme"] == 1
    assert told["fleet_executions_finished_total default completed"] == 1
    assert told["fleet_executions_finished_total acme completed"] == 0
    assert (told["fleet_executions_queued acme"], told["fleet_executions_queued default"]) == (1, 0)
    assert told["fleet_tokens_total default prompt"] == SPENT.prompt_tokens
    assert told["fleet_cost_total default"] == SPENT.cost
    assert told["fleet_queue_wait_seconds_bucket default 2.5"] == 1
    assert told["fleet_queue_wait_seconds_bucket default 1.0"] == 0
    assert told["fleet_tool_calls_total files_x success"] == 1
    assert told["fleet_agent_runs_stopped_total default final_answer"] == 1


def test_tenants_beyond_a_number_share_a_name() -> None:
    logs = [Log(tenant=f"tenant-{number}").started(0) for number in range(MOST_TENANTS + 10)]
    told = _told(list(log_figures(_meter(*logs))))
    accepted = {name: value for name, value in told.items() if name.startswith("fleet_executions_accepted_total")}
    assert len(accepted) == MOST_TENANTS + 1
    assert accepted["fleet_executions_accepted_total (other)"] == 10


async def test_a_source_that_fails_hides_no_other() -> None:
    async def fails() -> list[Metric]:
        raise Unavailable("not now")

    async def is_at_fault() -> list[Metric]:
        raise RuntimeError("a bug")

    async def tells() -> list[Metric]:
        family = GaugeMetricFamily("fleet_answer", "An answer.")
        family.add_metric([], 42)
        return [family]

    exposition = Exposition()
    with exposition.source("a", fails), exposition.source("b", is_at_fault), exposition.source("c", tells):
        text = (await exposition.text())[0].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    up = {one.labels["source"]: one.value for one in families["fleet_scrape_source_up"].samples}
    assert up == {"a": 0, "b": 0, "c": 1}
    assert families["fleet_answer"].samples[0].value == 42
    assert "fleet_answer" not in (await exposition.text())[0].decode()


async def test_a_source_takes_the_place_of_another_for_a_while() -> None:
    exposition = Exposition()

    async def first() -> list[Metric]:
        return [GaugeMetricFamily("fleet_first", "One.", value=1)]

    async def second() -> list[Metric]:
        return [GaugeMetricFamily("fleet_second", "Two.", value=2)]

    with exposition.source("a", first):
        with exposition.source("a", second):
            text = (await exposition.text())[0].decode()
            assert "fleet_second 2.0" in text and "fleet_first" not in text
        assert "fleet_first 1.0" in (await exposition.text())[0].decode()


def test_what_tenants_have_stored() -> None:
    held = (
        StorageStatus(name="acme", messages=0, bytes=700, max_bytes=1_000),
        StorageStatus(name="other", messages=0, bytes=5, max_bytes=0),
    )
    status = FleetStatus(measured_at=1.0, replicas=(), nodes=(), endpoints=(), storage=(), tenants=held)
    samples = {
        (sample.name, sample.labels["tenant"]): sample.value
        for metric in fleet_figures(status, me="here")
        for sample in metric.samples
        if "tenant" in sample.labels
    }
    assert samples == {
        ("fleet_tenant_stored_bytes", "acme"): 700,
        ("fleet_tenant_storage_quota_bytes", "acme"): 1_000,
        ("fleet_tenant_stored_bytes", "other"): 5,
        ("fleet_tenant_storage_quota_bytes", "other"): 0,
    }
