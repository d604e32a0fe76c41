"""A workflow that waits for people since an earlier version is gone on with by this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet_client import bodies
from tests.recorded_store import FLOW, STORES, serving_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name)
async def test_it_goes_on(store: Path) -> None:
    async with serving_store(store) as site:
        nodes = bodies(await site.resolved(FLOW, "APPROVED"), "node_updated")
        assert [node["node_id"] for node in nodes if node["status"] == "completed"] == ["one", "ask", "two"]
