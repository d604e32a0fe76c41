"""How long things are kept: nothing outlives what it belongs to for long, and nothing ends before what names it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.jetstream import StreamSettings
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.runtime.factories import seed_seconds
from swe_ai_fleet.runtime.housekeeping import housekeeping, pause_seconds
from swe_ai_fleet.settings import Settings
from tests.tables import table

DAY = 86_400.0


@given(st.floats(1.0, 1000 * DAY), st.floats(0, 1000 * DAY))
def test_blobs_outlive_events_and_buckets_do_not(kept: float, wanted: float) -> None:
    settings = StreamSettings(max_age_seconds=kept)
    assert kept < settings.blob_age_seconds <= kept + DAY
    assert settings.lifetime(wanted) <= kept
    assert settings.lifetime(wanted) == wanted or wanted > kept
    forever = StreamSettings(max_age_seconds=0)
    assert (forever.blob_age_seconds, forever.lifetime(wanted)) == (0, wanted)


def test_a_seed_stays_no_longer_than_events_and_two_days() -> None:
    assert seed_seconds(Settings(event_days=90)) == 2 * DAY
    assert seed_seconds(Settings(event_days=0)) == 2 * DAY
    assert seed_seconds(Settings(event_days=0.5)) == DAY / 2
    assert [pause_seconds(kept) for kept in (0, 1, 120, 2 * DAY)] == [3600, 5, 12, 3600]


async def test_housekeeping_goes_on_behind_a_round_that_fails() -> None:
    rounds = 0
    enough = asyncio.Event()

    async def reap() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise OSError("the disk is away")
        if rounds == 4:
            enough.set()

    async with asyncio.timeout(5):
        async with housekeeping(reap, pause=0.001):
            assert rounds == 1
            await enough.wait()
    done = rounds
    await asyncio.sleep(0.01)
    assert rounds == done


async def _say(log: MemoryLog, execution_id: str, *bodies: ev.EventBody) -> None:
    own = ev.Writer(tenant="default", execution_id=execution_id, task_id=execution_id, generation=1)
    for body in bodies:
        await log.tell(own, body)


def _started(name: str) -> ev.ExecutionStarted:
    task = Task(task_id=name, kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r"))
    return ev.ExecutionStarted(
        task=task, repository=PinnedRepository(tenant="default", location="r", commit="c" * 40), fingerprint="f"
    )


_ENDED = ev.ExecutionFinished(status=ev.ExecutionStatus.COMPLETED, winner_id="", usage=Usage(), duration_ms=1)


@table(("kept", "forgotten"), [(100.0, True), (0.0, False), (1000.0, False)])
async def test_what_is_over_and_older_than_the_log_is_forgotten(kept: float, forgotten: bool) -> None:
    log, now = MemoryLog(), [datetime.now(UTC).timestamp()]
    projection = Projection(log, kept_seconds=kept, clock=lambda: now[0])
    await _say(log, "over", _started("over"), _ENDED, ev.ResultPublished())
    await _say(log, "open", _started("open"))
    await projection.start()
    try:
        assert {state.execution_id for state in projection.select("default")} == {"over", "open"}
        now[0] += 999 if not forgotten else 101
        await _say(log, "next", _started("next"), _ENDED)
        async with asyncio.timeout(5):
            await projection.finished("default", "next")
        assert (projection.get("default", "over") is None) is forgotten
        assert (projection.end_sequence("default", "over") == 0) is forgotten
        # What is not over stays, however old: somebody has to end it.
        assert projection.get("default", "open") is not None
    finally:
        await projection.stop()
