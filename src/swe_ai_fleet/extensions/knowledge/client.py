"""The client of the context service, and the extension's interface for the core (`KNOWLEDGE`).

Faults of the server are raised as the faults that the server raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, cast

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.context.v1 import context_pb2 as pb
from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.contract import error_details, from_message, to_message
from swe_ai_fleet.domain.context import ContextRequest, GatheredContext
from swe_ai_fleet.domain.errors import (
    AlreadyExists,
    Fenced,
    FleetError,
    InternalFault,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)
from swe_ai_fleet.domain.memory import OUTCOMES_BUCKET, Memory, MemoryScope, Recollection, WorkOutcome
from swe_ai_fleet.extensions.knowledge.embedding import settings_embedder
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.ports import Embedder, Memories, SecretMask
from swe_ai_fleet.runtime.channels import channel_credentials, channel_tls, target
from swe_ai_fleet.settings import Settings

_CHARS = 800
_REASONS: Mapping[str, type[FleetError]] = {
    "INVALID_REQUEST": InvalidRequest,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "PRECONDITION_FAILED": PreconditionFailed,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "UNAVAILABLE": Unavailable,
    "FENCED": Fenced,
    "INTERNAL": InternalFault,
    "INTERNAL_FAULT": InternalFault,
}
_CODES: Mapping[grpc.StatusCode, type[FleetError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.UNAUTHENTICATED: PreconditionFailed,
    grpc.StatusCode.PERMISSION_DENIED: PreconditionFailed,
    grpc.StatusCode.UNIMPLEMENTED: PreconditionFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.INTERNAL: InternalFault,
}
R = TypeVar("R")
CALLER = "fleet"
"""The name of this caller, which becomes part of a memory's source."""
CALL_SECONDS = 5.0
"""The timeout of a call, which waits that long for a service that is restarting."""
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Environment variables of this process must not affect calls.
    ("grpc.enable_http_proxy", 0),
    # gRPC's default backoff waits up to two minutes before it reconnects to an unavailable server.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def fault_of(error: grpc.aio.AioRpcError, address: str) -> FleetError:
    """The fault of a call, as the server raised it; Unavailable if the server was not reached."""
    code = error.code()
    details = error_details(error.trailing_metadata())
    kind = _REASONS.get(details.reason if details else "") or _CODES.get(code, Unavailable)
    words = (error.details() or code.name.lower().replace("_", " "))[:_CHARS]
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return kind(f"the context service at {address} rejected the token", field="context_token")
    if details is not None:
        return kind(words, field=details.field)
    if kind is Unavailable:
        return kind(f"the context service at {address} does not answer: {words}", hint="is it running there?")
    return kind(f"the context service at {address}: {words}")


