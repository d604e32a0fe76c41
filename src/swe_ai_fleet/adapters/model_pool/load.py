"""How busy a server says it is: vLLM's routing metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from swe_ai_fleet.domain.json_values import number_in

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
    any_found = False
    for line in metrics.splitlines():
        if not line.startswith(b"vllm:"):
            continue
        name, value = _sample(line)
        if name == _RUNNING:
            running, any_found = running + value, True
        elif name == _WAITING:
            waiting += value
        elif name in _CACHE:
            cache = max(cache, min(value, 1.0))
        elif name in _PREFIX_HITS:
            hits += value
        elif name in _PREFIX_QUERIES:
            queries += value
    if not any_found:
        return None
    return Load(running=round(running), waiting=round(waiting), cache=cache, prefix_hits=hits, prefix_queries=queries)


class VLLMMetrics:
    """The `LoadProbe` of a vLLM server.

    Args:
        page: gives its page of metrics; empty where there is none.
    """

    def __init__(self, page: Callable[[], Awaitable[bytes]]) -> None:
        self._page = page

    async def load(self) -> Load | None:
        """The server's load now; None where it does not say."""
        return read_load(await self._page())


def _sample(line: bytes) -> tuple[bytes, float]:
    # Labels may hold spaces and braces; a time stamp may follow the value.
    name, _, rest = line.partition(b"{")
    if rest:
        rest = rest.rpartition(b"}")[2]
    else:
        name, _, rest = line.partition(b" ")
    words = rest.split(maxsplit=1)
    return name.strip(), (number_in(words[0], 0, 1e15) or 0.0) if words else 0.0
