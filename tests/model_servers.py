"""Many servers of one model that come, drain, die and saturate while agents are at work; a router before them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.message import AssistantMessage, Message, ModelRequest, SystemMessage, UserMessage
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.script import Failure, Script, Turn

SHARED, OWN, RESULT = "instructions " * 60, "the task ", "what a tool said " * 12
LOOK_SECONDS = 0.05


@dataclass(kw_only=True)
class Outcome:
    """What agents had of the servers. `homes` are, of each agent, the servers that it was bound to, in turn."""

    replies: int = 0
    failures: list[BaseException] = field(default_factory=list[BaseException])
    prompted: int = 0
    cached: int = 0
    seconds: float = 0.0
    homes: list[list[str]] = field(default_factory=list[list[str]])

    @property
    def moves(self) -> Counter[str]:
        """How many agents left each server."""
        return Counter(home for homes in self.homes for home in homes[:-1])

    @property
    def hits(self) -> float:
        """The part of the prompts that was in a cache."""
        return self.cached / self.prompted


class Servers:
    """Model servers and the file that names them."""

    def __init__(self, path: Path, *, latency: float) -> None:
        self.path, self._latency = path, latency
        self.listed: list[ScriptedModelServer] = []
        self._running: set[ScriptedModelServer] = set()

    async def start(self, count: int) -> list[ScriptedModelServer]:
        """Let so many more be there."""
        script, options = Script.of(Turn(content="done")), {"latency_seconds": self._latency, "keep": 0}
        came = [await ScriptedModelServer(script, **options).__aenter__() for _ in range(count)]
        self._running |= {*came}
        self.listed += came
        self.write()
        return came

    def drain(self, count: int) -> list[ScriptedModelServer]:
        """Take so many out of the list, as Kubernetes does with a Pod that is to end; they answer what they have."""
        left, self.listed = self.listed[:count], self.listed[count:]
        self.write()
        return left

    async def kill(self, count: int) -> list[ScriptedModelServer]:
        """Let so many die in the middle of what they do; the list does not say so."""
        died = self.listed[:count]
        await self._end(died)
        return died

    def saturate(self, count: int) -> list[ScriptedModelServer]:
        """Let so many of those that are left turn calls away, and say that others wait there."""
        chosen = self.listed[count : 2 * count]
        for server in chosen:
            server.fail_next(Failure(status=503, times=3))
            server.metrics = {"num_requests_running": 200, "num_requests_waiting": 100, "kv_cache_usage_perc": 0.99}
        return chosen

    def write(self) -> None:
        """Write the list."""
        lines = "".join(f"{server.url}\n" for server in self.listed)
        part = self.path.with_suffix(".part")
        part.write_text(f"# Servers\n{lines}")
        part.replace(self.path)

    async def close(self) -> None:
        """Stop them all."""
        await self._end([*self._running])

    async def _end(self, servers: Sequence[ScriptedModelServer]) -> None:
        self._running -= {*servers}
        await asyncio.gather(*(server.__aexit__(None, None, None) for server in servers))


class Work:
    """Agents that each take so many steps at one model, their prompts growing with each; `reached` says how far."""

    def __init__(self, outcome: Outcome, sessions: Sequence[ChatModel], *, steps: int) -> None:
        self._outcome, self._steps = outcome, steps
        self._replies, self._total = 0, len(sessions) * steps
        self._progress = asyncio.Condition()
        self.agents = [asyncio.create_task(self._agent(n, session)) for n, session in enumerate(sessions)]

    async def reached(self, share: float) -> None:
        """Wait until a part of all replies is there."""
        async with self._progress:
            await self._progress.wait_for(lambda: self._replies >= share * self._total)

    async def _agent(self, number: int, model: ChatModel) -> None:
        told: list[Message] = [SystemMessage(content=SHARED), UserMessage(content=f"{number} {OWN * 20}")]
        homes: list[str] = []
        self._outcome.homes.append(homes)
        for _ in range(self._steps):
            try:
                reply = await model.reply(ModelRequest(tuple(told)))
            except FleetError as error:
                self._outcome.failures.append(error)
                return
            told += [AssistantMessage(content=reply.message.content), UserMessage(content=RESULT)]
            self._outcome.replies += 1
            self._outcome.prompted += reply.usage.prompt_tokens
            self._outcome.cached += reply.usage.cached_tokens
            if (home := str(getattr(model, "endpoint", ""))) not in homes[-1:]:
                homes.append(home)
            async with self._progress:
                self._replies += 1
                self._progress.notify_all()


async def play(
    directory: Path, *, servers: int = 30, agents: int = 90, steps: int = 8, latency: float = 0.02
) -> tuple[Outcome, SimpleNamespace]:
    """Agents at servers of which a third comes later, a sixth drains, a tenth dies and a tenth saturates meanwhile.

    What the agents had of the servers, and the servers that came, drained, died or were busy.
    """
    house, outcome = Servers(directory / "servers", latency=latency), Outcome()
    await house.start(servers - servers // 3)
    settings = Settings(model_url=f"file:{house.path}", model="scripted")
    try:
        async with open_model(settings, look_every=LOOK_SECONDS) as pool:
            began = asyncio.get_running_loop().time()
            work = Work(outcome, [pool.session(f"agent-{number}") for number in range(agents)], steps=steps)
            await work.reached(0.15)
            came = await house.start(servers // 3)
            while sum(str(one.circuit) != "open" for one in pool.status().endpoints) < servers:
                await asyncio.sleep(LOOK_SECONDS)
            await work.reached(0.3)
            drained = house.drain(servers // 6)
            # More agents begin: they go where there is least to do.
            late = Work(outcome, [pool.session(f"late-{number}") for number in range(agents // 3)], steps=steps)
            await work.reached(0.5)
            died = await house.kill(servers // 10)
            await work.reached(0.6)
            busy = house.saturate(servers // 10)
            await asyncio.gather(*work.agents, *late.agents)
            outcome.seconds = asyncio.get_running_loop().time() - began
            return outcome, SimpleNamespace(came=came, drained=drained, died=died, busy=busy)
    finally:
        await house.close()
