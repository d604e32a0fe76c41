"""What a command of an agent's must not do, tried through the shell tool, and what the audit says about it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.pipeline import Pipeline, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import MASK, Secrets
from swe_ai_fleet.tools.shell import ShellTool

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap (bwrap) on PATH")

SECRET = f"secret-{uuid.uuid4().hex}"
LIMITS = ToolLimits(command_timeout_seconds=30.0, observation_chars=2_000)


@pytest.fixture
async def workspace(tmp_path: Path) -> AsyncIterator[Workspace]:
    root = tmp_path / "clone"
    root.mkdir()
    async with open_workspace(root) as opened:
        yield opened


async def tried(tool: ShellTool, command: str, **limits: float) -> tuple[ToolResult, AuditEntry]:
    """What became of a command, and the audit's entry of its end: there is one of its start before it."""
    result = await tool.call("run_command", {"command": command, **limits})
    started, ended = tool.pipeline.trail.entries[-2:]
    assert (started.outcome, started.call_id) == (Outcome.STARTED, ended.call_id)
    assert started.arguments["command"] == command
    assert (ended.outcome, ended.exit_code) == (result.outcome, result.exit_code)
    assert verify(tool.pipeline.trail.entries, head=tool.pipeline.trail.head) is None
    return result, ended


@pytest.mark.parametrize("what", ["keys", "environments", "neighbours", "links"])
async def test_reading_what_is_not_its_own(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    home, neighbour = tmp_path / "home", tmp_path / "neighbour"
    for directory in (home / ".ssh", neighbour):
        directory.mkdir(parents=True)
        (directory / "id_ed25519").write_text(SECRET)
    monkeypatch.setenv("FLEET_TEST_SECRET", SECRET)
    command = {
        "keys": f"cat ~/.ssh/id_ed25519 {home}/.ssh/id_ed25519",
        "environments": "cat /proc/*/environ | tr '\\0' '\\n' | grep FLEET_TEST_SECRET",
        "neighbours": f"cat {neighbour}/id_ed25519 ../neighbour/id_ed25519 /proc/1/root{neighbour}/id_ed25519",
        "links": f"ln -s {neighbour}/id_ed25519 link && cat link",
    }[what]
    victim = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        result, entry = await tried(ShellTool(workspace, Pipeline(limits=LIMITS)), command)
    finally:
        victim.kill()
        await victim.wait()
    assert not result.success
    assert SECRET not in result.observation()
    assert entry.outcome is Outcome.ERROR


async def test_a_network_that_was_not_granted(workspace: Workspace) -> None:
    tool = ShellTool(workspace, Pipeline(limits=LIMITS))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        for address in (f"127.0.0.1/{port}", f"localhost/{port}", "169.254.169.254/80", "192.0.2.1/80"):
            result, entry = await tried(tool, f"exec 3<>/dev/tcp/{address} && echo reached >&3", timeout_seconds=10)
            assert entry.outcome is Outcome.ERROR, result.observation()
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("how", ["end", "time-out"])
async def test_a_process_that_outlives_the_call(workspace: Workspace, how: str) -> None:
    seconds = str(900_000 + uuid.uuid4().int % 90_000)
    leave = f"setsid nohup sleep {seconds} >/dev/null 2>&1 & (sleep {seconds} &)"
    tool = ShellTool(workspace, Pipeline(limits=LIMITS))
    if how == "end":
        _, entry = await tried(tool, f"{leave}; echo left")
        assert entry.outcome is Outcome.SUCCESS
    else:
        _, entry = await tried(tool, f"{leave}; wait", timeout_seconds=0.5)
        assert entry.outcome is Outcome.TIMEOUT
    assert not [p.pid for p in psutil.process_iter(["cmdline"]) if seconds in (p.info["cmdline"] or ())]


async def test_a_flood_with_a_secret_at_its_seams(workspace: Workspace) -> None:
    tool = ShellTool(workspace, Pipeline(limits=LIMITS, mask=Secrets([SECRET])))
    (workspace.root / "word").write_text(f"{SECRET} ")
    # Words of one length without a line end: wherever head and tail are cut, a word is cut with them.
    result, entry = await tried(tool, "cat word; yes \"$(cat word)\" | tr -d '\\n' | head -c 9000000; echo; echo end")
    assert result.truncated
    assert result.content.endswith("end")
    assert MASK in result.content
    assert len(result.content) < 2_300
    assert entry.bytes_out < 3 * 1024 * 1024
    pieces = {SECRET[i : i + 8] for i in range(len("secret-"), len(SECRET) - 8)}
    assert not any(piece in result.content for piece in pieces)


async def test_a_disk_and_a_memory_that_are_filled(workspace: Workspace) -> None:
    tool = ShellTool(workspace, Pipeline(limits=LIMITS))
    result, entry = await tried(tool, "truncate -s 1000G big && echo made")
    assert entry.outcome is Outcome.ERROR, result.observation()
    assert not (workspace.root / "big").exists() or (workspace.root / "big").stat().st_size == 0
    greedy = "exec python3 -c 'x = bytearray(1 << 40); print(len(x))'"
    result, entry = await tried(tool, greedy)
    assert entry.outcome is Outcome.ERROR
    assert "1099511627776" not in result.content


@pytest.mark.parametrize("policy", [Policy(read_only=True), Policy(denied=frozenset({"shell"}))])
async def test_a_shell_that_was_not_granted(workspace: Workspace, policy: Policy) -> None:
    tool = ShellTool(workspace, Pipeline(policy=policy))
    result = await tool.run_command("touch made")
    assert result.outcome is Outcome.REFUSED
    assert not (workspace.root / "made").exists()
    (entry,) = tool.pipeline.trail.entries
    assert (entry.outcome, entry.reason) == (Outcome.REFUSED, result.error)
