"""HttpTool against real servers on this machine: what it fetches, what it says, what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from swe_ai_fleet.domain.command import NetworkGrant
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.tools import HttpPolicy, HttpTool
from tests.tables import table
from tests.tool_doubles import PUBLIC, Detour, Names, served

SECRET = "s3cr3t-value"


class Site:
    """A server of many habits, and what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], str]] = []
        self.port = 0
        self.release = asyncio.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.seen.append((request.method, request.raw_path, dict(request.headers), body))
        match request.path:
            case "/redirect":
                status = int(request.query.get("status", "302"))
                return web.Response(status=status, headers={"Location": request.query["to"]})

            case "/slow":
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b"a drop")
                await self.release.wait()
                return response
            case "/bomb":
                packed = zlib.compressobj(wbits=31)
                data = b"".join(packed.compress(bytes(1 << 20)) for _ in range(64)) + packed.flush()
                return web.Response(body=data, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})
            case "/big":
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                await response.prepare(request)
                try:
                    while True:
                        await response.write(b"line\n" * 10_000)
                except ConnectionError:
                    return response
            case "/missing":
                return web.Response(status=404, text="no such page")
            case _:
                return web.json_response({"method": request.method, "body": body, "query": dict(request.query)})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with served(site.answer) as site.port:
        yield site
        site.release.set()


@pytest.fixture
def http(site: Site) -> HttpTool:
    return HttpTool(policy=HttpPolicy(private_hosts=("127.0.0.1",), ports=(site.port,)))


def failed(result: ToolResult, outcome: Outcome, *words: str) -> None:
    assert not result.success
    assert result.outcome is outcome, result
    for word in words:
        assert word in result.error


class TestOperations:
    async def test_get(self, http: HttpTool, site: Site) -> None:
        result = await http.get(site.url("/x?a=1#part"), headers={"X-Mine": "yes"}, params={"b": 2})
        assert json.loads(result.content.splitlines()[-1])["query"] == {"a": "1", "b": "2"}
        assert result.content.startswith(f"HTTP 200 OK from {site.url('/x?a=1&b=2')}\n")
        assert "content-type: application/json" in result.content.lower()
        body = result.content.partition("\n\n")[2]
        assert result.metadata["status"] == 200
        assert result.metadata["sha256"] == hashlib.sha256(body.encode()).hexdigest()
        assert (site.seen[0][2]["X-Mine"], site.seen[0][2]["Host"]) == ("yes", f"127.0.0.1:{site.port}")


class TestBodies:
    @pytest.mark.parametrize("path", ["/bomb", "/big"])
    async def test_only_so_much_is_read(self, site: Site, path: str) -> None:
        policy = HttpPolicy(private_hosts=("127.0.0.1",), ports=(site.port,))
        http = HttpTool(policy=policy, max_body_bytes=100_000)
        result = await http.get(site.url(path))
        assert (result.success, result.truncated, result.metadata["bytes"]) == (True, True, 100_000)
        assert path == "/bomb" or "only its first 100000 bytes were read" in result.content
        assert http.pipeline.trail.entries[-1].bytes_out < 110_000

    async def test_a_slow_body_ends_at_the_limit(self, http: HttpTool, site: Site) -> None:
        result = await http.get(site.url("/slow"), timeout_seconds=0.2)
        failed(result, Outcome.TIMEOUT, "within 0.2 seconds")
        assert http.pipeline.trail.entries[-1].outcome is Outcome.TIMEOUT


class TestRedirects:
    async def test_credentials_stay_with_their_origin(self, site: Site) -> None:
        names = Names({"a.test": [[PUBLIC]], "b.test": [[PUBLIC]]})
        http = HttpTool(policy=HttpPolicy(ports=(site.port,)), resolver=names, network=Detour())
        headers = {"Authorization": "Bearer x", "Cookie": "a=b", "X-API-Key": "k", "X-Plain": "p"}
        here = f"http://a.test:{site.port}"
        assert (await http.get(f"{here}/redirect?to=/x", headers=headers)).success
        assert site.seen[1][2]["Authorization"] == "Bearer x"
        assert (await http.get(f"{here}/redirect?to=http://b.test:{site.port}/x", headers=headers)).success
        assert not {"Authorization", "Cookie", "X-API-Key"} & site.seen[3][2].keys()
        assert site.seen[3][2]["X-Plain"] == "p"
        assert site.seen[3][2]["Host"] == f"b.test:{site.port}"

    @pytest.mark.parametrize(
        "target",
        ["http://169.254.169.254/latest/meta-data/", "//10.0.0.1/", "http://[::1]/", "http://2130706433/", "file:///etc/passwd",
         "gopher://127.0.0.1/", "http://u:p@example.com/", "/\\10.0.0.1/", "http://localhost/", "http://rebind.test/"],
    )  # fmt: skip
    async def test_to_forbidden_places(self, site: Site, target: str) -> None:
        network = Detour()
        # Another origin is looked up anew, and by then the name has changed its mind.
        names = Names({"rebind.test": [[PUBLIC], ["127.0.0.1"]], "localhost": [["127.0.0.1"]]})
        http = HttpTool(policy=HttpPolicy(ports=(80, site.port)), resolver=names, network=network)
        result = await http.get(f"http://rebind.test:{site.port}/redirect", params={"to": target})
        failed(result, Outcome.REFUSED)
        assert http.pipeline.trail.entries[-1].outcome is Outcome.REFUSED
        assert network.dialled == [PUBLIC]
        assert len(site.seen) == 1


