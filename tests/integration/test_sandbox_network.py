"""The granted network: through the proxy, to granted hosts at public addresses, and nowhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.sandbox import IsolationLevel, LocalWorkspace, NetworkGrant, Sandbox, SandboxPolicy
from tests.confinement import CONFINED

FETCH = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], data=sys.argv[2].encode() if len(sys.argv) > 2 else None)
try:
    reply = urllib.request.urlopen(request, timeout=20)
except OSError as error:
    print(getattr(error, "code", "-"), error)
else:
    print(reply.status, reply.read().decode())
"""
# Connections to the proxy, and what to say to it.
PROXY = """
import base64, json, os, socket, sys
from urllib.parse import urlsplit
proxy = urlsplit(os.environ["http_proxy"])
connect = lambda: socket.create_connection((proxy.hostname, proxy.port))
known = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
authorization = f"Proxy-Authorization: Basic {known}\\r\\n"
"""
# A CONNECT tunnel, by hand: what arrives through it need not be TLS.
TUNNEL = f"""{PROXY}
connection = connect()
connection.sendall(f"CONNECT {{sys.argv[1]}} HTTP/1.1\\r\\n{{authorization}}\\r\\n".encode())
print(connection.recv(65536).decode().splitlines()[0])
connection.sendall(b"ping")
connection.shutdown(socket.SHUT_WR)
print(connection.makefile("rb").read().decode())
"""
# Each argument over a connection of its own; what came back for each.
SAYING = f"""{PROXY}
def said(text):
    connection = connect()
    connection.sendall(text.replace("AUTHORIZED", authorization).encode())
    return connection.makefile("rb").read().decode()

print(json.dumps([said(text) for text in sys.argv[1:]]))
"""


class Service:
    """A server on this host's loopback that tells what it was sent."""

    def __init__(self) -> None:
        self.port = 0
        self.linger_seconds = 0.0
        self.seen: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.read(4)
        if start == b"ping":
            writer.write(b"pong")
        else:
            head = (start + await reader.readuntil(b"\r\n\r\n")).decode()
            lengths = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            more = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(self.linger_seconds):
                    more = await reader.read(4096)
            self.seen.append(head + (body + more).decode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.answer, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    async with server:
        yield service


@asynccontextmanager
async def networked(
    level: IsolationLevel, root: Path, *hosts: str, private: tuple[str, ...] = ()
) -> AsyncGenerator[LocalWorkspace]:
    """A workspace with a grant."""
    grant = NetworkGrant(hosts=hosts, private_hosts=private)
    # A long path: a unix address would not hold it.
    scratch = root / ("long" * 30)
    scratch.mkdir()
    async with Sandbox(SandboxPolicy(level=level)).workspace(root, network=grant, scratch=scratch) as workspace:
        yield workspace


@pytest.fixture(params=CONFINED)
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    return request.param


def fetch(*arguments: str, script: str = FETCH) -> Command:
    # `localhost` is exempt from the proxy by default.
    variables = {"no_proxy": "", "NO_PROXY": ""}
    return Command(argv=("python3", "-c", script, *arguments), variables=variables, timeout_seconds=60)


async def test_hosts_are_reached_where_the_grant_names_them(
    level: IsolationLevel, tmp_path: Path, service: Service
) -> None:
    address = f"localhost:{service.port}"
    async with networked(level, tmp_path, "allowed.example", private=(address,)) as workspace:

        async def said(*arguments: str, script: str = FETCH) -> str:
            return (await workspace.run(fetch(*arguments, script=script))).stdout.text()

        assert await said(f"http://{address}/a?b=c") == "200 hello\n"
        assert await said(f"http://{address}/form", "x=1") == "200 hello\n"
        assert await said(address, script=TUNNEL) == "HTTP/1.1 200 Connection established\npong\n"
        first, second = service.seen
        assert first.startswith(f"GET /a?b=c HTTP/1.1\r\nHost: {address}\r\n")
        assert second.startswith("POST /form HTTP/1.1\r\n") and second.endswith("\r\n\r\nx=1")
        for other in ("http://other.example/", "http://allowed.example:8080/"):
            assert (await said(other)).startswith("403 HTTP Error 403: The network grant does not cover"), other


SPELLINGS = (
    "127.0.0.1", "localhost", "0.0.0.0", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::]", "10.0.0.1",
    "[::ffff:127.0.0.1]", "169.254.169.254", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
)  # fmt: skip


