"""The fleet's limits on calls to models, kept by one Ray actor for all hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import ray
from ray.exceptions import RayError

from swe_ai_fleet.adapters.model_pool.ledger import CallQuota, Demand, Grant, MemoryLedger
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Unavailable

ACTOR_NAME = "model-admission"
_ANSWER_SECONDS = 5.0
# The actor needs a second to start, on a busy machine several.
_FIRST_ANSWER_SECONDS = 30.0


class AdmissionLedger:
    """The actor: a `MemoryLedger` for all hosts. Its only state are leases, which expire."""

    def __init__(self) -> None:
        self._ledger = MemoryLedger()

    async def renew(self, demand: bytes, quota: bytes) -> bytes:
        """Replace a host's lease; `Demand`, `CallQuota` and `Grant` cross as JSON."""
        return to_json(await self._ledger.renew(from_json(Demand, demand), from_json(CallQuota, quota)))


class RayLedger:
    """A `Ledger` over the fleet's one admission actor, which the first process that needs it creates.

    The actor is found by its name in the namespace, belongs to no host and needs no CPU. If it died, another one is
    made, and hosts report the leases they hold.
    """

    def __init__(self) -> None:
        self._actor: Any = None
        self._answered = False

    async def renew(self, demand: Demand, quota: CallQuota) -> Grant:
        """Renew a lease. Raises Unavailable without an answer; the next call finds or makes another actor."""
        try:
            if self._actor is None:
                # Finding the actor is a blocking call to the cluster's head.
                self._actor = await asyncio.to_thread(_find_or_make)
            async with asyncio.timeout(_ANSWER_SECONDS if self._answered else _FIRST_ANSWER_SECONDS):
                answer: bytes = await self._actor.renew.remote(to_json(demand), to_json(quota))
        except (RayError, TimeoutError, ValueError, ConnectionError) as error:
            self._actor, self._answered = None, False
            raise Unavailable(f"the admission actor does not answer: {type(error).__name__}") from error
        self._answered = True
        return from_json(Grant, answer)


def _find_or_make() -> Any:
    remote = cast("Callable[[type], Any]", ray.remote)
    return (
        remote(AdmissionLedger)
        .options(name=ACTOR_NAME, get_if_exists=True, lifetime="detached", num_cpus=0, max_restarts=0)
        .remote()
    )