EVASIVE = [
    "http://127.0.0.1/", "http://127.0.0.1./", "http://127.1/", "http://127.255.255.254/", "http://2130706433/",
    "http://0x7f000001/", "http://017700000001/", "http://0177.0.0.01/", "http://127.0.0x1/", "http://0/", "http://0.0.0.0/",
    "http://[::1]/", "http://[::]/", "http://[::ffff:127.0.0.1]/", "http://[::127.0.0.1]/", "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/", "http://[fe80::1%25lo]/", "http://[fe80::1%lo]/", "http://[fc00::1]/", "http://[fec0::1]/",
    "http://[ff02::1]/", "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.1.1/", "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/", "http://2852039166/", "http://169.254.43518/", "http://[fd00:ec2::254]/",
    "http://168.63.129.16/", "http://255.255.255.255/", "http://224.0.0.1/", "http://198.18.0.1/", "http://192.0.2.1/",
    "http://LOCALHOST/", "http://localhost./", "http://sub.localhost/", "http://mixed.test/", "http://mapped.test/",
    "http://zone.test/", "http://odd.test/", "http://example.com@127.0.0.1/", "http://127.0.0.1:80@localhost/",
    "http://example.com#@127.0.0.1/", "http://example.com\\@127.0.0.1/", "http:\\\\127.0.0.1/", "http:/127.0.0.1/",
    "http:///127.0.0.1/", "//127.0.0.1/", "127.0.0.1", " http://127.0.0.1/", "http://127.0.0.1\t/",
    "http://127.0.0.1\r\nHost: x/", "http://127.0.0.1\0.example.com/", "http://%31%32%37.0.0.1/",
    "http://127.0.0.1%2f.example.com/", "http://\uff11\uff12\uff17.0.0.1/", "http://127\u30020\u30020\u30021/",
    "http://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3/", "http://local\u00adhost/", "http://[::1/",
    "http://127.0.0.1:99999/", "http://127.0.0.1:22/", "http://127.0.0.1:-80/", "https://127.0.0.1/", "ftp://127.0.0.1/",
    "file:///etc/passwd", "gopher://127.0.0.1/", "unix:///run/x.sock", "",
]  # fmt: skip

HOSTILE_NAMES = {
    "localhost": [["127.0.0.1", "::1"]], "sub.localhost": [["::1"]],
    "mixed.test": [[PUBLIC, "10.0.0.1"]], "mapped.test": [["::ffff:127.0.0.1"]], "zone.test": [["fe80::1%lo"]],
    "odd.test": [["2130706433"]], "example.com": [["127.0.0.1"]],
}  # fmt: skip


@pytest.fixture
async def connections() -> AsyncIterator[tuple[int, list[str]]]:
    """A listener on both loopback addresses, and who came."""
    came: list[str] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(str(writer.get_extra_info("sockname")))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


