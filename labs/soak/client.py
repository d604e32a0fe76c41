"""A client of the fleet that outlives it: it asks again until it is answered, and takes the time."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc.aio

from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from labs.soak.stage import FullCard, Soaked

_AGAIN_SECONDS = 0.5
_CALL_SECONDS = 60.0
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED,
)
_BUSY = ("another message of this session", "the session is being worked on")
"""How the refusal begins of a session in which the call that was cut off is still carried out."""
_BLOB = re.compile(r'"name": ?"[^"/]+/[^"/]+/([0-9a-f]{64})"')


@dataclass(kw_only=True)
class Fleet:
    """Calls that are made again, over a new connection, while the fleet is down.

    `tokens` are a tenant's: of who asks, and of who approves. `times` are the milliseconds of the calls that were
    answered at once, by what they were; `again` counts the others.
    """

    soaked: Soaked
    tokens: tuple[str, str]
    times: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])
    again: Counter[str] = field(default_factory=Counter[str])
    broken: Counter[str] = field(default_factory=Counter[str])
    _card: FullCard | None = None
    _channel: grpc.aio.Channel | None = None
    _http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    def took(self, what: str, began: float) -> None:
        self.times.setdefault(what, []).append(1000 * (time.perf_counter() - began))

    async def unary(
        self, what: str, call: Callable[[grpc.aio.Channel], Any], request: Any, *, approves: bool = False
    ) -> Any:
        """The reply of a call, `call(channel)` of a request; where it `approves`, by the tenant's second person."""
        tries = 0
        while True:
            tries += 1
            began = time.perf_counter()
            try:
                channel, metadata = await self._connected(approves=approves)
                reply = await call(channel)(request, metadata=metadata, timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                if not _passes(error):
                    raise
                self.again[what] += 1
                await self._anew()
            except FileNotFoundError:
                self.again[what] += 1
            else:
                if tries == 1:
                    self.took(what, began)
                return reply
            await asyncio.sleep(_AGAIN_SECONDS)

    async def watch_grpc(self, execution_id: str) -> list[pb.ExecutionEvent]:
        """The events of an execution up to its end, taken up again where the stream broke."""
        seen: list[pb.ExecutionEvent] = []
        while True:
            try:
                channel, metadata = await self._connected()
                start = seen[-1].sequence + 1 if seen else 0
                request = pb.StreamExecutionRequest(execution_id=execution_id, from_sequence=start)
                stream = OrchestratorServiceStub(channel).StreamExecution(request, metadata=metadata)
                async for event in stream:
                    seen.append(event)  # noqa: PERF401 - what came before a break counts
                return seen
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND and seen:
                    return seen
                if not _passes(error):
                    raise
                self.broken["gRPC"] += 1
                await self._anew()
            except FileNotFoundError:
                pass
            await asyncio.sleep(_AGAIN_SECONDS)

    async def watch_websocket(self, execution_id: str) -> int:
        """How many messages of an execution came until `completion`."""
        count = 0
        while True:
            with suppress(aiohttp.ClientError, FileNotFoundError, TimeoutError):
                async with (await self._session()).ws_connect(f"/api/ws/executions/{execution_id}") as socket:
                    async for message in socket:
                        if message.type is not aiohttp.WSMsgType.TEXT:
                            break
                        count += 1
                        if message.json().get("type") == "completion":
                            return count
            self.broken["WebSocket"] += 1
            await self._anew()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def watch_sse(self, execution_id: str) -> int:
        """How many server-sent events of an execution came until it ended."""
        count = 0
        while True:
            with suppress(aiohttp.ClientError, FileNotFoundError, TimeoutError):
                headers = {"Accept": "text/event-stream"}
                path = f"/api/executions/{execution_id}/events"
                async with (await self._session()).get(path, headers=headers, timeout=_NO_LIMIT) as answer:
                    async for line in answer.content:
                        count += line.startswith(b"data:")
                        if line.startswith(b"data:") and b'"completion"' in line:
                            return count
            self.broken["SSE"] += 1
            await self._anew()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def artifact(self, execution_id: str, events: list[pb.ExecutionEvent]) -> int:
        """The bytes of a blob that an execution's events name; 0 where they name none."""
        found = next((match[1] for one in events if (match := _BLOB.search(one.payload_json))), "")
        if not found:
            return 0
        began, size = time.perf_counter(), 0
        channel, metadata = await self._connected()
        request = pb.GetArtifactRequest(execution_id=execution_id, digest=found)
        try:
            async for part in OrchestratorServiceStub(channel).GetArtifact(request, metadata=metadata, timeout=30):
                size += len(part.chunk)
        except grpc.aio.AioRpcError as error:
            if not _passes(error):
                raise
            self.again["artifact"] += 1
            return -1
        self.took("artifact", began)
        return size

    async def chat(self, request: Any) -> str:
        """The answer to a chat message."""
        while True:
            began = time.perf_counter()
            try:
                channel, metadata = await self._connected()
                text = ""
                call = ConversationServiceStub(channel).Send(request, metadata=metadata, timeout=_CALL_SECONDS)
                async for update in call:
                    text = update.answer.text if update.WhichOneof("update") == "answer" else text
            except grpc.aio.AioRpcError as error:
                if not _passes(error):
                    raise
                self.again["chat"] += 1
                await self._anew()
            except FileNotFoundError:
                self.again["chat"] += 1
            else:
                self.took("chat", began)
                return text
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _connected(self, *, approves: bool = False) -> tuple[grpc.aio.Channel, tuple[tuple[str, str], ...]]:
        if self._card is None or self._channel is None:
            self._card = self.soaked.card()
            self._channel = grpc.aio.insecure_channel(self._card.address)
        return self._channel, (("authorization", f"Bearer {self.tokens[approves]}"),)

    async def _session(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            card = self.soaked.card()
            self._http = aiohttp.ClientSession(card.http, headers={"Authorization": f"Bearer {self.tokens[0]}"})
        return self._http

    async def _anew(self) -> None:
        """Read the card again before the next call; calls under way keep their connection."""
        with suppress(FileNotFoundError):
            card = self.soaked.card()
            if self._card is not None and card != self._card:
                await self._close()

    async def _close(self) -> None:
        channel, self._channel, self._card = self._channel, None, None
        http, self._http = self._http, None
        if http is not None:
            await http.close()
        if channel is not None:
            await channel.close(grace=None)


_NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_read=60)


def _passes(error: grpc.aio.AioRpcError) -> bool:
    busy = error.code() is grpc.StatusCode.FAILED_PRECONDITION and (error.details() or "").startswith(_BUSY)
    return busy or error.code() in _PASSING


def percentiles(times: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Count, median, 95th and 99th percentile and the longest, in milliseconds."""
    found: dict[str, dict[str, float]] = {}
    for what, values in sorted(times.items()):
        ordered = sorted(values)

        def at(share: float, ordered: list[float] = ordered) -> float:
            return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

        found[what] = {"count": len(ordered), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": at(1.0)}
    return found
