"""`fleet capacity`: the machines and money needed for a number of GPUs. `docs/capacity.md` explains the figures."""

from __future__ import annotations

import math
from typing import Annotated

from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen

# Measured; tests/unit/test_capacity.py holds them against the tables of docs/capacity.md.
GPU_STEPS = 24.0
"""Steps a second of one GPU at the point where more agents hardly raise it."""
GPU_AGENTS = 174
"""Agents whose prompts fit into one GPU's cache."""
STEP_CPU_SECONDS = 0.0089
AGENTS_PER_GIB = 126
EVENTS_PER_STEP = 3.4
NATS_STEPS = 2_300
"""Steps a second of one NATS cluster of three servers: 0.3 ms of CPU each on the stream leader, 70 % of a core."""
STEP_BYTES, EXECUTION_BYTES = 4 * 1024, 7 * 1024
"""Of a step in the log; of an execution in the memory of a context service."""
PROMPT_BYTES = 8_700 * 4

BUSY = 0.7
"""The largest load of a core; beyond it, work waits."""
# From settings and manifests.
DRIVES, EVENT_DAYS, COPIES = 200, 90, 3
POD_CORES, POD_GIB, POD_AGENTS = 4, 8, 128
RUN_STEPS, CLONE_GIB = 30, 0.5


async def capacity(
    screen: Screen,
    *,
    gpus: Annotated[int, option("GPUs that serve the model.", metavar="N")],
    steps_per_minute: Annotated[float, option("Steps of a working agent per minute.")] = 10.0,
    gpu_steps: Annotated[float, option("Steps of one GPU per second, with your model.")] = GPU_STEPS,
    gpu_agents: Annotated[int, option("Agents whose prompts fit into one GPU's cache.")] = GPU_AGENTS,
    command_seconds: Annotated[float, option("CPU seconds of commands (builds, tests) per step.")] = 0.5,
    agents: Annotated[int, option("Agents per task.")] = 3,
    hours: Annotated[float, option("Hours per day at full load.")] = 24.0,
    gpu_price: Annotated[float, option("Price of a GPU per hour, in your currency.")] = 2.5,
    core_price: Annotated[float, option("Price of a core with 2 GiB per hour.")] = 0.04,
    gib_price: Annotated[float, option("Price of a GiB of a volume per month.")] = 0.1,
) -> Exit:
    least = {"gpus": gpus, "steps_per_minute": steps_per_minute, "gpu_steps": gpu_steps, "gpu_agents": gpu_agents}
    least |= {"agents": agents, "hours": hours}
    free = {"gpu_price": gpu_price, "core_price": core_price, "gib_price": gib_price}
    free |= {"command_seconds": command_seconds}
    for name, value in (least | free).items():
        if not (0 <= value < 1e6 and (value or name in free)):
            raise CommandFault(f"{value:g} is out of range", field=name, hint="0 to a million")
    at_once = math.floor(gpus * min(gpu_agents, gpu_steps * 60 / steps_per_minute))
    steps = at_once * steps_per_minute / 60
    bound = "their cache" if gpu_agents < gpu_steps * 60 / steps_per_minute else "their speed"
    cores = steps * (STEP_CPU_SECONDS + command_seconds) / BUSY
    pods = math.ceil(max(at_once / POD_AGENTS, cores / POD_CORES, at_once / AGENTS_PER_GIB / POD_GIB))
    executions, daily = at_once / agents, steps * 3_600 * hours
    ended = daily / (agents * RUN_STEPS)
    orchestrators = max(2, math.ceil(executions / DRIVES))
    servers = math.ceil(steps / NATS_STEPS)
    # Events, blobs about as much, results an eighth.
    log = daily * STEP_BYTES * EVENT_DAYS * 2.125 / 1024**3
    clones = at_once / pods * CLONE_GIB
    money = gpus * gpu_price * hours * 30, pods * POD_CORES * core_price * hours * 30, log * COPIES * gib_price
    rows = [
        ("agents at once", f"{at_once:,}", f"{gpus} GPUs, bounded by {bound}"),
        ("steps a second", f"{steps:,.0f}", f"{at_once:,} agents x {steps_per_minute:g} a minute"),
        ("prompts to model servers", f"{steps * PROMPT_BYTES / 1e6:,.0f} MB/s", "whole prompts, 8,700 tokens each"),
        ("events a second", f"{steps * EVENTS_PER_STEP:,.0f}", f"{EVENTS_PER_STEP:g} a step"),
        ("NATS", f"{servers}", f"{NATS_STEPS:,} steps a second one, extrapolated; {COPIES} servers each"),
        ("executions at once", f"{executions:,.0f}", f"{agents} agents each"),
        ("orchestrators", f"{orchestrators}", f"FLEET_MAX_EXECUTIONS={DRIVES} each, two at least"),
        ("cores of agent hosts", f"{cores:,.0f}", f"{STEP_CPU_SECONDS + command_seconds:g} s a step, {BUSY:.0%} busy"),
        ("Ray worker Pods", f"{pods:,}", f"{POD_CORES} cores, {POD_GIB} GiB, {POD_AGENTS} agents at most"),
        ("disk of such a Pod", f"{clones:,.0f} GiB", f"clones of {CLONE_GIB:g} GiB; seeds and environments on top"),
        ("executions a day", f"{ended:,.0f}", f"{hours:g} hours, {RUN_STEPS} steps a run"),
        ("context service, memory a day", f"{ended * EXECUTION_BYTES / 1024**3:,.1f} GiB", "7 KiB an execution"),
        ("volumes of NATS", f"{log * COPIES:,.0f} GiB", f"4 KiB a step, {EVENT_DAYS} days, blobs, {COPIES} copies"),
        ("money a month: GPUs", f"{money[0]:,.0f}", f"{gpu_price:g} an hour"),
        ("money a month: agent hosts", f"{money[1]:,.0f}", f"{core_price:g} a core and hour"),
        ("money a month: volumes", f"{money[2]:,.0f}", f"{gib_price:g} a GiB"),
        ("money a month", f"{sum(money):,.0f}", f"{sum(money) / ended / 30:.3f} an execution"),
    ]
    if screen.json:
        screen.document({"rows": [{"what": need, "needed": needed, "from": source} for need, needed, source in rows]})
    else:
        screen.table(("what", "needed", "from"), rows, "nothing")
    return Exit.ACCEPTED
