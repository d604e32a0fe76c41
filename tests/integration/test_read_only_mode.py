"""Every operation of the catalogue in a real repository and a real sandbox: what a run that may only read can do."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision
from swe_ai_fleet.sandbox import LocalWorkspace, open_workspace
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.policy import Policy
from tests.confinement import needs_bwrap
from tests.operations import OPERATIONS, Operation, make_workspace
from tests.tables import table

pytestmark = needs_bwrap

READ_ONLY = Policy(read_only=True)
OFFERED = tuple(operation for operation in OPERATIONS if READ_ONLY.offers(operation.spec))
WITHHELD = tuple(operation for operation in OPERATIONS if not READ_ONLY.offers(operation.spec))

READING = {
    *("files_read_file", "files_diff_files", "files_search_in_files", "files_list_files", "files_repo_map"),
    *("files_file_info", "git_status", "git_diff", "git_log", "git_show", "git_blame"),
    *("calculator", "file_reader", "propose_approach"),
}
"""What a run without tools for changing gets. Whoever adds a name here vouches for it; the tests below prove it."""

UNANSWERED = {"ask_user"}
"""What nobody answers here: it need not succeed, only change nothing."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose files have other times than git's index says, so that git would like to refresh it."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "beside.txt").write_text("beside\n")
    path = make_workspace(outside / "clone")
    with sqlite3.connect(path / "data.sqlite") as database:
        database.execute("CREATE TABLE t (x INTEGER)")
    database.close()
    for name in ("app.py", "test_app.py"):
        os.utime(path / name, (1, 1))
    return path


@pytest.fixture(scope="module")
async def workspace(root: Path) -> AsyncIterator[LocalWorkspace]:
    async with open_workspace(root, environment=Environment(test_command=("true",))) as opened:
        yield opened


def snapshot(root: Path) -> dict[str, tuple[str, int, str]]:
    """Kind, mode and content of everything below a directory's parent, the repository's own files included."""

    def state(path: Path) -> tuple[str, int, str]:
        status = path.lstat()
        if path.is_symlink():
            return oct(status.st_mode), 0, os.readlink(path)
        if not path.is_file():
            return oct(status.st_mode), 0, ""
        return oct(status.st_mode), status.st_nlink, hashlib.sha256(path.read_bytes()).hexdigest()

    return {str(path): state(path) for path in root.parent.rglob("*")}


def test_what_is_offered() -> None:
    assert {operation.spec.name for operation in OFFERED} == READING | UNANSWERED
    for operation in OFFERED:
        spec = operation.spec
        assert (spec.read_only, spec.network, spec.executes) == (True, False, False)


@table("operation", OFFERED)
async def test_what_is_offered_changes_nothing(operation: Operation, workspace: LocalWorkspace) -> None:
    before = snapshot(workspace.root)
    assert any("/.git/" in path for path in before)
    kit = operation.kit(workspace, Pipeline(policy=READ_ONLY))
    result = await kit.call(operation.method, operation.arguments)
    assert result.success or operation.spec.name in UNANSWERED, result.observation()
    assert snapshot(workspace.root) == before
    (entry,) = kit.pipeline.trail.entries
    assert (entry.outcome, entry.workspace_revision) == (result.outcome, 0)


async def test_what_is_not_offered_is_refused(workspace: LocalWorkspace) -> None:
    before = snapshot(workspace.root)
    for operation in WITHHELD:
        kit = operation.kit(workspace, Pipeline(policy=READ_ONLY))
        result = await kit.call(operation.method, operation.arguments)
        assert "this run may only read" in result.error
        (entry,) = kit.pipeline.trail.entries
        assert (result.outcome, entry.decision, entry.outcome) == (
            Outcome.REFUSED,
            PolicyDecision.REFUSED,
            Outcome.REFUSED,
        )
    assert snapshot(workspace.root) == before
