"""What the tests of batches share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import orchestrator_service
from tests.extensions.batch.desk import Desk
from tests.fleet_command import Shell


@pytest.fixture
def desk(warm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(orchestrator_service, "SECONDS", 120)
    return Desk(shell=Shell(home=tmp_path / "home", warm=warm, more={"FLEET_TOKEN": "nobody-asks"}))
