"""One actor of the fleet on Ray: who it says it is, how it does, and how it ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import ray
from ray.exceptions import RayError

from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.fleet_status import HostReport
from swe_ai_fleet.domain.job import Release
from swe_ai_fleet.domain.text import plain_line

_REPORT_SECONDS = 2.0
_SETTLE_SECONDS = 5.0


@dataclass(eq=False, kw_only=True)
class RayHost:
    """One actor of the pool, how many calls it has under way, the tenant it serves, and its login.

    `node_id` and `release` are what it said of itself; nothing before it has been asked.
    """

    name: str
    actor: Any
    tenant: str
    busy: int = 0
    started_at: float = field(default_factory=time.time)
    idle_since: float = field(default_factory=time.monotonic)
    login: str = ""
    node_id: str = ""
    release: Release | None = None
    granting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def greet(self) -> Release:
        """Ask on which node it is, and of which release. Raises RayError.

        A host of any version can be asked: the question goes there as code, since an older one has no method for it.
        """

        def hello(_: object) -> tuple[str, str]:
            import ray

            try:
                from swe_ai_fleet.domain.job import this_release
            except ImportError:
                return ray.get_runtime_context().get_node_id(), ""
            return ray.get_runtime_context().get_node_id(), str(this_release())

        node_id, release = await self.actor.__ray_call__.remote(hello)
        self.node_id, self.release = plain_line(node_id, 64), Release.of(plain_line(release, 80))
        return self.release

    async def report(self) -> HostReport | None:
        """What it says of itself; None where it does not say anything within 2 seconds."""
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                return from_json(HostReport, await self.actor.measure.remote())
        except (TimeoutError, RayError, ValueError):
            return None

    def kill(self) -> None:
        """End it and what runs on it, at once."""
        cast("Any", ray).kill(self.actor, no_restart=True)

    async def settle(self) -> None:
        """Wait until the clones of the runs that ended on it are gone, for at most 5 seconds."""
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self.actor.settle.remote()
