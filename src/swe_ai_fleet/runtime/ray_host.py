"""One actor of the fleet on Ray: its release, its load, and its end."""

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
    """One actor of the pool: its tenant, its number of running calls, and its login.

    `node_id` and `release` are its own report; empty before `greet`.
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
        """Ask the host for its node and its release. Raises RayError.

        The question is sent as code, so that older hosts without a method for it can answer.
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
        """The host's load; None without an answer within 2 seconds."""
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                return from_json(HostReport, await self.actor.measure.remote())
        except (TimeoutError, RayError, ValueError):
            return None

    def kill(self) -> None:
        """End the host with its calls, at once."""
        cast("Any", ray).kill(self.actor, no_restart=True)

    async def settle(self) -> None:
        """Wait until the clones of its ended runs are removed, for at most 5 seconds."""
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self.actor.settle.remote()
