"""Three hundred agents at once, on one node and on three, and how soon work goes on when its orchestrator is killed.

`python -m labs.bench.scale --tasks 4 --steps 3 --running 4` does the same in small.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from labs.bench.floor import floor_seconds
from labs.bench.processes import measured
from labs.bench.steps import COMMAND, FILES, scripted_steps
from labs.chaos.ray_node import HOST
from labs.chaos.stage import RAY_VARIABLES, Replica, said
from labs.children import Child, free_port
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.nats_client import NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import EVENTS
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.testing.repositories import make_repository

TASKS, AGENTS, STEPS, LATENCY = 100, 3, 20, 0.5
NODES = 3
RUNNING = 20
_READ_SECONDS = 60.0
_LOOK_SECONDS = 0.2
_CLAIMED = ("execution_claimed",)
_AT_WORK = ("model_replied",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What all parts of it have: a repository, and a model in a process of its own."""

    directory: Path
    repository: Path
    model_url: str
    model_pid: int

    @property
    def model(self) -> dict[str, str]:
        """Where a fleet finds the model."""
        return {"FLEET_MODEL_URL": self.model_url, "FLEET_MODEL": "scripted"}


@asynccontextmanager
async def _stage(directory: Path, steps: int) -> AsyncGenerator[_Stage]:
    directory.mkdir(parents=True)
    repository = make_repository(directory / "repository", FILES)
    async with scripted_steps(directory, steps=steps, latency=LATENCY) as (url, pid):
        yield _Stage(directory=directory, repository=repository, model_url=url, model_pid=pid)


async def crowd_figures(directory: Path, *, tasks: int = TASKS, steps: int = STEPS) -> dict[str, float]:
    """Three hundred agents on one node; peer review is off, everything else is on."""
    bare = COMMAND.replace("notes.log", "/dev/null")
    async with _stage(directory, steps) as stage:
        floor = await floor_seconds(stage.model_url, agents=tasks * AGENTS, steps=steps, command=bare)
        figures = {"fleet_300_ideal_s": (steps + 1) * LATENCY, "fleet_300_floor_s": round(floor, 2)}
        async with _serving(Replica(1, directory, stage.model)) as replica:
            return figures | await _crowd(replica, stage, tasks, "fleet_300")


async def scale_figures(
    directory: Path, *, tasks: int = TASKS, steps: int = STEPS, running: int = RUNNING
) -> dict[str, float]:
    """The same on three nodes, and how soon work goes on when its orchestrator is killed."""
    async with _stage(directory, steps) as stage:
        async with (
            _cluster(directory) as variables,
            _serving(Replica(2, directory, stage.model | variables)) as replica,
        ):
            figures = await _crowd(replica, stage, tasks, "fleet_300_three_nodes")
        async with _serving(Replica(3, directory, stage.model)) as replica:
            return figures | await _resumed(replica, stage.repository, running)


async def _crowd(replica: Replica, stage: _Stage, tasks: int, name: str) -> dict[str, float]:
    """All tasks handed in at once. Wall time is from the first run's start to the last reply, as the log has it."""
    # More agents than nodes, so that each node has a host when the crowd comes.
    await _deliberate(replica, stage.repository, "warm-up", agents=2 * NODES)
    warmed_at = time.time()
    async with measured(stage.model_pid) as cost:
        async with asyncio.TaskGroup() as group:
            for number in range(tasks):
                group.create_task(_deliberate(replica, stage.repository, f"crowd-{number}", agents=AGENTS))
        whole = time.time() - warmed_at
    events = [event for event in await _events(replica) if _at(event) >= warmed_at]
    started = min(_at(event) for event in events if _kind(event) == "run_started")
    replied = max(_at(event) for event in events if _kind(event) == "model_replied")
    return {
        f"{name}_wall_s": round(replied - started, 2),
        f"{name}_whole_s": round(whole, 2),
        f"{name}_pss_mib": round(cost.peak_pss_mib),
        f"{name}_cpu_s": round(cost.cpu_seconds, 1),
        f"{name}_events_per_s": round(len(events) / (replied - started), 1),
    }


