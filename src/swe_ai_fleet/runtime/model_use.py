"""What this process has under way at model servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swe_ai_fleet.adapters.model_pool import ModelPool
from swe_ai_fleet.adapters.model_pool.breaker import Circuit
from swe_ai_fleet.domain.fleet_status import EndpointUse
from swe_ai_fleet.ports import ChatModel


def model_use(models: Mapping[str, ChatModel]) -> tuple[EndpointUse, ...]:
    """By model server, what the pools of all profiles have there."""
    return added_up(
        EndpointUse(
            url=one.name,
            in_flight=one.in_flight,
            sessions=one.sessions,
            last_fault=one.last_fault,
            open_circuits=int(one.circuit is Circuit.OPEN),
        )
        for pool in _pools(models)
        for one in pool.status().endpoints
    )


def calls_waiting(models: Mapping[str, ChatModel]) -> int:
    """Calls of this process that wait for a model server."""
    return sum(pool.status().waiting for pool in _pools(models))


def _pools(models: Mapping[str, ChatModel]) -> Iterable[ModelPool]:
    return {id(model): model for model in models.values() if isinstance(model, ModelPool)}.values()


def added_up(uses: Iterable[EndpointUse]) -> tuple[EndpointUse, ...]:
    """The same, one for each URL."""
    found: dict[str, EndpointUse] = {}
    for use in uses:
        known = found.get(use.url, EndpointUse(url=use.url, in_flight=0, sessions=0))
        found[use.url] = EndpointUse(
            url=use.url,
            in_flight=known.in_flight + use.in_flight,
            sessions=known.sessions + use.sessions,
            last_fault=known.last_fault or use.last_fault,
            open_circuits=known.open_circuits + use.open_circuits,
        )
    return tuple(found.values())
