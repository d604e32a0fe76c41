"""The one place that talks to a model server."""

from __future__ import annotations

import asyncio
import base64
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
import httpx2
import stamina
from openai import APIStatusError, AsyncOpenAI, DefaultAioHttpClient, OpenAIError

from swe_ai_fleet.adapters.openai_model import faults, probing
from swe_ai_fleet.adapters.openai_model.answers import ListedModel, read_models, read_reply
from swe_ai_fleet.adapters.openai_model.wire import WireWriter, head_fields, wire_ids
from swe_ai_fleet.domain.errors import ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.message import Message, ModelCapabilities, ModelReply, Sampling
from swe_ai_fleet.domain.tool import OperationSpec

_T = TypeVar("_T")

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_CONNECTIONS = 1000
# Below uvicorn's 5 s, so that it is never us who write on a connection it just closed.
_KEEP_ALIVE_SECONDS = 4.0
_CONNECT_SECONDS = 10.0
_FRESH_SECONDS = 5.0
_URL_HINT = "it looks like http://127.0.0.1:8000/v1"


def _random_call_id() -> str:
    return uuid.uuid4().hex[:12]


class OpenAIChatModel:
    """A `ChatModel` behind any OpenAI-compatible server, shared by all agents of a process.

    Use it as an async context manager, within one event loop.

    Args:
        base_url: of the API; a bare `http://host:port` gets `/v1`. A user and password in it are sent as basic
            authentication where there is no key.
        model: its name on the server; empty takes the first that the server lists.
        api_key: sent as a bearer token; empty for servers that want none.
        timeout_seconds: what one try may take from the first byte sent to the last received.
        max_retries: how often a call is tried in all, at least once.
        retry_wait_seconds: before the second try, doubled before each further one, with as much jitter again.
        retry_wait_max_seconds: the longest wait; a server that asks for more with Retry-After is not asked again.
        new_call_id: makes ids for tool calls, unique within a run.

    Raises ModelRejected for a base URL that is none.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "",
        api_key: str = "",
        timeout_seconds: float = 600.0,
        max_retries: int = 3,
        retry_wait_seconds: float = 1.0,
        retry_wait_max_seconds: float = 30.0,
        new_call_id: Callable[[], str] = _random_call_id,
    ) -> None:
        url = _parse(base_url)
        self._base_url = str(url.copy_with(userinfo=b"", fragment=None)).rstrip("/")
        self._is_local = url.host in _LOOPBACK
        # aiohttp refuses a URL with a user in it beside a header of our own.
        self._basic = base64.b64encode(url.userinfo).decode() if url.userinfo and not api_key else ""
        self._model = model
        self._api_key = api_key
        self._timeout_seconds = timeout_seconds
        self._retry_wait_seconds = retry_wait_seconds
        self._retry_wait_max_seconds = retry_wait_max_seconds
        self._new_call_id = new_call_id
        self._retrying = stamina.AsyncRetryingCaller(
            attempts=max(1, max_retries),
            timeout=None,
            wait_initial=retry_wait_seconds,
            wait_max=retry_wait_max_seconds,
            wait_jitter=retry_wait_seconds,
        )
        self._writer = WireWriter()
        self._answered_at = -math.inf
        self._client: AsyncOpenAI | None = None
        self._probing: asyncio.Task[probing.Findings] | None = None

    async def __aenter__(self) -> Self:
        # A proxy from the environment is never the way to this machine.
        timeout = httpx2.Timeout(self._timeout_seconds, connect=min(_CONNECT_SECONDS, self._timeout_seconds))
        limits = httpx2.Limits(max_connections=_MOST_CONNECTIONS, keepalive_expiry=_KEEP_ALIVE_SECONDS)
        http_client = DefaultAioHttpClient(timeout=timeout, limits=limits, trust_env=not self._is_local)
        client = AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._api_key or "EMPTY",
            timeout=timeout,
            max_retries=0,
            http_client=http_client,
            default_headers={"Authorization": f"Basic {self._basic}"} if self._basic else None,
        )
        # Otherwise taken from the environment, and then sent to whatever server this is.
        client.organization = client.project = None
        self._client = client
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError, ModelError):
                await self._probing
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def probe(self) -> ModelCapabilities:
        """What the server can do: one look at its models and a tiny request or two, asked once and remembered.

        Raises ModelUnavailable, ModelRejected. A failed probe is tried again by the next caller.
        """
        return (await self._findings()).capabilities

    async def ping(self) -> None:
        """Raise ModelUnavailable or ModelRejected unless the server answers, now or within the last seconds."""
        if time.monotonic() - self._answered_at < _FRESH_SECONDS:
            return
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await self._send(lambda client: client.get("/models", cast_to=httpx2.Response))
        except TimeoutError as error:
            raise faults.unreachable(self._base_url, error, secret=self._api_key) from error
        except ModelRejected as error:
            # Some servers have no list of models; that they say so is an answer.
            if not (isinstance(error.__cause__, APIStatusError) and error.__cause__.status_code in (404, 405)):
                raise

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[OperationSpec],
        sampling: Sampling,
        *,
        schema: Mapping[str, object] | None = None,
        on_delta: Callable[[str], None] | None = None,
    ) -> ModelReply:
        """One completion, by native tool calls where the server has them, else by calls written as text.

        Raises ContextTooLong, ModelRejected, and ModelUnavailable once the tries are used up.
        """
        findings = await self._findings()
        started = time.monotonic()
        capabilities = findings.capabilities
        ids = wire_ids(messages)
        head = head_fields(capabilities.model, sampling, limit_field=findings.limit_field)
        if capabilities.native_tools:
            strict = capabilities.strict_schemas
            body = self._writer.native(messages, tools, head=head, wire_ids=ids, strict=strict)
        else:
            body = self._writer.text(messages, tools, head=head)

        async def attempt() -> ModelReply:
            answer = await self._post(body)
            try:
                return read_reply(
                    answer,
                    taken=tuple(ids.values()),
                    tools_offered=bool(tools),
                    new_call_id=self._new_call_id,
                    duration_ms=round((time.monotonic() - started) * 1000),
                )
            except ValueError as error:
                raise faults.unreadable(self._base_url, _text(answer), secret=self._api_key) from error

        return await self._retry(attempt)

    async def _findings(self) -> probing.Findings:
        if self._probing is None or (self._probing.done() and not _succeeded(self._probing)):
            self._probing = asyncio.create_task(self._probe())
        # One caller's cancellation must not end the probe that the others wait for.
        return await asyncio.shield(self._probing)

    async def _probe(self) -> probing.Findings:
        listed = await self._listed_model()
        return await probing.find_out(listed, self._try_body)

    async def _listed_model(self) -> ListedModel:
        async def attempt() -> list[ListedModel]:
            answer = await self._send(lambda client: client.get("/models", cast_to=httpx2.Response))
            try:
                return read_models(answer)
            except ValueError as error:
                text = f"model server {faults.public_url(self._base_url)} gives no list of models"
                raise ModelRejected(text, field="model", hint="name the model, and check the base URL") from error

        try:
            models = await self._retry(attempt)
        except ModelError as error:
            answered = isinstance(error, ModelRejected) or isinstance(error.__cause__, APIStatusError)
            # Some servers have no list, or none for this key. With a name the completion will tell.
            if not self._model or not answered:
                raise
            models = []
        if not self._model:
            if not models:
                raise ModelRejected(
                    f"model server {faults.public_url(self._base_url)} lists no model", field="model", hint="name one"
                )
            return models[0]
        for entry in models:
            if entry.id == self._model or entry.id.endswith(f"/{self._model}"):
                return ListedModel(self._model, entry.owned_by, max_model_len=entry.longest)
        return ListedModel(self._model, models[0].owned_by if models else None)

    async def _try_body(self, body: bytes) -> faults.Refusal | None:
        """Send a probe; the refusal, if it is about the request itself."""

        async def attempt() -> faults.Refusal | None:
            try:
                await self._post(body)
            except ModelError as error:
                cause = error.__cause__
                refusal = faults.Refusal.of(cause) if isinstance(cause, APIStatusError) else None
                if refusal is None or not probing.is_about_the_request(refusal):
                    raise
                return refusal
            return None

        return await self._retry(attempt)

    async def _post(self, body: bytes) -> bytes:
        return await self._send(lambda client: client.post("/chat/completions", cast_to=httpx2.Response, content=body))

    async def _send(self, request: Callable[[AsyncOpenAI], Awaitable[httpx2.Response]]) -> bytes:
        if self._client is None:
            raise RuntimeError("OpenAIChatModel is used outside of its context")
        try:
            async with asyncio.timeout(self._timeout_seconds):
                content = (await request(self._client)).content
                self._answered_at = time.monotonic()
                return content
        except OpenAIError as error:
            raise faults.model_error(error, base_url=self._base_url, model=self._model, secret=self._api_key) from error
        except (aiohttp.ClientError, httpx2.HTTPError, TimeoutError, OSError) as error:
            # The aiohttp transport lets a few of its own errors through.
            raise faults.unreachable(self._base_url, error, secret=self._api_key) from error

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await self._retrying(self._wait_before_retry, attempt)

    def _wait_before_retry(self, error: Exception) -> bool | float:
        if not isinstance(error, ModelUnavailable):
            return False
        asked = faults.retry_after_seconds(error.__cause__)
        if asked is None:
            return True
        if asked > self._retry_wait_max_seconds:
            return False
        # Without jitter every agent that was told the same would come back at the same moment.
        return asked + random.uniform(0, self._retry_wait_seconds)  # noqa: S311


def _parse(base_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ModelRejected(f"the model URL is not valid: {error}", field="model_url", hint=_URL_HINT) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ModelRejected("the model URL is not an HTTP URL", field="model_url", hint=_URL_HINT)
    return url if url.path.strip("/") else url.copy_with(path="/v1")


def _succeeded(task: asyncio.Task[probing.Findings]) -> bool:
    return not task.cancelled() and task.exception() is None


def _text(answer: bytes) -> str:
    return answer[:2000].decode(errors="replace")
