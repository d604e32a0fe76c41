"""`fleet judge` and `fleet deliver` as people use them: real patches, a real fleet, no model for judging."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from tests.fleet_command import Ran, Shell, ended

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef half(x):\n    return x / 2\n",
    "test_calc.py": (
        "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n\n\n"
        "def test_half():\n    assert calc.half(4) == 2\n"
    ),
}
FIXED = FILES["calc.py"].replace("a - b", "a + b")
HOSTILE_NAME = "$(touch owned);\x1b]0;owned\x07 -rf.patch"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository", FILES)


@pytest.fixture
def patches(repository: Path, tmp_path: Path) -> Mapping[str, Path]:
    """Patches as git writes them."""
    changes = {
        "fix.patch": {"calc.py": FIXED},
        "wrong.patch": {"calc.py": FILES["calc.py"].replace("x / 2", "x / 3")},
        HOSTILE_NAME: {"README": "Sums.\n"},
    }
    return {name: _patch(repository, files, tmp_path / name) for name, files in changes.items()}


def _patch(repository: Path, files: Mapping[str, str], path: Path) -> Path:
    write_files(repository, files)
    git(repository, "add", "--all")
    git(repository, "diff", "--cached", f"--output={path}")
    git(repository, "reset", "--quiet", "--hard")
    return path


async def judged(shell: Shell, repository: Path, *arguments: str, **variables: str) -> Ran:
    return await shell.fleet("judge", "--repo", str(repository), *arguments, **variables)


async def test_patches_are_judged_ranked_and_delivered_by_name(
    shell: Shell, repository: Path, patches: Mapping[str, Path]
) -> None:
    before = git(repository, "for-each-ref"), git(repository, "status", "--porcelain")
    options = [part for name in ("wrong.patch", HOSTILE_NAME) for part in ("--patch", str(patches[name]))]
    task_id = f"judge-{uuid.uuid4().hex[:10]}"
    # As `$(git diff)` gives it: without its last line feed.
    diff = patches["fix.patch"].read_bytes().removesuffix(b"\n")
    asked = ("--repo", str(repository), "--patch", "-", *options, "--task-id", task_id)
    ran = await ended(await shell.start("judge", *asked, stdin=diff))
    assert ran.code == 0 and "\x1b" not in ran.out + ran.err and "\x07" not in ran.out + ran.err, ran.out + ran.err
    lines = ran.out.splitlines()
    assert "baseline: 1 pass, 1 fail: test_calc.py::test_add" in lines
    verdicts = [line.split(". ", 1)[1] for line in lines if line[:1].isdigit()]
    assert verdicts == ["stdin: verified", "touch-owned-0-owned--rf: unverified", "wrong: refuted"]
    assert any("1 test fails without the change and passes with it: test_calc.py::test_add" in line for line in lines)
    assert any("1 test fails with the change and not without: test_calc.py::test_half" in line for line in lines)
    assert lines[-1].startswith("completed: stdin is the best (")
    # Nothing of it reaches the repository, and a file's name is only a name.
    assert (git(repository, "for-each-ref"), git(repository, "status", "--porcelain")) == before
    assert not list(repository.parent.rglob("owned"))
    # What was judged can be had and delivered by its name.
    exported = await shell.fleet("export", task_id, "--agent", "wrong", "--format", "patch")
    assert exported.out == patches["wrong.patch"].read_text()
    by_hand = ("--branch", "by-hand", "--as", "ana", "--reason", "It fits")
    delivered = await shell.fleet("deliver", task_id, "stdin", *by_hand)
    assert delivered.code == 0, delivered.err
    assert git(repository, "show", "by-hand:calc.py") == FIXED.strip()
    assert "Fleet-Delivered-By: ana" in git(repository, "log", "-1", "--format=%B", "by-hand")


async def test_what_cannot_be_judged_is_bad_usage(shell: Shell, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.patch").write_text("\n")
    (tmp_path / "large.patch").write_bytes(b"x" * (3 * 1024 * 1024 + 1))
    (tmp_path / "good.patch").write_text("--- a/x\n+++ b/x\n")
    for name, said in (("empty.patch", "is empty"), ("large.patch", "is too large"), ("none.patch", "cannot read")):
        ran = await judged(shell, repository, "--patch", str(tmp_path / name))
        assert (ran.code, said in ran.err) == (2, True), ran.err
    ran = await judged(shell, repository, "--patch", str(tmp_path / "good.patch"), "--base", "no-such-ref")
    assert ran.code == 2 and "no-such-ref" in ran.err
    assert (await shell.fleet("judge", "--repo", str(repository))).code == 2


async def test_an_execution_whose_environment_fails_names_the_command_that_explains_it(
    shell: Shell, repository: Path, patches: Mapping[str, Path]
) -> None:
    ran = await judged(shell, repository, "--patch", str(patches["fix.patch"]), "--setup", "echo nothing there; false")
    assert ran.code == 6, ran.out
    lines = ran.out.splitlines()
    assert any(line.startswith("baseline: none: ") for line in lines)
    assert "1. fix: unverified" in lines
    head = git(repository, "rev-parse", "HEAD").strip()
    assert lines[-2:] == ["next:", f"  fleet env explain --repo {repository} --ref {head}"]
