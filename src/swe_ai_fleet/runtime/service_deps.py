"""The service dependencies from settings: what the gRPC services of one orchestrator process share.

NATS, Ray, the fleet, executions; beside `RunDeps` (a run) and `ExecutionDeps` (an execution).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.model_pool import ModelPool
from swe_ai_fleet.domain.access import TenantRules
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.fleet_status import Component, ComponentState, StorageStatus
from swe_ai_fleet.domain.review import VERIFIER_PROFILE
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.following import in_background
from swe_ai_fleet.orchestrator.council_store import CouncilStore
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET, TEST_RUNS_BYTES, TEST_RUNS_KEPT_SECONDS
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from swe_ai_fleet.orchestrator.executions import Executions, Room
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.quotas import Quotas, Rules, StorageUsage, no_rules
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET, RECIPES_BYTES, RECIPES_KEPT_SECONDS, Recipes
from swe_ai_fleet.ports import Fleet, HeadSigner
from swe_ai_fleet.runtime.erasure import Erasures, NodeCaches
from swe_ai_fleet.runtime.factories import DAY_SECONDS, housekeeping, open_model, workspace_provider
from swe_ai_fleet.runtime.fleet_view import LogUsage, Measurable, MeasuredFleetView, open_fleet_view
from swe_ai_fleet.runtime.host_logins import open_host_logins
from swe_ai_fleet.runtime.knowledge import ContextClient, open_context_client, required
from swe_ai_fleet.runtime.nats_server import State
from swe_ai_fleet.runtime.ray_fleet import open_ray_fleet
from swe_ai_fleet.runtime.replicas import Drains, LeaseKeeper, drained, open_drains, open_leases
from swe_ai_fleet.runtime.run_deps import COUNCILS_BUCKET, council_store, model_prices, profile_settings
from swe_ai_fleet.runtime.tool_services import tool_access, with_isolation_level
from swe_ai_fleet.sandbox import prepare_for_processes
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.snapshots import EXECUTION_SNAPSHOTS
from swe_ai_fleet.telemetry import own_telemetry
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.definition import ToolFailure

_PROBE_SECONDS = 10.0
_log = structlog.get_logger()


class AgentFleet(Fleet, Measurable, NodeCaches, Protocol):
    """Runs an orchestrator's agents and checks: hosts on Ray, or an extension's replacement."""

    def component(self) -> Component:
        """The state of Ray (or why there is none) and the number of running calls."""
        ...

    async def warm(self) -> None:
        """Prepare for the first task. Never raises."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServiceDeps:
    """What the services of an orchestrator process share. `settings` have the actual addresses."""

    settings: Settings
    executions: Executions
    councils: CouncilStore
    log: JetStream
    fleet: AgentFleet
    workspaces: GitWorkspaceProvider
    model: ModelPool
    view: MeasuredFleetView
    meter: Meter
    storage: StorageUsage
    leases: LeaseKeeper
    erasures: Erasures
    drains: Drains
    context: ContextClient | None = None

    async def ready(self) -> bool:
        """Whether NATS works; a restarting model must not make watching and results unavailable."""
        return self.leases.fresh or (await self.log.ping()).ok

    async def components(self) -> tuple[Component, ...]:
        """The state of NATS, Ray, the model server, the context service if there is one, and the queue."""
        knowledge = (_context(self.context),) if self.context is not None else ()
        nats, *others = await asyncio.gather(self._nats(), self._model(), *knowledge)
        return (nats, self.fleet.component(), *others, self._queue())

    def _queue(self) -> Component:
        load = self.executions.load()
        replicas = ", ".join(load.replicas) or "none"
        message = f"{load.queued} waiting, {load.driven} running here; orchestrators: {replicas}"
        full = load.queued >= load.room.queued or not load.replicas
        return Component(name="queue", state=ComponentState.DEGRADED if full else ComponentState.UP, message=message)

    async def _nats(self) -> Component:
        ping = await self.log.ping()
        state = ComponentState.UP if ping.ok else ComponentState.DOWN
        return Component(name="nats", state=state, message=ping.error, version=ping.version, latency_ms=ping.latency_ms)

    async def _model(self) -> Component:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self.model.ping()
                probed = await self.model.probe()
        except (FleetError, TimeoutError) as error:
            message = str(error) or f"no answer within {_PROBE_SECONDS:g} seconds"
            return Component(name="model", state=ComponentState.DOWN, message=message)
        summary = self.model.status().summary if len(self.model.status().endpoints) > 1 else ""
        return Component(
            name="model",
            state=ComponentState.UP,
            message="; ".join(part for part in (probed.model, summary) if part),
            version=probed.server,
            latency_ms=(time.monotonic() - asked_at) * 1000,
        )


