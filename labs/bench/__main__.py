"""`make bench`: what a tool call and a step cost, how a hundred agents do, how soon the first model call goes out.

Everything is on, audit, events and workspaces too; the model is the scripted server in a process of its own, which is
not counted. Prints a table and writes bench.json. `make bench PARTS=single,hundred` measures these parts only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from rich.console import Console
from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from labs.bench.checkpoints import TARGET_MS as CHECKPOINT_TARGET_MS
from labs.bench.checkpoints import checkpoint_figures
from labs.bench.command_line import TARGET_MS as COMMAND_TARGET_MS
from labs.bench.command_line import command_line_figures
from labs.bench.environments import TARGET_MS as ENVIRONMENT_TARGET_MS
from labs.bench.environments import environment_figures
from labs.bench.floor import floor_seconds
from labs.bench.idle import TARGET_SHARE as IDLE_TARGET_SHARE
from labs.bench.idle import idle_figures
from labs.bench.images import TARGET_MS as IMAGE_TARGET_MS
from labs.bench.images import image_figures
from labs.bench.nats_log import nats_figures
from labs.bench.planning import planning_figures
from labs.bench.prefix_cache import TARGET_SHARE, prefix_cache_figures
from labs.bench.processes import measured
from labs.bench.profiles import profile_figures
from labs.bench.routing import routing_figures
from labs.bench.sandbox import TARGET_MS, sandbox_figures
from labs.bench.scale import crowd_figures, scale_figures
from labs.bench.steps import COMMAND, FILES, scripted_steps
from labs.bench.tools import tool_figures
from labs.bench.watchers import watcher_figures
from services.orchestrator.main import open_fleet
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.telemetry import configure_logging
from swe_ai_fleet.testing.repositories import make_repository

STEPS = 20
AGENTS = 100
LATENCY = 0.5
CHARACTERS_PER_TOKEN = 4
"""As the scripted server counts them."""

TARGETS = {
    **{f"command_{name}_ms": f"<= {COMMAND_TARGET_MS:g}" for name in ("help", "list", "show")},
    "idle_core_percent": f"<= {100 * IDLE_TARGET_SHARE:g}",
    "step_ms": "<= 4",
    "fleet_100_wall_s": "<= 11.7",
    "fleet_100_whole_s": "<= 13.5",
    "fleet_100_cpu_s": "<= 10",
    "fleet_100_pss_mib": "<= 600",
    "fleet_300_wall_s": "<= 20",
    "first_call_ms_cold": "<= 200",
    "first_call_ms_warm": "<= 30",
    "simple_query_ms": "<= 3000",
    "complex_query_ms": "<= 10000",
    "prefix_cache_hit_share": f">= {TARGET_SHARE:g}",
    "sandbox_bubblewrap_overhead_ms": f"<= {TARGET_MS:g}",
    "sandbox_landlock_overhead_ms": f"<= {TARGET_MS:g}",
    "environment_cached_commit_ms": f"<= {ENVIRONMENT_TARGET_MS:g}",
    "environment_cached_ms": f"<= {ENVIRONMENT_TARGET_MS:g}",
    "image_workspace_more_ms": f"<= {IMAGE_TARGET_MS:g}",
    "checkpoint_one_changed_ms": f"<= {CHECKPOINT_TARGET_MS:g}",
    "watching_busy_whole": "= {watching_busy_watchers:g}",
    "watching_many_whole": "= {watching_many_watchers:g}",
}
"""By figure what it should come to; a name in braces is another figure of the same part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One deliberation in seconds: to the first model call, and from the first run's start to the last reply.

    `overhead_tokens` is what a step adds to the prompt beside the model's own reply and what its tools printed.
    """

    to_first_call: float
    working: float
    events: int
    overhead_tokens: float


async def main(parts: Sequence[str]) -> None:
    configure_logging("error")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="fleet-bench-") as name:
        directory = Path(name)
        for part in parts:
            figures |= await PARTS[part](directory / part)
    Path("bench.json").write_text(json.dumps(figures, indent=2) + "\n")
    _print(figures)


async def single(directory: Path) -> dict[str, float]:
    """One agent of twenty steps: to its first model call, cold and warm, and what a step costs."""
    repository = make_repository(directory / "repository", FILES)
    async with scripted_steps(directory, steps=STEPS, latency=0.0) as (url, _), _fleet(directory / "one", url) as fleet:
        cold = await _run(fleet, repository, "cold", agents=1)
        runs = [await _run(fleet, repository, f"warm-{number}", agents=1) for number in range(5)]
    return {
        "first_call_ms_cold": round(1000 * cold.to_first_call, 1),
        "first_call_ms_warm": round(1000 * sorted(run.to_first_call for run in runs)[2], 1),
        "overhead_tokens_per_step": round(runs[-1].overhead_tokens, 1),
        "step_ms": round(1000 * sorted(run.working for run in runs)[2] / STEPS, 2),
    }


async def hundred(directory: Path) -> dict[str, float]:
    """A hundred agents of twenty steps at half a second a reply, and what the bare work takes (`fleet_100_floor_s`)."""
    repository = make_repository(directory / "repository", FILES)
    async with scripted_steps(directory, steps=STEPS, latency=LATENCY) as (url, pid):
        bare = COMMAND.replace("notes.log", "/dev/null")
        floor = await floor_seconds(url, agents=AGENTS, steps=STEPS, command=bare)
        async with _fleet(directory / "hundred", url) as fleet:
            await _run(fleet, repository, "warm-up", agents=2)
            async with measured(pid) as cost:
                began = time.time()
                execution_id = await _deliberate(fleet, repository, "hundred", agents=AGENTS)
                whole = time.time() - began
            run = await _timed(fleet, execution_id, began, agents=AGENTS)
    return {
        "fleet_100_floor_s": round(floor, 2),
        "fleet_100_ideal_s": (STEPS + 1) * LATENCY,
        "fleet_100_wall_s": round(run.working, 2),
        "fleet_100_whole_s": round(whole, 2),
        "fleet_100_setup_s": round(run.to_first_call, 2),
        "fleet_100_pss_mib": round(cost.peak_pss_mib),
        "fleet_100_cpu_s": round(cost.cpu_seconds, 1),
        "fleet_100_events": run.events,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The generated gRPC client and what every call of it carries."""

    stub: pb_grpc.OrchestratorServiceStub
    metadata: tuple[tuple[str, str], ...]


