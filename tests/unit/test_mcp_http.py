"""MCP servers behind a URL: what reaches them, what they may answer, and what they must not do to us."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet.domain.tool import Decision, Outcome
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.tools.mcp import McpServer, McpTool
from tests.tool_doubles import served

TOKEN = "tok-8d1f0c2b7a"


class Site:
    """A server of many habits, one for each path; tools beside `echo` misbehave."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[tuple[str, str, dict[str, str], dict[str, Any]]] = []
        self.sessions = 0

        self.release = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.text() or "{}")
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.path, headers, message))
        match request.path:
            case "/redirect":
                return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{self.port}/mcp"})
            case "/html":
                return web.Response(text="<html>", content_type="text/html")
            case "/locked":
                return web.Response(status=401, text="who are you?")
            case "/mute":
                await self.release.wait()
            case _:
                pass
        if request.method != "POST":
            return web.Response(status=405 if request.method == "GET" else 204)
        if "id" not in message:
            return web.Response(status=202)

        return await self.reply(request, message)

    async def reply(self, request: web.Request, message: dict[str, object]) -> web.StreamResponse:
        headers: dict[str, str] = {}
        result: dict[str, object] = {}
        match message["method"]:
            case "initialize":
                self.sessions += 1
                headers["Mcp-Session-Id"] = f"session-{self.sessions}"
                info = {"name": "site", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                names = (
                    "echo", "stream", "flood", "comments", "large", "large_event", "packed", "stranger", "hang",
                    "broken", "moved",
                )  # fmt: skip
                result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
            case "tools/call":
                params = message["params"]
                assert isinstance(params, dict)
                special = await self.act(request, str(params["name"]), message["id"])
                if special is not None:
                    return special
                words = f"authorized by {request.headers.get('Authorization', 'nobody')}"
                result = {"content": [{"type": "text", "text": words}]}
            case _:
                pass
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    async def act(self, request: web.Request, name: str, identity: object) -> web.StreamResponse | None:
        done = {"jsonrpc": "2.0", "id": identity, "result": {"content": [{"type": "text", "text": "done"}]}}
        if name == "large":
            return web.Response(body=b'"' + b"x" * 6_000_000 + b'"', content_type="application/json")
        if name == "packed":
            body = gzip.compress(json.dumps(done).encode())
            return web.Response(body=body, content_type="application/json", headers={"Content-Encoding": "gzip"})
        if name == "moved":
            return web.Response(status=307, headers={"Location": f"http://127.0.0.2:{self.port}/elsewhere"})
        if name == "stranger":
            return web.json_response({**done, "id": 4711})
        if name == "hang":
            await self.release.wait()
        if name in ("echo", "hang"):
            return None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        note = b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
        try:
            if name == "broken":
                return response
            if name == "large_event":
                while True:
                    await response.write(b"data: " + b"x" * 500_000 + b"\n")
            while name in ("flood", "comments"):
                await response.write(note * 100 if name == "flood" else b": still here\n\n" * 100)
            await response.write(note + f"id: 1\ndata: {json.dumps(done)}\n\n".encode())
        except ConnectionError:
            pass
        return response


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with served(site.answer) as site.port:
        yield site
        site.release.set()


@asynccontextmanager
async def opened(site: Site, root: Path, path: str = "/mcp", **changes: object) -> AsyncIterator[McpTool]:
    values: dict[str, object] = {"private": True, "tools": ("*",), "time_limit_seconds": 20.0, "start_seconds": 5.0}
    server = McpServer(name="web", url=f"http://127.0.0.1:{site.port}{path}", **{**values, **changes})
    policy = SandboxPolicy(rung=Rung.NONE, grace_seconds=0.5)
    async with (
        Sandbox(policy).workspace(root) as workspace,
        McpTool(workspace, servers=(server,), sandbox=policy, restart_seconds=0.01) as kit,
    ):
        yield kit


async def test_calls_within_a_session(site: Site, tmp_path: Path) -> None:
    async with opened(site, tmp_path, headers={"Authorization": f"Bearer {TOKEN}"}) as kit:
        assert (await kit.call("web_echo", {})).content == "authorized by [masked]"
        assert (await kit.call("web_stream", {})).content == "done"
        assert kit.definitions["web_echo"].spec.network
    methods = [(method, message.get("method")) for method, _, _, message in site.seen]
    assert methods[:3] == [("POST", "initialize"), ("POST", "notifications/initialized"), ("POST", "tools/list")]
    assert (methods[-1], "GET" in dict(methods)) == (("DELETE", None), False)
    for name, value in {"mcp-session-id": "session-1", "mcp-protocol-version": "2025-06-18"}.items():
        assert {headers.get(name) for _, _, headers, _ in site.seen[1:]} == {value}
    assert site.seen[0][3]["params"]["capabilities"] == {}


async def test_a_private_address_is_refused_unless_the_server_is_marked(site: Site, tmp_path: Path) -> None:
    async with opened(site, tmp_path, private=False) as kit:
        assert not kit.definitions
        assert "not on the public internet" in kit.notes[0]
    assert not site.seen


async def test_servers_that_cannot_be_had(site: Site, tmp_path: Path) -> None:
    for path, words in {
        "/redirect": "redirects are not followed", "/html": "not MCP", "/locked": "credentials",
        "/mute": "did not answer within 0.5 seconds",
    }.items():  # fmt: skip
        site.seen.clear()
        limit = 0.5 if path == "/mute" else 10.0
        async with opened(site, tmp_path, path, start_seconds=limit, headers={"X-Key": TOKEN}) as kit:
            assert not kit.definitions
            assert words in kit.notes[0]
        assert {seen for _, seen, _, _ in site.seen} == {path}


async def test_answers_that_are_none(site: Site, tmp_path: Path) -> None:
    for tool, words in {
        "flood": "messages that nobody asked for", "large": "a message of more than 4194304 bytes",
        "large_event": "exceeded the 4194304 byte limit", "packed": "compresses its answer",
        "stranger": "not one to the question", "broken": "broke off", "moved": "redirects are not followed",
    }.items():  # fmt: skip
        async with opened(site, tmp_path) as kit:
            assert words in (await kit.call(f"web_{tool}", {})).error
            entry = kit.pipeline.trail.entries[-1]
            assert (entry.operation, entry.decision, entry.outcome) == (tool, Decision.ALLOWED, Outcome.ERROR)
            assert (await kit.call("web_echo", {})).success
            assert "/elsewhere" not in {seen for _, seen, _, _ in site.seen}


@pytest.mark.parametrize("tool", ["hang", "comments"])
async def test_time_out(site: Site, tmp_path: Path, tool: str) -> None:
    async with opened(site, tmp_path, time_limit_seconds=0.5) as kit:
        result = await kit.call(f"web_{tool}", {})
        assert result.outcome is Outcome.TIMEOUT
        assert kit.pipeline.trail.entries[-1].outcome is Outcome.TIMEOUT
        assert (await kit.call("web_echo", {})).success
        async with asyncio.timeout(10):
            while "notifications/cancelled" not in [message.get("method") for _, _, _, message in site.seen]:
                await asyncio.sleep(0.01)
