"""What this process has under way at model servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swe_ai_fleet.adapters.model_pool import ModelPool
from swe_ai_fleet.domain.fleet_status import EndpointUse
from swe_ai_fleet.ports import ChatModel


def model_use(models: Mapping[str, ChatModel]) -> tuple[EndpointUse, ...]:
    """By model server, what the pools of all profiles have there."""
    pools = {id(model): model for model in models.values() if isinstance(model, ModelPool)}
    return added_up(
        EndpointUse(url=one.name, in_flight=one.in_flight, sessions=one.sessions, last_fault=one.last_fault)
        for pool in pools.values()
        for one in pool.status().endpoints
    )


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
        )
    return tuple(found.values())
