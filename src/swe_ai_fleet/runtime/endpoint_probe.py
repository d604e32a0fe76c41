"""How the model servers of the settings are doing, by their own word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from swe_ai_fleet.adapters.model_pool import VLLMMetrics
from swe_ai_fleet.adapters.model_pool.load import Load
from swe_ai_fleet.adapters.model_providers import ModelEndpoint
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.adapters.openai_model.faults import public_url
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.fleet_status import EndpointStatus
from swe_ai_fleet.domain.health import ComponentState
from swe_ai_fleet.runtime.equipment import profile_settings
from swe_ai_fleet.runtime.factories import model_endpoints
from swe_ai_fleet.settings import Settings

DEFAULT_PROFILE = "default"
_PING_SECONDS = 3.0
_PING_KEPT_SECONDS = 15.0
"""A hosted model is not asked more often, however many people look."""


@dataclass(kw_only=True)
class EndpointProbe:
    """Asks one model server, by its metrics where it has some, else whether it answers.

    Args:
        url: Its base URL without credentials.
        model: The model it is asked for; empty: the first that it lists.
        profiles: What uses it.
        metrics: Its load.
        client: Whether it answers.
    """

    url: str
    model: str
    profiles: tuple[str, ...]
    metrics: VLLMMetrics
    client: OpenAIChatModel
    _last: Load | None = None
    _pinged_at: float = float("-inf")
    _fault: str = ""
    _took: float = field(default=0.0)

    async def measure(self) -> EndpointStatus:
        """The server as it is now. Takes 5 seconds at most, and raises nothing that a server is to blame for."""
        asked_at = time.monotonic()
        load = await self.metrics.load()
        took = time.monotonic() - asked_at
        if load is None:
            await self._ping()
            return self._status(ComponentState.DOWN if self._fault else ComponentState.UP, self._took)
        rate, self._last = _hit_rate(load, self._last), load
        self._fault = ""
        return self._status(ComponentState.UP, took, load=load, rate=rate)

    def _status(
        self, state: ComponentState, seconds: float, *, load: Load | None = None, rate: float | None = None
    ) -> EndpointStatus:
        return EndpointStatus(
            url=self.url,
            model=self.model,
            profiles=self.profiles,
            state=state,
            message=self._fault,
            running=load.running if load else None,
            waiting=load.waiting if load else None,
            kv_cache_usage=load.cache if load else None,
            prefix_cache_hit_rate=rate,
            latency_ms=seconds * 1000,
        )

    async def _ping(self) -> None:
        asked_at = time.monotonic()
        if asked_at - self._pinged_at < _PING_KEPT_SECONDS and not self._fault:
            return
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self.client.ping()
        except ModelError as error:
            self._fault = str(error)
        except TimeoutError:
            self._fault = f"no answer within {_PING_SECONDS:g} seconds"
        else:
            self._fault = ""
        self._pinged_at = time.monotonic()
        self._took = self._pinged_at - asked_at


@asynccontextmanager
async def open_endpoint_probes(settings: Settings) -> AsyncGenerator[tuple[EndpointProbe, ...]]:
    """A probe for each model server that settings and their profiles name, until the context ends."""
    found: dict[tuple[str, str], tuple[ModelEndpoint, list[str]]] = {}
    named: Mapping[str, Settings] = {DEFAULT_PROFILE: settings, **profile_settings(settings)}
    for profile, chosen in named.items():
        for endpoint in model_endpoints(chosen):
            if endpoint.base_url:
                key = (public_url(endpoint.base_url), endpoint.model)
                found.setdefault(key, (endpoint, []))[1].append(profile)
    async with AsyncExitStack() as stack:
        probes: list[EndpointProbe] = []
        for (url, model), (endpoint, profiles) in found.items():
            client = OpenAIChatModel(
                base_url=endpoint.base_url,
                model=endpoint.model,
                api_key=endpoint.api_key,
                timeout_seconds=_PING_SECONDS,
                max_retries=1,
            )
            await stack.enter_async_context(client)
            metrics = await stack.enter_async_context(VLLMMetrics(endpoint.base_url, api_key=endpoint.api_key))
            probes.append(EndpointProbe(url=url, model=model, profiles=tuple(profiles), metrics=metrics, client=client))
        yield tuple(probes)


def _hit_rate(load: Load, before: Load | None) -> float | None:
    """The part of the looked up tokens that the prefix cache had: since the last look, else since the start."""
    hits, queries = load.prefix_hits, load.prefix_queries
    if before is not None and queries > before.prefix_queries and hits >= before.prefix_hits:
        hits, queries = hits - before.prefix_hits, queries - before.prefix_queries
    return min(1.0, hits / queries) if queries else None
