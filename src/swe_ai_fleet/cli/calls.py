"""One gRPC service of a fleet as a command calls it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from swe_ai_fleet.cli.client import START_HINT, fault_of_call
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.channels import open_channel
from swe_ai_fleet.runtime.place import find_place
from swe_ai_fleet.settings import Settings

R = TypeVar("R", bound=Message)

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class Calls:
    """Calls methods by name, with the token. Raises CommandFault where the service answers with a fault.

    Args:
        stub: The generated stub of the service.
        channel: Leads to the fleet.
        address: Of the fleet, for faults to name.
        token: What callers must show; empty: nothing.
    """

    def __init__(self, stub: Callable[..., Any], channel: grpc.aio.Channel, *, address: str, token: str) -> None:
        self._stub = stub(channel)
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    async def one(self, method: str, request: Message, kind: type[R], *, seconds: float) -> R:
        """The answer of a method that gives one."""
        call = getattr(self._stub, method)(request, metadata=self._metadata, timeout=seconds)
        try:
            answer = await cast("Awaitable[object]", call)
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error
        assert isinstance(answer, kind)
        return answer

    async def stream(self, method: str, request: Message, kind: type[R], *, seconds: float) -> AsyncGenerator[R, None]:
        """The answers of a method that streams them; closing the generator ends the call."""
        call = getattr(self._stub, method)(request, metadata=self._metadata, timeout=seconds)
        try:
            async for answer in cast("AsyncIterator[object]", call):
                assert isinstance(answer, kind)
                yield answer
        except grpc.aio.AioRpcError as error:
            raise fault_of_call(error, self.address) from error
        finally:
            call.cancel()


@asynccontextmanager
async def fleet_calls(
    stub: Callable[..., Any], settings: Settings, *, server: str, token: str
) -> AsyncGenerator[Calls, None]:
    """Calls to a service of the fleet that is named or runs here. Raises CommandFault where there is none."""
    place = find_place(settings, server=server, token=token)
    if place is None:
        raise CommandFault(f"no fleet runs on {settings.home}", exit_code=Exit.UNAVAILABLE, hint=START_HINT)
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.enable_http_proxy", 0)]
    async with open_channel(place.address, place.tls, options=options) as channel:
        yield Calls(stub, channel, address=place.address, token=place.token)
