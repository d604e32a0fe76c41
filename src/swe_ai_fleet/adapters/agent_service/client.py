"""Calls to agents that somebody else runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import grpc
import grpc.aio

from fleet.agent.v1 import agent_pb2 as pb
from fleet.agent.v1.agent_pb2_grpc import AgentServiceStub
from swe_ai_fleet.adapters.agent_service.addresses import target_of
from swe_ai_fleet.adapters.agent_service.messages import answer_of, requests_of
from swe_ai_fleet.agents.external_run import MAX_PATCH_BYTES
from swe_ai_fleet.agents.outside_agent import AgentBusy, AgentFault, HandedIn, Handout, Said
from swe_ai_fleet.domain.endpoint import AgentEndpoint, EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.ports import SecretMask

PROTOCOL_VERSION = 1
DESCRIBE_SECONDS = 10.0
MAX_MESSAGE_BYTES = MAX_PATCH_BYTES + 1024 * 1024
_DETAILS_CHARS = 500
_TOO_LARGE = "message larger than max"
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 * 1024),
    # Nothing of this process's surroundings, and nothing that a name server says, decides about a call.
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class AgentServiceClient:
    """An `OutsideAgent` over gRPC; each call has a connection of its own.

    Args:
        rules: Which endpoints may be called.
        mask: Hides secrets in what agents are told.
        token: Shown to agents as a bearer token, over TLS only; empty: none is.
        roots: The certificates, as PEM, that those of agents must go back to; None: gRPC's own.
    """

    def __init__(self, rules: EndpointRules, *, mask: SecretMask, token: str = "", roots: bytes | None = None) -> None:
        self._rules = rules
        self._mask = mask
        self._token = token
        self._roots = roots

    async def describe(self, endpoint: str) -> str:
        """The name of the agent that answers there. Raises AgentFault."""
        async with self._connected(endpoint) as (stub, metadata, place):
            with _explained(place):
                told = await stub.Describe(pb.DescribeRequest(), metadata=metadata, timeout=DESCRIBE_SECONDS)
            if not isinstance(told, pb.DescribeResponse):
                raise AgentFault(f"what the agent at {place} says of itself cannot be read")
            if told.protocol_version != PROTOCOL_VERSION:
                raise AgentFault(
                    f"the agent at {place} speaks version {told.protocol_version} of the protocol",
                    hint=f"this fleet speaks version {PROTOCOL_VERSION}",
                )
            return told.name or str(place)

    async def solve(self, endpoint: str, handout: Handout) -> AsyncGenerator[Said | HandedIn, None]:
        """What the agent says, and last what it hands in. Closing the generator cancels its work. Raises AgentFault."""
        async with self._connected(endpoint) as (stub, metadata, place):
            call = stub.Solve(_sent(requests_of(handout, self._mask)), metadata=metadata)
            try:
                with _explained(place):
                    # What cannot be read comes as None.
                    async for response in cast("AsyncIterator[pb.SolveResponse | None]", call):
                        if response is None:
                            raise AgentFault(f"what the agent at {place} says cannot be read")
                        yield answer_of(response)
            finally:
                call.cancel()

    @asynccontextmanager
    async def _connected(
        self, text: str
    ) -> AsyncGenerator[tuple[Any, tuple[tuple[str, str], ...], AgentEndpoint], None]:
        try:
            place = self._rules.check(text)
        except InvalidRequest as error:
            raise AgentFault(error.message, field=error.field, hint=error.hint) from None
        target = await target_of(place, self._rules)
        options = (*_OPTIONS, ("grpc.default_authority", place.authority))
        if place.tls:
            name = ("grpc.ssl_target_name_override", place.host)
            channel = grpc.aio.secure_channel(
                target, grpc.ssl_channel_credentials(self._roots), options=(*options, name)
            )
        else:
            channel = grpc.aio.insecure_channel(target, options=options)
        metadata = (("authorization", f"Bearer {self._token}"),) if self._token and place.tls else ()
        async with channel:
            yield cast("Any", AgentServiceStub)(channel), metadata, place


async def _sent(requests: Iterable[pb.SolveRequest]) -> AsyncGenerator[pb.SolveRequest, None]:
    for request in requests:
        yield request


@contextmanager
def _explained(place: AgentEndpoint) -> Generator[None]:
    """Whatever ends a call badly is the agent's fault, told in its own words as far as they go."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code = error.code()
        words = (error.details() or "")[:_DETAILS_CHARS]
        # gRPC itself says that of a message over the limit, which is no smaller the next time.
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE not in words:
            raise AgentBusy(f"the agent at {place} is busy: {words}") from None
        if code is grpc.StatusCode.UNAVAILABLE:
            raise AgentFault(f"the agent at {place} cannot be reached, or went away: {words}") from None
        raise AgentFault(f"the agent at {place} ended with {code.name}: {words}") from None
    except asyncio.CancelledError:
        # gRPC tells of a call that ended under it in the same way as of a caller who gave up.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise AgentFault(f"the call to the agent at {place} broke off") from None
