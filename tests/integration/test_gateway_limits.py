"""What the gateway takes of anybody: headers, rates, bodies, time, and what is no request at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus

from tests.gateway_house import BEARER, SECRET, STRANGER, TOKEN, House, closed, house, raw, refused
from tests.tables import table

_BODIES = "services.gateway.access.limits"
_LARGEST = 4 * 1024 * 1024
_AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n"


@pytest.fixture(scope="module")
async def home() -> AsyncIterator[House]:
    async with house() as built:
        yield built


async def test_every_answer_carries_the_headers(home: House) -> None:
    with capture_logs() as logged:
        bug = await home.client.post("/api/answer?bug", headers=BEARER)
    assert SECRET not in bug.text and [line["fault"] for line in logged if "fault" in line] == ["RuntimeError"]
    for verb, path, headers, status in (
        ("POST", "/api/answer?bug", BEARER, 500),
        ("GET", "/api/who", BEARER, 200),
        ("GET", "/api/who", {}, 401),
        ("GET", "/api/nothing", BEARER, 404),
        ("PUT", "/api/count", BEARER, 405),
        ("POST", "/api/who", {"Origin": STRANGER}, 403),
        ("GET", "/api/who", {"Host": "evil.example"}, 421),
        ("GET", "/no/such/file", {}, 404),
        ("GET", "/health", {}, 200),
    ):
        with capture_logs():
            answer = await home.client.request(verb, path, headers=headers)
        assert answer.status_code == status, path
        told = answer.headers
        assert (
            "default-src 'none'" in told["content-security-policy"] and "unsafe" not in told["content-security-policy"]
        )
        assert told["x-content-type-options"] == "nosniff"
        assert told["referrer-policy"] == "no-referrer"
        assert told["cross-origin-opener-policy"] == told["cross-origin-resource-policy"] == "same-origin"
        assert "camera=()" in told["permissions-policy"]
        assert "server" not in told
        assert not path.startswith("/api") or told.get_list("cache-control") == ["no-store"]


async def test_a_client_has_so_many_requests() -> None:
    async with house(http_requests_per_minute=5) as built:
        answers = [await built.client.get("/api/who", headers=BEARER) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[0].headers["ratelimit-policy"] == '"requests";q=5;w=60'
        assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == [
            "r=4", "r=3", "r=2", "r=1", "r=0", "r=0"
        ]  # fmt: skip
        told = refused(answers[-1], 429, "RESOURCE_EXHAUSTED")
        assert 1 <= told["retry_after_seconds"] <= 12
        assert answers[-1].headers["retry-after"] == str(told["retry_after_seconds"])
        # Who has no token has a bucket of its own: it cannot keep those out that have one, nor be kept out by them.
        refused(await built.client.get("/api/who"), 401)
        for _ in range(20):
            assert (await built.client.get("/health")).status_code == 200
        with pytest.raises(InvalidStatus) as fault:
            await closed(f"ws://{built.authority}/api/ws/watch", **BEARER)
        assert fault.value.response.status_code == 403


async def test_bodies_are_bounded(home: House) -> None:
    small = await home.client.post("/api/count", content=b"x" * 1000, headers=BEARER)
    assert small.json()["body"] == "x" * 1000
    before = home.room.calls
    large = b"x" * (_LARGEST + 1)
    refused(await home.client.post("/api/count", content=large, headers=BEARER), 413)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    refused(await home.client.post("/api/count", content=pieces(), headers=BEARER), 413)
    answer = await home.client.post("/api/repositories", content=pieces(), headers=BEARER)
    assert answer.json() == {"bytes": len(large)}
    assert home.room.calls == before


@pytest.mark.parametrize("path", ["/api/count", "/api/repositories"])
async def test_a_body_that_does_not_come_is_given_up(home: House, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{_BODIES}.read_body.__kwdefaults__", {"limit": _LARGEST, "seconds": 0.2})
    monkeypatch.setattr(f"{_BODIES}.SECONDS", 0.2)
    before = home.room.calls
    assert (await raw(home.port, _beginning(home, path).decode())).split()[1] == b"408"
    assert home.room.calls == before


def _beginning(home: House, path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {home.authority}\r\n{_AUTHORIZATION}Content-Length: 100\r\n\r\n"
    return head.encode() + b"some"


@pytest.mark.parametrize("sent", ["", "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: "])
async def test_a_connection_that_never_asks_is_closed(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.access.limits.HeaderTimeoutProtocol.head_seconds", 0.2)
    async with house() as built:
        waiting = asyncio.create_task(built.client.post("/api/wait", headers=BEARER))
        await built.room.entered.wait()
        assert await raw(built.port, sent) == b""
        # That time is over for who has asked.
        built.room.go_on.set()
        assert (await waiting).status_code == 200


@table(
    "target", ["[", "//[", "http://evil.example/api/who", "http://[/x", "*", "@:x", "/%00", "/%ff", "/api%2fwho", "?x"]
)
@table("method", ["GET", "OPTIONS", "PROPFIND"])
async def test_no_target_is_a_fault_of_ours(home: House, method: str, target: str) -> None:
    got = await raw(home.port, f"{method} {target} HTTP/1.1\r\nHost: {home.authority}\r\nConnection: close\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), got[:300]
    assert TOKEN.encode() not in got


@table("method", ["GET", "POST"])
@table("framing", ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
async def test_a_handshake_that_is_none_is_refused_and_closed(home: House, method: str, framing: str) -> None:
    head = (
        f"{method} /api/ws/watch HTTP/1.1\r\nHost: {home.authority}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{framing}"
    )
    assert (await raw(home.port, head, seconds=5)).startswith(b"HTTP/1.1 4")
