"""A soak from its first process to its last."""

from __future__ import annotations

import asyncio
import platform
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from labs.soak.alarms import Alarms, open_alarms
from labs.soak.client import Fleet, percentiles
from labs.soak.flatness import BOUNDS, FILLING, FILLING_MINUTES, Judged, judge
from labs.soak.keeper import keeper
from labs.soak.ledger import Ledger, open_ledger
from labs.soak.load import Accepted, Load
from labs.soak.samples import file_figures, process_figures, stream_figures
from labs.soak.stage import Soaked, open_soaked
from swe_ai_fleet.adapters.jetstream.connection import Connection
from tests.processes import kill, new_mark, title

_OVER_SECONDS = 120.0
"""How much longer than its time it may take to start everything and to bring what was begun to its end; then the
fleet has STOP_SECONDS to stop."""
_HEARD_SECONDS = 30.0
_CALLED_FOR = {"FleetAgentRunsLost", "FleetTakeoversHigh"}
"""Alerts for which enough is killed."""
_OUTAGE_MINUTES, _OUTAGE_SECONDS = 10.0, 165.0
"""How long a run is that ends with outages, and how long these are: two minutes and a little, as alerts have it."""
_BUSY = 2.0
"""Above this load for each CPU a task that still goes on is late, and not lost."""
_KILLS = (
    *((0.08, "agents"), (0.13, "fleet"), (0.20, "agents"), (0.25, "model"), (0.30, "fleet")),
    *((0.36, "restart"), (0.42, "agents"), (0.45, "model")),
)
"""When what is killed with -9, or (`restart`) restarted in an orderly way, as a share of the time. All in the first
half: a fresh process hides what an old one has gathered, and the second half is judged."""


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
    notes: list[str] = field(default_factory=list[str])
    """What is told and not judged: what only the machine's load explains."""
    faults: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        return bool(self.judged) and not self.faults and all(one.flat for one in self.judged)


def new_soak(*, seed: int, minutes: float, kept_seconds: float) -> Soak:
    """One that has not begun."""
    memory = psutil.virtual_memory().total / 2**30
    machine = f"{psutil.cpu_count()} CPUs, {memory:.0f} GiB, {platform.machine()}, Python {platform.python_version()}"
    return Soak(seed=seed, minutes=minutes, kept_seconds=kept_seconds, machine=machine)


async def run_soak(soak: Soak, *, width: int, pace: float, latency: float, calm: bool = False) -> None:
    """Load a fleet for so long, kill parts of it, and account for everything at the end.

    What it comes to is in `soak`, as far as it came, also where this is cancelled. No process outlives it.
    """
    directory = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))
    limit = asyncio.get_running_loop().time() + 60 * soak.minutes + _OVER_SECONDS
    try:
        with new_mark() as mark, keeper(mark, directory):
            async with open_soaked(directory, mark=mark, kept_seconds=soak.kept_seconds, latency=latency) as soaked:
                await _play(soak, soaked, limit=limit, width=width, pace=pace, calm=calm)
            soak.notes += [soaked.slow] if soaked.slow else []
            if soaked.left:
                soak.faults.append(f"processes outlive the fleet: {soaked.left}")
    except asyncio.CancelledError:
        soak.faults.append("interrupted")
        raise
    except AssertionError as error:
        soak.faults.append(str(error))
    finally:
        soak.load_average = psutil.getloadavg()
        if soak.holds:
            shutil.rmtree(directory)
        else:
            print(f"the logs of the processes are in {directory}", flush=True)