async def _context(service: ContextClient) -> Component:
    asked_at = time.monotonic()
    try:
        await service.ping()
    except FleetError as error:
        return Component(name="context", state=ComponentState.DOWN, message=str(error))
    latency_ms = (time.monotonic() - asked_at) * 1000
    return Component(name="context", state=ComponentState.UP, message=service.address, latency_ms=latency_ms)


@asynccontextmanager
async def open_service_deps(
    state: State, rules: Rules | None = None, *, signer: HeadSigner | None = None
) -> AsyncGenerator[ServiceDeps]:
    """Connect to the services in the settings and drive executions, until the context ends. Ray must be started.

    `rules` are each tenant's rules; None: only those of the fleet. `signer` signs the heads of agents' audit chains;
    None: they are not signed.

    Raises PreconditionFailed, Unavailable and InvalidRequest naming the setting at fault.
    """
    prepare_for_processes()
    if (credentials := state.settings.git_credentials) is not None and not credentials.is_dir():
        hint = "it must have a directory for each tenant; see docs/tenants.md"
        raise InvalidRequest(f"{credentials} is not a directory", field="git_credentials", hint=hint)
    open_jobs = _executor() if state.settings.executor == "kubernetes" else None
    settings, log, telemetry = state.settings, state.log, own_telemetry()
    isolated = await with_isolation_level(settings)
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(open_context_client(settings))
        model = await stack.enter_async_context(open_model(settings))
        workspaces = workspace_provider(isolated, log)
        await stack.enter_async_context(housekeeping(workspaces, settings))
        admit = state.server.admit if state.server is not None else None
        logins = await stack.enter_async_context(open_host_logins(settings, log, admit=admit))
        replicas = await stack.enter_async_context(open_leases(settings, anew=state.server is not None))
        drains = await stack.enter_async_context(open_drains(log))
        fleet = await stack.enter_async_context(
            open_jobs(log) if open_jobs else open_ray_fleet(settings, logins, drains=drains, me=replicas.me)
        )
        # In the background, since a task's first steps need no host.
        await stack.enter_async_context(in_background(fleet.warm(), name="first host"))
        recipes = await log.bucket(RECIPES_BUCKET, ttl_seconds=RECIPES_KEPT_SECONDS, max_bytes=RECIPES_BYTES)
        outcomes = None
        if VERIFIER_PROFILE in settings.model_profiles:
            knowledge = required("model_profiles", f"name no profile {VERIFIER_PROFILE}, or install the extension")
            outcomes = await stack.enter_async_context(knowledge.outcomes(log))
        deps = ExecutionDeps(
            log=telemetry.observed(log),
            blobs=log,
            results=telemetry.results(log),
            fleet=telemetry.fleet(fleet),
            workspaces=telemetry.repositories(workspaces),
            model=model,
            owner=replicas.me,
            context=context,
            memories=context,
            approval_timeout_seconds=settings.approval_timeout_seconds,
            recipes=Recipes(recipes),
            signer=signer,
            outcomes=outcomes,
            workflows=next(iter(load_parts("workflows")), None),
        )
        access = tool_access(settings)
        councils = council_store(settings, await log.bucket(COUNCILS_BUCKET), rules)
        snapshots = await log.snapshots(EXECUTION_SNAPSHOTS)
        meter = await stack.enter_async_context(
            Meter(lambda start: log.everything(from_sequence=start, follow=True), snapshots=snapshots)
        )
        await log.bucket(TEST_RUNS_BUCKET, ttl_seconds=TEST_RUNS_KEPT_SECONDS, max_bytes=TEST_RUNS_BYTES)
        storage = await stack.enter_async_context(
            StorageUsage(
                {"events": log.sizes("AGENT_EVENTS"), "results": log.sizes("AGENT_RESULTS"), "blobs": log.sizes()},
                kept_seconds=settings.event_days * DAY_SECONDS,
                snapshots=snapshots,
            )
        )

        def rules_of(tenant: str) -> TenantRules:
            tenant_rules = (rules or no_rules)(tenant)
            return replace(
                tenant_rules, default_repository=tenant_rules.default_repository or settings.default_repository
            )

        def stored() -> tuple[StorageStatus, ...]:
            return tuple(
                StorageStatus(name=name, messages=0, bytes=size, max_bytes=rules_of(name).quota.storage_bytes)
                for name, size in storage.by_tenant().items()
            )

        log_usage = LogUsage(log)
        executions = await stack.enter_async_context(
            Executions(
                deps,
                replicas=replicas,
                room=Room(
                    agents=settings.max_agents,
                    executions=settings.max_executions,
                    queued=settings.max_queued,
                    queued_per_caller=settings.max_queued_per_caller,
                ),
                access=access,
                profiles=profile_settings(settings),
                priced=bool(model_prices(settings)),
                councils=councils,
                quotas=Quotas(rules=rules_of, spent=meter.spent_today, stored=storage.bytes_of, kept=log_usage.storage),
                kept_seconds=settings.event_days * DAY_SECONDS,
                snapshots=snapshots,
            )
        )
        erasures = Erasures(executions=executions, log=log, nodes=(workspaces, fleet))
        retention = erasures.keep(lambda: min(replicas.alive(), default="") == replicas.me)
        await stack.enter_async_context(in_background(retention, name="retention"))
        await stack.enter_async_context(
            drained(drains, executions.dispatcher, replicas, seconds=settings.drain_seconds)
        )
        await _reap(access, executions)
        view = await stack.enter_async_context(
            open_fleet_view(
                settings, replicas=replicas, fleet=fleet, log=log, log_usage=log_usage, model=model, stored=stored
            )
        )
        yield ServiceDeps(
            settings=settings,
            executions=executions,
            councils=councils,
            log=log,
            fleet=fleet,
            workspaces=workspaces,
            model=model,
            view=view,
            meter=meter,
            storage=storage,
            leases=replicas,
            erasures=erasures,
            drains=drains,
            context=context,
        )


def _executor() -> Callable[[JetStream], AbstractAsyncContextManager[AgentFleet]]:
    """Opens the fleet of `FLEET_EXECUTOR=kubernetes`. Raises PreconditionFailed without that extension."""
    executors = load_parts("executor")
    if not executors:
        message = "this installation has no Kubernetes Jobs: its extension `kubernetes_jobs` was removed"
        raise PreconditionFailed(message, field="executor", hint="set FLEET_EXECUTOR=ray, or install the extension")
    return executors[0]


async def _reap(access: ToolAccess, executions: Executions) -> None:
    """Remove what tools of ended executions left behind, because the process of their agents was killed."""
    ended = executions.projection.over_ids()
    for pack in access.packs:
        try:
            removed = await pack.reap(ended)
        except ToolFailure as error:
            _log.warning("could not look for what ended executions left", reason=error.message)
            continue
        if removed:
            _log.info("removed what ended executions left", removed=removed)