async def _resumed(replica: Replica, repository: Path, running: int) -> dict[str, float]:
    """kill -9 of the orchestrator, started again at once: when each execution was heard again, and each agent."""
    await _deliberate(replica, repository, "warm-up", agents=2)
    ids = [await _submit(replica, repository, f"resumed-{number}") for number in range(running)]
    while not _begun(await _events(replica), _AT_WORK, ids, after=0.0):
        await asyncio.sleep(_LOOK_SECONDS)
    await replica.kill()
    killed_at = time.time()
    await replica.start()
    await replica.serving()
    served_at = time.time()
    while not (at_work := _begun(await _events(replica), _AT_WORK, ids, after=served_at)):
        await asyncio.sleep(_LOOK_SECONDS)
    claimed = _begun(await _events(replica), _CLAIMED, ids, after=killed_at)
    assert claimed
    return {
        "resume_after_kill_s": round(max(claimed) - killed_at, 2),
        "resume_agents_after_kill_s": round(max(at_work) - killed_at, 2),
    }


def _begun(events: Sequence[dict[str, Any]], kinds: Sequence[str], ids: Sequence[str], *, after: float) -> list[float]:
    """For each execution the time of its first event of a kind after a moment; empty while one has none."""
    first: dict[str, float] = {}
    for event in events:
        if _kind(event) in kinds and _at(event) > after:
            first.setdefault(event["execution_id"], _at(event))
    return [first[one] for one in ids] if first.keys() >= set(ids) else []


@asynccontextmanager
async def _serving(replica: Replica) -> AsyncGenerator[Replica]:
    await replica.start()
    try:
        await replica.serving()
        yield replica
    finally:
        await replica.stop()


@asynccontextmanager
async def _cluster(directory: Path) -> AsyncGenerator[dict[str, str]]:
    """A Ray cluster of three nodes on this machine; what an orchestrator needs to use it."""
    variables = {**RAY_VARIABLES, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    port = free_port()
    address = f"{HOST}:{port}"
    # A short path: Ray puts sockets below it.
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as short:
        nodes: list[Child] = []
        try:
            for number in range(NODES):
                place = ("--port", str(port)) if number == 0 else ("--address", address)
                arguments = ("-m", "labs.chaos.ray_node", "--directory", f"{short}/{number}", *place)
                node = Child(f"node-{number}", arguments, variables, directory)
                nodes.append(node)
                await node.start()
                await said(node, HOST)
            yield {**variables, "FLEET_RAY_ADDRESS": address}
        finally:
            for node in reversed(nodes):
                await node.stop()


@asynccontextmanager
async def _client(replica: Replica) -> AsyncGenerator[tuple[Any, tuple[tuple[str, str], ...]]]:
    async with grpc.aio.insecure_channel(replica.card.address) as channel:
        yield pb_grpc.OrchestratorServiceStub(channel), (("authorization", f"Bearer {replica.card.token}"),)


def _request(repository: Path, task_id: str, agents: int) -> pb.DeliberateRequest:
    return pb.DeliberateRequest(
        task_id=task_id,
        task_description="Take the steps.",
        repo=pb.RepoRef(path=str(repository)),
        role="QA",  # a developer who changes nothing is asked once more
        num_agents=agents,
        enable_peer_review=False,
        constraints=pb.TaskConstraints(max_iterations=STEPS + 5),
    )


async def _deliberate(replica: Replica, repository: Path, task_id: str, *, agents: int) -> None:
    async with _client(replica) as (stub, metadata):
        await stub.Deliberate(_request(repository, task_id, agents), metadata=metadata)


async def _submit(replica: Replica, repository: Path, task_id: str) -> str:
    async with _client(replica) as (stub, metadata):
        request = pb.SubmitTaskRequest(deliberate=_request(repository, task_id, 1))
        return (await stub.SubmitTask(request, metadata=metadata)).execution_id


async def _events(replica: Replica) -> list[dict[str, Any]]:
    """Every event in the orchestrator's log, oldest first."""
    card = json.loads((replica.home / "fleet.json").read_text())
    async with Connection.open(
        [card["nats_url"]], NatsCredentials(token=card["nats_token"]), name="bench"
    ) as connection:
        stored = messages(connection, EVENTS, "agent.events.>", follow=False, timeout=_READ_SECONDS)
        return [json.loads(message.data) async for message in stored if message is not None]


def _kind(event: dict[str, Any]) -> str:
    return (event.get("body") or {}).get("type", "")


def _at(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["at"]).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scale")
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"of {AGENTS} agents each")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--running", type=int, default=RUNNING, help="executions under way when it is killed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-scale-") as name:
        crowd, size = Path(name) / "crowd", {"tasks": options.tasks, "steps": options.steps}
        figures = asyncio.run(crowd_figures(crowd, **size))
        figures |= asyncio.run(scale_figures(Path(name) / "scale", **size, running=options.running))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