@asynccontextmanager
async def _fleet(home: Path, url: str) -> AsyncGenerator[Client]:
    settings = Settings(home=home, model_url=url, model="scripted", listen="127.0.0.1:0")
    async with open_fleet(settings) as running, grpc.aio.insecure_channel(running.address) as channel:
        token = (("authorization", f"Bearer {running.token}"),)
        yield Client(stub=pb_grpc.OrchestratorServiceStub(channel), metadata=token)


async def _run(fleet: Client, repository: Path, task_id: str, *, agents: int) -> Run:
    """One deliberation by a unary call."""
    began = time.time()
    execution_id = await _deliberate(fleet, repository, task_id, agents=agents)
    return await _timed(fleet, execution_id, began, agents=agents)


async def _deliberate(fleet: Client, repository: Path, task_id: str, *, agents: int) -> str:
    """Have agents take their steps; the execution, once the answer is there."""
    request = pb.DeliberateRequest(
        task_id=task_id,
        task_description="Take twenty steps.",
        repo=pb.RepoRef(path=str(repository)),
        role="QA",  # a developer who changes nothing is asked once more
        num_agents=agents,
        constraints=pb.TaskConstraints(max_iterations=STEPS + 5),
    )
    return (await fleet.stub.Deliberate(request, metadata=fleet.metadata)).execution_id


async def _timed(fleet: Client, execution_id: str, began: float, *, agents: int) -> Run:
    """What the log says of an execution that was asked for at `began`; reading it belongs to no measurement."""
    first_call, started, replied, events = 0.0, 0.0, 0.0, 0
    prompts: dict[str, list[int]] = {}
    said = 0
    stream = fleet.stub.StreamExecution(pb.StreamExecutionRequest(execution_id=execution_id), metadata=fleet.metadata)
    async for event in stream:
        events += 1
        at = event.at_ms / 1000
        if event.type == "run_started":
            started = started or at
        elif event.type == "model_replied":
            body = json.loads(event.payload_json)
            first_call = first_call or at - body["duration_ms"] / 1000
            replied = at
            prompts.setdefault(event.agent_id, []).append(body["reply"]["usage"]["prompt_tokens"])
            if len(prompts[event.agent_id]) <= STEPS:  # the last reply is in no prompt
                message = body["reply"]["message"]
                calls = message["tool_calls"]
                said += len(message["content"]) + sum(len(call["name"]) + len(call["arguments"]) for call in calls)
        elif event.type == "tool_finished" and len(prompts[event.agent_id]) <= STEPS:
            said += len(json.loads(event.payload_json)["result"]["content"])
    grown = sum(counts[-1] - counts[0] for counts in prompts.values())
    overhead = (grown - said / CHARACTERS_PER_TOKEN) / (agents * STEPS)
    return Run(to_first_call=first_call - began, working=replied - started, events=events, overhead_tokens=overhead)


async def _retrieval(directory: Path) -> dict[str, float]:
    # An extension is measured, which may not be there.
    from labs.bench.retrieval import retrieval_figures

    return await retrieval_figures(directory)


async def _profiles(_: Path) -> dict[str, float]:
    return profile_figures()


PARTS: Mapping[str, Callable[[Path], Awaitable[dict[str, float]]]] = {
    "tools": tool_figures,
    "sandbox": lambda _: sandbox_figures(),
    "environments": environment_figures,
    "images": image_figures,
    "checkpoints": checkpoint_figures,
    "single": single,
    "hundred": hundred,
    "crowd": crowd_figures,
    "scale": scale_figures,
    "cli": command_line_figures,
    "idle": idle_figures,
    "nats": lambda _: nats_figures(),
    "planning": planning_figures,
    "profiles": _profiles,
    "prefix": prefix_cache_figures,
    "retrieval": _retrieval,
    "routing": routing_figures,
    "watchers": lambda _: watcher_figures(),
}
"""What can be measured, each part in a directory of its own, which does not exist yet."""


def _print(figures: Mapping[str, float]) -> None:
    """The figures and what they should come to, as far as they were measured."""
    table = Table("figure", "value", "target", title=f"{os.cpu_count()} CPUs, scripted model, everything on")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}", TARGETS.get(name, "").format_map(figures))
    Console().print(table)


def _part_names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name] or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="labs.bench", description="Measure overhead and scale on this machine.")
    parser.add_argument(
        "parts",
        nargs="?",
        default=list(PARTS),
        type=_part_names,
        metavar="PART,PART",
        help=f"what to measure, in this order; all of it by default: {', '.join(PARTS)}",
    )
    asyncio.run(main(parser.parse_args().parts))
