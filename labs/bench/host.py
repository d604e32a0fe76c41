"""`python -m labs.bench.host`: the CPU that an agent host takes for a step, and where it goes.

What runs on a host runs here in one process, agents side by side, with a real log, clones and sandboxes; the model is
the scripted server in a process of its own. CPU seconds say more than the clock where others use the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import tempfile
import time
from pathlib import Path

import psutil

from labs.bench.steps import FILES, scripted_steps
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.task import Constraints, RepoRef, Task, TaskKind
from swe_ai_fleet.runtime.agent_worker import AgentWorker, open_worker
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository

STEPS = 20
_SHOWN = 45


async def host_figures(directory: Path, *, agents: int, rounds: int, latency: float, profile: str) -> dict[str, float]:
    """CPU of this process, of its children (commands and git) and of NATS, in ms a step: the least of the rounds."""
    async with (
        scripted_steps(directory, steps=STEPS, latency=latency) as (url, _),
        EmbeddedNats(directory / "nats") as nats,
    ):
        address = nats.address
        settings = Settings(
            home=directory / "home", model_url=url, model="scripted", nats_url=address.url, nats_token=address.token
        )
        async with connect_log(settings, name="bench") as log:
            await log.ensure_streams()
            async with open_worker(settings, host="bench") as worker:
                repository = make_repository(directory / "repository", FILES)
                await _work(worker, repository, "warm-up", agents=2)
                found = list[tuple[float, float, float, float]]()
                for number in range(rounds):
                    before, began = _seconds(address.pid), time.perf_counter()
                    await _work(worker, repository, f"round-{number}", agents=agents)
                    took = time.perf_counter() - began
                    mine, commands, server = (b - a for a, b in zip(before, _seconds(address.pid), strict=True))
                    found.append((mine, commands, server, took))
                if profile:
                    profiler = cProfile.Profile(time.process_time)
                    profiler.enable()
                    await _work(worker, repository, "profiled", agents=agents)
                    profiler.disable()
                    profiler.dump_stats(profile)
    names = ("host_cpu_ms", "commands_cpu_ms", "nats_cpu_ms", "wall_ms")
    return {
        name: round(1000 * min(one[place] for one in found) / (agents * STEPS), 3) for place, name in enumerate(names)
    }


async def _work(worker: AgentWorker, repository: Path, name: str, *, agents: int) -> None:
    task = Task(
        task_id=name,
        kind=TaskKind.DELIBERATE,
        description="Take twenty steps.",
        repo=RepoRef(location=str(repository)),
        num_agents=agents,
        constraints=Constraints(limits=Limits(max_iterations=STEPS + 5)),
    )
    pinned = await worker.workspaces.pin(task.tenant, task.repo)
    async with asyncio.TaskGroup() as group:
        for number in range(agents):
            assignment = CodingAssignment(
                execution_id=task.execution_id,
                agent_id=f"agent-{number}",
                task=task,
                repository=pinned,
                perspective=Perspective(),
            )
            group.create_task(worker.run(assignment))


def _seconds(nats: int) -> tuple[float, float, float]:
    times, server = os.times(), psutil.Process(nats).cpu_times()
    return times.user + times.system, times.children_user + times.children_system, server.user + server.system


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.host")
    parser.add_argument("--agents", type=int, default=10, help="side by side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.0, help="of a reply, in seconds")
    parser.add_argument("--profile", default="", help="a file for cProfile's figures of one more round")
    parser.add_argument("--sort", default="tottime")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-host-") as place:
        figures = asyncio.run(
            host_figures(
                Path(place),
                agents=options.agents,
                rounds=options.rounds,
                latency=options.latency,
                profile=options.profile,
            )
        )
    print(json.dumps(figures))
    if options.profile:
        pstats.Stats(options.profile).sort_stats(options.sort).print_stats(_SHOWN)


if __name__ == "__main__":
    main()
