"""The gateway with a room of routes before its own, for tests of who is admitted as whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from httpx2 import AsyncClient, Response
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.responses import Response as Answer
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from services.gateway.access.credentials import CredentialChecker
from services.gateway.main import gateway_app, serve_http
from services.gateway.upstream import open_upstream
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue

TOKEN = "a-token-that-nobody-guesses"

BEARER = {"Authorization": f"Bearer {TOKEN}"}

STRANGER = "http://evil.example"

SECRET = "secret of the house"

NOWHERE = "127.0.0.1:9"


async def _half() -> AsyncGenerator[bytes]:
    yield b"half"
    raise RuntimeError(SECRET)


@dataclass(slots=True, kw_only=True)
class Room:
    """The route behind the auth middleware: it says who was admitted, and counts."""

    calls: int = 0
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    uploaded: int = 0

    async def who(self, request: Request) -> Answer:
        state = request.state
        return JSONResponse({"token": state.token, "caller": state.caller, "by": state.authenticated.by})

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
        """As the query says: `status`, `bytes`, `stream`, a bug at once or in the `half`, a gRPC `code`."""
        self.calls += 1
        query = request.query_params
        if "bug" in query:
            raise RuntimeError(SECRET)
        if "code" in query:
            code, metadata = grpc.StatusCode[query["code"]], grpc.aio.Metadata()
            if "details" in query:
                told = status_pb2.Status(code=code.value[0], message=SECRET)
                metadata = grpc.aio.Metadata(("grpc-status-details-bin", told.SerializeToString()))
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, SECRET)
        if "half" in query:
            return StreamingResponse(_half())
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
async def house(keys: Any = None, *, token: str | None = TOKEN, **settings: Any) -> AsyncGenerator[House]:
    room = Room()
    routes = [
        Route("/api/who", room.who, methods=["GET", "POST", "PUT", "DELETE"]),
        Route("/api/count", room.count, methods=["POST"]),
        Route("/api/wait", room.wait, methods=["POST"]),
        Route("/api/answer", room.answer, methods=["POST"]),
        Route("/api/repositories", room.upload, methods=["POST"]),
        Route("/api/webhooks", room.secret, methods=["POST"]),
        WebSocketRoute("/api/ws/watch", room.watch),
    ]
    # A client without a memory: what a request shows stands in the test.
    forgetful = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    async with open_upstream(NOWHERE, NOWHERE) as upstream:
        app = gateway_app(Settings(**settings), upstream, CredentialChecker(token), keys or MemoryKeyValue(), ready)
        app.router.routes[:0] = routes
        async with (
            serve_http(app, "127.0.0.1:0") as url,
            AsyncClient(base_url=url, timeout=20.0, cookies=forgetful) as client,
        ):
            yield House(url=url, room=room, client=client)


async def ready() -> bool:
    return True


def refused(answer: Response, status: int, code: str = "", field: str = "") -> dict[str, Any]:
    """The problem document that an answer is."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == status and told["title"] and told["detail"]
    assert not code or told["code"] == code
    assert not field or told["field"] == field
    return told


async def closed(
    url: str, *, origin: str | None = None, host: str | None = None, port: int | None = None, **headers: str
) -> int:
    """The code that a WebSocket is closed with, before anything was sent; `host` and `port` are where it connects."""
    place: Any = {} if host is None else {"host": host, "port": port}
    async with connect(url, origin=origin, additional_headers=headers, proxy=None, **place) as socket:
        with pytest.raises(ConnectionClosed) as ending:
            await socket.recv()
        assert ending.value.rcvd is not None
        return ending.value.rcvd.code


async def raw(port: str, head: str, *, seconds: float = 10.0) -> bytes:
    """What is answered to a request of these bytes, until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    writer.write(head.encode("latin-1"))
    try:
        async with asyncio.timeout(seconds):
            return await reader.read()
    finally:
        writer.close()
