"""How busy a server says it is: vLLM's routing metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp

_MOST_BYTES = 4 * 1024 * 1024
_SECONDS = 2.0
_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
# The second name is the one that servers before 0.10 use.
_CACHE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
_PREFIX_HITS = (b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total")
_PREFIX_QUERIES = (b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that a server works on and that wait there, and the part of its KV cache in use (0 to 1).

    `prefix_queries` are the tokens looked up in its prefix cache since it started, `prefix_hits` those found there.
    """

    running: int
    waiting: int
    cache: float = 0.0
    prefix_hits: float = 0.0
    prefix_queries: float = 0.0


class LoadProbe(Protocol):
    """Asks one server how busy it is."""

    async def load(self) -> Load | None:
        """Its load now; None where it does not say."""
        ...


def read_load(metrics: bytes) -> Load | None:
    """The load in a page of Prometheus text; None where vLLM's metrics are not in it.

    A server with several engines has one line for each: requests are added up, of the caches the fullest counts.
    """
    running = waiting = cache = hits = queries = 0.0
    found = False
    for line in metrics.splitlines():
        if not line.startswith(b"vllm:"):
            continue
        name, value = _sample(line)
        if name == _RUNNING:
            running, found = running + value, True
        elif name == _WAITING:
            waiting += value
        elif name in _CACHE:
            cache = max(cache, min(value, 1.0))
        elif name in _PREFIX_HITS:
            hits += value
        elif name in _PREFIX_QUERIES:
            queries += value
    if not found:
        return None
    return Load(running=round(running), waiting=round(waiting), cache=cache, prefix_hits=hits, prefix_queries=queries)


class VLLMMetrics:
    """The `LoadProbe` of a vLLM server, by its `/metrics`. Use it as an async context manager.

    Args:
        base_url: of the API, as the chat model has it; a user and password in it are sent along.
        api_key: sent as a bearer token where there is one.
    """

    def __init__(self, base_url: str, *, api_key: str = "") -> None:
        parts = urlsplit(base_url)
        path = parts.path.rstrip("/").removesuffix("/v1") + "/metrics"
        self._url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))
        self._is_local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        self._headers: Mapping[str, str] = _authorization(parts.username or "", parts.password or "", api_key)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # A proxy from the environment is never the way to this machine.
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=not self._is_local
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def load(self) -> Load | None:
        """The server's load now; None where it does not answer within 2 seconds or has no such metrics."""
        if self._session is None:
            raise RuntimeError("VLLMMetricsis used outside of its `async with` block")
        page = bytearray()
        try:
            async with self._session.get(self._url, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                async for chunk in response.content.iter_chunked(1 << 16):
                    page += chunk
                    if len(page) > _MOST_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
        return read_load(bytes(page))


def _sample(line: bytes) -> tuple[bytes, float]:
    # Labels may hold spaces and braces; a time stamp may follow the value.
    name, _, rest = line.partition(b"{")
    if rest:
        rest = rest.rpartition(b"}")[2]
    else:
        name, _, rest = line.partition(b" ")
    words = rest.split(maxsplit=1)
    try:
        value = float(words[0]) if words else 0.0
    except ValueError:
        value = 0.0
    return name.strip(), value if math.isfinite(value) and 0 <= value < 1e15 else 0.0


def _authorization(user: str, password: str, api_key: str) -> Mapping[str, str]:
    if api_key:
        return {"Authorization": f"Bearer {api_key}"}
    if user:
        return {"Authorization": aiohttp.BasicAuth(user, password).encode()}
    return {}
