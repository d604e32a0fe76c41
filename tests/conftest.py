"""What several suites share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from swe_ai_fleet.runtime.nats_server import EmbeddedNats


@pytest.fixture(scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    """One NATS server for the whole run; use ids of your own on it."""
    async with EmbeddedNats(tmp_path_factory.mktemp("nats")) as server:
        yield server
