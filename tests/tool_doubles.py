"""What tools are tested with: a journal, names and a network that lead to this machine, sites; how their calls end."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpcore2
from aiohttp import web

from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.event import Event, EventBody, Writer
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.sandbox import Sandbox, SandboxPolicy
from swe_ai_fleet.tools import Pipeline
from swe_ai_fleet.tools.catalogue import ToolAccess, open_toolkits
from swe_ai_fleet.tools.policy import Policy

PUBLIC = "93.184.215.14"
TASK = Task(task_id="t", kind=TaskKind.DELIBERATE, description="x", repo=RepoRef(location="/r"))


async def offered(root: Path, *, access: ToolAccess | None = None, task: Task = TASK) -> Toolbox:
    """The tools of a run in a directory."""
    asked = frozenset(task.tools) | frozenset(task.constraints.allowed_tools)
    policy = Policy(role=task.role, allowed=asked, denied=frozenset(task.constraints.denied_tools))
    pipeline = Pipeline(policy=policy)
    workspace = Sandbox(SandboxPolicy()).workspace(root)
    async with open_toolkits(workspace, pipeline, access or ToolAccess(), task) as held:
        return Toolbox(held.toolkits, pipeline, idle=held.idle, unlisted=held.unlisted)


def shown(box: Toolbox) -> list[str]:
    """What the model of such a run is shown at first."""
    return [spec.name for spec in box.specs]


class ListJournal:
    """Keeps what is written to it in order."""

    def __init__(self) -> None:
        self.bodies: list[EventBody] = []

    async def append(self, body: EventBody) -> Event:
        return self.post(body)

    def post(self, body: EventBody) -> Event:
        self.bodies.append(body)
        writer = Writer(tenant="default", execution_id="e", task_id="t", agent_id="a")
        return writer.event(body, ordinal=len(self.bodies), at="")

    async def flush(self) -> None:
        pass


class Names:
    """A resolver whose answers are given, one after the other; the last one stays."""

    def __init__(self, names: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self.answers = {name: list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self.answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Detour(httpcore2.AsyncNetworkBackend):
    """A network in which every address leads to one local port; it keeps the addresses that were dialled."""

    def __init__(self, port: int = 0, unreachable: Sequence[str] = ()) -> None:
        self.port = port
        self.unreachable = unreachable
        self.dialled: list[str] = []
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self.dialled.append(host)
        if host in self.unreachable:
            raise httpcore2.ConnectError("no route to host")
        return await self._network.connect_tcp("127.0.0.1", self.port or port, timeout)


@asynccontextmanager
async def served(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """A site on loopback whose every address is answered by one handler; its port."""
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def ok(call: Awaitable[ToolResult]) -> ToolResult:
    result = await call
    assert result.success, result.observation()
    return result


async def failed(call: Awaitable[ToolResult], *said: str) -> ToolResult:
    """What a call gave that did not succeed, and said so."""
    result = await call
    assert not result.success, result.observation()
    for text in said:
        assert text in result.observation()
    return result
