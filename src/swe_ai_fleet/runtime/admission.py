"""The fleet's limits on calls to models, as settings have them."""

from __future__ import annotations

import sys
from typing import Any

from swe_ai_fleet.adapters.model_pool import LeasedAdmission, MemoryLedger, Quota
from swe_ai_fleet.adapters.model_pool.admission import Demand, Grant, Ledger
from swe_ai_fleet.settings import Settings


def model_admission(settings: Settings) -> LeasedAdmission | None:
    """What holds this process to the fleet's limits; None where settings have none."""
    quota = Quota(max_in_flight=settings.model_max_in_flight, tokens_per_minute=settings.model_tokens_per_minute)
    return LeasedAdmission(SharedLedger(), quota) if quota != Quota() else None


class SharedLedger:
    """The fleet's ledger where this process is part of a Ray cluster, else one of its own.

    Which it is shows with the first call: a server opens its model before it joins its cluster.
    """

    def __init__(self) -> None:
        self._ledger: Ledger | None = None

    async def renew(self, demand: Demand, quota: Quota) -> Grant:
        """Ask whichever it is. Raises Unavailable as that does."""
        if self._ledger is None:
            self._ledger = _ray_ledger() or MemoryLedger()
        return await self._ledger.renew(demand, quota)


def _ray_ledger() -> Ledger | None:
    # Who has not imported Ray is no part of a cluster, and must not pay for finding out.
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    from swe_ai_fleet.runtime.ray_jobs.admission import RayLedger

    return RayLedger()
