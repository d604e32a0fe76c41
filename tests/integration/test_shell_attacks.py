"""What a command of an agent's must not do, tried through the shell tool, and what the audit says about it."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import pytest

from swe_ai_fleet.domain.audit import AuditEntry, verify
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.sandbox import Attack, IsolationLevel, LocalWorkspace, Sandbox, SandboxPolicy, examine_sandbox
from swe_ai_fleet.tools import Pipeline, ShellTool, ToolLimits
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.secrets import MASK, Secrets
from tests.confinement import CONFINED

MIB = 1024 * 1024
SECRET = f"secret-{uuid.uuid4().hex}"
LIMITS = ToolLimits(command_timeout_seconds=30.0, observation_chars=2_000)


@pytest.fixture(params=CONFINED)
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    return request.param


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    return root


def sandbox(level: IsolationLevel, **limits: int) -> Sandbox:
    return Sandbox(SandboxPolicy(level=level, grace_seconds=0.3, **limits))


def shell(workspace: LocalWorkspace) -> ShellTool:
    return ShellTool(workspace, Pipeline(limits=LIMITS))


async def tried(tool: ShellTool, command: str, **limits: float) -> tuple[ToolResult, AuditEntry]:
    """What became of a command, and the audit's entry of its end: there is one of its start before it."""
    result = await tool.call("run_command", {"command": command, **limits})
    started, ended = tool.pipeline.trail.entries[-2:]
    assert (started.outcome, started.call_id) == (Outcome.STARTED, ended.call_id)
    assert started.arguments["command"] == command
    assert (ended.decision, ended.outcome, ended.exit_code) == (
        PolicyDecision.ALLOWED,
        result.outcome,
        result.exit_code,
    )
    assert verify(tool.pipeline.trail.entries, head=tool.pipeline.trail.head) is None
    return result, ended


async def test_a_network_that_was_not_granted(level: IsolationLevel, root: Path) -> None:
    async with sandbox(level).workspace(root) as workspace:
        tool = shell(workspace)
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            port = server.getsockname()[1]
            for address in (f"127.0.0.1/{port}", f"localhost/{port}", "169.254.169.254/80", "192.0.2.1/80"):
                result, entry = await tried(tool, f"exec 3<>/dev/tcp/{address} && echo reached >&3", timeout_seconds=10)
                assert entry.outcome is Outcome.ERROR, result.observation()
            with pytest.raises(BlockingIOError):
                server.accept()


async def test_a_flood_with_a_secret_at_its_seams(level: IsolationLevel, root: Path) -> None:
    (root / "word").write_text(f"{SECRET} ")
    async with sandbox(level).workspace(root) as workspace:
        tool = ShellTool(workspace, Pipeline(limits=LIMITS, mask=Secrets([SECRET])))
        # Words of one length without a line end: wherever head and tail are cut, a word is cut with them.
        flood = "cat word; yes \"$(cat word)\" | tr -d '\\n' | head -c 9000000; echo; echo end"
        result, entry = await tried(tool, flood)
    assert result.truncated
    assert result.content.endswith("end")
    assert MASK in result.content
    assert len(result.content) < 2_300
    # A program whose reader has gone ends by a signal: its complaint could stand in the middle of a word.
    assert "Broken pipe" not in result.content
    assert entry.bytes_out < 3 * MIB
    pieces = {SECRET[i : i + 8] for i in range(len("secret-"), len(SECRET) - 8)}
    assert not any(piece in result.content for piece in pieces)


# By what is without end: the limit, a program, and words that it must leave in the answer.
WITHOUT_END = {
    "processes": ({"max_processes": 40}, "if not os.fork():\n        time.sleep(60)\n        os._exit(0)", "Blocking"),
    "one file": ({"max_file_bytes": MIB}, "open('fill-1', 'ab').write(bytes(MIB))", ""),
    "memory": ({"max_memory_bytes": 128 * MIB}, "held.append(bytearray(4 * MIB))", ""),
}


@pytest.mark.parametrize("what", WITHOUT_END)
async def test_what_is_without_end(level: IsolationLevel, root: Path, what: str) -> None:
    if what == "memory" and Attack.MEMORY in (await examine_sandbox(level.value)).leaves_open:
        pytest.skip("no memory control group is writable")
    limits, line, said = WITHOUT_END[what]
    program = f"import os, time\nMIB, held = 1 << 20, []\nfor at in range(200):\n    {line}\n    time.sleep(0.01)\n"
    (root / "attack.py").write_text(f"{program}print('all of it')\n")
    async with sandbox(level, **limits).workspace(root) as workspace:
        tool = shell(workspace)
        result, entry = await tried(tool, "exec python3 attack.py")
        assert entry.outcome is Outcome.ERROR, result.observation()
        assert said in result.content and "all of it" not in result.content
        # Once room is made it goes on.
        assert (await tried(tool, "rm -f fill-*"))[1].outcome is Outcome.SUCCESS
        assert (await tried(tool, "head -c 100000 /dev/zero >more"))[1].outcome is Outcome.SUCCESS


@pytest.mark.parametrize("policy", [Policy(read_only=True), Policy(denied=frozenset({"shell"}))])
async def test_a_shell_that_was_not_granted(root: Path, policy: Policy) -> None:
    async with sandbox(IsolationLevel.NONE).workspace(root) as workspace:
        tool = ShellTool(workspace, Pipeline(policy=policy))
        result = await tool.run_command("touch made")
    assert result.outcome is Outcome.REFUSED and not (root / "made").exists()
    (entry,) = tool.pipeline.trail.entries
    assert (entry.decision, entry.outcome, entry.reason) == (PolicyDecision.REFUSED, Outcome.REFUSED, result.error)
