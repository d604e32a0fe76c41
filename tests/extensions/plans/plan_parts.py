"""Plan sessions in a world of sub-agents."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.task import DEFAULT_TENANT, TaskKind
from swe_ai_fleet.extensions.plans.drive import PlanDriver, TenantPlanner
from swe_ai_fleet.extensions.plans.session import PlanSession, PlanTools
from swe_ai_fleet.extensions.plans.sessions import PlanSessions
from swe_ai_fleet.extensions.plans.store import KeyValueSessions
from swe_ai_fleet.in_process import MemoryKeyValue, MemoryLog
from swe_ai_fleet.orchestrator.executions import Executions
from tests.scripted_fleet import execution_deps
from tests.sub_agent_world import World


async def plans_in(
    place: World,
    *,
    log: MemoryLog | None = None,
    memory: Any = None,
    me: str = "",
    alive: Callable[[], Collection[str]] | None = None,
    **more: Any,
) -> PlanSessions:
    """Plan sessions in a world, driven until it ends; `more` is the planner's."""

    @asynccontextmanager
    async def tools(session: PlanSession) -> AsyncGenerator[PlanTools]:
        yield PlanTools(workspace=place.workspace, pipeline=place.pipeline, toolkits=place.toolkits, memory=memory)

    more.setdefault("store", sessions_in_memory())
    more.setdefault("limits", Limits(max_iterations=5, max_tool_calls=20, timeout_seconds=60))
    planner = TenantPlanner(model=place.model, tools=tools, **more)
    deps = execution_deps(log, owner=me or f"process-{uuid.uuid4().hex}")
    replicas = SimpleNamespace(me=me, alive=alive) if alive is not None else None
    executions = await place.stack.enter_async_context(Executions(deps, replicas=replicas))
    await place.stack.enter_async_context(executions.driving(TaskKind.PLAN, PlanDriver(lambda _: planner)))
    return PlanSessions(executions, planner, tenant=DEFAULT_TENANT)


def sessions_in_memory() -> KeyValueSessions:
    """Where sessions are kept as long as a test lasts."""
    return KeyValueSessions(MemoryKeyValue(), MemoryKeyValue(), tenant=DEFAULT_TENANT)