async def _play(soak: Soak, soaked: Soaked, *, limit: float, width: int, pace: float, calm: bool) -> None:
    card, seconds = soaked.card(), 60 * soak.minutes
    async with AsyncExitStack() as stack:
        ledger, connection = await stack.enter_async_context(open_ledger(card.nats_url, card.nats_token))
        alarms, began = await stack.enter_async_context(open_alarms(soaked.directory, soaked.metrics)), time.time()
        fleets = [
            await stack.enter_async_context(Fleet(soaked=soaked, tokens=tokens)) for tokens in soaked.tokens.values()
        ]
        loads = [
            Load(tenant=tenant, fleet=fleet, ledger=ledger, seed=soak.seed, width=width // len(fleets), pace=pace)
            for tenant, fleet in zip(soaked.tokens, fleets, strict=True)
        ]
        sampling = asyncio.create_task(_sample(soak, soaked, connection), name="samples")
        killing = asyncio.create_task(_kill(soak, soaked, seconds, () if calm else _KILLS), name="kills")
        late: set[str] = set()
        try:
            async with asyncio.timeout_at(limit):
                await asyncio.gather(*(load.run(seconds) for load in loads))
        except TimeoutError:
            late = _late(soak, [one for load in loads for one in load.accepted], ledger)
        finally:
            for task in (killing, sampling):
                task.cancel()
            ended = await asyncio.gather(killing, sampling, return_exceptions=True)
        soak.faults += [f"{one!r}" for one in ended if isinstance(one, Exception)]
        soak.faults += [fault for load in loads for fault in load.faults]
        times = dict[str, list[float]]()
        for fleet in fleets:
            for what, values in fleet.times.items():
                times.setdefault(what, []).extend(values)
        soak.latency = percentiles(times)
        soak.done = dict(sum((load.done for load in loads), Counter[str]()))
        soak.again = dict(sum((fleet.again for fleet in fleets), Counter[str]()))
        soak.broken = dict(sum((fleet.broken for fleet in fleets), Counter[str]()))
        accepted = [one for load in loads for one in load.accepted]
        soak.accepted, soak.executions, soak.events = len(accepted), len(ledger.accounts), ledger.events
        if alarms is None:
            soak.notes.append("no prometheus is installed: alerts were not watched")
        else:
            fired = await alarms.fired(since=began)
            soak.faults += [
                f"the alert {name} fired, and nothing called for it" for name in sorted(fired - _CALLED_FOR)
            ]
            soak.notes.append(f"{await alarms.up():.0%} of Prometheus' scrapes were answered; fired: {sorted(fired)}")
            if soak.minutes >= _OUTAGE_MINUTES:
                soak.faults += await _outages(soaked, alarms)
        for one in accepted:
            account = ledger.of(one.execution_id)
            if one.execution_id in late:
                continue
            # The scripted model does not look whether what was interrupted was done, and its check may miss the line.
            ends = one.ends | {"no_winner"} if account.disturbed else one.ends
            if (account.begun, account.ends, account.results) != (1, 1, 1) or account.status not in ends:
                soak.faults.append(
                    f"{one.task_id}: begun {account.begun}, ended {account.ends} ({account.status}), "
                    f"results {account.results}; should be 1, 1 ({'/'.join(ends)}), 1"
                )
        soak.disturbed = sum(account.disturbed > 0 for account in ledger.accounts.values())
        for execution_id, account in ledger.accounts.items():
            fewer = account.ends == 0 and execution_id in late
            if account.begun != 1 or account.ends > 1 or account.results > 1 or not (account.ends or fewer):
                soak.faults.append(f"execution {execution_id}: {account}")
    # What came after the load is told, not judged: a fleet without work would look flat.
    bounds = {name: bound for name, bound in BOUNDS.items() if soak.minutes >= FILLING_MINUTES or name not in FILLING}
    soak.judged = judge([one for one in soak.samples if one["at"] <= seconds + 1], bounds)


async def _outages(soaked: Soaked, alarms: Alarms) -> list[str]:
    """What is wrong with the alerts of outages long enough for them: of the model server, then of the fleet."""
    faults: list[str] = []
    for away, alert in ((soaked.model, "FleetModelServerDown"), (soaked.fleet, "FleetReplicaDown")):
        began = time.time()
        await away.kill()
        await asyncio.sleep(_OUTAGE_SECONDS)
        if alert not in await alarms.fired(since=began):
            faults.append(f"{away.name} was away for {_OUTAGE_SECONDS:g} s, and {alert} did not fire")
    await soaked.fleet.start()
    await soaked.fleet.serving()
    return faults


def _late(soak: Soak, accepted: Sequence[Accepted], ledger: Ledger) -> set[str]:
    """The executions that are not over, told: late where the machine is busy and the log goes on, else lost."""
    open_ones = [one for one in accepted if not ledger.of(one.execution_id).results]
    told = f"not over {_OVER_SECONDS:g} s after their time, the start included: {[one.task_id for one in open_ones]}"
    load_average, silent = psutil.getloadavg()[0], time.monotonic() - ledger.heard_at
    if open_ones and (load_average < _BUSY * (psutil.cpu_count() or 1) or silent > _HEARD_SECONDS):
        soak.faults.append(f"{told}; load {load_average:.1f}, the log silent for {silent:.0f} s")
        return set()
    soak.notes.append(f"{told}; load {load_average:.1f}, and the log goes on")
    return {one.execution_id for one in open_ones}


async def _sample(soak: Soak, soaked: Soaked, connection: Connection) -> None:
    """A sample every half minute, or in short runs thirty in all."""
    began = time.monotonic()
    every = min(30.0, 2 * soak.minutes)
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
        told = ("memory_mib", "descriptors", "processes", "workspaces", "messages", "stream_mib")
        print(f"{sample['at']:7.0f} s  " + "  ".join(f"{name} {sample[name]:.0f}" for name in told), flush=True)


async def _kill(soak: Soak, soaked: Soaked, seconds: float, kills: Sequence[tuple[float, str]]) -> None:
    began, dice = time.monotonic(), random.Random(f"{soak.seed}/kills")
    for share, what in kills:
        await asyncio.sleep(max(0.0, began + share * seconds - time.monotonic()))
        if what == "model":
            await soaked.model.kill()
            await asyncio.sleep(dice.uniform(0.0, 20.0))
            await soaked.model.start()
            soak.kills.append(f"{share * seconds:.0f} s: the model server")
            continue
        if what in ("fleet", "restart"):
            killed = time.monotonic()
            await (soaked.fleet.kill() if what == "fleet" else soaked.fleet.stop())
            await asyncio.sleep(dice.uniform(0.0, 4.0))
            await soaked.fleet.start()
            await soaked.fleet.serving()
            back = time.monotonic() - killed
            if back > soak.kept_seconds / 2:
                soak.notes.append(f"down for {back:.0f} s where events are kept {soak.kept_seconds:g} s")
            how = "killed" if what == "fleet" else "restarted"
            soak.kills.append(f"{share * seconds:.0f} s: orchestrator, its NATS and Ray {how}; back after {back:.0f} s")
            continue
        hosts = [one for one in soaked.fleet.descendants() if title(one).startswith("ray::AgentHost")]
        if hosts:
            chosen = dice.choice(hosts)
            soak.kills.append(f"{share * seconds:.0f} s: {title(chosen)}")
            kill(chosen)
