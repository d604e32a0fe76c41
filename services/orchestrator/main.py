"""The composition root: starts and serves a whole fleet from its settings."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import structlog

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.access.store import knows, open_access, rules_of
from services.auth import Authenticator
from services.certificates import server_tls
from services.context import context_opener
from services.errors import parsed_message
from services.gateway.main import open_gateway
from services.grpc_server import Service, serve_grpc, service_of
from services.orchestrator.fleet_status import CouncilCalls, FleetStatuses
from services.orchestrator.metrics import Metrics, fleet_metrics
from services.orchestrator.planning import planning_event
from services.orchestrator.requests import not_for_tasks, submitted_task
from services.orchestrator.servicer import OrchestratorServicer
from services.orchestrator.task_context import TaskContexts
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.adapters.jetstream import JetStream, PermanentError, WorkMessage, WorkQueue
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import DEFAULT_TENANT, MAX_PRIORITY, Task
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.following import in_background
from swe_ai_fleet.orchestrator.derivations import Derivations, PlanningEvents
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.audit_keys import keyless, open_audit_keys
from swe_ai_fleet.runtime.channels import ChannelTls, card_entry, channel_tls, own_address, target
from swe_ai_fleet.runtime.local_ray import ray_started, ray_watched
from swe_ai_fleet.runtime.nats_server import State, open_state
from swe_ai_fleet.runtime.private_files import stored_token, write_private
from swe_ai_fleet.runtime.run_deps import council_models
from swe_ai_fleet.runtime.service_deps import ServiceDeps, open_service_deps
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings, unknown_names
from swe_ai_fleet.telemetry import configure_logging, open_telemetry, own_telemetry

TASKS = WorkQueue(
    stream="AGENT_COMMANDS", subjects=("agent.cmd.execute", "agent.cmd.execute.>"), consumer="orchestrator-tasks"
)
PLANS = WorkQueue(stream="AGENT_PLANS", subjects=("agent.plans", "agent.plans.>"), consumer="orchestrator-plans")
PRIORITIES = {"high": 8, "normal": 4, "low": 0} | {str(number): number for number in range(MAX_PRIORITY + 1)}
"""The values of `<priority>` in `agent.cmd.execute.<tenant>.<priority>`."""
PLANNING_BUCKET = "agent-planning"
"""The bucket of planning events, which are kept as long as executions by default."""
PLANNING_KEPT_SECONDS = 90 * 86_400.0
CALLER = "nats"
"""The caller of tasks from NATS."""

_PERMANENT = (InvalidRequest, AlreadyExists)

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_intake(
    log: JetStream,
    executions: Executions,
    planning: PlanningEvents,
    *,
    tasks: WorkQueue = TASKS,
    plans: WorkQueue = PLANS,
    known: Callable[[str], bool] = lambda tenant: tenant == DEFAULT_TENANT,
) -> AsyncGenerator[None]:
    """Take work from NATS until the context ends; unfinished messages then go to other replicas."""
    telemetry = own_telemetry()

    async def execute(work: WorkMessage) -> None:
        with telemetry.receiving("agent.cmd.execute", work.headers):
            await executions.submit(task_of(work, known))

    async def plan(work: WorkMessage) -> None:
        with telemetry.receiving("agent.plans", work.headers):
            event = planning_event(parsed_message(work.data, pb.ProcessPlanningEventRequest()))
            tenant, _ = _tenant(work, "agent.plans", known)
            # No caller waits for the subtasks of a dispatched event.
            await planning.process(replace(event, tenant=tenant, caller=""), timeout=0)

    fault = "nothing more is taken from a queue"
    async with (
        in_background(log.consume(tasks, _with_permanent_errors(execute)), name=tasks.consumer, fault=fault),
        in_background(log.consume(plans, _with_permanent_errors(plan)), name=plans.consumer, fault=fault),
    ):
        yield


def task_of(work: WorkMessage, known: Callable[[str], bool] = lambda tenant: tenant == DEFAULT_TENANT) -> Task:
    """The task in a message: the JSON of a SubmitTaskRequest; its subject may name a tenant and a priority.

    Raises InvalidRequest, naming the field.
    """
    request = parsed_message(work.data, pb.SubmitTaskRequest())
    tenant, rest = _tenant(work, "agent.cmd.execute", known)
    if len(rest) > 1 or (rest and rest[0] not in PRIORITIES):
        raise not_for_tasks(work.subject)
    chosen = request.WhichOneof("task")
    if chosen and rest and not getattr(request, chosen).priority:
        getattr(request, chosen).priority = PRIORITIES[rest[0]]
    return replace(submitted_task(request), tenant=tenant, caller=CALLER)


def _tenant(work: WorkMessage, prefix: str, known: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The tenant in a message's subject, and the parts after it. Raises InvalidRequest for an unknown tenant."""
    tenant, *rest = work.subject.removeprefix(prefix).split(".")[1:] or [DEFAULT_TENANT]
    if not known(tenant):
        raise InvalidRequest(f"there is no tenant {tenant[:64]!r} here", field="subject", hint="see the access file")
    return tenant, rest


