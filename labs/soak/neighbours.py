"""Two tenants on one machine, one of which takes all it can: how long the other's steps take, alone and beside it.

A step of the victim is what an agent's is made of: a command that computes for a fifth of a second, an event, a blob.
It asks for no more than one slot. The attacker's hosts are processes of their own, as a fleet's are; they take slots
asleep, burn CPUs with many processes, fill memory and disk, store checkpoints, all under the ids that the victim uses.
Each attack is measured between two spells without one. Ends with 1 where a p95 is more than 1.5 times that alone.

Ratios are those of the machine: beside other work they say little, so it is told how busy it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.command import Command, Owner
from swe_ai_fleet.domain.event import MessageAdded, Writer
from swe_ai_fleet.domain.message import UserMessage
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.sandbox import CpuSlots, LocalWorkspace, Sandbox, SandboxPolicy, choose_isolation_level

MOST_RATIO = 1.5
EXECUTION = "the-same-id"
_HOSTS = 2
_RUNS = 6
_MIB = 1024**2
_CHECKPOINT_SECONDS = 1.0
_STEAL = 7
"""Where /proc/stat has what a virtual machine's host took, among user, nice, system, idle, iowait, irq and softirq."""
_STEP = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
ATTACKS = {
    "slots, asleep": "sleep 3600",
    "CPUs, many processes": "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait",
    "memory": "python3 -c 'held = bytearray(384 * 1024**2)\nwhile True: held[::4096] = held[::4096]'",
    "disk": "while :; do head -c 67108864 /dev/urandom >large; sync large; done",
}
STORAGE = "storage and ids"


