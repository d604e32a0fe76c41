"""A chaos run from its first process to its last."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from labs.chaos.killing import Blow, Killer, alive
from labs.chaos.knowledge import prove_knowledge
from labs.chaos.load import Load
from labs.chaos.plan import Victim, strikes
from labs.chaos.proof import Proof, prove
from labs.chaos.stage import Stage, open_stage
from labs.chaos.watch import open_watch, results
from tests.processes import marked, new_mark, title

CLEAN_SECONDS = 120.0
"""Ray's own agents take up to a minute to notice that their cluster was killed."""
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """So many executions under so many kills; with `nodes`, both orchestrators share a Ray cluster of that size."""

    name: str
    executions: int
    victims: Mapping[Victim, int]
    nodes: int = 0


@dataclass(kw_only=True)
class Outcome:
    """What a run came to; `clean_seconds` after the last process was asked to end, nothing was left."""

    seed: int
    seconds: float = 0.0
    clean_seconds: float = 0.0
    events: int = 0
    handed_in_again: int = 0
    ended_by_themselves: list[str] = field(default_factory=list[str])
    blows: list[Blow] = field(default_factory=list[Blow])
    proof: Proof = field(default_factory=Proof)

    @property
    def holds(self) -> bool:
        return not self.proof.faults


async def run_chaos(phases: list[Phase], *, seed: int, width: int, latency: float, limit_seconds: float) -> Outcome:
    """Run the phases one after the other and prove at the end what must hold. Raises TimeoutError at the limit."""
    outcome = Outcome(seed=seed)
    # A short path: Ray puts sockets below it, whose paths may have at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="fc-", dir="/tmp"))
    try:
        with new_mark() as mark:
            async with open_stage(directory, latency=latency) as stage:
                await _play(stage, phases, outcome, width=width, limit_seconds=limit_seconds)
            asked_at = time.monotonic()
            await _nothing_left(outcome.proof, mark, directory)
            outcome.clean_seconds = round(time.monotonic() - asked_at, 1)
    finally:
        if outcome.seconds and outcome.holds:
            shutil.rmtree(directory)
        else:
            print(f"the logs of the processes are in {directory}", flush=True)
    return outcome


async def _play(stage: Stage, phases: list[Phase], outcome: Outcome, *, width: int, limit_seconds: float) -> None:
    began = time.time()
    async with open_watch(stage.nats_url, stage.nats_token) as (watch, connection):
        load = Load(stage=stage, watch=watch, width=width, seed=outcome.seed)
        killer = Killer(stage=stage, watch=watch, began=began, blows=outcome.blows)
        try:
            async with asyncio.timeout(limit_seconds):
                for number, phase in enumerate(phases):
                    if phase.nodes:
                        await stage.start_cluster(phase.nodes)
                    await stage.start_replicas()
                    async with _supervised(stage):
                        await _phase(phase, number, load, killer)
                    await _nobody_at_work(outcome.proof, stage, phase)
                    if phase is phases[-1]:
                        found = await prove(stage, list(load.accepted.values()), await results(connection))
                        await prove_knowledge(found, stage, connection, list(load.accepted.values()))
                        found.faults[:0] = outcome.proof.faults
                        outcome.proof = found
                    await stage.stop_replicas()
                    await _no_actors(outcome.proof, stage, phase)
                    await stage.stop_cluster()
        except TimeoutError:
            missing = [one for one in load.accepted.values() if one.execution_id not in load.told]
            raise TimeoutError(
                f"not done within {limit_seconds:g} s: {load.ended} of {len(load.accepted)} accepted have ended; "
                f"open are {[(one.task_id, one.execution_id) for one in missing][:8]}"
            ) from None
        outcome.events = watch.events
        outcome.ended_by_themselves = stage.restarted
        outcome.handed_in_again = sum(one.attempts - 1 for one in load.accepted.values())
        outcome.seconds = round(time.time() - began, 1)


@asynccontextmanager
async def _supervised(stage: Stage) -> AsyncGenerator[None]:
    supervisor = asyncio.create_task(stage.supervise(), name="supervisor")
    try:
        yield
    finally:
        supervisor.cancel()
        await asyncio.wait([supervisor])
    if not supervisor.cancelled():
        supervisor.result()


async def _phase(phase: Phase, number: int, load: Load, killer: Killer) -> None:
    before = load.ended
    plan = strikes(load.seed, number, phase.executions, phase.victims)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(len(load.accepted) + 1, phase.executions))
        group.create_task(killer.run(phase.name, plan, lambda: load.ended - before, of=phase.executions))


async def _nobody_at_work(proof: Proof, stage: Stage, phase: Phase) -> None:
    """While the orchestrators wait for work: no clone, no session of a sandbox is left."""
    until = time.monotonic() + CLEAN_SECONDS / 4
    while True:
        clones = [str(path) for replica in stage.replicas for path in replica.workspaces]
        sessions = alive([one for one in _below(stage) if title(one) in ("bwrap", "git", "sh")])
        if (not clones and not sessions) or time.monotonic() > until:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    proof.expect(not clones, f"{phase.name}: workspaces are left: {clones}")
    proof.expect(not sessions, f"{phase.name}: sessions are left: {sessions}")


async def _no_actors(proof: Proof, stage: Stage, phase: Phase) -> None:
    """On a cluster that outlives its orchestrators: not one actor is left, of those that were killed either."""
    until = time.monotonic() + CLEAN_SECONDS / 4
    while (actors := alive([one for one in _below(stage) if title(one).startswith("ray::AgentHost")])) and (
        time.monotonic() < until
    ):
        await asyncio.sleep(_LOOK_SECONDS)
    proof.expect(not actors, f"{phase.name}: actors are left: {actors}")


def _below(stage: Stage) -> list[psutil.Process]:
    return [one for root in (*stage.replicas, *stage.nodes) for one in root.descendants()]


async def _nothing_left(proof: Proof, mark: str, directory: Path) -> None:
    """Once everything was asked to end: not one process of the run, actors and sessions included."""
    until = time.monotonic() + CLEAN_SECONDS
    while (left := marked(mark, directory)) and time.monotonic() < until:
        await asyncio.sleep(_LOOK_SECONDS)
    proof.expect(not left, f"processes are left: {alive(left)}")
