"""Clones and their commands where no namespaces are to be had."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.task import EnvironmentSpec, RepoRef
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.sandbox.landlock import Landlock
from swe_ai_fleet.testing.repositories import make_repository
from tests.environments import Index, opened, provider_at, wheel
from tests.evidence import World, named

pytestmark = pytest.mark.skipif(Landlock.find() is None, reason="the kernel offers no Landlock")


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", script), timeout_seconds=60)


async def test_a_clone_is_worked_on_and_its_changes_are_read(tmp_path: Path) -> None:
    files = {"app.py": "answer = 41\n", "test_app.py": "import app\n\ndef test_it():\n    assert app.answer == 42\n"}
    repository = make_repository(tmp_path / "repository", files)
    surroundings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    provider = provider_at(tmp_path, rung=Rung.LANDLOCK, surroundings=surroundings)
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


async def test_a_patch_applies_to_files_that_were_given_to_the_sandboxs_user(tmp_path: Path) -> None:
    files = {"app.py": "answer = 41\n", "other.py": ""}
    async with opened(tmp_path, Rung.LANDLOCK, files) as (_, clone):
        # What a handover does to files, as soon as one has taken place or as if it had.
        owner = (clone.root / "app.py").stat().st_uid
        for path in (clone.root / "app.py", clone.root / "other.py"):
            os.chown(path, owner, -1)
            path.chmod(0o644)
        await clone.apply(b"--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-answer = 41\n+answer = 42\n")
        assert (await clone.diff()).files == ("app.py",)


SERVING = """
import http.server, threading, urllib.request
import app, thing

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(thing.answer * app.factor).encode())

def test_it_answers():
    server = http.server.ThreadingHTTPServer(("", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://localhost:{server.server_address[1]}/"
        assert urllib.request.urlopen(url, timeout=10).read() == b"42"
    finally:
        server.shutdown()
"""


async def test_a_repository_with_requirements_and_a_server_of_its_own_is_judged(tmp_path: Path) -> None:
    files = {"requirements.txt": "thing\n", "app.py": "factor = 5\n", "conftest.py": "", "test_app.py": SERVING}
    with Index({"thing-1.0-py3-none-any.whl": wheel("thing", 7)}) as index:
        world = World(tmp_path, files, Rung.LANDLOCK, setup=index.setup)
        report = await world.check({"app.py": "factor = 6\n"})
    tests = named(report, "tests")
    assert report.verdict is Verdict.VERIFIED, report.reasons
    assert (tests.passed, tests.shown) == (True, ("test_app.py::test_it_answers",))
    assert any("thing" in path for path in index.asked)


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
