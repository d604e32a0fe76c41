"""The model of one run as a server for an external agent, which has neither a network nor a key.

It serves `/v1/models`, `/v1/chat/completions` and `/v1/responses` on a unix socket.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Self, cast

from aiohttp import ClientConnectionError, web

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import ContextTooLong, FleetError, InvalidRequest, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.json_values import with_texts
from swe_ai_fleet.domain.message import LIMIT_FIELDS, ModelReply, ModelRequest, Passthrough
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.acp.gateway_dialects import (
    ChatCompletion,
    Dialect,
    Json,
    Response,
    events,
    json_body,
    screened,
)
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.sandbox.network import unix_listener
from swe_ai_fleet.tools.secrets import Secrets

LONGEST_BODY = 16 * 1024 * 1024
"""The most bytes of one request, and of all requests in progress together."""
MOST_CALLS = 8
"""Concurrent calls."""
_MOST_CONNECTIONS = 64
# The time limit for a client to read a part of an answer.
_STALLED_SECONDS = 30.0
# A response is delayed by this for each request that did not reach the model.
_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 1.0
_CHARACTERS_PER_TOKEN = 4
_CHARACTERS_PER_TOKEN_AT_LEAST = 3
_REMEMBERED_TEXTS = 512
_LONGEST_REMEMBERED = 64 * 1024
_SERVER_NAMED = re.compile(r"model server \S+")


class _RefusalError(Exception):
    def __init__(
        self, status: int, message: str, *, code: str, kind: str = "invalid_request_error", param: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error: Json = {"message": message, "type": kind, "param": param or None, "code": code}

    def response(self) -> web.Response:
        headers = {"Retry-After": "1"} if self.status == 429 else {}
        return web.json_response({"error": self.error}, status=self.status, headers=headers)


class _GoneError(Exception):
    """The agent no longer reads the answer."""


class ModelGateway:
    """The model of one agent run, for as long as the context lasts, at the unix socket `socket`.

    Requests go to the run's own model unchanged, except for the model's name, secrets, and fields that only the
    operator decides; so the fleet's admission, limits, retries and session headers apply. The agent needs no key; one
    that it sends is ignored. Any process that can open the socket can spend the budget, so it is in a directory that
    only this process's user may enter, and is mounted into sandboxes.

    Answers and refusals have OpenAI's form: 402 (`budget_spent`) once a limit of the run is reached, which clients do
    not retry, 413 for a body above 16 MiB, 429 above eight concurrent calls, 400 for an invalid request or one that the
    server refuses, 503 if no server is available. A call counts as an iteration of the budget, with the usage that the
    server reports; an estimate, if the call breaks off or times out.
    """

    def __init__(self, model: ChatModel, budget: Budget, *, mask: Secrets) -> None:
        self._model, self._budget, self._mask = model, budget, mask
        # Each request repeats the conversation so far.
        self._mask_again = lru_cache(_REMEMBERED_TEXTS)(mask)
        self._directory = Path()
        self.calls = 0
        """How many calls reached the model."""
        self.spent: StopReason | None = None
        """The limit of the run for which a call was refused, if one was."""
        self._requests = self._calls_in_progress = self._bytes = self._reserved = 0
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    @property
    def socket(self) -> Path:
        return self._directory / "model.sock"

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._serve])
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/v1/models/{name:.+}", self._models)
        application.router.add_post("/v1/chat/completions", partial(self._answer, ChatCompletion))
        application.router.add_post("/v1/responses", partial(self._answer, Response))
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=0.5, auto_decompress=False
        )
        await self._runner.setup()
        serve = self._runner.server
        assert serve is not None
        self._directory = Path(tempfile.mkdtemp(prefix="fleet-model-"))

        def accept() -> asyncio.BaseProtocol:
            return serve() if len(serve.connections) < _MOST_CONNECTIONS else _Closed()

        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(accept, sock=unix_listener(self.socket))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        shutil.rmtree(self._directory, ignore_errors=True)

    @web.middleware
    async def _serve(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._requests += 1
        try:
            response = await handler(request)
        except _RefusalError as refusal:
            response = refusal.response()
        except web.HTTPException as error:
            text = "there are /v1/models, /v1/chat/completions and /v1/responses"
            response = _RefusalError(error.status, f"{error.reason}: {text}", code="not_served").response()
        except FleetError as fault:
            response = _refusal(fault).response()
        if not response.prepared:
            await self._pause()
        return response

    async def _models(self, request: web.Request) -> web.Response:
        capabilities = await self._model.probe()
        entry: Json = {
            "id": capabilities.model,
            "object": "model",
            "created": 0,
            "owned_by": "fleet",
            **({"max_model_len": capabilities.max_model_len} if capabilities.max_model_len else {}),
        }
        return web.json_response(entry if "name" in request.match_info else {"object": "list", "data": [entry]})

    async def _answer(
        self, speaking: Callable[[Mapping[str, object]], Dialect], request: web.Request
    ) -> web.StreamResponse:
        if self._calls_in_progress >= MOST_CALLS:
            raise _busy(f"{MOST_CALLS} calls are under way")
        self._calls_in_progress += 1
        try:
            async with self._body(request) as body:
                # A megabyte takes tens of milliseconds, which would block the other runs of this process.
                dialect, fields, characters = await asyncio.to_thread(self._read, body, speaking)
                self._affordable()
                await self._bound(fields, characters)
                answer = _Answer(request, dialect, streams=fields.get("stream") is True)
                return await answer.finish(await self._ask(fields, characters, answer))
        except _GoneError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        finally:
            self._calls_in_progress -= 1

    async def _ask(self, fields: Json, characters: int, answer: _Answer) -> ModelReply | _RefusalError:
        passthrough = Passthrough(fields=fields, characters=characters, send=answer.send)
        prompt = characters // _CHARACTERS_PER_TOKEN
        self._reserved += prompt
        self.calls += 1
        usage: Usage | None = None
        try:
            async with self._budget.time_limit():
                # Watchers get the agent's texts from its record; its other calls (a title, a summary) are not shown.
                reply = await self._model.reply(ModelRequest((), passthrough=passthrough, on_delta=lambda text: None))
            usage = reply.usage
        except TimeoutError:
            return self._refused(StopReason.TIMEOUT)
        except FleetError as fault:
            usage = Usage() if not answer.pieces else None
            return _refusal(fault)
        finally:
            self._reserved -= prompt
            if usage is None or (usage.model_calls and not usage.total_tokens):
                usage = Usage(prompt_tokens=prompt, completion_tokens=answer.pieces, model_calls=1)
            self._budget.settle(usage)
        return reply

    async def _pause(self) -> None:
        await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * (self._requests - self.calls)))

    def _affordable(self) -> None:
        spent, tokens_left = self._budget.spent(iterations=self.calls), self._budget.tokens_left
        if not self._budget.seconds_left:
            spent = StopReason.TIMEOUT
        elif spent is None and tokens_left is not None and tokens_left <= self._reserved:
            spent = StopReason.MAX_TOKENS
        if spent is not None:
            raise self._refused(spent)

    def _refused(self, spent: StopReason) -> _RefusalError:
        self.spent = spent
        text = f"the budget of this run is spent: {spent.value}"
        return _RefusalError(402, text, code="budget_spent", kind="insufficient_quota")

    @asynccontextmanager
    async def _body(self, request: web.Request) -> AsyncGenerator[bytes]:
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise _RefusalError(415, "send the body as it is, not compressed", code="unsupported_encoding")
        body = bytearray()
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                self._bytes += len(chunk)
                if len(body) > LONGEST_BODY:
                    raise _RefusalError(413, f"the body is larger than {LONGEST_BODY} bytes", code="body_too_large")
                if self._bytes > LONGEST_BODY:
                    raise _busy("the requests under way are too large together")
            yield bytes(body)
        except (FleetError, _RefusalError):
            # The request counts as in progress during the pause: no budget pays for reading refused bodies.
            await self._pause()
            raise
        finally:
            self._bytes -= len(body)

    def _read(self, body: bytes, speaking: Callable[[Mapping[str, object]], Dialect]) -> tuple[Dialect, Json, int]:
        """The request in its dialect, its allowed fields with secrets masked, and the characters of its texts."""
        dialect = speaking(json_body(body))
        characters = 0

        def masked(text: str) -> str:
            nonlocal characters
            # Images cost few tokens, and their base64 is not text.
            characters += len(text) if not text.startswith("data:") else 0
            return self._mask_again(text) if len(text) <= _LONGEST_REMEMBERED else self._mask(text)

        try:
            fields = screened(cast("Json", with_texts(dialect.request(), masked)))
        except ValueError as error:
            raise InvalidRequest(f"the body is {error}") from None
        return dialect, fields, characters

    async def _bound(self, fields: Json, characters: int) -> None:
        """Limit the completion to the tokens left in the budget, and drop a limit beyond the context."""
        bound = min((bound for name in LIMIT_FIELDS if isinstance(bound := fields.pop(name, None), int)), default=None)
        longest = (await self._model.probe()).max_model_len
        room = longest - characters // _CHARACTERS_PER_TOKEN_AT_LEAST if longest else None
        if bound is not None and room is not None and bound > room:
            bound = None
        if self._budget.tokens_left is not None:
            fair_share = max(1, (self._budget.tokens_left - self._reserved) // self._calls_in_progress)
            if (bound is None and (room is None or fair_share < room * 3 // 4)) or (
                bound is not None and bound > fair_share
            ):
                bound = fair_share
        if bound is not None:
            fields[LIMIT_FIELDS[0]] = bound


class _Answer:
    """The response to one call. `pieces` counts the events of its stream."""

    def __init__(self, request: web.Request, dialect: Dialect, *, streams: bool) -> None:
        self._request, self._dialect, self._streams = request, dialect, streams
        self._response: web.StreamResponse | None = None
        self._whole = b""
        self._buffer = bytearray()
        self.pieces = 0

    async def send(self, data: bytes) -> None:
        """Pass the server's bytes on. Raises _GoneError if the client does not read them."""
        if not self._streams:
            self._whole = data
            return
        self._buffer += data
        pending = b""
        for event in events(self._buffer):
            self.pieces += 1
            pending += self._dialect.event(event)
        await self._write(pending)

    async def finish(self, outcome: ModelReply | _RefusalError) -> web.StreamResponse:
        """Send the whole answer, or the end of its stream; a refusal goes into a stream that has begun."""
        if isinstance(outcome, _RefusalError):
            if self._response is None:
                return outcome.response()
            return await self._write(self._dialect.broken(outcome.error))
        if not self._streams:
            return web.Response(body=self._dialect.whole(self._whole, outcome), content_type="application/json")
        await self.send(b"\n\n")
        return await self._write(self._dialect.end(outcome))

    async def _write(self, data: bytes) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_STALLED_SECONDS):
                if self._response is None:
                    self._response = web.StreamResponse(
                        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
                    )
                    await self._response.prepare(self._request)
                await self._response.write(data)
                return self._response
        except (TimeoutError, OSError, ClientConnectionError) as error:
            # Must not be taken for a fault of the model server that sends the bytes.
            raise _GoneError from error


class _Closed(asyncio.Protocol):
    """Closes a connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _refusal(fault: FleetError) -> _RefusalError:
    # An agent in a sandbox must not learn the address of the model server.
    text = _SERVER_NAMED.sub("the model server", fault.message)
    if isinstance(fault, ContextTooLong):
        return _RefusalError(400, text, code="context_length_exceeded")
    if isinstance(fault, InvalidRequest | ModelRejected):
        return _RefusalError(400, text, code="invalid_request", param=fault.field)
    if isinstance(fault, ModelUnavailable):
        return _RefusalError(503, "no model server answers now", code="model_unavailable", kind="server_error")
    return _RefusalError(502, text, code="server_error", kind="server_error")


def _busy(reason: str) -> _RefusalError:
    return _RefusalError(429, f"{reason}; try again", code="too_many_calls", kind="rate_limit_error")