class TestForbiddenAddresses:
    @table("url", EVASIVE)
    async def test_every_spelling(self, connections: tuple[int, list[str]], url: str) -> None:
        port, came = connections
        network = Detour(port)
        http = HttpTool(policy=HttpPolicy(ports=(80, 443, port)), resolver=Names(HOSTILE_NAMES), network=network)
        with_port = re.sub("(?<=[^/:])/", f":{port}/", url, count=1)
        for spelling in {url, with_port}:
            result = await http.post(spelling, body="x")
            failed(result, Outcome.REFUSED)
            entries = http.pipeline.trail.entries
            assert [entry.outcome for entry in entries[-2:]] == [Outcome.STARTED, Outcome.REFUSED]
        assert network.dialled == []
        assert came == []

    async def test_the_checked_address_is_the_dialled_one(self, site: Site) -> None:
        other = "2606:2800:21f:cb07::1"
        names = Names({"rebind.test": [[other, PUBLIC], ["127.0.0.1"]]})
        network = Detour(unreachable=[other])  # the next address is tried
        http = HttpTool(policy=HttpPolicy(ports=(site.port,)), resolver=names, network=network)
        url = f"http://Rebind.Test.:{site.port}/"
        assert (await http.get(url)).success
        assert (names.asked, network.dialled) == (["rebind.test"], [other, PUBLIC])
        assert site.seen[0][2]["Host"] == f"rebind.test:{site.port}"
        failed(await http.get(url), Outcome.REFUSED, "not on the public internet")
        entry = http.pipeline.trail.entries[-1]
        assert (entry.decision, entry.outcome) == (PolicyDecision.REFUSED, Outcome.REFUSED)
        assert network.dialled == [other, PUBLIC]

    async def test_allowed_hosts_and_ports(self, site: Site) -> None:
        def may(policy: HttpPolicy) -> HttpTool:
            return HttpTool(policy=policy, resolver=Names({"a.test": [[PUBLIC]]}), network=Detour())

        for globs, good in ((("*.test",), True), (("a.test",), True), (("b.test", "*.org"), False), ((), False)):
            http = may(HttpPolicy(allowed_hosts=globs, ports=(site.port,)))
            assert (await http.get(f"http://A.test:{site.port}/")).success is good, globs
        anywhere = ("a.test:1", f"*:{site.port}")
        for hosts, good in ((("*.test",), False), ((f"*.test:{site.port}",), True), (anywhere, True)):
            http = may(HttpPolicy.of(NetworkGrant(hosts=hosts)))
            assert (await http.get(f"http://a.test:{site.port}/")).success is good, hosts

    async def test_proxies_of_the_environment_are_ignored(
        self, http: HttpTool, site: Site, connections: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{connections[0]}")
        assert (await http.get(site.url("/x"))).success
        assert connections[1] == []


class TestFaults:
    @table(
        "headers",
        [{"Host": "x"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"connection": "close"}, {"": "a"},
         {"X": "a\r\nHost: b"}, {"X": "a\nb"}, {"X\r\nY": "a"}, {"X Y": "a"}, {"X": "\0"}, {"X": "\u2192"},
         {"Proxy-Authorization": "x"}],
    )  # fmt: skip
    async def test_headers_that_frame_the_message(self, http: HttpTool, site: Site, headers: dict[str, str]) -> None:
        failed(await http.get(site.url("/x"), headers=headers), Outcome.REFUSED, "header")
        assert site.seen == []

    async def test_the_audit_holds_no_credentials(self, http: HttpTool, site: Site) -> None:
        await http.post(
            f"http://user:{SECRET}@127.0.0.1/p?api_key={SECRET}&q=1#{SECRET}",
            headers={"Authorization": SECRET, "Accept": "*/*"},
            params={"token": SECRET},
            body={"login": {"password": SECRET, "name": "ann"}},
        )
        result = await http.get(site.url(f"/missing?access_token={SECRET}&q=1"), headers={"X-Api-Key": SECRET})
        entries = http.pipeline.trail.entries
        assert SECRET not in repr(entries) + repr(result)
        assert entries[-1].arguments["url"] == site.url("/missing?access_token=[masked]&q=1")
        assert entries[0].arguments["url"] == "http://[masked]@127.0.0.1/p?api_key=[masked]&q=1#[masked]"
        assert "ann" in str(entries[0].arguments["body"])
        assert site.seen[0][1] == f"/missing?access_token={SECRET}&q=1"


class TestTls:
    @pytest.fixture
    async def secure(self, tmp_path: Path) -> AsyncIterator[tuple[Site, ssl.SSLContext]]:
        key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=safe.test", "-addext", "subjectAltName=DNS:safe.test", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        site = Site()
        async with served(site.answer, context) as site.port:
            yield site, ssl.create_default_context(cafile=str(certificate))

    async def test_the_name_is_proved_not_the_address(self, secure: tuple[Site, ssl.SSLContext]) -> None:
        site, trust = secure
        names, network = Names({"safe.test": [[PUBLIC]], "other.test": [[PUBLIC]]}), Detour(site.port)
        policy, safe = HttpPolicy(ports=(site.port, 80)), f"https://safe.test:{site.port}"
        http = HttpTool(policy=policy, resolver=names, network=network, tls=trust)
        assert (await http.get(f"{safe}/x")).success
        failed(await http.get(f"https://other.test:{site.port}/x"), Outcome.ERROR, "cannot connect to other.test")
        strict = HttpTool(policy=policy, resolver=names, network=Detour(site.port))
        failed(await strict.get(f"{safe}/x"), Outcome.ERROR, "certificate verify failed")
        assert len(site.seen) == 1
        # Credentials never leave TLS.
        dialled = len(network.dialled)
        down = await http.get(f"{safe}/redirect?to=http://safe.test/", headers={"Authorization": "x"})
        failed(down, Outcome.REFUSED, "from https to http", "Authorization")
        assert len(network.dialled) == dialled + 1
