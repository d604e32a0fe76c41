"""The composition root of the context service: settings and a connection to NATS in, a serving service out.

All replicas share the bucket of memories; each has an index and an embedder of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from services.access.store import open_access, rules_of
from services.auth import Authenticator
from services.certificates import server_tls
from services.context.graph import GraphCalls
from services.context.memory import LearningCalls, MemoryCalls
from services.context.recorder import Recorder, open_recorder
from services.context.servicer import ContextServicer
from services.grpc_server import nats_metrics, serve_grpc, service_of
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.memory_index import open_memory_index
from swe_ai_fleet.context.gathering import ContextGatherer
from swe_ai_fleet.context.store import ContextStore
from swe_ai_fleet.domain.errors import InternalFault, Unavailable
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.learning.tracker import OUTCOMES_BUCKET, LearningTracker
from swe_ai_fleet.memory.admission import MemoryLimits
from swe_ai_fleet.memory.following import origin
from swe_ai_fleet.memory.shared import MEMORIES_BUCKET, SharedMemories
from swe_ai_fleet.orchestrator.quotas import Pieces, Quotas, Rules, StorageUsage
from swe_ai_fleet.ports import ContextSource, Memories, SecretMask
from swe_ai_fleet.runtime.channels import card_entry, channel_tls, own_address
from swe_ai_fleet.runtime.embeddings import configured_embedder
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import read_address
from swe_ai_fleet.runtime.private_files import kept_token, write_private
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.snapshots import CONTEXT_SNAPSHOTS
from swe_ai_fleet.telemetry import configure_logging, open_telemetry

CARD = "context.json"
_log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_memories(settings: Settings, log: JetStream, *, mask: SecretMask) -> AsyncGenerator[SharedMemories]:
    """The fleet's memories, until the context ends.

    Raises InvalidRequest naming a malformed setting, PreconditionFailed where the index cannot be used, Unavailable.
    """
    limits = MemoryLimits(per_namespace=settings.memory_limit, max_age_days=settings.memory_age_days)
    bucket = await log.bucket(MEMORIES_BUCKET)
    # An index follows one bucket: after NATS was recreated, so is the index.
    source = await origin(bucket)
    directory = settings.home / "memory" / source
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        index = await stack.enter_async_context(open_memory_index(settings.memory_store, directory, source=source))
        embedder = await stack.enter_async_context(configured_embedder(settings))
        yield await stack.enter_async_context(
            SharedMemories.open(bucket, index, mask=mask, embedder=embedder, limits=limits)
        )


@dataclass(frozen=True, kw_only=True)
class RunningContext:
    """A running context service: its address, its token, and its parts for callers in the same process.

    `ready` says whether it can do its work now.
    """

    address: str
    token: str
    ready: Callable[[], Awaitable[bool]]
    memories: Memories
    source: ContextSource
    store: ContextStore
    outcomes: LearningTracker


@asynccontextmanager
async def open_context(
    settings: Settings,
    log: JetStream,
    *,
    token: str,
    authenticator: Authenticator | None = None,
    rules: Rules | None = None,
) -> AsyncGenerator[RunningContext]:
    """Serve on `settings.context_address` and record ended executions until the context ends.

    Args:
        settings: Where to listen, the memory index, the budget of a context.
        log: The connection to NATS, its streams made.
        token: What callers must show, or with `authenticator` one of the tokens that it takes.
        authenticator: Authenticates callers; None: there is one token.
        rules: The rules of each tenant; None: there are none beyond those of the fleet.

    Raises:
        PreconditionFailed: The address cannot be bound, or the index of memories cannot be used.
        InvalidRequest: A setting is malformed.
        Unavailable: NATS does not answer.
    """
    mask = secret_mask(settings)
    async with AsyncExitStack() as stack:
        known, _ = await log.bucket(OUTCOMES_BUCKET), await log.bucket(MEMORIES_BUCKET)
        snapshots = await log.snapshots(CONTEXT_SNAPSHOTS, OUTCOMES_BUCKET, MEMORIES_BUCKET)
        store = await stack.enter_async_context(ContextStore(log.changes(), mask=mask, snapshots=snapshots))
        outcomes = await stack.enter_async_context(LearningTracker(known, mask=mask))
        memories = await stack.enter_async_context(open_memories(settings, log, mask=mask))
        source = ContextGatherer(store, memories, mask=mask, token_budget=settings.context_tokens)
        quotas = Quotas()
        if rules is not None:
            streams: dict[str, Pieces] = {
                "context": log.sizes("CONTEXT_CHANGES"),
                **{name: log.sizes(f"KV_{name}") for name in (MEMORIES_BUCKET, OUTCOMES_BUCKET)},
            }
            quotas = Quotas(
                rules=rules,
                stored=(await stack.enter_async_context(StorageUsage(streams, snapshots=snapshots))).bytes_of,
            )
        servicer = ContextServicer(
            graph=GraphCalls(store=store, source=source, log=log, mask=mask),
            memory=MemoryCalls(memories=memories, mask=mask),
            learning=LearningCalls(outcomes=outcomes),
            check_room=quotas.check_storage,
        )

        recorder = Recorder(log=log, store=store, outcomes=outcomes, memories=memories)
        recording: list[asyncio.Task[None]] = []

        async def ready() -> bool:
            # A bug that ended one of them is in the log; here it makes the service not ready.
            try:
                store.graph(DEFAULT_TENANT)
                outcomes.check()
                memories.check()
            except (Unavailable, InternalFault):
                return False
            return (await log.ping()).ok and not any(task.done() for task in recording)

        address = await stack.enter_async_context(
            serve_grpc(
                [service_of(servicer)],
                settings.context_address,
                authenticator or token,
                ready,
                setting="context_listen",
                tls=server_tls(settings),
                probe_listen=settings.probe_listen,
            )
        )
        recording.append(await stack.enter_async_context(open_recorder(recorder)))
        yield RunningContext(
            address=address,
            token=token,
            ready=ready,
            memories=memories,
            source=source,
            store=store,
            outcomes=outcomes,
        )


async def serve(settings: Settings) -> None:
    """Serve by itself until SIGINT or SIGTERM, beside the NATS server of the settings or the one that runs on the home.

    `<home>/context.json` has the address and the token while it runs, readable by the owner only.
    """
    mask = secret_mask(settings)
    configure_logging(settings.log_level, settings.log_format, mask=mask)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not settings.nats_url:
        nats = read_address(settings.home / "nats")
        settings = settings.model_copy(update={"nats_url": nats.url, "nats_token": nats.token})
    token = settings.context_token or kept_token(settings.home / "context-token")
    async with (
        open_telemetry(settings, service="fleet-context", mask=mask) as telemetry,
        connect_log(settings, name="context") as log,
        nats_metrics(telemetry, log),
    ):
        await log.ensure_streams()
        access = await open_access(settings, token)
        async with open_context(settings, log, token=token, authenticator=access, rules=rules_of(access)) as running:
            card = settings.home / CARD
            write_private(card, json.dumps(_card(settings, running)))
            _log.info("context.serving", address=running.address)
            try:
                await stop.wait()
            finally:
                card.unlink(missing_ok=True)


def _card(settings: Settings, running: RunningContext) -> dict[str, object]:
    tls = channel_tls(settings, own_address(settings, running.address))
    return {"address": running.address, "token": running.token, "pid": os.getpid(), "tls": card_entry(tls)}


if __name__ == "__main__":
    asyncio.run(serve(Settings()))
