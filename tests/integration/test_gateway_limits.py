"""What the gateway takes of anybody: headers, rates, bodies, time, and what is no request at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
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


# --- idempotency keys: the same again gets the same answer, and is carried out once ---


@pytest.fixture(scope="module")
async def keys(nats_server: EmbeddedNats) -> AsyncIterator[Any]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token)) as log:
        yield await log.bucket("KEYS", ttl_seconds=600.0)


async def test_the_same_again_gets_the_same_answer(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        first = await built.client.post("/api/count", json={"a": 1}, headers=BEARER | key)
        assert first.status_code == 201 and "idempotency-replayed" not in first.headers
        again = await built.client.post("/api/count", json={"a": 1}, headers=BEARER | key)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["location"] == "/api/things/1"
        assert again.headers["content-type"] == first.headers["content-type"]
        told = refused(await built.client.post("/api/count", json={"a": 2}, headers=BEARER | key), 422)
        assert told["field"] == "idempotency-key"
        elsewhere = await built.client.post("/api/answer", json={"a": 1}, headers=BEARER | key)
        assert elsewhere.status_code == 200, "a key is of one path"
        assert built.room.calls == 2
    # Another gateway before the same fleet knows the answer too.
    async with house(keys) as second:
        again = await second.client.post("/api/count", json={"a": 1}, headers=BEARER | key)
        assert again.content == first.content and second.room.calls == 0


async def test_keys_of_other_callers_are_others(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as one, house(keys, token="another") as two:
        await one.client.post("/api/count", json={}, headers=BEARER | key)
        answer = await two.client.post("/api/count", json={}, headers={"Authorization": "Bearer another"} | key)
        assert "idempotency-replayed" not in answer.headers and two.room.calls == 1
        for number, name in enumerate(("ada", "grace"), start=2):
            named = BEARER | key | {"Fleet-Caller": name}
            answer = await one.client.post("/api/count", json={}, headers=named)
            assert "idempotency-replayed" not in answer.headers and one.room.calls == number


async def test_of_many_at_once_one_is_carried_out(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        first = asyncio.create_task(built.client.post("/api/wait", json={}, headers=BEARER | key))
        await built.room.entered.wait()
        others = await asyncio.gather(
            *(built.client.post("/api/wait", json={}, headers=BEARER | key) for _ in range(5))
        )
        for other in others:
            assert refused(other, 409, "ABORTED")["retry_after_seconds"] >= 1
        built.room.go_on.set()
        assert (await first).status_code == 200
        racing = await asyncio.gather(
            *(built.client.post("/api/count", json={}, headers=BEARER | key | {"Fleet-Caller": "x"}) for _ in range(8))
        )
        assert built.room.calls == 2
        assert {answer.status_code for answer in racing} <= {201, 409}


async def test_a_client_that_left_finds_its_answer(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        leaving = asyncio.create_task(built.client.post("/api/wait", json={}, headers=BEARER | key))
        await built.room.entered.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        built.room.go_on.set()
        async with asyncio.timeout(10):
            while (again := await built.client.post("/api/wait", json={}, headers=BEARER | key)).status_code == 409:
                pass
        assert again.headers["idempotency-replayed"] == "true" and built.room.calls == 1


async def test_a_corrected_request_takes_the_key_of_the_refused_one() -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(MemoryKeyValue()) as built:
        refused = await built.client.post("/api/answer?status=400", json={"path": "wrong"}, headers=BEARER | key)
        assert (refused.status_code, refused.headers["idempotency-kept"]) == (400, "false")
        corrected = await built.client.post("/api/answer?status=400", json={"path": "right"}, headers=BEARER | key)
        assert (corrected.status_code, built.room.calls) == (400, 2), "the service answers, not the key"


async def test_a_secret_is_told_once_and_kept_nowhere() -> None:
    keys = MemoryKeyValue()
    async with house(keys) as built:
        key = {"Idempotency-Key": uuid4().hex}
        made = await built.client.post("/api/webhooks", json={}, headers=BEARER | key)
        assert made.json() == {"secret": "told once"} and made.headers["idempotency-kept"] == "false"
    assert await keys.entries() == ()


# --- the page, as the gateway serves it ---


async def test_the_page_is_files_of_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("outside")
    directory = tmp_path / "page"
    directory.mkdir()
    monkeypatch.setattr("services.gateway.access.guard.DIRECTORY", directory)
    html = {"Accept": "text/html,*/*"}
    async with house() as built:
        missing = await built.client.get("/", headers=html)
        assert missing.status_code == 404 and missing.headers["content-type"].startswith("text/plain")
        assert "has not been built" in missing.text
        (directory / "index.html").write_text("<!doctype html>the page")
        (directory / "app.js").write_text("1")
        (directory / ".hidden.js").write_text("hidden")
        (directory / "notes.py").write_text("source")
        (directory / "link.txt").symlink_to(tmp_path / "secret.txt")
        for path in ("/", "/index.html", "/executions/1", "/no.js"):
            answer = await built.client.get(path, headers=html)
            assert answer.text == "<!doctype html>the page", path
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        script = await built.client.get("/app.js")
        assert script.headers["content-type"].startswith("text/javascript")
        same = await built.client.get("/app.js", headers={"If-None-Match": f'"x", W/{script.headers["etag"]}'})
        assert same.status_code == 304 and same.content == b"" and same.headers["etag"] == script.headers["etag"]
        (directory / "app.js").write_text("22")
        changed = await built.client.get("/app.js", headers={"If-None-Match": script.headers["etag"]})
        assert changed.text == "22"
        head = await built.client.head("/app.js")
        assert head.status_code == 200 and head.content == b"" and head.headers["content-length"] == "2"
        for path in (
            "/no.js",
            "/.hidden.js",
            "/notes.py",
            "/link.txt",
            "/..%2fsecret.txt",
            "/%2e%2e/secret.txt",
            "/a%00b.js",
        ):
            answer = await built.client.get(path)
            assert answer.status_code == 404 and "outside" not in answer.text, path
        for path in ("/api/nothing", "/api", "/api/"):
            refused(await built.client.get(path, headers=html | BEARER), 404)
            refused(await built.client.get(path, headers=html), 401)
        posted = await built.client.post("/", headers=BEARER)
        assert refused(posted, 405) and posted.headers["allow"] == "GET, HEAD"
