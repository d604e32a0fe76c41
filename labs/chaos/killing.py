"""Carries out strikes, starts again what was killed, and measures how long the work stood still."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from labs.chaos.plan import Strike, Victim
from labs.chaos.stage import Replica, Stage
from labs.chaos.watch import Seen, Watch
from tests.processes import kill, title

LOOK_SECONDS = 0.1
TIMEOUT_SECONDS = 150.0
_NOT_WORKERS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
_FOUND_OUT_SECONDS = {Victim.ACTOR: 6.0, Victim.WORKER: 6.0, Victim.NODE: 40.0}
"""Within this Ray tells of what died: of a process at once, of a node once it missed a few health checks."""


@dataclass(kw_only=True)
class Blow:
    """A strike that was carried out.

    `at_seconds` counts from the beginning of the run; `hit` are the tasks that the victim had a part in;
    `recovered_seconds` is from the kill to the moment when the last of them was heard again, negative where that was
    never, and None where nothing was hit.
    """

    phase: str
    victim: Victim
    what: str
    at_seconds: float
    down_seconds: float
    hit: tuple[str, ...] = ()
    recovered_seconds: float | None = None
    note: str = ""


@dataclass(kw_only=True)
class Killer:
    """Strikes one after the other while work goes on.

    Args:
        stage: Whom.
        watch: Tells whom it hit and when they were back.
        began: When the run began, seconds since the epoch.
    """

    stage: Stage
    watch: Watch
    began: float
    blows: list[Blow] = field(default_factory=list[Blow])
    _after: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def run(self, phase: str, strikes: list[Strike], ended: Callable[[], int], *, of: int) -> None:
        """Carry the strikes out, each when its moment has come; all that was killed runs again at the end.

        Strikes whose moment has not come when all `of` the executions have ended are left out.
        """

        def due(strike: Strike) -> bool:
            return ended() >= strike.after and bool(self.watch.under_way)

        try:
            for strike in strikes:
                await self.watch.until(lambda strike=strike: ended() >= of or due(strike))
                if ended() >= of:
                    break
                await asyncio.sleep(strike.delay_seconds)
                while not any(replica.ready for replica in self.stage.replicas):
                    await asyncio.sleep(LOOK_SECONDS)  # there is nobody to hit
                await self._strike(phase, strike)
            await asyncio.gather(*self._after)
        finally:
            for task in self._after:
                task.cancel()
            await asyncio.gather(*self._after, return_exceptions=True)
            self._after.clear()

    async def _strike(self, phase: str, strike: Strike) -> None:
        blow = Blow(
            phase=phase,
            victim=strike.victim,
            what="",
            at_seconds=round(time.time() - self.began, 1),
            down_seconds=strike.down_seconds,
        )
        self.blows.append(blow)
        match strike.victim:
            case Victim.ORCHESTRATOR:
                serving = [one for one in self.stage.replicas if one.running]
                await self._orchestrators(blow, strike, [serving[strike.dice % len(serving)]] if serving else [])
            case Victim.BOTH:
                await self._orchestrators(blow, strike, [one for one in self.stage.replicas if one.running])
            case Victim.ACTOR:
                self._worker(blow, strike, "ray::AgentHost")
            case Victim.WORKER:
                self._worker(blow, strike, "ray::")
            case Victim.NATS:
                await self._nats(blow, strike)
            case Victim.MODEL:
                await self._model(blow, strike)
            case Victim.NODE:
                await self._node(blow, strike)

    async def _orchestrators(self, blow: Blow, strike: Strike, victims: list[Replica]) -> None:
        pids = {replica.pid for replica in victims}
        hit = [one for one in self.watch.under_way if _pid(one.owner) in pids]
        blow.what = ", ".join(f"{replica.name} (pid {replica.pid})" for replica in victims) or "none was running"
        struck = time.time()
        for replica in victims:
            await replica.kill()
        # Agents may be heard a moment longer than their orchestrator: only a new owner counts.
        self._measure(blow, struck, hit, lambda one: one.claimed_at if one.claimed_at > struck else 0)
        self._later(strike.down_seconds, lambda: _start(victims))

    def _worker(self, blow: Blow, strike: Strike, name: str) -> None:
        roots = [*self.stage.replicas, *self.stage.nodes]
        found = [one for root in roots for one in root.descendants() if _is_worker(one, name)]
        if not found:
            blow.what = "none was running"
            return
        chosen = sorted(found, key=lambda one: one.pid)[strike.dice % len(found)]
        blow.what = f"{title(chosen)} (pid {chosen.pid})"
        struck = time.time()
        kill(chosen)
        self._reassigned(blow, struck)

    async def _nats(self, blow: Blow, strike: Strike) -> None:
        hit = self.watch.under_way
        struck = time.time()
        blow.what = f"nats-server (pid {await self.stage.kill_nats()})"
        back = struck + strike.down_seconds
        self._measure(blow, struck, hit, lambda one: one.heard_at if one.heard_at > back else 0)
        await asyncio.sleep(strike.down_seconds)
        await self.stage.start_nats()

    async def _model(self, blow: Blow, strike: Strike) -> None:
        if not self.stage.model.running:
            blow.what = "none was running"
            return
        hit = self.watch.under_way
        blow.what = f"model server (pid {self.stage.model.pid})"
        struck = time.time()
        await self.stage.model.kill()
        back = struck + strike.down_seconds
        self._measure(blow, struck, hit, lambda one: one.heard_at if one.heard_at > back else 0)
        self._later(strike.down_seconds, self.stage.model.start)

    async def _node(self, blow: Blow, strike: Strike) -> None:
        others = self.stage.nodes[1:]
        at_work = [one for one in others if any(_is_worker(below, "ray::AgentHost") for below in one.descendants())]
        node = (at_work or others)[strike.dice % len(at_work or others)]
        struck = time.time()
        count = await self.stage.kill_node(node)
        blow.what = f"{node.name} ({count} processes)"
        self._reassigned(blow, struck)

        async def another() -> None:
            await self.stage.add_node()

        self._later(strike.down_seconds, another)

    def _reassigned(self, blow: Blow, struck: float) -> None:
        """Those whose runs are assigned anew soon after are the ones that were hit."""
        before = list(self.watch.under_way)

        async def find() -> None:
            until, back = struck + _FOUND_OUT_SECONDS[blow.victim], struck
            while time.time() < until and any(one.under_way for one in before):
                await asyncio.sleep(LOOK_SECONDS)
            hit = [(one, at) for one in before for at in one.reassigned if struck <= at <= until]
            blow.hit = tuple(sorted({one.task_id for one, _ in hit}))
            for one, at in hit:
                while not (again := [claimed for claimed in one.claims if claimed > at]):
                    if time.time() > struck + TIMEOUT_SECONDS:
                        blow.recovered_seconds = -1.0
                        return
                    await asyncio.sleep(LOOK_SECONDS)
                back = max(back, again[0])
            if hit:
                blow.recovered_seconds = round(back - struck, 1)

        self._keep(find())

    def _measure(self, blow: Blow, struck: float, hit: list[Seen], back: Callable[[Seen], float]) -> None:
        blow.hit = tuple(sorted(one.task_id for one in hit))

        async def wait() -> None:
            until, last = struck + TIMEOUT_SECONDS, struck
            for one in hit:
                while not (heard := back(one) or (one.ended_at if one.ended_at > struck else 0)):
                    if time.time() > until:
                        blow.recovered_seconds = -1.0
                        return
                    await asyncio.sleep(LOOK_SECONDS)
                last = max(last, heard)
            if hit:
                blow.recovered_seconds = round(last - struck, 1)

        self._keep(wait())

    def _later(self, seconds: float, work: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            done = work()
            if asyncio.iscoroutine(done):
                await done

        self._keep(wait())

    def _keep(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self._after.add(task)


def _is_worker(process: psutil.Process, name: str) -> bool:
    """Whether it is one of Ray's workers by that name: not an agent of Ray's own, not what a worker is starting."""
    try:
        below_raylet = title(psutil.Process(process.ppid())) == "raylet"
    except psutil.NoSuchProcess:
        return False
    called = title(process)
    return below_raylet and called.startswith(name) and called not in _NOT_WORKERS


async def _start(replicas: list[Replica]) -> None:
    for replica in replicas:
        await replica.start()
    for replica in replicas:
        await replica.serving()


def _pid(owner: str) -> int:
    """The process id in an orchestrator's name: host, process, a few random digits."""
    found = re.search(r"-(\d+)-[0-9a-f]+$", owner)
    return int(found[1]) if found else 0


def alive(processes: list[psutil.Process]) -> list[str]:
    """What still runs, for people."""
    return [f"{title(one)} ({one.pid})" for one in processes if title(one)]
