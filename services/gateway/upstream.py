"""Clients of the gRPC services behind the gateway, for all of their methods, on behalf of a caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import grpc.aio
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import HTTPConnection

from fleet.context.v1 import context_pb2
from fleet.conversation.v1 import conversation_pb2
from fleet.notification.v1 import notification_pb2
from fleet.orchestrator.v1 import orchestrator_pb2
from fleet.planning.v1 import planning_pb2
from fleet.workflow.v1 import workflow_pb2
from services.auth import bearer
from services.gateway.access.credentials import AuthenticatedCaller
from swe_ai_fleet.domain.access import SOLE, AccessRole, Principal
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.runtime.channels import ChannelTls, open_channel
from swe_ai_fleet.telemetry import own_telemetry

CALL_SECONDS = 60.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
FILES: tuple[FileDescriptor, ...] = (
    orchestrator_pb2.DESCRIPTOR,
    workflow_pb2.DESCRIPTOR,
    conversation_pb2.DESCRIPTOR,
    planning_pb2.DESCRIPTOR,
    notification_pb2.DESCRIPTOR,
    context_pb2.DESCRIPTOR,
)
"""The contract's files; only their services are reachable over HTTP."""
# Reconnect to a service within seconds, not minutes.
_RECONNECT = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 2_000))
_CONTEXT = "fleet.context.v1.ContextService"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller, by whose token and name the services behind are called.

    If the caller is a service, the name may be that of the caller it acts for.
    """

    token: str = field(repr=False)
    name: str = ""
    principal: Principal = SOLE


def caller_of(connection: HTTPConnection) -> Caller:
    """The caller that the auth middleware admitted; without that middleware, the one in the request's own header."""
    state: dict[str, Any] = connection.scope.get("state") or {}
    token: str | None = state.get("token")
    if token is None:
        token = bearer(connection.headers.getlist("authorization")) or ""
    authenticated: AuthenticatedCaller | None = state.get("authenticated")
    principal = authenticated.principal if authenticated else SOLE
    named = state.get("caller") or ""
    # Services may name the caller they act for.
    name = named or principal.name if principal.may(AccessRole.SERVICE) else principal.name
    return Caller(token=token, name=name, principal=principal)


def service(full_name: str) -> ServiceDescriptor:
    """A service of the public contract, such as `fleet.orchestrator.v1.OrchestratorService`. Raises KeyError."""
    return {service.full_name: service for file in FILES for service in file.services_by_name.values()}[full_name]


def method(full_name: str) -> MethodDescriptor:
    """A method, such as `fleet.orchestrator.v1.OrchestratorService.SubmitTask`. Raises KeyError."""
    name, _, own = full_name.rpartition(".")
    return service(name).methods_by_name[own]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Channels to the orchestrator (its workflows, chats and plans too) and to the context service.

    Every call has the caller's own token and name, so that the services check its rights. A context service that
    requires another token than the gateway gets that one, `context_token`, with the caller's name and tenant: the
    gateway must then check the caller's rights. Errors are raised as grpc.aio.AioRpcError.
    """

    orchestrator: grpc.aio.Channel
    context: grpc.aio.Channel
    context_token: str = field(default="", repr=False)
    stamp: Callable[[], Mapping[str, str]] = dict[str, str]
    """The metadata with the current span of a call."""

    async def call(
        self, target: MethodDescriptor, request: Message, caller: Caller, *, seconds: float = CALL_SECONDS
    ) -> Message:
        return await self._stub("unary_unary", target)(
            request, metadata=self._metadata(target, caller), timeout=seconds
        )

    async def stream(
        self, target: MethodDescriptor, request: Message, caller: Caller, *, seconds: float | None = None
    ) -> AsyncGenerator[Message, None]:
        """The answers of a method that streams them; closing the generator ends the call."""
        metadata = self._metadata(target, caller)
        call = self._stub("unary_stream", target)(request, metadata=metadata, timeout=seconds)
        try:
            async for answer in cast("AsyncIterator[Message]", call):
                yield answer
        finally:
            call.cancel()

    async def upload(
        self, target: MethodDescriptor, requests: AsyncIterator[Message], caller: Caller, *, seconds: float
    ) -> Message:
        """The answer of a method that takes a stream."""
        metadata = self._metadata(target, caller)
        return await self._stub("stream_unary", target)(requests, metadata=metadata, timeout=seconds)

    def _stub(self, shape: str, target: MethodDescriptor) -> Any:
        # The type stubs have no calls by a method's name.
        channel: Any = self.context if target.containing_service.full_name == _CONTEXT else self.orchestrator
        path = f"/{target.containing_service.full_name}/{target.name}"
        return getattr(channel, shape)(path, _serialized, GetMessageClass(target.output_type).FromString)

    def _metadata(self, target: MethodDescriptor, caller: Caller) -> tuple[tuple[str, str], ...]:
        token = caller.token
        named = (*self.stamp().items(), *((("fleet-caller", caller.name),) if caller.name else ()))
        if self.context_token and target.containing_service.full_name == _CONTEXT:
            token = self.context_token
            # Always with the caller's tenant, never with that of our own token.
            named = (*named, ("fleet-tenant", caller.principal.tenant or DEFAULT_TENANT))
        return (("authorization", f"Bearer {token}"), *named) if token else named


@asynccontextmanager
async def open_upstream(
    orchestrator: str,
    context: str,
    *,
    context_token: str = "",
    orchestrator_tls: ChannelTls | None = None,
    context_tls: ChannelTls | None = None,
) -> AsyncGenerator[Upstream]:
    """Channels to both addresses (`host:port`), with TLS or without, until the context ends. Nothing is sent yet.

    `context_token` is sent to the context service instead of a caller's token (empty: the caller's); use it only for
    admitted callers.
    """
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0), *_RECONNECT]
    async with (
        open_channel(orchestrator, orchestrator_tls, options=options) as first,
        open_channel(context, context_tls, options=options) as second,
    ):
        yield Upstream(orchestrator=first, context=second, context_token=context_token, stamp=own_telemetry().stamp)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()
