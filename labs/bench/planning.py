"""How long a person waits for an answer: a simple request with and without a model, and a complex one.

Every reply of the scripted model takes half a second; it was probed before, as in a service that runs.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.agent_run import RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning.plan_run import drive
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.message import SystemMessage, UserMessage
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.catalogue import ToolAccess, all_toolkits
from swe_ai_fleet.tools.pipeline import Pipeline
from tests.planning_requests import COMPLEX, FAST, FILES, SCRIPT, SIMPLE

LATENCY = 0.5
REPEATS = 3
LIMITS = Limits(max_iterations=5, max_tool_calls=20, timeout_seconds=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    model: OpenAIChatModel
    toolbox: Toolbox

    async def answer_ms(self, request: str) -> float:
        """From the request to its answer, in milliseconds; the median of a few."""
        return statistics.median([await self._once(request) for _ in range(REPEATS)])

    async def _once(self, request: str) -> float:
        began = time.perf_counter()
        parts = RunParts(
            model=self.model,
            toolbox=self.toolbox,
            history=History((SystemMessage(content="You are an agent."), UserMessage(content=request))),
            budget=Budget(LIMITS),
        )
        trajectory = await drive(PlanningMode.HYBRID, parts, task_text=request)
        if trajectory.stop_reason is not StopReason.FINAL_ANSWER:
            raise RuntimeError(f"{request}: {trajectory.error}")
        return 1000 * (time.perf_counter() - began)


async def planning_figures(directory: Path) -> dict[str, float]:
    """Milliseconds to the answer: `fast_query_ms` no model, `simple_query_ms` a plan, `complex_query_ms` 5 replies."""
    async with _service(directory) as service:
        figures = {
            "fast_query_ms": await service.answer_ms(FAST),
            "simple_query_ms": await service.answer_ms(SIMPLE),
            "complex_query_ms": await service.answer_ms(COMPLEX),
        }
    return {name: round(value, 1) for name, value in figures.items()}


@asynccontextmanager
async def _service(directory: Path) -> AsyncGenerator[_Service]:
    root = make_repository(directory / "clone", FILES)
    async with (
        ScriptedModelServer(SCRIPT, latency_seconds=LATENCY) as server,
        OpenAIChatModel(base_url=server.url) as model,
        open_workspace(root) as workspace,
    ):
        await model.probe()
        pipeline = Pipeline()
        yield _Service(model=model, toolbox=Toolbox(all_toolkits(workspace, pipeline, ToolAccess()), pipeline))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
        print(asyncio.run(planning_figures(Path(name))))
