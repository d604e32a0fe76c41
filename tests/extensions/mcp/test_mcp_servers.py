"""Real MCP servers, confined over a workspace: what they can do for an agent, and what they cannot do to its host."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from swe_ai_fleet.domain.audit import verify
from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision
from swe_ai_fleet.extensions.mcp.client import McpServer, McpTool
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.policy import Policy
from tests.confinement import until
from tests.tool_doubles import served

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")

HERE = Path(__file__).parent
SERVERS = Mount(source=str(HERE), target="/opt/servers")
PACKAGES = Mount(source=sys.prefix, target=sys.prefix)


def small(**changes: object) -> McpServer:
    command = (sys.executable, "/opt/servers/small_mcp_server.py")
    values: dict[str, object] = {"name": "small", "command": command, "mounts": (SERVERS, PACKAGES), "tools": ("*",)}
    return McpServer(**{**values, **changes})


def hostile(**changes: object) -> McpServer:
    command = ("python3", "-S", "/opt/servers/hostile_mcp_server.py")
    values: dict[str, object] = {"name": "bad", "command": command, "mounts": (SERVERS,), "tools": ("*",)}
    return McpServer(**{**values, **changes})


@asynccontextmanager
async def opened(root: Path, *servers: McpServer, pipeline: Pipeline | None = None) -> AsyncIterator[McpTool]:
    policy = SandboxPolicy(grace_seconds=1)
    async with (
        Sandbox(policy).workspace(root) as workspace,
        McpTool(workspace, pipeline, servers=servers, sandbox=policy, restart_seconds=0.01) as kit,
    ):
        yield kit


def running(word: str) -> list[int]:
    """The processes of this host with a word among their arguments."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if word in (process.info["cmdline"] or ())]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text("outside")
    (root / "way_out").symlink_to(tmp_path / "secret.txt")
    return root


class TestConfinement:
    @pytest.mark.slow  # quick: it reaches the workspace alone
    async def test_a_server_of_the_sdk(self, root: Path) -> None:
        async with opened(root, small()) as kit:
            assert (await kit.call("small_add", {"a": 2, "b": 3})).content == "5"
            assert not kit.definitions["small_add"].spec.network

    async def test_it_reaches_the_workspace_alone(self, root: Path, tmp_path: Path) -> None:
        async with opened(root, hostile()) as kit:
            assert (await kit.call("bad_read", {"say": "/workspace/a.txt"})).content == "inside"
            assert (await kit.call("bad_write", {"say": "/workspace/b.txt"})).content == "written"
            for path in (str(tmp_path / "secret.txt"), "/workspace/way_out", "/etc/shadow", "/proc/self/root/root"):
                assert (await kit.call("bad_read", {"say": path})).content.startswith("failed: ")
                assert kit.pipeline.trail.entries[-1].arguments == {"say": path}
            assert (await kit.call("bad_write", {"say": "/usr/x"})).content.startswith("failed: ")
            trail = kit.pipeline.trail
            ended = [entry for entry in trail.entries if entry.outcome is not Outcome.STARTED]
            # What a server does is not ours to refuse.
            assert {(entry.decision, entry.outcome) for entry in ended} == {(PolicyDecision.ALLOWED, Outcome.SUCCESS)}
            assert (len(ended), verify(trail.entries, head=trail.head)) == (7, None)
        assert (root / "b.txt").read_text() == "written"

    async def test_a_read_only_workspace(self, root: Path) -> None:
        server = hostile(read_only_workspace=True, read_only_tools=("read",))
        async with opened(root, server, pipeline=Pipeline(policy=Policy(read_only=True))) as kit:
            assert (await kit.call("bad_read", {"say": "/workspace/a.txt"})).content == "inside"
            assert (await kit.call("bad_write", {"say": "/workspace/a.txt"})).outcome is Outcome.REFUSED
            entry = kit.pipeline.trail.entries[-1]
            assert (entry.decision, entry.outcome) == (PolicyDecision.REFUSED, Outcome.REFUSED)
        async with opened(root, server) as kit:
            result = await kit.call("bad_write", {"say": "/workspace/a.txt"})
            assert "Read-only file system" in result.content
        assert (root / "a.txt").read_text() == "inside"

    async def test_the_network_is_what_was_granted(self, root: Path) -> None:
        async def hello(request: web.Request) -> web.StreamResponse:
            return web.Response(text="hello")

        proxied = {"no_proxy": "", "NO_PROXY": ""}
        async with served(hello) as port:
            grant = NetworkGrant(private_hosts=(f"localhost:{port}",))
            granted = hostile(name="granted", variables=proxied, network=grant)
            async with opened(root, hostile(variables=proxied), granted) as kit:
                address = {"say": f"http://localhost:{port}/"}
                assert (await kit.call("bad_fetch", address)).content.startswith("failed: ")
                assert (await kit.call("granted_fetch", address)).content == "hello"
                assert "403" in (await kit.call("granted_fetch", {"say": "http://example.org/"})).content

    async def test_the_repository_cannot_pass_for_a_part_of_the_server(self, root: Path) -> None:
        for name in ("hostile_mcp_server.py", "json.py", "sitecustomize.py"):
            (root / name).write_text("import os\nopen('/workspace/hijacked', 'w').write(str(dict(os.environ)))\n")
        (root / "python3").write_text("#!/bin/sh\nenv >/workspace/hijacked\n")
        (root / "python3").chmod(0o755)
        command = ("python3", "-m", "hostile_mcp_server")
        token = {"TOKEN": "tok-8d1f0c2b7a"}
        server = hostile(command=command, variables={"PYTHONPATH": "/opt/servers"}, secret_variables=token)
        async with opened(root, server) as kit:
            content = (await kit.call("bad_module", {})).content
        assert content.startswith("/home/agent ") and content.endswith(" []")
        assert not (root / "hijacked").exists()

    async def test_a_tool_that_is_another_after_a_restart_is_refused(self, root: Path) -> None:
        async with opened(root, hostile()) as kit:
            assert (await kit.call("bad_echo", {})).success
            assert "exit code 3" in (await kit.call("bad_crash", {})).error
            (root / "altered").touch()
            result = await kit.call("bad_echo", {})
            assert result.outcome is Outcome.REFUSED
            assert kit.pipeline.trail.entries[-1].decision is PolicyDecision.REFUSED
            assert (await kit.call("bad_flat", {})).success

    async def test_no_process_outlives_the_run(self, root: Path) -> None:
        marker, child, bare = (str(root / name) for name in ("marker", "child", "child-bare"))
        server = hostile(command=(*hostile().command, "", marker))
        async with opened(root, server) as kit:
            for word in (child, bare):
                assert (await kit.call("bad_spawn", {"say": word})).success
                await until(lambda word=word: running(word))
            assert running(marker)
        assert not running(marker) + running(child) + running(bare)
