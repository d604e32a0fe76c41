"""The gateway's door: every rule as honest use and as attack, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from httpx2 import AsyncClient, Response
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.responses import Response as Answer
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from services.gateway.access import access_middleware, bodies, idempotency, session_routes
from services.gateway.access.page import Page
from services.gateway.access.patience import PatientProtocol
from services.gateway.access.rate import Buckets, peer
from services.gateway.access.response_headers import CONTENT_SECURITY_POLICY
from services.gateway.access.session import SECONDS, Session, Sessions
from services.gateway.app import Surroundings, gateway_app
from services.gateway.main import KEYS_BUCKET, KEYS_KEPT_SECONDS
from services.gateway.problems import HANDLERS
from services.gateway.server import serve_http
from services.gateway.upstream import open_upstream
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.cli.web import page_url
from swe_ai_fleet.domain.errors import InvalidRequest, Unavailable
from swe_ai_fleet.ports import KeyValue
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_key_value import MemoryKeyValue
from tests.conftest import FleetUnderTest

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
_AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n"
JSON = {"content-type": "application/json"}
STRANGER = "http://evil.example"
NAMED = "https://pages.example.org"


@dataclass(slots=True, kw_only=True)
class Room:
    """What lies behind the door: it says who came in, and counts."""

    calls: int = 0
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    uploaded: int = 0

    async def who(self, request: Request) -> Answer:
        state = request.state
        return JSONResponse({"token": state.token, "caller": state.caller, "by": state.visitor.by})

    async def health(self, _: Request) -> Answer:
        return PlainTextResponse("alive")

    async def count(self, request: Request) -> Answer:
        self.calls += 1
        body = await request.body()
        return JSONResponse({"call": self.calls, "body": body.decode()}, 201, headers={"Location": "/api/things/1"})

    async def wait(self, request: Request) -> Answer:
        self.calls += 1
        self.entered.set()
        await self.go_on.wait()
        return JSONResponse({"call": self.calls})

    async def answer(self, request: Request) -> Answer:
        """As the query says: `status`, `bytes`, `stream`, or a bug."""
        self.calls += 1
        query = request.query_params
        if "bug" in query:
            raise RuntimeError("secret of the house")
        if "stream" in query:
            return StreamingResponse(iter([b"data: 1\n\n", b"data: 2\n\n"]), media_type="text/event-stream")
        headers = {"Retry-After": "1"} if "retry" in query else None
        return PlainTextResponse("x" * int(query.get("bytes", "1")), int(query.get("status", "200")), headers)

    async def secret(self, _: Request) -> Answer:
        return JSONResponse({"secret": "told once"})

    async def upload(self, request: Request) -> Answer:
        async for piece in request.stream():
            self.uploaded += len(piece)
            self.entered.set()
        return JSONResponse({"bytes": self.uploaded})

    async def watch(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_json({"token": socket.state.token, "caller": socket.state.caller})
        await socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    url: str
    room: Room
    client: AsyncClient

    @property
    def authority(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    async def sign_in(self, **headers: str) -> str:
        """A session as the page gets it; the `Cookie` header for it."""
        answer = await self.client.post("/api/session", json={"token": TOKEN}, headers={"Origin": self.url, **headers})
        assert answer.status_code == 200, answer.text
        return answer.headers["set-cookie"].partition(";")[0]


@asynccontextmanager
async def house(keys: KeyValue | None = None, *, token: str | None = TOKEN, **settings: Any) -> AsyncGenerator[House]:
    room = Room()
    app = Starlette(
        routes=[
            *session_routes(token),
            Route("/api/who", room.who, methods=["GET", "POST", "PUT", "DELETE"]),
            Route("/api/count", room.count, methods=["POST"]),
            Route("/api/wait", room.wait, methods=["POST"]),
            Route("/api/answer", room.answer, methods=["POST"]),
            Route("/api/repositories", room.upload, methods=["POST"]),
            Route("/api/webhooks", room.secret, methods=["POST"]),
            Route("/health", room.health),
            WebSocketRoute("/api/ws/watch", room.watch),
        ],
        middleware=access_middleware(Settings(**settings), token, keys or MemoryKeyValue()),
        exception_handlers=dict(HANDLERS),
    )
    # A client without a memory: what a request shows stands in the test.
    forgetful = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    async with (
        serve_http(app, "127.0.0.1:0") as url,
        AsyncClient(base_url=url, timeout=20.0, cookies=forgetful) as client,
    ):
        yield House(url=url, room=room, client=client)


@pytest.fixture(scope="module")
async def home() -> AsyncIterator[House]:
    async with house() as built:
        yield built


@pytest.fixture(scope="module")
async def keys(nats_server: EmbeddedNats) -> AsyncIterator[KeyValue]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=Credentials(token=address.token)) as log:
        yield await log.bucket(KEYS_BUCKET, ttl_seconds=KEYS_KEPT_SECONDS)


def refused(answer: Response, status: int, code: str = "", field: str = "") -> dict[str, Any]:
    """The problem document that an answer is."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status and told["title"] and told["detail"]
    assert not code or told["code"] == code
    assert not field or told["field"] == field
    return told


