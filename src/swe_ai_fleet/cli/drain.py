"""`fleet drain`: a part of the fleet taken out of work, waited for until it can be ended."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.fleet_views import seconds
from swe_ai_fleet.cli.messages import document
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.screen import Screen

_AGAIN_SECONDS = 2.0
_CALL_SECONDS = 20.0
Target = Annotated[str, argument("orchestrator, host or node.", metavar="TARGET")]
Name = Annotated[str, argument("As `fleet status` shows it.", metavar="NAME")]
Undo = Annotated[bool, option("Let it work again.")]
Within = Annotated[
    str, option("Move what is still at work after so long: 90s, 30m, 1h. Default: wait.", metavar="SPAN")
]


async def drain(
    screen: Screen, client: FleetClient, target: Target, name: Name, *, undo: Undo = False, within: Within = ""
) -> Exit:
    wanted = f"DRAIN_TARGET_{target.upper()}"
    if wanted not in pb.DrainTarget.keys():  # noqa: SIM118 - it is no dictionary
        raise CommandFault("no such target", exit_code=Exit.USAGE, field="target", hint="orchestrator, host or node")
    within_seconds = seconds(within, "within") if within else 0
    request = pb.DrainRequest(target=wanted, name=name, undo=undo, within_seconds=within_seconds)
    waits_shown: list[str] = []
    while True:
        answer = await client.calls.unary("Drain", request, pb.DrainResponse, seconds=_CALL_SECONDS)
        if undo or not answer.waits_for:
            break
        if waits_shown != (waits_shown := list(answer.waits_for)):
            screen.note(f"{answer.name} waits for {', '.join(waits_shown)}")
        # What it is called alone may mean something else once it has gone.
        request.name = answer.name
        await asyncio.sleep(_AGAIN_SECONDS)
    state = "works again" if undo else "is drained, and can be ended"
    screen.result(document(answer), f"{target} {answer.name} {state}")
    return Exit.ACCEPTED
