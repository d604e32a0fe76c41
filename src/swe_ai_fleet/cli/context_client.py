"""The context service as a command sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from swe_ai_fleet.cli.calls import Calls, caller_name, fault_of_call, open_calls
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.runtime.channels import tls_fault
from swe_ai_fleet.runtime.place import find_context
from swe_ai_fleet.settings import Settings

_NOT_FOUND_HINTS = {
    "story_id": "`fleet context story STORY TITLE` begins one",
    "task_id": "`fleet context task STORY TASK TITLE` adds one to a story",
    "node": "nodes are such as story:S-1, task:T-1, execution:ID, file:REPOSITORY/PATH",
    "subject_id": "`fleet list` shows the executions, `fleet show ID` whether one has ended",
}


@asynccontextmanager
async def context_client(settings: Settings, *, server: str, token: str) -> AsyncGenerator[Calls, None]:
    """Calls to the context service that is meant, in this user's name. Raises CommandFault where there is none."""
    place = find_context(settings, server=server, token=token)
    if place is None:
        raise CommandFault(
            f"no context service runs on {settings.home}",
            exit_code=Exit.UNAVAILABLE,
            hint="start a fleet with `fleet up`, or name one with --server",
        )
    async with open_calls(place.address, place.tls) as channel:
        yield Calls(channel, address=place.address, token=place.token, caller=caller_name(), fault=_fault)


def _fault(error: grpc.aio.AioRpcError, address: str) -> CommandFault:
    fault = fault_of_call(error, address)
    message, hint = fault.message, fault.hint
    match error.code():
        case grpc.StatusCode.UNAVAILABLE if not fault.field:
            unlike = tls_fault(error.details() or "")
            message = f"no context service answers at {address}" + (f": {unlike[0]}" if unlike else "")
            way = unlike[1] if unlike else "start a fleet with `fleet up`, or name another one with --server"
            hint = f"{way} ({error.details()})"
        case grpc.StatusCode.UNAUTHENTICATED:
            hint = "FLEET_CONTEXT_TOKEN must hold the token of that context service"
        case grpc.StatusCode.NOT_FOUND:
            hint = _NOT_FOUND_HINTS.get(fault.field.rpartition(".")[2], hint)
        case grpc.StatusCode.INVALID_ARGUMENT if fault.field == "namespaces":
            hint = "name some with --namespace, or all of them with --everywhere"
        case _:
            pass
    return CommandFault(message, exit_code=fault.exit_code, field=fault.field, hint=hint)
