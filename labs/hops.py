"""`make hops`: the functions of ours between a request and the command of an agent, read off a fleet at work.

A real request over gRPC, a real log, a real clone and sandbox, in one process: Ray adds three functions of ours and is
left out. Only the model is scripted. Who awaits whom is read while the task is accepted, and again while its agent's
command sleeps.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc.aio

import services
import swe_ai_fleet
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.agent_worker import open_worker
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.orchestrator_service import servicer_of
from tests.scripted_fleet import execution_deps
from tests.scripts import HELLO_FILES, SCRIPT, SLEEP

_ROOTS = {Path(package.__file__ or "").parent: package.__name__ for package in (swe_ai_fleet, services)}
_CODES, _INNER = ("cr_code", "gi_code", "ag_code"), ("cr_await", "gi_yieldfrom", "ag_await")
_ACCEPTED, _COMMAND = "Acceptance._accept", "ShellTool"


async def main() -> int:
    """Print both chains and their lengths; 0 where both were found."""
    with tempfile.TemporaryDirectory(prefix="hops-") as place:
        root = Path(place)
        repository = make_repository(root / "repository", HELLO_FILES)
        async with ScriptedModelServer(SCRIPT) as model, EmbeddedNats(root / "nats") as nats:
            settings = Settings(
                home=root / "home",
                model_url=model.url,
                model="scripted",
                nats_url=nats.address.url,
                nats_token=nats.address.token,
            )
            async with connect_log(settings, name="hops") as log:
                await log.ensure_streams()
                async with open_worker(settings, host="hops") as worker:
                    around = execution_deps(log, fleet=worker, workspaces=workspace_provider(settings, log))
                    async with Executions(around) as executions:
                        service = service_of(servicer_of(executions, log))
                        async with serve_grpc([service], "127.0.0.1:0", None, _ready) as address:
                            return await _read(address, repository)


async def _ready() -> bool:
    return True


async def _read(address: str, repository: Path) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = OrchestratorServiceStub(channel)
        request = pb.DeliberateRequest(
            task_id="hops", task_description=SLEEP, num_agents=1, repo=pb.RepoRef(path=str(repository))
        )
        call = asyncio.ensure_future(stub.Deliberate(request))
        accepting: list[str] = []
        working: list[str] = []
        try:
            async with asyncio.timeout(60):
                while not working:
                    await asyncio.sleep(0.001)
                    accepting = max([accepting, _way_to(_ACCEPTED)], key=len)
                    working = _way_to(_COMMAND)
        finally:
            call.cancel()
    for title, hops in (("request to its first event", accepting), ("drive to an agent's command", working)):
        print(f"{title}: {len(hops)} functions")
        print("\n".join(f"  {number:2} {hop}" for number, hop in enumerate(hops, 1)))
    print(f"in all: {len(accepting) + len(working)}")
    return 0 if accepting and working else 1


def _way_to(word: str) -> list[str]:
    """The functions of ours that wait, one for the other, for the one whose name has the word; empty: there is none."""
    for task in asyncio.all_tasks():
        if any(word in hop for hop in _hops(task)):
            way: list[str] = []
            waiting: asyncio.Task[Any] | None = task
            while waiting is not None:
                way = _hops(waiting) + way
                waiting = _waits_for(waiting)
            return way
    return []


def _hops(task: asyncio.Task[Any]) -> list[str]:
    return [hop for code in _awaited(task.get_coro()) if (hop := _hop(code))]


def _waits_for(task: Any) -> asyncio.Task[Any] | None:
    """The task that waits for another: by itself, in a group, or through a future that the other one fulfils."""
    for callback, _ in task._callbacks or ():
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, asyncio.Task):
            return owner
        if isinstance(owner, asyncio.TaskGroup):
            return cast("Any", owner)._parent_task
        kept = [cell.cell_contents for cell in getattr(callback, "__closure__", None) or ()]
        for other in asyncio.all_tasks():
            waits_for = cast("Any", other)._fut_waiter
            if waits_for is not None and any(each is waits_for for each in kept):
                return other
    return None


def _awaited(coroutine: Any) -> Iterator[Any]:
    """The code of a coroutine and of those that it awaits; compiled ones, as gRPC's, have none."""
    while coroutine is not None:
        code = next((code for name in _CODES if (code := getattr(coroutine, name, None)) is not None), None)
        if code is not None:
            yield code
        coroutine = next((inner for name in _INNER if (inner := getattr(coroutine, name, None)) is not None), None)


def _hop(code: Any) -> str:
    for root, name in _ROOTS.items():
        path = Path(code.co_filename)
        if path.is_relative_to(root):
            return f"{name}.{'.'.join(path.relative_to(root).with_suffix('').parts)}:{code.co_qualname}"
    return ""


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