class ContextServiceClient:
    """`Memories`, `ContextSource` and outcomes of a context service. An async context.

    Connects at the first call, and reconnects when needed; also outside of the context, until `aclose`. Calls are made
    for the tenant of their arguments. Every method raises what the service raised, and Unavailable within `seconds` if
    it does not answer.

    Args:
        address: `host:port`.
        token: The token for the service; empty: none.
        seconds: The timeout of a call.
        credentials: The protection of the connection; None: none.
        server_name: The name in the service's certificate, if that is not the host of the address.
    """

    def __init__(
        self,
        address: str,
        token: str = "",
        *,
        seconds: float = CALL_SECONDS,
        credentials: grpc.ChannelCredentials | None = None,
        server_name: str = "",
    ) -> None:
        self.address = address
        authorization = (("authorization", f"Bearer {token}"),) if token else ()
        self._metadata = (*authorization, ("fleet-caller", CALLER))
        self._seconds = seconds
        self._credentials = credentials
        self._server_name = server_name
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def gather(self, request: ContextRequest) -> GatheredContext:
        """The most relevant knowledge that fits the budget. Raises InvalidRequest, NotFound, Unavailable."""
        query = to_message(pb.GetContextRequest, request)
        reply = await self._answer(self._stub.GetContext, query, pb.GetContextResponse, tenant=request.tenant)
        return from_message(GatheredContext, reply, recalled=_recalled(reply.recalled, request.tenant))

    async def remember(self, memory: Memory) -> bool:
        """Store a memory; False if it exists already. Raises InvalidRequest, ResourceExhausted, Unavailable."""
        request = to_message(pb.AddFactRequest, memory)
        reply = await self._answer(self._stub.AddFact, request, pb.AddFactResponse, tenant=memory.tenant)
        return not reply.already_existed

    async def recall(self, query: str, scope: MemoryScope, *, limit: int = 3) -> tuple[Recollection, ...]:
        """The memories that fit a query, best first; may be empty. Raises InvalidRequest, Unavailable."""
        request = to_message(pb.RecallRequest, scope, query=query, limit=limit)
        reply = await self._answer(self._stub.Recall, request, pb.RecallResponse, tenant=scope.tenant)
        return _recalled(reply.recollections, scope.tenant)

    async def forget(self, scope: MemoryScope, memory_ids: Collection[str] = ()) -> int:
        """Remove these memories of a scope, or (none named) all of it; how many. Raises InvalidRequest, Unavailable."""
        request = to_message(
            pb.ClearMemoryRequest, scope, memory_ids=tuple(memory_ids), everywhere=not scope.namespaces
        )
        reply = await self._answer(self._stub.ClearMemory, request, pb.ClearMemoryResponse, tenant=scope.tenant)
        return reply.removed

    async def record_outcome(self, outcome: WorkOutcome) -> WorkOutcome:
        """Store an outcome; the stored one is returned. Raises InvalidRequest, Unavailable."""
        request = pb.RecordOutcomeRequest(outcome=to_message(pb.Outcome, outcome))
        reply = await self._answer(self._stub.RecordOutcome, request, pb.RecordOutcomeResponse, tenant=outcome.tenant)
        return from_message(WorkOutcome, reply.outcome, tenant=outcome.tenant)

    async def ping(self) -> None:
        """Check that the service is serving. Raises Unavailable."""
        stub: Any = health_pb2_grpc.HealthStub(self._connected())
        reply = await self._answer(stub.Check, health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse)
        if reply.status != health_pb2.HealthCheckResponse.SERVING:
            raise Unavailable(f"the context service at {self.address} is not serving")

    @property
    def _stub(self) -> Any:
        return cast("Any", ContextServiceStub)(self._connected())

    def _connected(self) -> grpc.aio.Channel:
        loop = asyncio.get_running_loop()
        if self._channel is None or self._loop is not loop:
            # A channel belongs to the event loop that created it.
            self._channel, self._loop = self._opened(), loop
        return self._channel

    def _opened(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        name = (("grpc.ssl_target_name_override", self._server_name),) if self._server_name else ()
        return grpc.aio.secure_channel(self.address, self._credentials, options=(*_OPTIONS, *name))

    async def _answer(self, call: Any, request: Any, kind: type[R], *, tenant: str = "") -> R:
        metadata = (*self._metadata, ("fleet-tenant", tenant)) if tenant else self._metadata
        try:
            answer = await cast(
                "Awaitable[object]",
                call(request, metadata=metadata, timeout=self._seconds, wait_for_ready=True),
            )
        except grpc.aio.AioRpcError as error:
            raise fault_of(error, self.address) from None
        except grpc.aio.UsageError as error:
            raise Unavailable(f"the connection to the context service was closed: {error}") from None
        except asyncio.CancelledError:
            # gRPC raises this too if the connection was closed during the call, without a cancellation of the caller.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise Unavailable(f"the call to the context service at {self.address} broke off") from None
        if not isinstance(answer, kind):
            raise InternalFault(f"the answer of the context service at {self.address} cannot be read")
        return answer


def _recalled(recollections: Iterable[pb.Recollection], tenant: str) -> tuple[Recollection, ...]:
    return tuple(
        from_message(Recollection, recollection, memory=from_message(Memory, recollection.memory, tenant=tenant))
        for recollection in recollections
    )


class FleetKnowledge:
    """Context, memory and learning for the core; see `runtime.knowledge.Knowledge`."""

    def connect(self, settings: Settings) -> ContextServiceClient:
        tls = channel_tls(settings, settings.context_url)
        return ContextServiceClient(
            target(settings.context_url),
            settings.context_token,
            credentials=None if tls is None else channel_credentials(tls),
            server_name="" if tls is None else tls.name,
        )

    @asynccontextmanager
    async def outcomes(self, log: JetStream) -> AsyncGenerator[Callable[[str], Sequence[WorkOutcome]]]:
        async with LearningTracker(await log.bucket(OUTCOMES_BUCKET)) as tracker:
            yield tracker.outcomes

    def library(self, settings: Settings, mask: SecretMask) -> AbstractAsyncContextManager[Memories]:
        # Imported here: only programs that open their memory need SQLite.
        from swe_ai_fleet.extensions.knowledge.manager import open_library_memory

        return open_library_memory(settings, mask)

    def embedder(self, settings: Settings) -> AbstractAsyncContextManager[Embedder | None]:
        return settings_embedder(settings)


KNOWLEDGE = FleetKnowledge()
