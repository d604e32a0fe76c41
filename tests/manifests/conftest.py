"""An installation as `fleet init --kubernetes` makes it, whose secrets manifests name."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.runtime.installation.installing import install


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("installation")
    install(directory, kubernetes=True)
    return directory
