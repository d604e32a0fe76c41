"""Executions watched over HTTP: WebSockets, server-sent events, pages, audit chains."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close, Opcode

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.access.credentials import CredentialChecker
from services.gateway.main import gateway_app, serve_http
from services.gateway.upstream import open_upstream
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.testing.repositories import make_repository
from tests.confinement import until
from tests.conftest import FleetUnderTest
from tests.event_source import EventSource, a_deliberation, numbered, serving
from tests.fleet_client import connected, to_deliberate

Message = dict[str, Any]
FEED_BYTES = 4 * 1024 * 1024
SSE = {"Accept": "text/event-stream"}
TOKEN = {"Authorization": "Bearer of-the-caller"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """An execution of the real fleet that has ended, with what gRPC says of it and what a live watcher was sent."""

    url: str
    token: str
    execution_id: str
    events: list[pb.ExecutionEvent]
    live: list[Message]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def watch(self, query: str = "") -> tuple[list[Message], int, str]:
        return await watched(self.url, self.execution_id, query, self.headers)


async def watched(
    url: str, execution_id: str, query: str = "", headers: dict[str, str] = TOKEN
) -> tuple[list[Message], int, str]:
    """All messages until the WebSocket is closed, then its code and reason."""
    async with opened(url, execution_id, query, headers) as client:
        return await rest_of(client)


@asynccontextmanager
async def opened(
    url: str, execution_id: str, query: str = "", headers: dict[str, str] = TOKEN
) -> AsyncGenerator[ClientConnection]:
    address = f"{url.replace('http', 'ws', 1)}/api/ws/executions/{execution_id}{query}"
    async with connect(address, additional_headers=headers, max_size=None) as client:
        yield client


async def rest_of(client: ClientConnection) -> tuple[list[Message], int, str]:
    messages: list[Message] = []
    try:
        async with asyncio.timeout(60):
            while True:
                messages.append(json.loads(await client.recv()))
    except ConnectionClosed:
        return messages, client.close_code or 0, client.close_reason or ""


@pytest.fixture(scope="module")
async def ran(fleet: FleetUnderTest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ran]:
    repository = make_repository(tmp_path_factory.mktemp("watched") / "repository", {"a.py": "x = 1\n"})
    url, token = fleet.running.http, fleet.running.token
    assert url
    async with connected({"address": fleet.running.address, "token": token}) as client:
        execution_id = await client.submit(to_deliberate("Fix it.", repository, num_agents=2))
        live, code, _ = await watched(url, execution_id, "?events=1&text=1", {"Authorization": f"Bearer {token}"})
        assert code == 1000
        events = await client.events(execution_id)
    yield Ran(url=url, token=token, execution_id=execution_id, events=events, live=live)


async def test_a_live_watcher_is_sent_every_event_once_and_the_text_in_between(ran: Ran) -> None:
    stored = [one for one in ran.live if "sequence" in one]
    assert [one["sequence"] for one in stored] == numbers(ran.events)
    assert [one["event"]["payload"] for one in stored] == [json.loads(event.payload_json) for event in ran.events]
    assert (stored[0]["type"], stored[-1]["type"]) == ("status", "completion")
    assert {one["type"] for one in ran.live if "sequence" not in one} <= {"text"}


async def test_whoever_resumes_in_the_middle_gets_exactly_the_rest(ran: Ran) -> None:
    whole, code, _ = await ran.watch()
    assert code == 1000
    for place in (1, len(whole) // 2, len(whole) - 1, len(whole)):
        again, code, _ = await ran.watch(f"?from={whole[place - 1]['sequence'] + 1}")
        assert (again, code) == (whole[place:], 1000)


async def test_what_cannot_be_watched_is_told_by_the_close_code(ran: Ran) -> None:
    for name, query, code, reason in (
        ("00000000-0000-4000-8000-000000000000", "", 4404, "no execution"),
        ("x", "", 4400, "no"),
        *((ran.execution_id, f"?from={bad}", 4400, "from") for bad in (-1, "9" * 5000)),
        (ran.execution_id, "?from=1&from=2", 4400, "twice"),
        (ran.execution_id, "?events=yes", 4400, "events"),
        (ran.execution_id, "?since=1", 4400, "since"),
    ):
        messages, closed, why = await watched(ran.url, name, query, ran.headers)
        assert (messages, closed) == ([], code), query
        assert reason in why
    messages, closed, _ = await watched(ran.url, ran.execution_id, "", {"Authorization": "Bearer no"})
    assert (messages, closed) == ([], 4401)


async def test_server_sent_events_are_the_same_and_resume_and_end(ran: Ran) -> None:
    whole, _, _ = await ran.watch()
    place = len(whole) // 2
    path = f"/api/executions/{ran.execution_id}/events"
    async with aiohttp.ClientSession(ran.url, headers=ran.headers) as http:

        async def asked(seen: str | None = None) -> tuple[int, str]:
            async with http.get(path, headers=SSE if seen is None else SSE | {"Last-Event-ID": seen}) as answer:
                return answer.status, await answer.text()

        _, text = await asked()
        events = parsed(text)
        assert [(one["id"], one["event"], json.loads(one["data"])) for one in events[:-1]] == [
            (str(message["sequence"]), message["type"], message) for message in whole
        ]
        assert events[-1] == {"event": "end", "data": "{}"}
        _, text = await asked(str(whole[place - 1]["sequence"]))
        assert [json.loads(one["data"]) for one in parsed(text)[:-1]] == whole[place:]
        assert await asked(str(whole[-1]["sequence"])) == (204, "")
        status, text = await asked("x")
        assert (status, json.loads(text)["field"]) == (400, "Last-Event-ID")


async def test_pages_of_events_and_of_the_audit_add_up_to_the_whole(ran: Ran) -> None:
    whole, _, _ = await ran.watch("?events=1")
    got, following, ended = list[Message](), 0, False
    async with aiohttp.ClientSession(ran.url, headers=ran.headers) as http:

        async def asked(path: str) -> Any:
            async with http.get(f"/api/executions/{ran.execution_id}/{path}") as answer:
                return await answer.json()

        while not ended:
            page = await asked(f"events?from={following}&limit=5")
            assert 0 < len(page["events"]) <= 5
            got, following, ended = got + page["events"], page["next_from"], page["ended"]
        assert got == whole
        assert (await asked("events?limit=0"))["field"] == "limit"
        told = await asked("audit")
        assert (told["intact"], told["entries"]) == (True, [])
        heads = {chain["agent_id"]: (chain["head"], chain["recorded_head"]) for chain in told["chains"]}
        assert heads.keys() == {"agent-dev-1", "agent-dev-2"}
        assert all(head == recorded != "" for head, recorded in heads.values())
        entries, following = list[Message](), 1
        while following:
            page = await asked(f"audit?agent_id=agent-dev-1&limit=1&from={following}")
            entries, following = entries + page["entries"], page["next_from"]
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert entries[-1]["hash"] == heads["agent-dev-1"][0]


@asynccontextmanager
async def streaming(port: int, *, max_watchers: int = 50) -> AsyncGenerator[tuple[str, Any]]:
    """A gateway in front of a double of the orchestrator, and its feeds."""
    address = f"127.0.0.1:{port}"

    async def ready() -> bool:
        return True

    async with open_upstream(address, address) as upstream:
        settings = Settings(http_max_watchers=max_watchers)
        app = gateway_app(settings, upstream, CredentialChecker("of-the-caller"), MemoryKeyValue(), ready)
        async with serve_http(app, "127.0.0.1:0") as url:
            try:
                yield url, app.state.feeds
            finally:
                await app.state.feeds.close()


def numbers(events: list[pb.ExecutionEvent]) -> list[int]:
    return [event.sequence for event in events]


def story(agents: int = 2, steps: int = 5) -> tuple[str, list[pb.ExecutionEvent]]:
    name = str(uuid.uuid4())
    return name, numbered(name, a_deliberation(agents=agents, steps=steps))


def large_story(steps: int = 120) -> tuple[str, list[pb.ExecutionEvent]]:
    """More than a feed keeps, and unless it is short more than the kernel keeps for a client."""
    name = str(uuid.uuid4())
    events = numbered(name, a_deliberation(agents=4, steps=steps, output="x" * 32_000))
    assert sum(len(event.payload_json) for event in events) > FEED_BYTES * steps // 40
    return name, events


async def test_what_the_feed_has_no_more_is_read_again_and_joined_without_a_gap() -> None:
    source, (name, events) = EventSource(), large_story(steps=48)
    source.add(*events[:-1])
    async with serving(source) as port, streaming(port) as (url, _):
        async with opened(url, name) as early:
            for event in events[:-1]:
                assert json.loads(await early.recv())["sequence"] == event.sequence
            async with opened(url, name, "?from=50") as late:
                got = [json.loads(await late.recv()) for _ in range(len(events) - 1 - 17)]
                assert source.opened > 1
                source.add(events[-1])
                rest, code, _ = await rest_of(late)
        assert ([one["sequence"] for one in got + rest], code) == (numbers(events[17:]), 1000)


async def test_a_source_that_goes_away_is_waited_for() -> None:
    source, (name, events) = EventSource(), story()
    source.add(*events[:10])
    async with AsyncExitStack() as kept:
        async with serving(source) as port:
            url, _ = await kept.enter_async_context(streaming(port))
            client = await kept.enter_async_context(opened(url, name))
            first = [json.loads(await client.recv()) for _ in range(10)]
        lost = json.loads(await client.recv())
        assert (lost["type"], lost["notice"]["code"]) == ("notice", "source_lost")
        assert "sequence" not in lost
        async with serving(source, port):
            # It is known to be back though it has nothing new.
            assert json.loads(await client.recv())["notice"]["code"] == "source_back"
            source.add(*events[10:])
            rest, code, _ = await rest_of(client)
        told = [one for one in first + rest if "sequence" in one]
        assert ([one["sequence"] for one in told], code) == (numbers(events), 1000)


async def deaf(url: str, path: str) -> socket.socket:
    """A client that shakes hands and then reads nothing."""
    loop, (host, _, port) = asyncio.get_running_loop(), url.removeprefix("http://").partition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
    client.setblocking(False)
    await loop.sock_connect(client, (host, int(port)))
    shown = "".join(f"{name}: {value}\r\n" for name, value in TOKEN.items())
    await loop.sock_sendall(
        client,
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{shown}Upgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "\r\n".encode(),
    )
    return client


async def heard(client: socket.socket) -> tuple[list[Message], Close]:
    """What was sent to a client after all, up to its close."""
    reader, writer = await asyncio.open_connection(sock=client)
    try:
        async with asyncio.timeout(30):
            await reader.readuntil(b"\r\n\r\n")
            messages = list[Message]()
            while True:
                opcode, size = await reader.readexactly(2)
                if size > 125:
                    size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8))
                payload = await reader.readexactly(size)
                if opcode & 0xF == Opcode.CLOSE:
                    return messages, Close.parse(payload)
                if opcode & 0xF == Opcode.TEXT:
                    messages.append(json.loads(payload))
    finally:
        writer.close()


async def test_a_client_that_does_not_read_is_told_where_to_resume_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.gateway.streams.stream_routes.__kwdefaults__", {"send_seconds": 0.3})
    source, (name, events) = EventSource(), large_story()
    source.add(*events[:10])
    async with serving(source) as port, streaming(port) as (url, feeds):
        client = await deaf(url, f"/api/ws/executions/{name}?events=1")
        with client:
            async with opened(url, name) as brisk:
                got = [json.loads(await brisk.recv()) for _ in range(10)]
                for place in range(10, len(events) - 1, 20):
                    added = events[place : min(place + 20, len(events) - 1)]
                    source.add(*added)
                    got += [json.loads(await brisk.recv()) for _ in added]
                assert feeds.size <= FEED_BYTES
                await until(lambda: feeds.watchers == 1)
                messages, closed = await heard(client)
                source.add(events[-1])
                rest, code, _ = await rest_of(brisk)
            assert [one["sequence"] for one in got + rest] == numbers(events)
            assert code == 1000
        told = [one for one in messages if one["type"] != "notice"]
        assert 0 < len(told) < len(events) // 2
        assert [one["sequence"] for one in told] == numbers(events[: len(told)])
        resume = told[-1]["sequence"] + 1
        assert (closed.code, closed.reason) == (4408, f"too slow; resume with from={resume}")
        again, code, _ = await watched(url, name, f"?from={resume}")
        assert ([one["sequence"] for one in told + again], code) == (numbers(events), 1000)


async def test_a_client_that_never_reads_again_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.access.limits.StalledProtocol.stalled_seconds", 0.2)
    monkeypatch.setattr("services.gateway.access.limits.LINGER_SECONDS", 0.1)
    monkeypatch.setattr("services.gateway.streams.stream_routes.__kwdefaults__", {"send_seconds": 0.2})
    source, (name, events) = EventSource(), large_story(steps=80)
    source.add(*events[:-1])
    async with serving(source) as port, streaming(port) as (url, feeds):
        client = await deaf(url, f"/api/ws/executions/{name}?events=1")
        with client:
            there = client.getsockname()
            await until(lambda: feeds.watchers == 1)
            await until(lambda: feeds.watchers == 0)
            await until(lambda: not any(one.raddr == there for one in psutil.Process().net_connections("tcp4")))


async def test_no_more_watch_than_may_and_those_who_go_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.streams.feeds.Feeds.__init__.__kwdefaults__", {"linger": 0.05})
    source, (name, events) = EventSource(), story()
    source.add(*events[:3])
    async with serving(source) as port, streaming(port, max_watchers=2) as (url, feeds):
        async with opened(url, name) as first, opened(url, name) as second:
            await asyncio.gather(first.recv(), second.recv())
            messages, code, reason = await watched(url, name)
            assert (messages, code) == ([], 4429)
            assert "2 clients watch already; no more are allowed" in reason
        await until(lambda: not feeds.watchers)
        # A feed ends after its last watcher.
        await until(lambda: not source.streams)
        async with opened(url, name) as third:
            assert json.loads(await third.recv())["sequence"] == 1


async def test_a_gateway_that_goes_says_so() -> None:
    source, (name, events) = EventSource(), story()
    source.add(*events[:3])
    async with serving(source) as port:
        async with streaming(port) as (url, _):
            client = await connect(f"{url.replace('http', 'ws')}/api/ws/executions/{name}", additional_headers=TOKEN)
            await client.recv()
            http = aiohttp.ClientSession(url, headers=TOKEN)
            answer = await http.get(f"/api/executions/{name}/events", headers=SSE)
            await answer.content.readline()
        assert (await rest_of(client))[1] == 1001
        assert b"event: end" not in await answer.read()
        await http.close()


async def test_an_audit_that_was_tampered_with_is_found() -> None:
    source, (name, events) = EventSource(), story()
    place = next(number for number, event in enumerate(events) if event.type == "tool_finished")
    events[place].payload_json = events[place].payload_json.replace("parser.py", "secret.py")
    source.add(*events)
    async with serving(source) as port, streaming(port) as (url, _), aiohttp.ClientSession(url, headers=TOKEN) as http:
        async with http.get(f"/api/executions/{name}/audit") as answer:
            told = await answer.json()
        async with http.get(f"/api/executions/{uuid.uuid4()}/audit") as answer:
            assert answer.status == 404
    assert not told["intact"]
    broken, sound = sorted(told["chains"], key=lambda chain: chain["intact"])
    assert sound["intact"]
    assert broken["fault"]["entry"] == 2


def parsed(text: str) -> list[dict[str, str]]:
    """Server-sent events, as the standard reads them."""
    events: list[dict[str, str]] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in fields:
            events.append(fields)
    return events


async def test_the_client_of_the_document_shows_a_whole_execution(ran: Ran) -> None:
    document = (Path(__file__).parents[2] / "docs/watching.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    address = f"{ran.url.replace('http', 'ws', 1)}/api/ws/executions/{ran.execution_id}"
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, address, ran.token, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        told, _ = await client.communicate()
    assert client.returncode == 0
    whole, _, _ = await ran.watch()
    assert [line.split(" ")[0] for line in told.decode().splitlines()] == [message["type"] for message in whole]


async def test_a_stream_that_ends_before_its_execution_is_taken_up_again() -> None:
    source, (name, events) = EventSource(ends_early=True), story()
    source.add(*events)
    async with serving(source) as port, streaming(port) as (url, _):
        messages, code, _ = await watched(url, name)
    assert ([one["sequence"] for one in messages if "sequence" in one], code) == (numbers(events), 1000)