@dataclass(kw_only=True)
class Spell:
    """Some seconds of the victim's steps."""

    attack: str
    seconds: list[float] = field(default_factory=list[float])
    stolen: float = 0.0

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.seconds, n=20, method="inclusive")[-1]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where both are: a directory and a NATS."""

    directory: Path
    url: str
    token: str

    def slots(self) -> CpuSlots:
        return CpuSlots(self.directory / "slots", 2 * (os.cpu_count() or 1))

    @asynccontextmanager
    async def workspace(self, owner: Owner) -> AsyncGenerator[LocalWorkspace]:
        policy = SandboxPolicy(level=await choose_isolation_level("auto"), grace_seconds=0.1)
        with tempfile.TemporaryDirectory(dir=self.directory) as root:
            async with Sandbox(policy, self.slots()).workspace(Path(root), owner=owner) as workspace:
                yield workspace

    @asynccontextmanager
    async def log(self) -> AsyncGenerator[JetStream]:
        async with JetStream.connect(self.url, credentials=NatsCredentials(token=self.token), timeout=60.0) as log:
            await log.ensure_streams()
            yield log


async def attack(place: Place, kind: str, host: int) -> None:
    """Go on until the process is ended."""
    async with asyncio.TaskGroup() as group:
        for number in range(_RUNS):
            group.create_task(_attack_once(place, kind, f"{host}-{number}" if number else EXECUTION))


async def _attack_once(place: Place, kind: str, execution_id: str) -> None:
    owner = Owner(tenant="attacker", execution_id=execution_id)
    if kind == STORAGE:
        async with place.log() as log:
            while True:
                data = random.randbytes(8 * _MIB)
                await log.put(owner.tenant, owner.execution_id, data, "x", place="checkpoints/agent/x-0")
                await asyncio.sleep(_CHECKPOINT_SECONDS)
    async with place.workspace(owner) as workspace:
        while True:
            await workspace.run(Command(argv=("sh", "-c", ATTACKS[kind]), timeout_seconds=3600))


@asynccontextmanager
async def attacked(place: Place, kind: str) -> AsyncGenerator[None]:
    """Hosts of the attacker, at work."""
    hosts: list[asyncio.subprocess.Process] = []
    arguments = (str(place.directory), place.url, kind)
    environment = {**os.environ, "NEIGHBOURS_TOKEN": place.token}
    try:
        for host in range(_HOSTS):
            argv = (sys.executable, "-m", "labs.soak.neighbours", "--attack", *arguments, str(host))
            hosts.append(await asyncio.create_subprocess_exec(*argv, env=environment))
        await asyncio.sleep(3.0)
        for process in hosts:
            if process.returncode is not None:
                raise RuntimeError(f"a host of the attacker ended: {kind}")
        yield
    finally:
        for process in hosts:
            if process.returncode is None:
                process.terminate()
        await asyncio.gather(*(process.wait() for process in hosts))


async def spell(name: str, seconds: float, workspace: LocalWorkspace, journal: Journal, log: JetStream) -> Spell:
    """Steps of the victim, one after another."""
    told, until = Spell(attack=name), time.monotonic() + seconds
    before = _cpu_ticks()
    while time.monotonic() < until or len(told.seconds) < 20:
        began = time.monotonic()
        result = await workspace.run(Command(argv=("python3", "-c", _STEP), timeout_seconds=600))
        await journal.append(MessageAdded(step=1, message=UserMessage(content="x" * 900)))
        await log.put("victim", EXECUTION, os.urandom(4096), "text/plain")
        told.seconds.append(time.monotonic() - began)
        if not result.ok:
            raise RuntimeError(f"a step of the victim failed: {result.stderr.text()}")
    spent = [after - earlier for earlier, after in zip(before, _cpu_ticks(), strict=True)]
    told.stolen = spent[_STEAL] / max(sum(spent), 1)
    return told


def _cpu_ticks() -> list[int]:
    """Ticks of all CPUs by what they were spent on, as /proc/stat has them."""
    return [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1 : _STEAL + 2]]


async def measure(seconds: float) -> bool:
    """Print a line for each attack; whether all ratios are within bounds."""
    holds = True
    with tempfile.TemporaryDirectory(prefix="fn-") as directory:
        async with EmbeddedNats(Path(directory) / "nats") as nats:
            place = Place(directory=Path(directory), url=nats.address.url, token=nats.address.token)
            async with AsyncExitStack() as stack:
                log = await stack.enter_async_context(place.log())
                writer = Writer(tenant="victim", execution_id=EXECUTION, agent_id="a", task_id="t", generation=1)
                journal = await stack.enter_async_context(log.journal(writer))
                owner = Owner(tenant="victim", execution_id=EXECUTION)
                workspace = await stack.enter_async_context(place.workspace(owner))
                before = await spell("alone", seconds, workspace, journal, log)
                for kind in (*ATTACKS, STORAGE):
                    async with attacked(place, kind):
                        during = await spell(kind, seconds, workspace, journal, log)
                    await asyncio.sleep(1.0)
                    after = await spell("alone", seconds, workspace, journal, log)
                    alone = Spell(attack="alone", seconds=before.seconds + after.seconds)
                    ratio = during.p95 / alone.p95
                    holds = holds and ratio <= MOST_RATIO
                    print(
                        f"{kind:24} p95 alone {alone.p95 * 1000:7.0f} ms, attacked {during.p95 * 1000:7.0f} ms,"
                        f" ratio {ratio:5.2f} ({during.stolen:.0%} of the CPUs taken by the machine's own host)",
                        flush=True,
                    )
                    before = after
    return holds


def main() -> None:
    parser = argparse.ArgumentParser(prog="neighbours", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each spell")
    parser.add_argument("--attack", nargs=4, metavar=("DIRECTORY", "URL", "KIND", "HOST"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        directory, url, kind, host = options.attack
        place = Place(directory=Path(directory), url=url, token=os.environ["NEIGHBOURS_TOKEN"])
        asyncio.run(attack(place, kind, int(host)))
        return
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(json.dumps({"cpus": os.cpu_count(), "load_of_each_before": round(load, 2)}), flush=True)
    sys.exit(0 if asyncio.run(measure(options.seconds)) else 1)


if __name__ == "__main__":
    main()
