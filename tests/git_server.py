"""A real git server over HTTP, with a password."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from swe_ai_fleet.testing.repositories import git
from tests.tool_doubles import served

USER = "robot"
PASSWORD = "correct horse battery"
ENCODED = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def served_copy(source: Path, served: Path, name: str = "project.git") -> Path:
    """A bare copy of a repository below a directory that is served, which takes pushes."""
    served.mkdir(exist_ok=True)
    git(served, "clone", "-q", "--bare", str(source), name)
    git(served / name, "config", "http.receivepack", "true")
    return served / name


@dataclass(slots=True)
class GitServer:
    """`git http-backend` behind aiohttp. Without the right password everything is 401; `instead` may answer for it."""

    root: Path
    url: str = ""
    seen: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    instead: Answer | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs))
        if self.instead is not None:
            return await self.instead(request)
        if request.headers.get("Authorization") != f"Basic {ENCODED}":
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        body = await request.read()  # unpacked already, whatever its encoding was
        variables = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method, "PATH_INFO": request.path, "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""), "REMOTE_USER": USER,
            "CONTENT_LENGTH": str(len(body)), "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_NOSYSTEM": "1",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            "git", "http-backend", env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        answer, _ = await process.communicate(body)
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        status = int(headers.pop("Status", "200").split()[0])
        return web.Response(status=status, headers=headers, body=content)


@asynccontextmanager
async def git_server(root: Path) -> AsyncGenerator[GitServer]:
    """Serve the bare repositories below a directory on a free port of loopback."""
    running = GitServer(root=root)
    async with served(running.handle) as port:
        running.url = f"http://127.0.0.1:{port}"
        yield running
