"""`fleet` at hand: of the session's fleet, and where none runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.testing import ScriptedModelServer
from tests.conftest import FleetUnderTest
from tests.fleet_command import Shell, warm_fleet


@pytest.fixture(scope="session")
async def warm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where commands are started from that are many."""
    async with warm_fleet(tmp_path_factory.mktemp("w")) as path:
        yield path


@pytest.fixture(scope="session")
def shell(fleet: FleetUnderTest, model_server: ScriptedModelServer, warm: str) -> Shell:
    return Shell(home=fleet.settings.home, model_url=model_server.url, warm=warm)


@pytest.fixture
def elsewhere(tmp_path: Path, model_server: ScriptedModelServer) -> Shell:
    """A home on which no fleet runs, and the program as it is installed."""
    return Shell(home=tmp_path / "elsewhere", model_url=model_server.url)
