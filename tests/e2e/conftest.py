"""`fleet` at hand: of the session's fleet, and where none runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.testing import ScriptedModelServer
from tests.conftest import FleetUnderTest
from tests.environments import home_at
from tests.fleet_command import Shell


@pytest.fixture(scope="session")
def shell(fleet: FleetUnderTest, model_server: ScriptedModelServer, warm: str) -> Shell:
    return Shell(home=fleet.settings.home, model_url=model_server.url, warm=warm)


@pytest.fixture
def elsewhere(tmp_path: Path, model_server: ScriptedModelServer) -> Shell:
    """A home on which no fleet runs, and the program as it is installed."""
    return Shell(home=home_at(tmp_path / "elsewhere"), model_url=model_server.url)
