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


async def test_the_environment_is_made_from_scratch(git: Git, tmp_path: Path) -> None:
    for protocols, shown in (((), ()), (("https",), ("SSL_CERT_FILE",))):
        printed = await git.run("-c", "alias.printenv=!env", "printenv", cwd=tmp_path, protocols=protocols)
        names = dict(line.split("=", 1) for line in printed.lines() if "=" in line)
        # How it gets to a server is for a route to say.
        assert not names.keys() & {"SECRET", "https_proxy"} and names.keys() >= set(shown)
        assert (names["HOME"], names["GIT_TERMINAL_PROMPT"]) == ("/nonexistent", "0")


async def test_no_transport_unless_asked(git: Git, tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}", str(tmp_path), "https://127.0.0.1:9/x", "ext::sh -c true"):
        with pytest.raises(GitFailed, match="not allowed"):
            await git.run("ls-remote", "--", url, cwd=tmp_path)
        with pytest.raises(GitFailed):
            await git.run("ls-remote", "--", url, cwd=tmp_path, protocols=("https",))


async def test_time_limits_and_cancelling_end_everything(git: Git, tmp_path: Path) -> None:
    for seconds, ends, cancelled in ((1, Unavailable, 60), (60, TimeoutError, 1)):
        with pytest.raises(ends):
            async with asyncio.timeout(cancelled):
                await git.run(*SLEEP, cwd=tmp_path, timeout_seconds=seconds)
        # The kernel ends what is killed a moment after it says so.
        await until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/exe").exists())


async def test_floods_are_cut_off_and_input_may_be_left_unread(git: Git, tmp_path: Path) -> None:
    with pytest.raises(ResourceExhausted, match="100000 bytes"):
        await git.run("-c", "alias.flood=!yes", "flood", cwd=tmp_path, output_limit=100_000, timeout_seconds=20)
    done = await git.run("--version", cwd=tmp_path, stdin=b"x" * 10_000_000)
    assert done.text().startswith("git version")
