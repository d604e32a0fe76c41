"""The one place that talks to a model server."""

from __future__ import annotations

import asyncio
import base64
import math
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from functools import cache
from typing import Self, TypeVar, cast

import aiohttp
import httpx2
import stamina
from openai import AsyncOpenAI, AsyncStream, DefaultAioHttpClient, OpenAIError

from swe_ai_fleet.adapters.openai_model import faults
from swe_ai_fleet.domain.errors import ModelError, ModelRejected, ModelUnavailable

_T = TypeVar("_T")

_CHAT = "/chat/completions"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_CONNECTIONS = 1000
# Below uvicorn's 5 s, so that it is never us who write on a connection it just closed.
_KEEP_ALIVE_SECONDS = 4.0
_CONNECT_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_LONGEST_ANSWER = 64 * 1024 * 1024
_URL_HINT = "it looks like http://127.0.0.1:8000/v1"


@cache
def _trusted(environment: bool) -> ssl.SSLContext:
    """The authorities that servers are known by, read once for all of the process; SSL_CERT_FILE's where it counts."""
    return httpx2.create_ssl_context(trust_env=environment)


class Connection:
    """HTTP to one server, its faults as ours. An async context manager, used within one event loop.

    Args: as of `OpenAIChatModel`. Raises ModelRejected for a base URL that is none.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str,
        timeout_seconds: float,
        max_retries: int,
        retry_wait_seconds: float,
        retry_wait_max_seconds: float,
    ) -> None:
        url = _parse(base_url)
        self.base_url = str(url.copy_with(userinfo=b"", fragment=None)).rstrip("/")
        self.answered_at = -math.inf
        """When the server last answered, by the monotonic clock."""
        self._is_local = url.host in _LOOPBACK
        # aiohttp refuses a URL with a user in it beside a header of our own.
        self._basic = base64.b64encode(url.userinfo).decode() if url.userinfo and not api_key else ""
        self._model = model
        self._api_key = api_key
        self._timeout_seconds = timeout_seconds
        self._retry_wait_seconds = retry_wait_seconds
        self._retry_wait_max_seconds = retry_wait_max_seconds
        self._retrying = stamina.AsyncRetryingCaller(
            attempts=max(1, max_retries),
            timeout=None,
            wait_initial=retry_wait_seconds,
            wait_max=retry_wait_max_seconds,
            wait_jitter=retry_wait_seconds,
        )
        self._opened: AsyncOpenAI | None = None

    async def __aenter__(self) -> Self:
        # A proxy from the environment is never the way to this machine.
        timeout = httpx2.Timeout(self._timeout_seconds, connect=min(_CONNECT_SECONDS, self._timeout_seconds))
        limits = httpx2.Limits(max_connections=_MOST_CONNECTIONS, keepalive_expiry=_KEEP_ALIVE_SECONDS)
        around = not self._is_local
        http_client = DefaultAioHttpClient(timeout=timeout, limits=limits, trust_env=around, verify=_trusted(around))
        client = AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key or "EMPTY",
            timeout=timeout,
            max_retries=0,
            http_client=http_client,
            default_headers={"Authorization": f"Basic {self._basic}"} if self._basic else None,
        )
        # Otherwise taken from the environment, and then sent to whatever server this is.
        client.organization = client.project = None
        self._opened = client
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def models(self) -> bytes:
        """The answer to what models there are. Raises ModelError."""
        client = self._client
        with self._faults():
            async with asyncio.timeout(self._timeout_seconds):
                return (await client.get("/models", cast_to=httpx2.Response)).content

    async def complete(self, body: bytes, *, path: str = _CHAT) -> bytes:
        """The answer to a request. Raises ModelError, also for one of more than 64 MiB."""
        chunks: list[bytes] = []
        size = 0

        def take(chunk: bytes) -> bool:
            nonlocal size
            size += len(chunk)
            if size > _LONGEST_ANSWER:
                raise self.unreadable(b"".join(chunks[:1]))
            chunks.append(chunk)
            return False

        await self.stream(body, take, path=path)
        return b"".join(chunks)

    async def stream(self, body: bytes, take: Callable[[bytes], bool], *, path: str = _CHAT) -> None:
        """Hand over the answer to a request as it comes in, until `take` says that it is whole, or ends.

        Raises ModelError, and what `take` raises.
        """
        client = self._client
        with self._faults():
            async with asyncio.timeout(self._timeout_seconds):
                # With this type the SDK hands over the response before its body is read.
                answer: object = await client.post(
                    path,
                    cast_to=httpx2.Response,
                    content=body,
                    stream=True,
                    stream_cls=AsyncStream[object],
                )
                response = cast("httpx2.Response", answer)
                try:
                    async with aclosing(response.aiter_bytes()) as chunks:
                        async for chunk in chunks:
                            if take(chunk):
                                break
                        # Read to its end, the connection can carry the next request.
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_DRAIN_SECONDS):
                                async for _ in chunks:
                                    pass
                finally:
                    await response.aclose()

    async def retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """What `attempt` gives, tried again with growing waits while it raises ModelUnavailable."""
        return await self._retrying(self._wait_before_retry, attempt)

    def refused(self, refusal: faults.Refusal) -> ModelError:
        """The fault for an error that came with a status of success."""
        return faults.refused(refusal, base_url=self.base_url, model=self._model, secret=self._api_key)

    def unreachable(self, error: BaseException) -> ModelUnavailable:
        """The fault for a connection that failed, broke or took too long."""
        return faults.unreachable(self.base_url, error, secret=self._api_key)

    def unreadable(self, answer: bytes) -> ModelUnavailable:
        """The fault for an answer of success that is no completion."""
        return faults.unreadable(self.base_url, answer[:2000].decode(errors="replace"), secret=self._api_key)

    @property
    def _client(self) -> AsyncOpenAI:
        if self._opened is None:
            raise RuntimeError("OpenAIChatModel is used outside of its context")
        return self._opened

    @contextmanager
    def _faults(self) -> Generator[None]:
        try:
            yield
        except OpenAIError as error:
            raise faults.model_error(error, base_url=self.base_url, model=self._model, secret=self._api_key) from error
        except (aiohttp.ClientError, httpx2.HTTPError, TimeoutError, OSError) as error:
            # The aiohttp transport lets a few of its own errors through.
            raise self.unreachable(error) from error
        self.answered_at = time.monotonic()

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
