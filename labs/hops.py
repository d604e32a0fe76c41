"""`make hops`: the functions of ours between a request and the command of an agent, read off a fleet at work.

A real request over gRPC, a real log, a real clone and sandbox, in one process: Ray adds three functions of ours and is
left out. Only the model is scripted. The chains of awaiting coroutines are read while the task is accepted, and again
while its agent's command sleeps.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio

import services
import swe_ai_fleet
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc
from services.orchestrator.servicer import orchestrator_service
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.agent_worker import open_worker
from swe_ai_fleet.runtime.factories import connect_log, workspace_provider
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.orchestrator_service import servicer_of
from tests.scripted_deps import execution_deps
from tests.scripts import HELLO_FILES, SCRIPT, SLEEP

_ROOTS = {Path(package.__file__ or "").parent: package.__name__ for package in (swe_ai_fleet, services)}
_ACCEPTED, _COMMAND = "Acceptance", "ShellTool"
_FOLLOWING = ("Projection", "Meter", "Follower", "housekeeping")


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
                        service = orchestrator_service(servicer_of(executions, log))
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
                while not any(_COMMAND in hop for hop in working):
                    await asyncio.sleep(0.001)
                    chains = list(_chains())
                    if not working:
                        accepting = max([accepting, _joined(chains, _ACCEPTED)], key=len)
                    working = _joined(chains, _COMMAND) or working
        finally:
            call.cancel()
    for title, hops in (("request to its first event", accepting), ("drive to an agent's command", working)):
        print(f"{title}: {len(hops)} functions")
        print("\n".join(f"  {number:2} {hop}" for number, hop in enumerate(hops, 1)))
    print(f"in all: {len(accepting) + len(working)}")
    return 0 if accepting and working else 1


def _joined(chains: list[list[str]], word: str) -> list[str]:
    """The tasks' chains in the order in which they were begun, where one of them has the word; else nothing."""
    if not any(word in hop for chain in chains for hop in chain):
        return []
    return [hop for chain in chains for hop in chain if not any(name in chain[0] for name in _FOLLOWING)]


def _chains() -> Iterator[list[str]]:
    """The functions of ours that each task awaits, the outermost first."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: (len(task.get_name()), task.get_name()))
    for task in tasks:
        if chain := [hop for code in _awaited(task.get_coro()) if (hop := _hop(code))]:
            yield chain


def _awaited(coroutine: Any) -> Iterator[Any]:
    while coroutine is not None:
        for kind in ("cr", "gi", "ag"):
            code = getattr(coroutine, f"{kind}_code", None)
            if code is not None:
                yield code
                coroutine = getattr(coroutine, f"{kind}_await" if kind != "gi" else "gi_yieldfrom")
                break
        else:
            return


def _hop(code: Any) -> str:
    for root, name in _ROOTS.items():
        path = Path(code.co_filename)
        if path.is_relative_to(root):
            return f"{name}.{'.'.join(path.relative_to(root).with_suffix('').parts)}:{code.co_qualname}"
    return ""


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
