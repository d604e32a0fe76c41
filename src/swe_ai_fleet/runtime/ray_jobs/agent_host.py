"""The pooled, warm actor that runs many agents as tasks of one event loop."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.assignment import ASSIGNMENT_TYPES, AssignmentKind
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.node_load import NodeProbe, host_report, ray_node
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.sandbox import prepare_for_processes
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import Telemetry, configure_logging, open_telemetry

if TYPE_CHECKING:
    from swe_ai_fleet.runtime.agent_worker import AgentWorker


class AgentHost:
    """Runs the assignments of one tenant. Values cross the actor's boundary as JSON, faults as `FleetError`s.

    Args:
        settings: The fleet's settings as JSON, NATS address included.
    """

    def __init__(self, settings: str, name: str) -> None:
        prepare_for_processes()
        # Imported modules are permanent, so the garbage collector need not scan them, now or later.
        gc.disable()
        from swe_ai_fleet.runtime.agent_worker import open_worker

        gc.freeze()
        gc.enable()
        self._open_worker = open_worker
        self._settings = Settings.model_validate_json(settings)
        self._mask = secret_mask(self._settings)
        configure_logging(self._settings.log_level, self._settings.log_format, mask=self._mask)
        self._name = name
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._telemetry = Telemetry()
        self._worker: AgentWorker | None = None
        self._probe: NodeProbe | None = None

    async def ready(self, login: str = "") -> int:
        """Open the worker once, with a login to NATS (empty: that of the settings); returns the process id."""
        await self._open(login)
        return os.getpid()

    async def run_assignment(self, kind: str, assignment: bytes, login: str = "") -> bytes:
        """Run an assignment; returns its result. Cancelling the call ends the run and its processes."""
        worker, parsed = await self._open(login), from_json(ASSIGNMENT_TYPES[AssignmentKind(kind)], assignment)
        with self._telemetry.continuing(parsed.task.traceparent):
            return to_json(await worker.run(parsed))

    async def measure(self) -> bytes:
        """A `HostReport`: the load of this process and its machine, and its running calls at model servers."""
        if self._probe is None:
            self._probe = NodeProbe(ray_node())
        models: Mapping[str, ChatModel] = self._worker.models if self._worker is not None else {}
        return to_json(await host_report(self._probe, models))

    async def settle(self) -> None:
        """Wait until the clones of ended runs are removed."""
        if self._worker is not None:
            await self._worker.settled()

    async def close(self) -> None:
        """End running assignments and close connections."""
        await self._stack.aclose()

    async def _open(self, login: str) -> AgentWorker:
        async with self._opening:
            if self._worker is None:
                async with AsyncExitStack() as opening:
                    telemetry = open_telemetry(
                        self._settings, service="fleet-agent-host", serves=False, mask=self._mask
                    )
                    self._telemetry = await opening.enter_async_context(telemetry)
                    settings = self._settings.model_copy(update={"nats_login": login}) if login else self._settings
                    self._worker = await opening.enter_async_context(self._open_worker(settings, host=self._name))
                    self._stack = opening.pop_all()
        return self._worker