# Who comes in


async def test_the_bearer_comes_in_and_has_a_name(home: House) -> None:
    answer = await home.client.get("/api/who", headers=BEARER | {"Fleet-Caller": "ci@example.org"})
    assert answer.json() == {"token": TOKEN, "caller": "ci@example.org", "by": "bearer"}
    answer = await home.client.post("/api/who", headers={"authorization": f"bearer {TOKEN}"})
    assert answer.json() == {"token": TOKEN, "caller": "", "by": "bearer"}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer wrong")],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", f"Bearer {TOKEN[:-1]}")],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", TOKEN)],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer \xff\xfe")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")],
        [("Cookie", f"fleet-session={TOKEN}")],
        [("X-Forwarded-For", "127.0.0.1")],
    ],
    ids=str,
)
async def test_others_do_not(home: House, headers: list[tuple[str, str]]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    answer = await home.client.get(f"/api/who?token={TOKEN}", headers=raw)
    refused(answer, 401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/%61pi/who", "/api/./who", "//api/who", "/API/who", "/api/who/", "/x/../api/who"])
async def test_no_spelling_of_a_path_leads_around_the_door(home: House, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(home.port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {home.authority}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.split()[1] in (b"401", b"404"), answer
    assert b"caller" not in answer


async def test_a_name_that_is_none_is_refused(home: House) -> None:
    for name in ("", "two words", "x" * 65, "a/b"):
        answer = await home.client.get("/api/who", headers=BEARER | {"Fleet-Caller": name})
        refused(answer, 400, "INVALID_ARGUMENT", "fleet-caller")


async def test_without_a_token_everybody_comes_in_but_strangers_pages_do_not() -> None:
    async with house(token=None) as built:
        assert (await built.client.post("/api/who")).json() == {"token": "", "caller": "", "by": "nothing"}
        refused(await built.client.post("/api/who", headers={"Origin": STRANGER}), 403)
        refused(await built.client.get("/api/who", headers={"Sec-Fetch-Site": "cross-site"}), 403)
        refused(await built.client.get("/api/who", headers={"Host": "evil.example"}), 421)
        form = {"content-type": "application/x-www-form-urlencoded", "Origin": built.url}
        refused(await built.client.post("/api/who", content=b"a=b", headers=form), 415)
        answer = await built.client.post("/api/session", json={"token": "any"})
        assert answer.json() == {"authenticated": True, "by": "nothing"} and "set-cookie" not in answer.headers


# Sessions


async def test_a_session_stands_for_the_token(home: House) -> None:
    answer = await home.client.post("/api/session", json={"token": TOKEN}, headers={"Origin": home.url})
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/", f"Max-Age={SECONDS}", "HttpOnly", "SameSite=Strict"}
    name, _, value = cookie.partition("=")
    assert name == f"fleet-session-{home.port}", "cookies know no ports: the name must"
    assert TOKEN not in value
    shown = await home.client.get("/api/session", headers={"Cookie": f"other=1; {cookie}"})
    assert shown.json()["by"] == "cookie" and shown.json()["expires_at_ms"] > 0
    answer = await home.client.get("/api/who", headers={"Cookie": cookie, "Sec-Fetch-Site": "same-origin"})
    assert answer.json() == {"token": TOKEN, "caller": "", "by": "cookie"}
    answer = await home.client.post("/api/count", json={}, headers={"Cookie": cookie, "Origin": home.url})
    assert answer.status_code == 201
    ended = await home.client.delete("/api/session", headers={"Cookie": cookie, "Origin": home.url})
    assert ended.status_code == 204
    assert f"{name}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict" in ended.headers.get_list("set-cookie")
    refused(await home.client.get("/api/session"), 401)


async def test_over_https_the_cookie_is_bound_to_the_host() -> None:
    async with house(http_hosts="fleet.example.org") as built:
        proxied = {"Host": "fleet.example.org", "Origin": "https://fleet.example.org"}
        answer = await built.client.post("/api/session", json={"token": TOKEN}, headers=proxied)
        set_cookie = answer.headers["set-cookie"]
        assert set_cookie.startswith("__Host-fleet-session=") and "; Secure" in set_cookie
        cookie = set_cookie.partition(";")[0]
        assert (await built.client.post("/api/who", headers=proxied | {"Cookie": cookie})).json()["by"] == "cookie"


async def test_two_fleets_on_one_host_do_not_take_each_others_cookies(home: House) -> None:
    async with house() as other:
        cookie = await home.sign_in()
        refused(await other.client.get("/api/who", headers={"Cookie": cookie}), 401)
        renamed = cookie.replace(home.port, other.port)
        refused(await other.client.get("/api/who", headers={"Cookie": renamed}), 401)
        both = f"{cookie}; {await other.sign_in()}"
        assert (await other.client.get("/api/who", headers={"Cookie": both})).status_code == 200


async def test_sessions_end_and_cannot_be_made_up(home: House) -> None:
    now = 1_000_000.0
    sessions = Sessions(TOKEN, clock=lambda: now)
    value = sessions.new("a", TOKEN)
    assert sessions.open("a", value) == Session(token=TOKEN, expires=int(now) + SECONDS)
    assert sessions.open("a", sessions.new("a", TOKEN, until=now + 60)) == Session(token=TOKEN, expires=int(now) + 60)
    assert sessions.open("b", value) is None
    assert Sessions("another", clock=lambda: now).open("a", value) is None
    assert value != sessions.new("a", TOKEN) and TOKEN not in str(base64.urlsafe_b64decode(value))
    for place in range(0, len(value) - 2, 7):
        changed = "A" if value[place] != "A" else "B"
        assert sessions.open("a", f"{value[:place]}{changed}{value[place + 1 :]}") is None
    for forged in (
        "",
        ".",
        "..",
        "x.y.z",
        value[:-1],
        value + "0",
        f"{value}\xff",
        "9" * 500,
        "A" * 5_000,
        "9999999999.." + "0" * 64,
    ):
        assert sessions.open("a", forged) is None
    now += SECONDS
    assert sessions.open("a", value) is None
    old = Sessions(TOKEN, clock=lambda: 0.0).new(f"fleet-session-{home.port}", TOKEN)
    refused(await home.client.get("/api/who", headers={"Cookie": f"fleet-session-{home.port}={old}"}), 401)
    good = await home.sign_in()
    planted = f"fleet-session-{home.port}=planted; {good}"
    assert (await home.client.get("/api/who", headers={"Cookie": planted})).status_code == 200


async def test_a_shown_token_that_is_wrong_counts_against_a_cookie_that_is_right(home: House) -> None:
    headers = {"Cookie": await home.sign_in(), "Authorization": "Bearer wrong"}
    refused(await home.client.get("/api/who", headers=headers), 401)


async def test_what_is_no_sign_in_is_told_so(home: House) -> None:
    for body in (b"", b"[]", b"{}", b'{"token": 1}', b'{"token": ""}', b'{"token": "a", "b": 1}', b"[" * 4000, b"\xff"):
        answer = await home.client.post("/api/session", content=body, headers=JSON)
        refused(answer, 400, "INVALID_ARGUMENT", "token")
    body = json.dumps({"token": TOKEN}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json;x, text/plain"):
        answer = await home.client.post("/api/session", content=body, headers={"content-type": kind})
        assert answer.status_code in (415, 200), "a type with parameters is JSON all the same"
        assert answer.status_code == 415 or kind.startswith("application/json;")
    refused(await home.client.post("/api/session", json={"token": TOKEN}, headers={"Origin": STRANGER}), 403)
    refused(await home.client.post("/api/session", content=b" " * 5000, headers=JSON), 413)


async def test_wrong_tokens_are_few() -> None:
    async with house() as built:
        answers = [await built.client.post("/api/session", json={"token": f"guess {n}"}) for n in range(12)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
        told = refused(answers[-1], 429, "RESOURCE_EXHAUSTED")
        assert int(answers[-1].headers["retry-after"]) == told["retry_after_seconds"] >= 1
        refused(await built.client.post("/api/session", json={"token": TOKEN}), 429)
        # Who has the token already is not kept out by somebody who guesses.
        assert (await built.client.get("/api/who", headers=BEARER)).status_code == 200


# Hosts


async def test_the_address_and_the_names_of_loopback_are_ours(home: House) -> None:
    for host in (f"127.0.0.1:{home.port}", f"localhost:{home.port}", f"[::1]:{home.port}", f"LOCALHOST:{home.port}"):
        assert (await home.client.get("/api/who", headers=BEARER | {"Host": host})).status_code == 200, host


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "localhost", "localhost:1", "127.0.0.1", "10.0.0.1:{port}",
     "localhost.evil.example:{port}", "127.0.0.1.nip.example:{port}", "0.0.0.0:{port}"],
)  # fmt: skip
async def test_other_hosts_are_not(home: House, host: str) -> None:
    headers = {"Host": host.format(port=home.port)}
    for path in ("/api/who", "/api/session", "/", "/app.js"):
        refused(await home.client.get(path, headers=BEARER | headers), 421, "FAILED_PRECONDITION", "host")
    refused(await home.client.post("/api/session", json={"token": TOKEN}, headers=headers), 421)
    assert (await home.client.get("/health", headers=headers)).status_code == 200


async def test_what_is_no_host_is_refused(home: House) -> None:
    for lines in ("Host: a b\r\n", "Host: \r\n", f"Host: user@{home.authority}\r\n", "Host: localhost:99999\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(home.port))
        writer.write(f"GET /api/who HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
        assert (await reader.read()).split()[1] in (b"400", b"421"), lines
        writer.close()


async def test_named_hosts_are_ours() -> None:
    async with house(http_hosts="fleet.example.org, other.example.org:8443") as built:
        for host, status in {
            "fleet.example.org": 200,
            "fleet.example.org:9000": 200,
            "other.example.org:8443": 200,
            "other.example.org": 421,
            "a.fleet.example.org": 421,
        }.items():
            answer = await built.client.get("/api/who", headers=BEARER | {"Host": host})
            assert answer.status_code == status, host
    with pytest.raises(InvalidRequest) as fault:
        async with house(http_hosts="not a host"):
            pass
    assert fault.value.field == "http_hosts"


# Origins


@pytest.mark.parametrize("origin", [STRANGER, "null", "http://localhost:{port}", "http://127.0.0.1:1", "https://127.0.0.1",
                                    "http://127.0.0.1", "http://127.0.0.1:{port}.evil.example", "file://", "",
                                    "http://evil@127.0.0.1:{port}", "chrome-extension://abc"])  # fmt: skip
async def test_a_foreign_page_can_do_nothing(home: House, origin: str) -> None:
    cookie = await home.sign_in()
    headers = {"Origin": origin.format(port=home.port)}
    before = home.room.calls
    for shown in ({"Cookie": cookie}, BEARER, {}):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            answer = await home.client.request(method, "/api/count", headers=headers | shown)
            assert answer.status_code == 403, (method, shown)
            assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = headers | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    refused(await home.client.options("/api/count", headers=asked), 403, "PERMISSION_DENIED", "origin")
    assert home.room.calls == before


async def test_a_cookie_needs_our_own_page_behind_it(home: House) -> None:
    cookie = {"Cookie": await home.sign_in()}
    ours = {"Origin": home.url}
    before = home.room.calls
    refused(await home.client.post("/api/count", json={}, headers=cookie), 403, field="origin")
    refused(await home.client.delete("/api/who", headers=cookie), 403, field="origin")
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
        answer = await home.client.post("/api/count", content=b"{}", headers=cookie | ours | {"content-type": kind})
        refused(answer, 415, field="content-type")
    for site in ("cross-site", "same-site"):
        refused(await home.client.get("/api/who", headers=cookie | {"Sec-Fetch-Site": site}), 403)
    assert home.room.calls == before
    for site in ("same-origin", "none"):
        assert (await home.client.get("/api/who", headers=cookie | {"Sec-Fetch-Site": site})).status_code == 200
    assert (await home.client.delete("/api/who", headers=cookie | ours)).status_code == 200
    assert (await home.client.post("/api/count", json={}, headers=cookie | ours)).status_code == 201


async def test_pages_of_named_origins_call_with_the_bearer_only() -> None:
    async with house(http_origins=f"{NAMED}/, https://second.example") as built:
        cookie = await built.sign_in()
        page = {"Origin": NAMED}
        asked = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        answer = await built.client.options("/api/who", headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == NAMED
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "Authorization" in answer.headers["access-control-allow-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        answer = await built.client.post("/api/who", headers=page | BEARER | {"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == NAMED
        assert "access-control-allow-credentials" not in answer.headers and "Origin" in answer.headers["vary"]
        answer = await built.client.post("/api/who", headers=page | {"Cookie": cookie})
        assert refused(answer, 401) and answer.headers["access-control-allow-origin"] == NAMED
        refused(await built.client.post("/api/session", json={"token": TOKEN}, headers=page), 403)
        refused(await built.client.options("/api/who", headers=asked | {"Origin": NAMED + ".evil.example"}), 403)
        refused(await built.client.get("/api/who", headers=BEARER | {"Origin": STRANGER}), 403)


# WebSockets


async def closed(url: str, *, origin: str | None = None, **headers: str) -> int:
    """The code that a WebSocket is closed with, before anything was sent."""
    async with connect(url, origin=origin, additional_headers=headers, proxy=None) as socket:  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConnectionClosed) as ending:
            await socket.recv()
        assert ending.value.rcvd is not None
        return ending.value.rcvd.code


async def test_websockets_are_let_in_by_the_same_rules(home: House) -> None:
    url = f"ws://{home.authority}/api/ws/watch"
    cookie = await home.sign_in()
    for origin, headers in (
        (None, BEARER | {"Fleet-Caller": "me"}),
        (home.url, {"Cookie": cookie}),
        (home.url, BEARER),
    ):
        async with connect(url, origin=origin, additional_headers=headers, proxy=None) as socket:  # pyright: ignore[reportArgumentType]
            assert json.loads(await socket.recv()) == {"token": TOKEN, "caller": headers.get("Fleet-Caller", "")}
    assert await closed(url) == 4401
    assert await closed(url, Authorization="Bearer wrong") == 4401
    assert await closed(url, origin=home.url) == 4401
    assert await closed(f"{url}?token={TOKEN}") == 4401
    assert await closed(f"ws://{home.authority}/anything") == 4401
    assert await closed(url, origin=STRANGER, Cookie=cookie) == 4403
    assert await closed(url, origin="null", Cookie=cookie) == 4403
    assert await closed(url, origin=STRANGER, **BEARER) == 4403
    assert await closed(url, Cookie=cookie) == 4403
    assert await closed(url, **BEARER, **{"Fleet-Caller": "two words"}) == 4400


async def test_a_websocket_under_another_name_is_foreign(home: House) -> None:
    url = f"ws://evil.example:{home.port}/api/ws/watch"
    async with connect(
        url, host="127.0.0.1", port=int(home.port), additional_headers=BEARER, proxy=None, origin=None
    ) as socket:
        with pytest.raises(ConnectionClosed) as ending:
            await socket.recv()
        assert ending.value.rcvd is not None and ending.value.rcvd.code == 4403


# Headers


async def test_every_answer_carries_the_headers(home: House) -> None:
    with capture_logs() as logged:
        bug = await home.client.post("/api/answer?bug", headers=BEARER)
    assert bug.status_code == 500 and "secret of the house" not in bug.text and len(logged) == 1
    answers = [
        bug,
        await home.client.get("/api/who", headers=BEARER),
        await home.client.get("/api/who"),
        await home.client.get("/api/nothing", headers=BEARER),
        await home.client.put("/api/count", headers=BEARER),
        await home.client.post("/api/who", headers={"Origin": STRANGER}),
        await home.client.get("/api/who", headers={"Host": "evil.example"}),
        await home.client.get("/", headers={"Accept": "text/html"}),
        await home.client.get("/no/such/file"),
        await home.client.get("/health"),
    ]
    assert [answer.status_code for answer in answers[:7]] == [500, 200, 401, 404, 405, 403, 421]
    for answer in answers:
        headers = answer.headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY, answer.url
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]
        assert "server" not in headers
        if answer.url.path.startswith("/api"):
            assert headers["cache-control"] == "no-store"
            assert len(headers.get_list("cache-control")) == 1


# Rates


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


def test_buckets_fill_again_and_are_few() -> None:
    now = 0.0
    buckets = Buckets(60, most=100, clock=lambda: now)
    taken = [buckets.take("a") for _ in range(60)]
    assert all(one.admitted for one in taken) and taken[-1].remaining == 0 and taken[-1].seconds == 60
    assert not buckets.take("a").admitted
    assert buckets.take("b").admitted
    now = 1.5
    assert buckets.take("a").admitted and not buckets.take("a").admitted
    assert buckets.take("a").seconds == 1
    now = 10_000.0
    assert buckets.take("a").remaining == 59
    for number in range(1_000):
        buckets.take(f"client {number}")
    assert len(buckets) == 100


def test_who_has_a_network_has_one_bucket() -> None:
    assert peer("2001:db8::1") == peer("2001:db8::ffff:1") != peer("2001:db8:0:1::1")
    assert peer("::ffff:10.0.0.1") == peer("10.0.0.1") != peer("10.0.0.2")
    assert peer("") == "" and peer("fe80::1%eth0") == peer("fe80::2")


# Bodies


async def test_bodies_are_bounded(home: House) -> None:
    small = await home.client.post("/api/count", content=b"x" * 1000, headers=BEARER)
    assert small.json()["body"] == "x" * 1000
    before = home.room.calls
    large = b"x" * (bodies.MAX_BYTES + 1)
    refused(await home.client.post("/api/count", content=large, headers=BEARER), 413)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 16):
            yield large[start : start + (1 << 16)]

    refused(await home.client.post("/api/count", content=pieces(), headers=BEARER), 413)
    answer = await home.client.post("/api/repositories", content=pieces(), headers=BEARER)
    assert answer.json() == {"bytes": len(large)}
    assert home.room.calls == before


@pytest.mark.parametrize("path", ["/api/count", "/api/session"])
async def test_a_body_that_does_not_come_is_given_up(home: House, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.access.guard._SESSION_SECONDS", 0.2)
    monkeypatch.setattr(bodies.read_body, "__kwdefaults__", {"limit": bodies.MAX_BYTES, "seconds": 0.2})
    before = home.room.calls
    assert (await _drip(home, path)).split()[1] == b"408"
    assert home.room.calls == before


async def test_an_upload_that_stands_still_is_given_up(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.PatientReceive.__init__, "__kwdefaults__", {"seconds": 0.2, "total": 60.0})
    assert (await _drip(home, "/api/repositories")).split()[1] == b"408"


async def _drip(home: House, path: str) -> bytes:
    """What somebody gets who sends a part of a body and no more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(home.port))
    writer.write(_beginning(home, path))
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


def _beginning(home: House, path: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {home.authority}\r\n{_AUTHORIZATION}Content-Length: 100\r\n\r\n"
    return head.encode() + b"some"


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ", b"GET /health HTTP/1.1\r\n"])
async def test_a_connection_that_never_asks_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatientProtocol, "head_seconds", 0.2)
    async with house() as built:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(built.port))
        writer.write(sent)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_connection_may_take_its_time_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatientProtocol, "head_seconds", 0.1)
    async with house() as built:
        waiting = asyncio.create_task(built.client.post("/api/wait", headers=BEARER))
        await built.room.entered.wait()
        # Longer than a head may take: that time is over for who has asked.
        reader, writer = await asyncio.open_connection("127.0.0.1", int(built.port))
        assert await reader.read() == b""
        writer.close()
        built.room.go_on.set()
        assert (await waiting).status_code == 200


# Idempotency keys


async def test_the_same_again_gets_the_same_answer(keys: KeyValue) -> None:
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


async def test_keys_of_other_callers_are_others(keys: KeyValue) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as one, house(keys, token="another") as two:
        await one.client.post("/api/count", json={}, headers=BEARER | key)
        answer = await two.client.post("/api/count", json={}, headers={"Authorization": "Bearer another"} | key)
        assert "idempotency-replayed" not in answer.headers and two.room.calls == 1


async def test_of_many_at_once_one_is_carried_out(keys: KeyValue) -> None:
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


async def test_a_client_that_left_finds_its_answer(keys: KeyValue) -> None:
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


async def test_a_gateway_that_died_does_not_hold_a_key_for_ever(keys: KeyValue) -> None:
    key = {"Idempotency-Key": uuid4().hex}

    class Dead:
        """Takes a key and dies."""

        def __init__(self) -> None:
            self.taken = b""

        async def get(self, key: str) -> None:
            return None

        async def put(self, name: str, value: bytes, *, revision: int | None = None) -> int:
            self.name, self.taken = name, self.taken or value
            return await keys.put(name, self.taken)

        async def delete(self, key: str) -> None:
            raise AssertionError("dead")

    dead = Dead()
    async with house(dead) as built:  # pyright: ignore[reportArgumentType]
        await built.client.post("/api/count", json={}, headers=BEARER | key)
    async with house(keys) as built:
        refused(await built.client.post("/api/count", json={}, headers=BEARER | key), 409)
        marker = json.loads(dead.taken)
        assert marker["status"] == 0 and marker["until"] > 0
        await keys.put(dead.name, json.dumps(marker | {"until": 1.0}).encode())
        answer = await built.client.post("/api/count", json={}, headers=BEARER | key)
        assert answer.status_code == 201 and built.room.calls == 1


@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ("status=404", 1),
        ("status=400", 1),
        ("status=409", 1),
        ("status=409&retry", 2),
        ("status=403", 2),
        ("status=499", 2),
        ("status=500", 2),
        ("status=503", 2),
        ("status=429", 2),
        ("bug", 2),
        ("stream", 2),
        (f"bytes={idempotency.MAX_ANSWER_BYTES}", 1),
        (f"bytes={idempotency.MAX_ANSWER_BYTES + 1}", 2),
    ],
)
async def test_what_is_kept_and_what_not(keys: KeyValue, query: str, calls: int) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        with capture_logs():
            first, second = [
                await built.client.post(f"/api/answer?{query}", json={}, headers=BEARER | key) for _ in range(2)
            ]
        assert built.room.calls == calls
        assert (second.headers.get("idempotency-replayed") == "true") == (calls == 1)
        assert first.status_code == second.status_code and first.content == second.content
        if calls == 2 and query != "bug":
            assert first.headers["idempotency-kept"] == "false"


async def test_what_is_no_key_is_refused(home: House) -> None:
    for key in ("", "two words", "x" * 201, "\xe4"):
        raw = [(b"Authorization", BEARER["Authorization"].encode()), (b"Idempotency-Key", key.encode("latin-1"))]
        refused(await home.client.post("/api/count", headers=raw), 400, field="idempotency-key")
    refused(
        await home.client.post(
            "/api/count", headers=[*BEARER.items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
        ),
        400,
    )
    assert (await home.client.get("/api/who", headers=BEARER | {"Idempotency-Key": "x" * 500})).status_code == 200


# The page


async def test_the_page_is_files_of_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("outside")
    directory = tmp_path / "page"
    directory.mkdir()
    monkeypatch.setattr(Page.__init__, "__defaults__", (directory,))
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


async def test_the_page_is_packed_for_those_who_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Page.__init__, "__defaults__", (tmp_path,))
    script = "let words = 'the page';\n" * 500
    (tmp_path / "app.js").write_text(script)
    (tmp_path / "small.js").write_text("1")
    async with house() as built:

        async def asked(encodings: str, path: str = "/app.js", **headers: str) -> Response:
            return await built.client.get(path, headers={"Accept-Encoding": encodings} | headers)

        plain = await asked("identity")
        assert plain.text == script and "content-encoding" not in plain.headers
        for encodings in ("gzip", "br, GZIP;q=0.5", "*", "deflate, *;q=0.1"):
            packed = await asked(encodings)
            assert packed.headers["content-encoding"] == "gzip", encodings
            assert packed.text == script
            assert int(packed.headers["content-length"]) < len(script) / 10
        for encodings in ("", "br", "gzip;q=0", "gzip; q=0.000, *", "identity;q=1", "*;q=0", "gzipped"):
            assert "content-encoding" not in (await asked(encodings)).headers, encodings
        assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
        assert plain.headers["etag"] != packed.headers["etag"]
        for shown, encodings, status in (
            (packed, "gzip", 304), (plain, "identity", 304), (plain, "gzip", 200), (packed, "identity", 200),
        ):  # fmt: skip
            answer = await asked(encodings, **{"If-None-Match": shown.headers["etag"]})
            assert answer.status_code == status
            assert answer.headers["vary"] == "Accept-Encoding"
        assert "content-encoding" not in (await asked("gzip", "/small.js")).headers
        # Of what is made for a caller nothing is packed: its size would tell what is secret in it.
        assert "content-encoding" not in (await asked("gzip", "/api/who", **BEARER)).headers


# The real gateway, all of it


async def test_no_route_of_the_gateway_answers_strangers(fleet: FleetUnderTest) -> None:
    url, token = fleet.running.http, fleet.running.token
    authority = url.removeprefix("http://")
    async with open_upstream(fleet.running.address, fleet.running.context) as upstream:

        async def ready() -> bool:
            return True

        routes = gateway_app(
            Surroundings(settings=fleet.settings, upstream=upstream, token=token, ready=ready, keys=MemoryKeyValue())
        ).routes
    strangers: list[tuple[dict[str, str], set[int]]] = [
        ({}, {401}),
        ({"Authorization": "Bearer wrong"}, {401}),
        ({"Authorization": f"Bearer {token}", "Origin": STRANGER}, {403}),
        ({"Authorization": f"Bearer {token}", "Host": "evil.example"}, {421}),
    ]
    seen: set[str] = set()
    async with AsyncClient(base_url=url, timeout=20.0) as client:
        for route in routes:
            assert isinstance(route, Route | WebSocketRoute), "a kind of route that this walk does not know"
            path = "/".join("x" if part.startswith("{") else part for part in route.path.split("/"))
            if path in ("/health", "/ready"):
                continue
            assert path.startswith("/api/"), "what is not the API's is the page's"
            seen.add(path)
            for headers, wanted in strangers:
                if isinstance(route, WebSocketRoute):
                    more = dict(headers)
                    host, origin = more.pop("Host", authority), more.pop("Origin", None)
                    async with connect(
                        f"ws://{host.partition(':')[0]}:{authority.rpartition(':')[2]}{path}",
                        host="127.0.0.1",
                        port=int(authority.rpartition(":")[2]),
                        origin=origin,  # pyright: ignore[reportArgumentType]
                        additional_headers=more,
                        proxy=None,
                    ) as socket:
                        with pytest.raises(ConnectionClosed) as ending:
                            await socket.recv()
                        assert ending.value.rcvd is not None
                        assert ending.value.rcvd.code == (4401 if wanted == {401} else 4403), path
                    continue
                for method in sorted((route.methods or set()) - {"HEAD"}):
                    if (method, path) == ("POST", "/api/session") and wanted == {401}:
                        continue
                    answer = await client.request(method, path, headers=headers)
                    assert answer.status_code in wanted, (method, path, headers, answer.status_code)
    assert {"/api/session", "/api/executions"} <= seen


async def test_the_fleet_lets_its_own_page_in(fleet: FleetUnderTest) -> None:
    url = fleet.running.http
    async with AsyncClient(base_url=url, timeout=20.0) as client:
        refused(await client.get("/api/status"), 401)
        signed_in = await client.post("/api/session", json={"token": fleet.running.token}, headers={"Origin": url})
        assert signed_in.status_code == 200
        cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
        assert (await client.get("/api/session", headers=cookie)).json()["by"] == "cookie"
        status = await client.get("/api/status", headers=cookie)
        assert status.status_code == 200, status.text
        assert (await client.get("/health")).json() == {"status": "alive"}


async def test_fleet_open_prints_the_way_in(fleet: FleetUnderTest) -> None:
    command = [sys.executable, "-m", "swe_ai_fleet.cli.main", "open", "--json"]
    environment = {**os.environ, "FLEET_HOME": str(fleet.settings.home)}
    opening = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    told, _ = await opening.communicate()
    base, _, fragment = json.loads(told)["page"].partition("/#token=")
    async with AsyncClient(base_url=base, timeout=20.0) as client:
        answer = await client.post("/api/session", json={"token": fragment}, headers={"Origin": base})
    assert opening.returncode == 0 and answer.status_code == 200
    assert page_url("http://0.0.0.0:80", "a") == "http://127.0.0.1:80/#token=a"
    assert page_url("http://[::]:80", "a") == "http://[::1]:80/#token=a"


async def test_a_submission_sent_twice_is_one_execution(fleet: FleetUnderTest) -> None:
    headers = {"Authorization": f"Bearer {fleet.running.token}", "Idempotency-Key": uuid4().hex}
    async with AsyncClient(base_url=fleet.running.http, timeout=20.0) as client:
        # Not a task that can be accepted: the refusal is the answer, and it is kept like any other.
        first = await client.post("/api/executions", json={"deliberate": {"role": "DEV"}}, headers=headers)
        again = await client.post("/api/executions", json={"deliberate": {"role": "DEV"}}, headers=headers)
        other = await client.post("/api/executions", json={"deliberate": {"role": "QA"}}, headers=headers)
    assert 400 <= first.status_code < 500
    assert again.content == first.content and again.headers["idempotency-replayed"] == "true"
    refused(other, 422)


async def test_an_upload_that_breaks_off_is_no_fault(home: House) -> None:
    home.room.entered.clear()
    _, writer = await asyncio.open_connection("127.0.0.1", int(home.port))
    writer.write(_beginning(home, "/api/repositories"))
    await home.room.entered.wait()
    writer.close()
    assert (await home.client.get("/api/who", headers=BEARER)).status_code == 200


async def raw(port: str, head: str, *, seconds: float = 10.0) -> bytes:
    """What is answered to a request of these bytes, until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(head.encode("latin-1"))
    try:
        async with asyncio.timeout(seconds):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "target", ["[", "//[", "http://evil.example/api/who", "http://[/x", "*", "@:x", "/%00", "/%ff", "/api%2fwho", "?x"]
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "PROPFIND"])
async def test_no_target_is_a_fault_of_ours(home: House, method: str, target: str) -> None:
    got = await raw(home.port, f"{method} {target} HTTP/1.1\r\nHost: {home.authority}\r\nConnection: close\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 200")), got[:300]
    assert TOKEN.encode() not in got


async def test_a_connection_that_is_answered_need_not_be_read_for_ever(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PatientProtocol, "head_seconds", 0.5)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(home.port))
    writer.write(f"POST /api/count HTTP/1.1\r\nHost: {home.authority}\r\nContent-Length: 1000000\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")

    async def closed() -> None:
        with suppress(ConnectionError):
            await reader.read()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        closing = group.create_task(closed())
        while not closing.done():
            # A byte now and then, and never the end.
            writer.write(b"x")
            await asyncio.wait([closing], timeout=0.1)
    writer.close()


async def test_what_other_pages_embed_takes_nothing_from_our_own() -> None:
    async with house(http_requests_per_minute=3) as built:
        cookie = {"Cookie": await built.sign_in()}
        embedded = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        for site in ("cross-site", "same-site"):
            for path in ("/", "/app.js", "/api/who", "/api/session"):
                headers = {"Sec-Fetch-Site": site, **embedded}
                refused(await built.client.get(path, headers=headers), 403, field="sec-fetch-site")
                refused(await built.client.get(path, headers=headers | cookie), 403, field="sec-fetch-site")
        framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
        refused(await built.client.get("/", headers=framed), 403)
        # A link that somebody follows is another thing.
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await built.client.get("/", headers=followed)).status_code in (200, 404)
        assert (await built.client.get("/api/who", headers=cookie)).status_code == 200


async def test_keys_of_other_names_are_others(keys: KeyValue) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        for name in ("ada", "grace"):
            answer = await built.client.post("/api/count", json={}, headers=BEARER | key | {"Fleet-Caller": name})
            assert answer.status_code == 201 and "idempotency-replayed" not in answer.headers
        assert built.room.calls == 2


async def test_a_secret_is_told_once_and_kept_nowhere() -> None:
    keys = MemoryKeyValue()
    async with house(keys) as built:
        key = {"Idempotency-Key": uuid4().hex}
        made = await built.client.post("/api/webhooks", json={}, headers=BEARER | key)
        assert made.json() == {"secret": "told once"} and made.headers["idempotency-kept"] == "false"
    assert await keys.entries() == ()


async def test_without_a_place_for_keys_it_is_told_so() -> None:
    class Away(MemoryKeyValue):
        async def get(self, key: str) -> None:
            raise Unavailable("NATS does not answer")

    async with house(Away()) as built:
        key = {"Idempotency-Key": uuid4().hex}
        told = refused(await built.client.post("/api/count", json={}, headers=BEARER | key), 503, "UNAVAILABLE")
        assert told["retry_after_seconds"] >= 1 and built.room.calls == 0
        assert (await built.client.post("/api/count", json={}, headers=BEARER)).status_code == 201


async def test_keys_take_no_more_room_than_they_may(nats_server: EmbeddedNats) -> None:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=Credentials(token=address.token)) as log:
        small = await log.bucket(f"SMALL_{uuid4().hex[:8]}", ttl_seconds=60.0, max_bytes=600_000)
        async with house(small) as built:
            first, *_, last = names = [uuid4().hex for _ in range(6)]
            path = f"/api/answer?bytes={idempotency.MAX_ANSWER_BYTES}"
            for name in names:
                answer = await built.client.post(path, json={}, headers=BEARER | {"Idempotency-Key": name})
                assert answer.status_code == 200
            for name, replayed in ((last, True), (first, False)):
                answer = await built.client.post(path, json={}, headers=BEARER | {"Idempotency-Key": name})
                assert (answer.headers.get("idempotency-replayed") == "true") == replayed


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("framing", ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
async def test_a_handshake_that_is_none_is_refused_and_closed(home: House, method: str, framing: str) -> None:
    head = (
        f"{method} /api/ws/watch HTTP/1.1\r\nHost: {home.authority}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{framing}"
    )
    assert (await raw(home.port, head, seconds=5)).startswith(b"HTTP/1.1 4")


async def test_nobody_is_sent_to_another_address() -> None:
    async def ready() -> bool:
        return True

    async with open_upstream("127.0.0.1:1", "127.0.0.1:1") as upstream:
        around = Surroundings(settings=Settings(), upstream=upstream, token=TOKEN, ready=ready, keys=MemoryKeyValue())
        async with serve_http(gateway_app(around), "127.0.0.1:0") as url, AsyncClient(base_url=url) as client:
            # Behind a proxy that ends TLS a redirection would lead to plain HTTP, the token with it.
            for path in ("/api/status/", "/api/session/"):
                refused(await client.get(path, headers=BEARER), 404)