async def test_no_spelling_of_a_private_address_is_reached(
    level: IsolationLevel, tmp_path: Path, service: Service
) -> None:
    async with networked(level, tmp_path, "*", f"*:{service.port}") as workspace:
        targets = [f"{spelled}:{service.port}" for spelled in SPELLINGS]
        asked = [f"CONNECT {target} HTTP/1.1\r\nAUTHORIZED\r\n" for target in targets]
        answers = json.loads((await workspace.run(fetch(*asked, script=SAYING))).stdout.text())
        for target, status in zip(targets, answers, strict=True):
            # A resolver may know nothing of the odder spellings.
            assert status.startswith(("HTTP/1.1 403", "HTTP/1.1 502 Cannot resolve")), (target, status)
    assert service.seen == []


AROUND = """
import socket, sys
port, path, abstract = sys.argv[1:]
for family, address in (
    (socket.AF_INET, ("127.0.0.1", int(port))), (socket.AF_INET, ("8.8.8.8", 53)), (socket.AF_UNIX, path),
    (socket.AF_UNIX, "\\0" + abstract), (socket.AF_UNIX, "/var/run/docker.sock"), (socket.AF_UNIX, "/run/docker.sock"),
):
    try:
        client = socket.socket(family)
        client.settimeout(3)
        client.connect(address)
    except OSError:
        continue
    print("reached", address)
"""


async def test_there_is_no_way_around_the_proxy(level: IsolationLevel, tmp_path: Path, service: Service) -> None:
    root, outside, abstract = tmp_path / "ws", tmp_path / "s", f"fleet-test-{service.port}"
    root.mkdir()
    # An agent's environment brings its grant.
    granted = f"localhost:{service.port}"
    environment = Environment(network=NetworkGrant(hosts=("*",), private_hosts=(granted,)))
    async with (
        await asyncio.start_unix_server(service.answer, outside),
        await asyncio.start_unix_server(service.answer, f"\0{abstract}"),
        Sandbox(SandboxPolicy(level=level)).workspace(root, environment=environment) as workspace,
    ):
        result = await workspace.run(fetch(str(service.port), str(outside), abstract, script=AROUND))
        assert (result.exit_code, result.stdout.text()) == (0, "")
        assert (await workspace.run(Command(argv=("sh", "-c", "rm /run/fleet/proxy/proxy.sock")))).exit_code == 1
        assert (await workspace.run(Command(argv=("sh", "-c", "echo $GOPROXY")))).stdout.text() == "\n"
        assert (await workspace.run(fetch(f"http://{granted}/"))).stdout.text() == "200 hello\n"


MALFORMED = {
    "GET / HTTP/1.1": 400,
    "GET ftp://localhost:{port}/ HTTP/1.1": 400,
    "CONNECT localhost HTTP/1.1": 400,
    "CONNECT a@localhost:{port} HTTP/1.1": 400,
    "POST http://localhost:{port}/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked": 411,
    "POST http://localhost:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3": 400,
    "POST http://localhost:{port}/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2": 400,
    "GET http://localhost:{port}/ HTTP/1.1\r\nBad Name: 1": 400,
}


async def test_malformed_and_second_requests_are_refused(
    level: IsolationLevel, tmp_path: Path, service: Service
) -> None:
    address = f"localhost:{service.port}"
    service.linger_seconds = 0.3
    async with networked(level, tmp_path, private=(address,)) as workspace:
        asked = [f"{template.format(port=service.port)}\r\nAUTHORIZED\r\n" for template in MALFORMED]
        answers = json.loads((await workspace.run(fetch(*asked, script=SAYING))).stdout.text())
        for (template, status), answer in zip(MALFORMED.items(), answers, strict=True):
            assert answer.startswith(f"HTTP/1.1 {status} "), template
        assert service.seen == []
        one = f"GET http://{address}/{{}} HTTP/1.1\r\nHost: other.example\r\nAUTHORIZED\r\n"
        result = await workspace.run(fetch(one.format(1) + one.format(2), script=SAYING))
    assert json.loads(result.stdout.text())[0].endswith("hello")
    assert service.seen == [f"GET /1 HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"]
