"""How git is started: what it inherits, and that it always ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace.git import Git, GitFailed
from swe_ai_fleet.domain.errors import ResourceExhausted, Unavailable
from tests.confinement import until

SURROUNDINGS = {"PATH": os.environ["PATH"], "HOME": "/somewhere", "https_proxy": "http://proxy", "SECRET": "x"}
SURROUNDINGS |= {"SSL_CERT_FILE": "/certificates"}
SLEEP = ("-c", "alias.pause=!echo $$ > pid; sleep 60", "pause")


@pytest.fixture
def git() -> Git:
    return Git(SURROUNDINGS)


async def wait_for(path: Path) -> int:
    await until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


async def test_the_environment_is_made_from_scratch(git: Git, tmp_path: Path) -> None:
    printed = await git.run("-c", "alias.printenv=!env", "printenv", cwd=tmp_path)
    names = dict(line.split("=", 1) for line in printed.lines() if "=" in line)
    assert "SECRET" not in names
    assert "https_proxy" not in names
    assert names["HOME"] == "/nonexistent"
    assert names["GIT_TERMINAL_PROMPT"] == "0"
    networked = await git.run("-c", "alias.printenv=!env", "printenv", cwd=tmp_path, protocols=("https",))
    assert "SSL_CERT_FILE=/certificates" in networked.lines()
    # How it gets to a server is for a route to say.
    assert "https_proxy=http://proxy" not in networked.lines()
    assert "SECRET=x" not in networked.lines()


async def test_no_transport_unless_asked(git: Git, tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}", str(tmp_path), "https://127.0.0.1:9/x", "ext::sh -c true"):
        with pytest.raises(GitFailed, match="not allowed"):
            await git.run("ls-remote", "--", url, cwd=tmp_path)
        with pytest.raises(GitFailed):
            await git.run("ls-remote", "--", url, cwd=tmp_path, protocols=("https",))


async def test_time_limits_and_cancelling_end_everything(git: Git, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="more than 1 s"):
        await git.run(*SLEEP, cwd=tmp_path, timeout_seconds=1)
    first = await wait_for(tmp_path / "pid")
    # The kernel ends what is killed a moment after it says so.
    await until(lambda: not is_alive(first))
    (tmp_path / "pid").unlink()
    task = asyncio.create_task(git.run(*SLEEP, cwd=tmp_path))
    pid = await wait_for(tmp_path / "pid")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not is_alive(pid))


async def test_floods_are_cut_off_and_input_may_be_left_unread(git: Git, tmp_path: Path) -> None:
    with pytest.raises(ResourceExhausted, match="100000 bytes"):
        await git.run("-c", "alias.flood=!yes", "flood", cwd=tmp_path, output_limit=100_000, timeout_seconds=20)
    done = await git.run("--version", cwd=tmp_path, stdin=b"x" * 10_000_000)
    assert done.text().startswith("git version")
