"""`fleet run`: hand a task in, watch it, show what came of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import Fleet, FleetClient
from swe_ai_fleet.cli.exits import CommandFault, Exit, exit_of_state
from swe_ai_fleet.cli.interrupts import Interrupts, interrupts
from swe_ai_fleet.cli.judge import JudgeOrder
from swe_ai_fleet.cli.live import Progress, follow, view
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.outcome import show_outcome
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.uploading import Uploaded, elsewhere, fetch_back, local_path, uploaded
from swe_ai_fleet.domain.execution import ExecutionState


async def run(screen: Screen, fleet: Fleet, order: Order | JudgeOrder) -> Exit:
    """Run a task to its end on a fleet. Ctrl-C cancels the execution; a second one leaves at once."""
    request = order.request()
    with interrupts() as signals:
        async with fleet as client, _sent(screen, client, request, order) as sent:
            accepted = await client.submit(request)
            existed = " (the same task was handed in before)" if accepted.already_existed else ""
            screen.note(f"task {accepted.task_id}: execution {accepted.execution_id}{existed}")
            state = await _watch(screen, client, accepted.execution_id, signals)
            code = await show_outcome(screen, client, state)
            if sent is not None and order.fetch:
                await fetch_back(screen, client, sent, state)
            return code


@asynccontextmanager
async def _sent(
    screen: Screen, client: FleetClient, request: pb.SubmitTaskRequest, order: Order | JudgeOrder
) -> AsyncGenerator[Uploaded | None]:
    """The request's repository uploaded, where it has to be; the request names the upload then."""
    repo = getattr(request, request.WhichOneof("task") or "orchestrate").repo
    if order.upload or (repo.path and elsewhere(client.address)):
        local_path(repo)
        async with uploaded(screen, client, repo) as sent:
            repo.CopyFrom(sent.reference)
            yield sent
        return
    if order.fetch:
        raise CommandFault(
            "--fetch belongs to an upload", exit_code=Exit.USAGE, hint="here the branch is in the repository anyway"
        )
    yield None


async def watch(screen: Screen, client: FleetClient, name: str, *, text: bool = False) -> Exit:
    """Show an execution's events from the first on until it ends. Ctrl-C ends only the watching."""
    execution_id = await client.find(name)
    progress = Progress()
    with interrupts() as signals, view(screen, progress, json_lines=True) as show:
        following = await signals.race(follow(client, execution_id, progress, show, text=text))
        if not following.done():
            following.cancel()
            raise CommandFault("stopped watching; the execution goes on", exit_code=Exit.STOPPED)
        state = following.result()
    if screen.json:
        return exit_of_state(state)
    return await show_outcome(screen, client, state)


async def _watch(screen: Screen, client: FleetClient, execution_id: str, signals: Interrupts) -> ExecutionState:
    progress = Progress()
    with view(screen, progress) as show:
        following = await signals.race(follow(client, execution_id, progress, show))
        if not following.done():
            screen.note("cancelling the execution; Ctrl-C again leaves without waiting", style="yellow")
            try:
                await client.cancel(execution_id, "Ctrl-C")
                return await following
            finally:
                following.cancel()
        return following.result()
