"""Clones and their commands where no namespaces are to be had."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.testing.repositories import make_repository

pytestmark = pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", script), timeout_seconds=60)


async def test_a_clone_is_worked_on_and_its_changes_are_read(tmp_path: Path) -> None:
    files = {"app.py": "answer = 41\n", "test_app.py": "import app\n\ndef test_it():\n    assert app.answer == 42\n"}
    repository = make_repository(tmp_path / "repository", files)
    provider = GitWorkspaceProvider(
        tmp_path / "home",
        Sandbox(SandboxPolicy(rung=Rung.LANDLOCK)),
        allowed_roots=(tmp_path,),
        allow_local_paths=True,
        surroundings={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    pinned = await provider.pin("tenant", RepoRef(location=str(repository)))
    environment = await provider.environment(pinned, EnvironmentSpec())
    async with provider.open("execution", "agent", pinned, environment) as clone:
        log = await clone.run(shell("git log --oneline && git status --short"))
        assert (log.exit_code, log.stdout.text().count("\n")) == (0, 1), log.stderr.text()
        assert not (await clone.run(Command(argv=("python3", "-m", "pytest", "-q"), timeout_seconds=60))).ok
        edited = await clone.run(shell("sed -i s/41/42/ app.py && chmod 755 app.py && echo x >> test_app.py"))
        assert edited.ok, edited.stderr.text()
        # What the fleet itself writes in the meantime is the command's to change as well.
        (clone.root / "script.sh").write_text("echo from the script\n")
        made = await clone.run(shell("echo exit 3 >> script.sh && chmod +x script.sh && sh ./script.sh"))
        assert (made.exit_code, made.stdout.text()) == (3, "from the script\n"), made.stderr.text()
        assert "+answer = 42" in (await clone.diff()).patch.decode()
        assert not (await clone.run(shell(f"ls {tmp_path} || cat {repository}/app.py"))).ok
    assert list((tmp_path / "home" / "workspaces").rglob("app.py")) == []


async def test_an_environment_that_needs_the_network_is_refused(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", {"requirements.txt": "six\n"})
    provider = GitWorkspaceProvider(
        tmp_path / "home",
        Sandbox(SandboxPolicy(rung=Rung.LANDLOCK)),
        allowed_roots=(tmp_path,),
        allow_local_paths=True,
        surroundings={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    pinned = await provider.pin("tenant", RepoRef(location=str(repository)))
    with pytest.raises(PreconditionFailed, match="some hosts only"):
        await provider.environment(pinned, EnvironmentSpec())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands anything over")
async def test_nothing_outside_is_handed_over(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "ws"
    outside.mkdir()
    root.mkdir()
    (outside / "file").write_text("x")
    (root / "link").symlink_to(outside)
    (root / "file-link").symlink_to(outside / "file")
    os.link(outside / "file", root / "other-name")
    async with Sandbox(SandboxPolicy(rung=Rung.LANDLOCK)).workspace(root) as workspace:
        deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
        assert (await workspace.run(Command(argv=("python3", "-c", deep)))).ok
        (root / "mine").write_text("x")
        assert (await workspace.run(shell("chmod 700 mine && stat -c %u . mine"))).ok
        assert root.stat().st_uid != 0
        assert [(outside / name).stat().st_uid for name in (".", "file")] == [0, 0]
        assert not (await workspace.run(shell("echo y >> link/file || echo y > file-link"))).ok
    assert {path.lstat().st_uid for path in (root, root / "mine", root / "link", outside / "file")} == {0}
    assert (outside / "file").read_text() == "x"
    # Too deep for those who tidy up after tests.
    assert await (await asyncio.create_subprocess_exec("rm", "-rf", str(root / "d"))).wait() == 0
