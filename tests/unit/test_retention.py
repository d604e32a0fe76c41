"""How long things are kept: nothing outlives what it belongs to for long, and nothing ends before what names it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.jetstream import StreamSettings
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.projection import Projection
from tests.tables import table
from tests.unit.test_projection import ENDED, begun

DAY = 86_400.0


@given(st.floats(1.0, 1000 * DAY), st.floats(0, 1000 * DAY))
def test_blobs_outlive_events_and_buckets_do_not(kept: float, wanted: float) -> None:
    settings = StreamSettings(max_age_seconds=kept)
    assert kept < settings.blob_age_seconds <= kept + DAY
    assert settings.lifetime(wanted) <= kept
    assert settings.lifetime(wanted) == wanted or wanted > kept
    forever = StreamSettings(max_age_seconds=0)
    assert (forever.blob_age_seconds, forever.lifetime(wanted)) == (0, wanted)


async def _say(log: MemoryLog, execution_id: str, *bodies: ev.EventBody) -> None:
    own = ev.Writer(tenant="acme", execution_id=execution_id, task_id=execution_id, generation=1)
    for body in bodies:
        await log.tell(own, body)


@table(("kept", "forgotten"), [(100.0, True), (0.0, False), (1000.0, False)])
async def test_what_is_over_and_older_than_the_log_is_forgotten(kept: float, forgotten: bool) -> None:
    log, now = MemoryLog(), [datetime.now(UTC).timestamp()]
    projection = Projection(log, kept_seconds=kept, clock=lambda: now[0])
    await _say(log, "over", begun("over").body, ENDED, ev.ResultPublished())
    await _say(log, "open", begun("open").body)
    await projection.start()
    try:
        assert {state.execution_id for state in projection.select("acme")} == {"over", "open"}
        now[0] += 999 if not forgotten else 101
        await _say(log, "next", begun("next").body, ENDED)
        async with asyncio.timeout(5):
            await projection.finished("acme", "next")
        assert (projection.get("acme", "over") is None) is forgotten
        assert (projection.end_sequence("acme", "over") == 0) is forgotten
        # What is not over stays, however old: somebody has to end it.
        assert projection.get("acme", "open") is not None
    finally:
        await projection.stop()
