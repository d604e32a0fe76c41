"""The composition root: settings in, a serving fleet out."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import structlog

from services.access.store import knows, open_access, rules_of
from services.auth import Authenticator
from services.certificates import server_tls
from services.extensions import context_opener
from services.gateway.main import open_gateway
from services.grpc_server import Service, serve_grpc, service_of
from services.orchestrator.fleet_status import CouncilCalls, FleetStatuses
from services.orchestrator.intake import PLANNING_BUCKET, PLANNING_KEPT_SECONDS, open_intake
from services.orchestrator.metrics import Metrics, fleet_metrics
from services.orchestrator.planning import open_plan_service
from services.orchestrator.servicer import OrchestratorServicer
from services.orchestrator.task_context import TaskContexts
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.extensions import load_parts
from swe_ai_fleet.orchestrator.derivations import Derivations, PlanningEvents
from swe_ai_fleet.runtime.audit_keys import open_audit_keys, withheld
from swe_ai_fleet.runtime.channels import ChannelTls, card_entry, channel_tls, own_address, target
from swe_ai_fleet.runtime.equipment import council_models
from swe_ai_fleet.runtime.local_ray import ray_started, ray_watched
from swe_ai_fleet.runtime.nats_server import State, open_state
from swe_ai_fleet.runtime.private_files import kept_token, write_private
from swe_ai_fleet.runtime.stack import Stack, open_stack
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings, unknown_names
from swe_ai_fleet.telemetry import configure_logging, open_telemetry

_TOLD_SECONDS = 0.05
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """Where a fleet answers, and the tokens it asks for."""

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
    """Tells of each phase of a start how long it took."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._since = time.monotonic()

    def done(self, name: str) -> AbstractAsyncContextManager[None]:
        """Said as a context among those that are opened one after the other."""
        began, self._since = self._since, time.monotonic()
        if self._since - began >= _TOLD_SECONDS:
            self._tell(f"{name}: {self._since - began:.1f} s")
        return nullcontext()


@asynccontextmanager
async def open_fleet(settings: Settings, tell: Callable[[str], None] = lambda _: None) -> AsyncGenerator[RunningFleet]:
    """Start everything and serve until the context ends; `tell` hears of each phase of the start and its seconds.

    The addresses and tokens stand in `<home>/fleet.json`, readable by the owner only, as long as it lasts.
    """
    if settings.sandbox == "none" and not settings.loopback:
        raise PreconditionFailed(
            "without a sandbox only loopback may be served", field="sandbox", hint="set FLEET_SANDBOX=auto"
        )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = kept_token(settings.home / "token")
    access = await open_access(settings, token)
    mask, keys = secret_mask(settings), await asyncio.to_thread(open_audit_keys, settings)
    settings = withheld(settings)
    phases = _Phases(tell)
    async with (
        open_telemetry(settings, service="fleet-orchestrator", mask=mask) as telemetry,
        open_state(settings, name="orchestrator") as state,
        phases.done("NATS"),
        ray_started(state.settings),
        phases.done("Ray"),
        _with_context(state, token, access) as state,
        open_stack(state, rules_of(access), signer=keys.signing) as stack,
        fleet_metrics(telemetry, stack),
        Derivations(fleet=stack.executions.fleet, log=stack.log, workspaces=stack.workspaces) as derivations,
    ):
        planning = PlanningEvents(
            executions=stack.executions,
            derivations=derivations,
            store=await stack.log.bucket(PLANNING_BUCKET, ttl_seconds=PLANNING_KEPT_SECONDS),
        )
        councils = CouncilCalls(
            store=stack.councils, states=stack.executions.projection.unfinished, models=council_models(stack.settings)
        )
        servicer = OrchestratorServicer(
            executions=stack.executions,
            blobs=stack.log,
            log=stack.log,
            components=stack.components,
            watch_live=stack.log.watch_live,
            councils=councils,
            uploads=Uploads(
                workspaces=stack.workspaces,
                blobs=stack.log,
                max_bytes=stack.settings.upload_max_bytes,
                check_room=stack.executions.check_storage,
            ),
            metrics=Metrics(meter=stack.meter, councils=councils.counts),
            fleet=FleetStatuses(executions=stack.executions, view=stack.view, drains=stack.drains),
            derivations=derivations,
            planning=planning,
            erasures=stack.erasures,
            audit_keys=keys.public,
            contexts=TaskContexts(source=stack.context, executions=stack.executions, workspaces=stack.workspaces)
            if stack.context
            else None,
        )
        async with (
            open_plan_service(stack) as plans,
            open_services(stack) as others,
            serve_grpc(
                [service_of(servicer), plans, *others],
                settings.listen,
                access,
                stack.ready,
                tls=server_tls(settings),
                probe_listen=settings.probe_listen,
            ) as address,
            open_intake(stack.log, stack.executions, planning, known=partial(knows, access)),
            _with_gateway(stack, address, token, access) as http,
            phases.done("services"),
        ):
            running = RunningFleet(
                address=address,
                token=token,
                nats_url=stack.settings.nats_url,
                nats_token=stack.settings.nats_token,
                context=target(stack.settings.context_url),
                context_token=stack.settings.context_token,
                http=http,
                metrics=telemetry.metrics_url,
                tls=channel_tls(settings, own_address(settings, address)),
            )
            card = settings.home / "fleet.json"
            write_private(card, json.dumps(_card(running)))
            # What a start leaves stays: no collection need look at it.
            gc.freeze()
            try:
                yield running
            finally:
                gc.unfreeze()
                card.unlink(missing_ok=True)


@asynccontextmanager
async def open_services(stack: Stack) -> AsyncGenerator[Sequence[Service]]:
    """The services of all extensions, until the context ends."""
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(open_service(stack)) for open_service in load_parts("services")]


@asynccontextmanager
async def _with_context(state: State, token: str, access: Authenticator) -> AsyncGenerator[State]:
    """The state with a context service in its settings: the one they name, or one beside the orchestrator.

    Without the extension that serves it there is none.
    """
    open_context = context_opener()
    if state.settings.context_url or open_context is None:
        yield state
        return
    # The orchestrator's own probes are what this process is asked by.
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
async def _with_gateway(stack: Stack, address: str, token: str, access: Authenticator) -> AsyncGenerator[str]:
    """The gateway's base URL; empty where settings want none."""
    settings = stack.settings.model_copy(
        update={
            "orchestrator_url": own_address(stack.settings, address),
            "orchestrator_token": token,
            "http_listen": stack.settings.http_listen_beside_models,
        }
    )
    if not settings.http_address:
        yield ""
        return
    async with open_gateway(settings, stack.log, token=token, ready=stack.ready, authenticator=access) as url:
        yield url


async def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    configure_logging(settings.log_level, settings.log_format, mask=secret_mask(settings))
    for text in unknown_names(os.environ):
        _log.warning("settings.unknown_name", told=text)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with open_fleet(settings):
        # Only now: Ray takes SIGTERM for itself when it starts.
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
        # One that settings name has a token of its own, which whoever asks it has from there too.
        "context": running.context if running.context_token == running.token else "",
        "http": running.http,
        "metrics": running.metrics,
        "tls": card_entry(running.tls),
        "pid": os.getpid(),
    }


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
