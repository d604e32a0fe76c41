"""HTTP to a model server, for chat, embeddings and metrics."""

from __future__ import annotations

import asyncio
import base64
import math
import re
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from types import MappingProxyType
from typing import Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
from yarl import URL

from swe_ai_fleet.adapters.openai_model.faults import ServerRefusal, StatusError, public_url, quoted, status_error
from swe_ai_fleet.domain.errors import ModelError, ModelRejected, ModelUnavailable

_CHAT = "/chat/completions"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_MODELS = "/models"
_METRICS = "/metrics"
_TEXT: Mapping[str, str] = MappingProxyType({"Accept": "text/plain"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_MOST_CONNECTIONS = 1000
# Below uvicorn's 5 s, so that it is never us who write on a connection it just closed.
_KEEP_ALIVE_SECONDS = 4.0
_CONNECT_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_METRICS_SECONDS = 2.0
_LONGEST_METRICS = 4 * 1024 * 1024
_LONGEST_ANSWER = 64 * 1024 * 1024
_LONGEST_REFUSAL = 1024 * 1024
_TLS_SETTINGS = re.compile(r" ssl:(?:<[^>]*>|\S+)")
_URL_HINT = "for example http://127.0.0.1:8000/v1"


@cache
def _trusted(environment: bool) -> ssl.SSLContext:
    """The trusted authorities, read once per process; with `environment` those of SSL_CERT_FILE."""
    return httpx2.create_ssl_context(trust_env=environment)


class ServerConnection:
    """HTTP to one server, with its faults as `ModelError`s. An async context manager, used within one event loop.

    Args: as for `OpenAIChatModel`. Raises ModelRejected for a malformed base URL.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str,
        timeout_seconds: float,
    ) -> None:
        url = _parse(base_url)
        self._url = url.with_user(None).with_fragment(None)
        self.base_url = str(self._url).rstrip("/")
        self.answered_at = -math.inf
        """When the server last answered, by the monotonic clock."""
        self._is_local = url.host in _LOOPBACK
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        elif url.user or url.password:
            login = f"{url.user or ''}:{url.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._headers = headers
        self._model = model
        self._api_key = api_key
        self._timeout_seconds = timeout_seconds
        self._opened: aiohttp.ClientSession | None = None
        root = self._url.raw_path.rstrip("/").removesuffix("/v1")
        self._urls = {_METRICS: self._url.with_path(root + _METRICS, encoded=True)}
        self._proxy: URL | None = None
        self._proxy_auth: aiohttp.BasicAuth | None = None

    async def __aenter__(self) -> Self:
        # A proxy in the environment is not used for this machine.
        is_remote = not self._is_local
        if is_remote and (proxy := _proxy_to(self._url)) is not None:
            self._proxy = proxy.with_user(None)
            if proxy.user is not None:
                self._proxy_auth = aiohttp.BasicAuth(proxy.user, proxy.password or "")
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=_MOST_CONNECTIONS,
                keepalive_timeout=_KEEP_ALIVE_SECONDS,
                ssl=_trusted(is_remote) if self._url.scheme == "https" else True,
            ),
            headers=self._headers,
            # `_answer` limits the time of a whole request.
            timeout=aiohttp.ClientTimeout(sock_connect=min(_CONNECT_SECONDS, self._timeout_seconds)),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def models(self) -> bytes:
        """The server's list of models. Raises as `complete` does."""
        return await self._whole("GET", _MODELS)

    async def metrics(self) -> bytes:
        """The page of metrics beside the API; empty without one of at most 4 MiB within 2 seconds."""
        answered_at = self.answered_at
        try:
            async with asyncio.timeout(_METRICS_SECONDS), self._answer("GET", _METRICS, None, _TEXT) as response:
                page = await _beginning(response, _LONGEST_METRICS + 1)
        except (ModelError, TimeoutError):
            return b""
        finally:
            # Metrics need no key, so an answer does not show that calls work.
            self.answered_at = answered_at
        return page if len(page) <= _LONGEST_METRICS else b""

    async def complete(self, body: bytes, *, path: str = _CHAT, headers: Mapping[str, str] = _NO_HEADERS) -> bytes:
        """The answer to a request. Raises ModelError, also for one of more than 64 MiB."""
        return await self._whole("POST", path, body, headers)

    async def stream(self, body: bytes, take: Callable[[bytes], Awaitable[bool]], headers: Mapping[str, str]) -> None:
        """Pass the chunks of an answer to `take` until that returns True (complete), or the answer ends.

        Raises ModelError, and the exceptions of `take`.
        """
        async with self._answer("POST", _CHAT, body, headers) as response:
            chunks = response.content.iter_any()
            async for chunk in chunks:
                if await take(chunk):
                    break
            # After reading to the end, the connection can be reused.
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_SECONDS):
                    async for _ in chunks:
                        pass

    @property
    def server(self) -> str:
        """The server for messages: its URL without user, password and query."""
        return f"model server {public_url(self.base_url)}"

    def refused(self, refusal: ServerRefusal) -> ModelError:
        """The fault for a refusal."""
        text, reason = f"{self.server} answered {refusal.status}", quoted(refusal.message, self._api_key)
        return status_error(refusal, f"{text}: {reason}" if reason else text, self._model)

    def unreachable(self, error: BaseException) -> ModelUnavailable:
        """The fault for a connection that failed, broke or took too long."""
        # aiohttp names its TLS settings in every such fault, of plain HTTP too.
        reason = quoted(_TLS_SETTINGS.sub("", str(error)), self._api_key)
        if not reason:
            reason = "timed out" if isinstance(error, TimeoutError) else type(error).__name__
        message, hint = f"{self.server} cannot be reached: {reason}", "start the server, or set another model_url"
        return ModelUnavailable(message, field="model_url", hint=hint)

    def unreadable(self, answer: bytes) -> ModelUnavailable:
        """The fault for a successful answer that is no completion."""
        excerpt = quoted(answer[:2000].decode(errors="replace"), self._api_key)
        message = f"{self.server} did not answer with a completion: {excerpt}"
        return ModelUnavailable(message, field="model_url", hint="is this the base URL of an OpenAI-compatible API?")

    def broken_off(self) -> ModelUnavailable:
        """The fault for a stream that ended before the reply did."""
        return ModelUnavailable(f"{self.server} broke off in the middle of a reply", field="model_url")

    async def _whole(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = _NO_HEADERS
    ) -> bytes:
        async with self._answer(method, path, body, headers) as response:
            answer = await _beginning(response, _LONGEST_ANSWER + 1)
            if len(answer) > _LONGEST_ANSWER:
                raise self.unreadable(answer)
            return answer

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """The server's successful answer to one request. Raises ModelError for others."""
        if self._opened is None:
            raise RuntimeError("OpenAIChatModel is used outside of its `async with` block")
        if (url := self._urls.get(path)) is None:
            url = self._url.with_path(self._url.raw_path.rstrip("/") + path, encoded=True, keep_query=True)
            self._urls[path] = url
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._opened.request(
                    method, url, data=body, headers=headers, proxy=self._proxy, proxy_auth=self._proxy_auth
                ) as response,
            ):
                if response.status >= 400:
                    raise StatusError(
                        response.status,
                        await _beginning(response, _LONGEST_REFUSAL),
                        response.headers.get("Retry-After", ""),
                    )
                yield response
        except StatusError as error:
            raise self.refused(ServerRefusal.of(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.unreachable(error) from error
        self.answered_at = time.monotonic()


async def _beginning(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body of an answer, at most the first `most` bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= most:
            break
    return bytes(body[:most])


def _parse(base_url: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError as error:
        raise ModelRejected(f"the model URL is not valid: {error}", field="model_url", hint=_URL_HINT) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ModelRejected("the model URL is not an HTTP URL", field="model_url", hint=_URL_HINT)
    return url if url.path.strip("/") else url.with_path("/v1", keep_query=True)


def _proxy_to(url: URL) -> URL | None:
    """The proxy in the environment for a server."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")
