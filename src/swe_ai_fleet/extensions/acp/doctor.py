"""What `fleet doctor` finds of harnesses: each is started in the sandbox, with the model that it would have."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.cli.findings import DoctorFinding, broken, faulty, ok
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.extensions.acp.harness import harness_agents
from swe_ai_fleet.extensions.acp.model_gateway import ModelGateway
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access, with_isolation_level
from swe_ai_fleet.settings import Settings

_SECONDS = 200.0


async def examine(settings: Settings) -> list[DoctorFinding]:
    """A finding of each harness that settings name."""
    return await asyncio.gather(*(_harness(settings, name) for name in settings.harnesses))


async def _harness(settings: Settings, name: str) -> DoctorFinding:
    part, mend = f"harness: {name}", f"see FLEET_HARNESSES and docs/harnesses.md; seats name it as acp:{name}"
    try:
        settings = await with_isolation_level(settings)
        agents = harness_agents(settings, tool_access(settings))
        budget = Budget(Limits(max_iterations=1, timeout_seconds=_SECONDS))
        with tempfile.TemporaryDirectory(prefix="fleet-doctor-") as directory:
            async with (
                asyncio.timeout(_SECONDS),
                open_model(settings) as model,
                ModelGateway(model, budget, mask=secret_mask(settings)) as gateway,
            ):
                greeting = await agents.greeted(
                    name, Path(await asyncio.to_thread(os.path.realpath, directory)), gateway.socket
                )
    except (FleetError, TimeoutError) as error:
        return faulty(part, error, mend, seconds=_SECONDS)
    version = agents.harnesses[name].version
    if version and version not in greeting:
        return broken(
            part, f"it calls itself {greeting or 'nothing'}, and settings say {version}", mend, version=version
        )
    return ok(part, f"starts in the sandbox and calls itself {greeting or 'nothing'}", version=version)
