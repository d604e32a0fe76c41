"""Linters through the real sandbox: which are run, and what an agent sees of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.testing.repositories import make_repository, write_files
from swe_ai_fleet.tools import TestTool
from tests.environments import provider_at

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH")

RUFF = Path(sys.prefix, "bin/ruff")
RULES = "lint.select = ['F', 'E402']\n"
OLD = "".join(f"import old_{number}\n" for number in range(44))


class Project:
    """A repository with one commit, whose commands find ruff as the fleet brings it."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        (root / "tools").mkdir()
        shutil.copy2(RUFF, root / "tools/ruff")
        self.root = make_repository(root / "repo", files)
        mount = Mount(source=str(root / "tools"), target="/opt/tools")
        self.environment = Environment(mounts=(mount,), path=("/opt/tools",))
        self.provider = provider_at(root)

    async def linted(self, files: Mapping[str, str], *paths: str) -> ToolResult:
        """What an agent that has written these files sees."""
        pinned = await self.provider.pin("t", RepoRef(location=str(self.root)))
        async with self.provider.open("e", "agent", pinned, self.environment) as clone:
            write_files(clone.root, files)
            before = (await clone.diff()).patch
            result = await TestTool(clone).lint(list(paths))
            assert (await clone.diff()).patch == before, "a linter has changed the workspace"
        return result


async def test_an_agent_sees_the_lines_that_it_has_changed(tmp_path: Path) -> None:
    held = Project(tmp_path, {"app.py": f"{OLD}\n\ndef f():\n    return 1\n", "other.py": OLD, "ruff.toml": RULES})
    changed = {"app.py": f"{OLD}\n\ndef f():\n    return missing\n", "new.py": "import json\n", "README": "x"}
    shown = "app.py:48: F821 Undefined name `missing`", "new.py:1: F401 `json` imported but unused"
    result = await held.linted(changed)
    assert result.success
    assert result.content.splitlines() == [
        "2 findings (ruff)", "", *shown, "",
        "44 older findings are not shown, on lines that have not been changed; name paths to see all.",
    ]  # fmt: skip
    assert result.metadata["count"] == 2 and result.metadata["older"] == 44
    assert (await held.linted(changed, "app.py")).metadata["count"] == 45
    assert (await held.linted(changed, ".")).metadata["count"] == 90
    assert "ruff check none of the changed files" in (await held.linted({"README": "y"})).error
    # What is shown is bounded.
    result = await held.linted({"many.py": "".join(f"import new_{number}\n" for number in range(2_000))})
    assert result.metadata["count"] == 2_000 and len(result.content) < 3_200
    assert "more: name fewer paths to see them]" in result.content