def _with_permanent_errors(
    handler: Callable[[WorkMessage], Awaitable[None]],
) -> Callable[[WorkMessage], Awaitable[None]]:
    """The handler, raising PermanentError for errors that a redelivery cannot fix."""

    async def handle(work: WorkMessage) -> None:
        try:
            await handler(work)
        except _PERMANENT as fault:
            where = f"{fault.field}: " if fault.field else ""
            raise PermanentError(f"{where}{fault}") from fault

    return handle


_SHORTEST_REPORTED_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """The addresses of a running fleet, and their tokens."""

    address: str
    token: str
    nats_url: str
    nats_token: str
    context: str
    context_token: str
    http: str = ""
    metrics: str = ""
    tls: ChannelTls | None = None


class _Phases:
    """Reports how long each phase of a start took."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._since = time.monotonic()

    def done(self, name: str) -> AbstractAsyncContextManager[None]:
        """Report the phase that ends here. Returns an empty context, to stand in a list of contexts."""
        began, self._since = self._since, time.monotonic()
        if self._since - began >= _SHORTEST_REPORTED_SECONDS:
            self._report(f"{name}: {self._since - began:.1f} s")
        return nullcontext()


@asynccontextmanager
async def open_fleet(
    settings: Settings, report: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[RunningFleet]:
    """Start everything and serve until the context ends; `report` gets each phase of the start with its seconds.

    While it serves, `<home>/fleet.json`, which only the owner can read, has the addresses and tokens.
    """
    if settings.sandbox == "none" and not settings.loopback:
        raise PreconditionFailed(
            "without a sandbox only loopback may be served", field="sandbox", hint="set FLEET_SANDBOX=auto"
        )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = stored_token(settings.home / "token")
    access = await open_access(settings, token)
    mask, keys = secret_mask(settings), await asyncio.to_thread(open_audit_keys, settings)
    settings = keyless(settings)
    phases = _Phases(report)
    async with (
        open_telemetry(settings, service="fleet-orchestrator", mask=mask) as telemetry,
        open_state(settings, name="orchestrator") as state,
        phases.done("NATS"),
        ray_started(state.settings),
        phases.done("Ray"),
        _with_context(state, token, access) as state,
        open_service_deps(state, rules_of(access), signer=keys.signing) as deps,
        fleet_metrics(telemetry, deps),
        Derivations(fleet=deps.executions.fleet, log=deps.log, workspaces=deps.workspaces) as derivations,
    ):
        planning = PlanningEvents(
            executions=deps.executions,
            derivations=derivations,
            store=await deps.log.bucket(PLANNING_BUCKET, ttl_seconds=PLANNING_KEPT_SECONDS),
        )
        councils = CouncilCalls(
            store=deps.councils, states=deps.executions.projection.unfinished, models=council_models(deps.settings)
        )
        servicer = OrchestratorServicer(
            executions=deps.executions,
            blobs=deps.log,
            log=deps.log,
            components=deps.components,
            watch_live=deps.log.watch_live,
            councils=councils,
            uploads=Uploads(
                workspaces=deps.workspaces,
                blobs=deps.log,
                max_bytes=deps.settings.upload_max_bytes,
                check_room=deps.executions.check_storage,
            ),
            metrics=Metrics(meter=deps.meter, councils=councils.counts),
            fleet=FleetStatuses(executions=deps.executions, view=deps.view, drains=deps.drains),
            derivations=derivations,
            planning=planning,
            erasures=deps.erasures,
            audit_keys=keys.public,
            contexts=TaskContexts(source=deps.context, executions=deps.executions, workspaces=deps.workspaces)
            if deps.context
            else None,
        )
        async with (
            open_services(deps) as others,
            serve_grpc(
                [service_of(servicer), *others],
                settings.listen,
                access,
                deps.ready,
                tls=server_tls(settings),
                probe_listen=settings.probe_listen,
            ) as address,
            open_intake(deps.log, deps.executions, planning, known=partial(knows, access)),
            _with_gateway(deps, address, token, access) as http,
            phases.done("services"),
        ):
            running = RunningFleet(
                address=address,
                token=token,
                nats_url=deps.settings.nats_url,
                nats_token=deps.settings.nats_token,
                context=target(deps.settings.context_url),
                context_token=deps.settings.context_token,
                http=http,
                metrics=telemetry.metrics_url,
                tls=channel_tls(settings, own_address(settings, address)),
            )
            card = settings.home / "fleet.json"
            write_private(card, json.dumps(_card(running)))
            # The objects of the start live until the end, so the garbage collector need not look at them.
            gc.freeze()
            try:
                yield running
            finally:
                gc.unfreeze()
                card.unlink(missing_ok=True)


@asynccontextmanager
async def open_services(deps: ServiceDeps) -> AsyncGenerator[Sequence[Service]]:
    """The services of all extensions, until the context ends."""
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(open_service(deps)) for open_service in load_parts("services")]


@asynccontextmanager
async def _with_context(state: State, token: str, access: Authenticator) -> AsyncGenerator[State]:
    """The state with a context service in its settings: the configured one, or one in this process.

    Without the extension that implements it, the settings stay without one.
    """
    open_context = context_opener()
    if state.settings.context_url or open_context is None:
        yield state
        return
    # Only the orchestrator serves this process's probes.
    beside = state.settings.model_copy(update={"probe_listen": ""})
    async with open_context(beside, state.log, token=token, authenticator=access, rules=rules_of(access)) as context:
        yield replace(
            state,
            settings=state.settings.model_copy(
                update={
                    "context_url": own_address(state.settings, context.address),
                    "context_token": context.token,
                }
            ),
        )


@asynccontextmanager
async def _with_gateway(deps: ServiceDeps, address: str, token: str, access: Authenticator) -> AsyncGenerator[str]:
    """The base URL of a gateway in this process; empty if the settings turn it off."""
    settings = deps.settings.model_copy(
        update={
            "orchestrator_url": own_address(deps.settings, address),
            "orchestrator_token": token,
            "http_listen": deps.settings.http_listen_beside_models,
        }
    )
    if not settings.http_address:
        yield ""
        return
    async with open_gateway(settings, deps.log, token=token, ready=deps.ready, authenticator=access) as url:
        yield url


async def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
    for text in unknown_names(os.environ):
        _log.warning("settings.unknown_name", reason=text)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with open_fleet(settings):
        # After the start, because Ray installs its own handler of SIGTERM.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with ray_watched(settings, stop.set):
            await stop.wait()


def _card(running: RunningFleet) -> dict[str, object]:
    return {
        "address": running.address,
        "token": running.token,
        "nats_url": running.nats_url,
        "nats_token": running.nats_token,
        # A configured context service has its own token, which clients must get from its operator.
        "context": running.context if running.context_token == running.token else "",
        "http": running.http,
        "metrics": running.metrics,
        "tls": card_entry(running.tls),
        "pid": os.getpid(),
    }


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
