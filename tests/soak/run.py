"""A soak from its first process to its last."""

from __future__ import annotations

import asyncio
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from swe_ai_fleet.adapters.jetstream.connection import Connection
from tests.chaos.processes import kill, marked, new_mark, title
from tests.soak.client import Fleet, percentiles
from tests.soak.flatness import Judged, judge
from tests.soak.ledger import open_ledger
from tests.soak.load import Load
from tests.soak.samples import file_figures, process_figures, stream_figures
from tests.soak.stage import Soaked, open_soaked

_DRAIN_SECONDS = 120.0
_CLEAN_SECONDS = 90.0
_LOOK_SECONDS = 0.25
_KILLS = ((0.10, "agents"), (0.16, "fleet"), (0.24, "agents"), (0.30, "fleet"), (0.38, "agents"), (0.42, "agents"))
"""When what is killed with -9, as a share of the time. All in the first half: a fresh process hides what an old one
has gathered, and the second half is judged."""


@dataclass(kw_only=True)
class Soak:
    """What a run came to; nothing in `faults` and nothing that is not flat means that it holds."""

    seed: int
    minutes: float
    kept_seconds: float
    load_average: tuple[float, float, float] = (0.0, 0.0, 0.0)
    machine: str = ""
    samples: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    kills: list[str] = field(default_factory=list[str])
    judged: list[Judged] = field(default_factory=list[Judged])
    latency: dict[str, dict[str, float]] = field(default_factory=dict[str, "dict[str, float]"])
    done: dict[str, int] = field(default_factory=dict[str, int])
    again: dict[str, int] = field(default_factory=dict[str, int])
    broken: dict[str, int] = field(default_factory=dict[str, int])
    accepted: int = 0
    disturbed: int = 0
    executions: int = 0
    events: int = 0
    faults: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        return not self.faults and all(one.flat for one in self.judged)


async def run_soak(
    *, minutes: float, seed: int, width: int, pace: float, latency: float, kept_seconds: float, calm: bool = False
) -> Soak:
    """Load a fleet for so long, kill parts of it, and account for everything at the end."""
    memory = psutil.virtual_memory().total / 2**30
    machine = f"{psutil.cpu_count()} CPUs, {memory:.0f} GiB, {platform.machine()}, Python {platform.python_version()}"
    soak = Soak(seed=seed, minutes=minutes, kept_seconds=kept_seconds, machine=machine)
    directory = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))
    try:
        with new_mark() as mark:
            async with open_soaked(directory, mark=mark, kept_seconds=kept_seconds, latency=latency) as soaked:
                await _play(soak, soaked, width=width, pace=pace, calm=calm)
            until = time.monotonic() + _CLEAN_SECONDS
            while (left := marked(mark, directory)) and time.monotonic() < until:
                await asyncio.sleep(_LOOK_SECONDS)
            if left:
                soak.faults.append(f"processes are left: {[title(one) for one in left]}")
    finally:
        if soak.judged and soak.holds:
            shutil.rmtree(directory)
        else:
            print(f"the logs of the processes are in {directory}", flush=True)
    soak.load_average = psutil.getloadavg()
    return soak


async def _play(soak: Soak, soaked: Soaked, *, width: int, pace: float, calm: bool) -> None:
    card, seconds = soaked.card(), 60 * soak.minutes
    async with open_ledger(card.nats_url, card.nats_token) as (ledger, connection), Fleet(soaked=soaked) as fleet:
        load = Load(fleet=fleet, ledger=ledger, seed=soak.seed, width=width, pace=pace)
        sampling = asyncio.create_task(_sample(soak, soaked, connection), name="samples")
        killing = asyncio.create_task(_kill(soak, soaked, seconds, () if calm else _KILLS), name="kills")
        try:
            async with asyncio.timeout(seconds + _DRAIN_SECONDS):
                await load.run(seconds)
        except TimeoutError:
            open_ones = [one.task_id for one in load.accepted if not ledger.of(one.execution_id).results]
            soak.faults.append(f"not over {_DRAIN_SECONDS:g} s after the end; open are {open_ones[:20]}")
        finally:
            for task in (killing, sampling):
                task.cancel()
            ended = await asyncio.gather(killing, sampling, return_exceptions=True)
        soak.faults += [f"{one!r}" for one in ended if isinstance(one, Exception)]
        soak.faults += load.faults
        soak.latency = percentiles(fleet.times)
        soak.done, soak.again, soak.broken = dict(load.done), dict(fleet.again), dict(fleet.broken)
        soak.accepted, soak.executions, soak.events = len(load.accepted), len(ledger.accounts), ledger.events
        for one in load.accepted:
            account = ledger.of(one.execution_id)
            # The scripted model does not look whether what was interrupted was done, and its check may miss the line.
            ends = one.ends | {"no_winner"} if account.disturbed else one.ends
            if (account.begun, account.ends, account.results) != (1, 1, 1) or account.status not in ends:
                soak.faults.append(
                    f"{one.task_id}: begun {account.begun}, ended {account.ends} ({account.status}), "
                    f"results {account.results}; should be 1, 1 ({'/'.join(ends)}), 1"
                )
        soak.disturbed = sum(account.disturbed > 0 for account in ledger.accounts.values())
        for execution_id, account in ledger.accounts.items():
            if account.begun != 1 or account.ends != 1 or account.results > 1:
                soak.faults.append(f"execution {execution_id}: {account}")
    # What came after the load is told, not judged: a fleet without work would look flat.
    soak.judged = judge([one for one in soak.samples if one["at"] <= seconds + 1])


async def _sample(soak: Soak, soaked: Soaked, connection: Connection) -> None:
    """A sample every minute, or in short runs thirty in all."""
    began = time.monotonic()
    every = min(60.0, 2 * soak.minutes)
    number = 0
    while True:
        number += 1
        await asyncio.sleep(max(0.0, began + number * every - time.monotonic()))
        if not soaked.fleet.ready:
            continue
        sample = {"at": round(time.monotonic() - began, 1)}
        sample |= await asyncio.to_thread(process_figures, soaked)
        sample |= await asyncio.to_thread(file_figures, soaked)
        sample |= await stream_figures(connection)
        soak.samples.append({name: round(value, 2) for name, value in sample.items()})
        told = ("pss_mib", "descriptors", "processes", "workspaces", "messages", "stream_mib")
        print(f"{sample['at']:7.0f} s  " + "  ".join(f"{name} {sample[name]:.0f}" for name in told), flush=True)


async def _kill(soak: Soak, soaked: Soaked, seconds: float, kills: Sequence[tuple[float, str]]) -> None:
    began, dice = time.monotonic(), random.Random(f"{soak.seed}/kills")
    for share, what in kills:
        await asyncio.sleep(max(0.0, began + share * seconds - time.monotonic()))
        if what == "fleet":
            await soaked.fleet.kill()
            killed = time.monotonic()
            await asyncio.sleep(dice.uniform(0.0, 4.0))
            await soaked.fleet.start()
            await soaked.fleet.serving()
            back = time.monotonic() - killed
            if back > soak.kept_seconds / 2:
                soak.faults.append(
                    f"down for {back:.0f} s where events are kept {soak.kept_seconds:g} s: too slow a machine"
                )
            soak.kills.append(f"{share * seconds:.0f} s: orchestrator, its NATS and Ray; back after {back:.0f} s")
            continue
        hosts = [one for one in soaked.fleet.descendants() if title(one).startswith("ray::AgentHost")]
        if hosts:
            chosen = dice.choice(hosts)
            soak.kills.append(f"{share * seconds:.0f} s: {title(chosen)}")
            kill(chosen)
