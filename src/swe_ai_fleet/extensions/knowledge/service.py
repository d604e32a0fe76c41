"""The context service: the RPCs of `fleet.context.v1.ContextService`, and the composition of their dependencies.

All replicas share the bucket of memories; each has its own index and embedder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from services.auth import Authenticator
from services.certificates import server_tls
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.errors import InternalFault, Unavailable
from swe_ai_fleet.domain.memory import MEMORIES_BUCKET, OUTCOMES_BUCKET
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.knowledge.embedding import configured_embedder
from swe_ai_fleet.extensions.knowledge.following import origin
from swe_ai_fleet.extensions.knowledge.gathering import ContextGatherer
from swe_ai_fleet.extensions.knowledge.graph_calls import GraphCalls
from swe_ai_fleet.extensions.knowledge.memory_calls import LearningCalls, MemoryCalls
from swe_ai_fleet.extensions.knowledge.memory_index import open_memory_index
from swe_ai_fleet.extensions.knowledge.recalling import MemoryLimits
from swe_ai_fleet.extensions.knowledge.recorder import Recorder, open_recorder
from swe_ai_fleet.extensions.knowledge.shared import SharedMemories
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.orchestrator.quotas import Pieces, Quotas, Rules, StorageUsage
from swe_ai_fleet.ports import ContextSource, Memories, SecretMask
from swe_ai_fleet.runtime.tool_services import secret_mask
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.snapshots import CONTEXT_SNAPSHOTS


@dataclass(frozen=True, kw_only=True)
class ContextServicer(GraphCalls, MemoryCalls, LearningCalls):
    """Serves project knowledge, memories, and recommendations from experience."""


@asynccontextmanager
async def open_memories(settings: Settings, log: JetStream, *, mask: SecretMask) -> AsyncGenerator[SharedMemories]:
    """The fleet's memories, until the context ends.

    Raises InvalidRequest naming a malformed setting, PreconditionFailed if the index cannot be used, Unavailable.
    """
    limits = MemoryLimits(per_namespace=settings.memory_limit, max_age_days=settings.memory_age_days)
    bucket = await log.bucket(MEMORIES_BUCKET)
    # An index follows one bucket: if NATS is recreated, a new index is made.
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
        log: The connection to NATS, with its streams.
        token: The token of callers, or one of those that `authenticator` accepts.
        authenticator: Authenticates callers; None: by `token` only.
        rules: The rules of each tenant; None: only those of the fleet.

    Raises:
        PreconditionFailed: The address cannot be bound, or the index of memories cannot be used.
        InvalidRequest: A setting is malformed.
        Unavailable: NATS does not answer.
    """
    mask = secret_mask(settings)
    async with AsyncExitStack() as stack:
        bucket, _ = await log.bucket(OUTCOMES_BUCKET), await log.bucket(MEMORIES_BUCKET)
        snapshots = await log.snapshots(CONTEXT_SNAPSHOTS, OUTCOMES_BUCKET, MEMORIES_BUCKET)
        store = await stack.enter_async_context(ContextStore(log.changes(), mask=mask, snapshots=snapshots))
        outcomes = await stack.enter_async_context(LearningTracker(bucket, mask=mask))
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
            store=store,
            source=source,
            log=log,
            mask=mask,
            memories=memories,
            outcomes=outcomes,
            check_room=quotas.check_storage,
        )

        recorder = Recorder(log=log, store=store, outcomes=outcomes, memories=memories)
        recording: list[asyncio.Task[None]] = []

        async def ready() -> bool:
            # A follower that a bug has ended makes the service unready; the bug is logged.
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
