"""`python -m labs.bench.routing`: which server, and in which order, at several model servers with KV caches.

Sessions of coding agents at four simulated servers (`kv_cache.py`) on virtual time, by the product's own pool and by
two ways that it is measured against. Their statistics are those published of real coding sessions: a median of 43 turns
and of 142,000 tokens in the last prompt, 444 written a turn, 96 % of the prompts seen before.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Protocol

from labs.bench.kv_cache import Engine, KVServer, Prompt
from swe_ai_fleet.adapters.model_pool import Fault, ModelPool, PoolMember, PoolRules
from swe_ai_fleet.domain.message import ModelCapabilities, ModelReply, ModelRequest
from swe_ai_fleet.ports import ChatModel
from tests.simulation.virtual_loop import on_virtual_time

_ROOT = Path(__file__).parents[2]
_MARKED = re.compile(r"(<!-- routing -->\n).*(<!-- end of routing -->)", re.DOTALL)
WAYS = ("sticky", "least busy", "ours, first come", "ours")
SERVERS = 4
LOADS = (15, 40, 80)
SHARED_TOKENS = 8_192
OPENING_TOKENS = 7_000
MEDIAN_TURNS = 43
REPLY_TOKENS = 444
RESULT_TOKENS = 2_500
MOST_TOKENS = 256_000
TOOL_SECONDS = 2.0
BEGIN_WITHIN = 120.0
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of a session: the tokens of its prompt and its reply, and the seconds that its tools take then."""

    tokens: int
    reply_tokens: int
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What an agent does, whichever server answers."""

    number: int
    begins: float
    turns: tuple[Turn, ...]


def sessions(count: int, seed: int = SEED) -> list[Session]:
    """So many sessions; most are short and some are very long (log-normal)."""
    dice = Random(seed)
    made: list[Session] = []
    for number in range(count):
        tokens = SHARED_TOKENS + round(OPENING_TOKENS * dice.lognormvariate(0, 0.5))
        turns: list[Turn] = []
        for _ in range(max(2, round(MEDIAN_TURNS * dice.lognormvariate(0, 0.8)))):
            if tokens > MOST_TOKENS:
                break
            reply = max(20, round(REPLY_TOKENS * dice.lognormvariate(-0.18, 0.6)))
            turns.append(Turn(tokens=tokens, reply_tokens=reply, pause=TOOL_SECONDS * dice.lognormvariate(0, 1.0)))
            tokens += reply + round(RESULT_TOKENS * dice.lognormvariate(-0.32, 0.8))
        made.append(Session(number=number, begins=dice.uniform(0, BEGIN_WITHIN), turns=tuple(turns)))
    return made


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What sessions had of the servers. Times are in seconds."""

    prompted: int = 0
    cached: int = 0
    first_tokens: list[float] = field(default_factory=list[float])
    ended: list[float] = field(default_factory=list[float])
    lasted: list[float] = field(default_factory=list[float])
    short: list[float] = field(default_factory=list[float])

    @property
    def figures(self) -> dict[str, float]:
        """Hits (share), first token (median, 99th), steps a second until nine tenths are done, sessions' mean times."""
        first, most = sorted(self.first_tokens), int(0.9 * len(self.ended))
        return {
            "hits": round(self.cached / self.prompted, 3),
            "first_token_p50": round(first[len(first) // 2], 2),
            "first_token_p99": round(first[int(0.99 * len(first))], 2),
            "steps_s": round(most / sorted(self.ended)[most], 2),
            "session_mean": round(sum(self.lasted) / len(self.lasted)),
            "session_short_mean": round(sum(self.short) / len(self.short)),
            "session_longest": round(max(self.lasted)),
        }


class Router(Protocol):
    """Which server a session asks."""

    def session(self, key: str) -> ChatModel: ...


class Sticky:
    """Each session at one server, by a hash of its name, whatever happens there: what routers do with a header."""

    def __init__(self, servers: Sequence[KVServer]) -> None:
        self._servers = servers

    def session(self, key: str) -> ChatModel:
        return self._servers[zlib.crc32(key.encode()) % len(self._servers)]


class LeastBusy:
    """Each call at the server with the fewest requests at that very moment, which no router knows so well."""

    def __init__(self, servers: Sequence[KVServer]) -> None:
        self._servers = servers

    def session(self, key: str) -> ChatModel:
        return self

    async def probe(self) -> ModelCapabilities:
        return await self._servers[0].probe()

    async def ping(self) -> None:
        """They are always there."""

    async def reply(self, request: ModelRequest) -> ModelReply:
        return await min(self._servers, key=lambda server: server.in_flight).reply(request)


@asynccontextmanager
async def opened(way: str, servers: Sequence[KVServer]) -> AsyncGenerator[Router]:
    if way == "sticky":
        yield Sticky(servers)
    elif way == "least busy":
        yield LeastBusy(servers)
    else:
        members = [
            PoolMember(name=str(number), model=server, load=server.load) for number, server in enumerate(servers)
        ]
        rules = PoolRules() if way == "ours" else PoolRules(quantum=0)
        async with ModelPool(members, read_fault=lambda _: Fault(), rules=rules) as pool:
            yield pool


async def play(way: str, load: Sequence[Session], engine: Engine) -> Outcome:
    """All sessions to their ends."""
    outcome, loop = Outcome(), asyncio.get_running_loop()
    short = sorted(len(session.turns) for session in load)[len(load) // 2]

    async def run(router: Router, session: Session) -> None:
        await asyncio.sleep(session.begins)
        model, began = router.session(f"session-{session.number}"), loop.time()
        for turn in session.turns:
            asked = loop.time()

            def first_token(_: str, asked: float = asked) -> None:
                outcome.first_tokens.append(loop.time() - asked)

            prompt = Prompt(
                session=session.number, shared=SHARED_TOKENS, tokens=turn.tokens, reply_tokens=turn.reply_tokens
            )
            reply = await model.reply(replace(prompt.request, on_delta=first_token))
            outcome.prompted += reply.usage.prompt_tokens
            outcome.cached += reply.usage.cached_tokens
            outcome.ended.append(loop.time())
            await asyncio.sleep(turn.pause)
        outcome.lasted.append(loop.time() - began)
        if len(session.turns) <= short:
            outcome.short.append(loop.time() - began)

    async with opened(way, [KVServer(engine=engine) for _ in range(SERVERS)]) as router:
        await asyncio.gather(*(run(router, session) for session in load))
    return outcome


def figures_of(loads: Sequence[int], seed: int = SEED) -> dict[tuple[int, str], dict[str, float]]:
    """The figures by number of sessions and way; the same every time."""
    figures: dict[tuple[int, str], dict[str, float]] = {}
    for count in loads:
        load = sessions(count, seed)
        for way in WAYS:
            random.seed(seed)  # the pool's own dice
            figures[count, way] = on_virtual_time(play(way, load, Engine())).figures
    return figures


async def routing_figures(directory: Path) -> dict[str, float]:
    """The part of `make bench`: hits, first token, steps a second and mean session time of each way at each load."""
    figures = await asyncio.to_thread(figures_of, LOADS)
    return {
        f"routing_{count}_{way.replace(',', '').replace(' ', '_')}_{name}": value
        for (count, way), found in figures.items()
        for name, value in found.items()
    }


def table(figures: Mapping[tuple[int, str], Mapping[str, float]]) -> str:
    """The figures in Markdown."""
    lines = [
        "| sessions | which server, in which order | found in the cache | first token p50 / p99, s | steps/s "
        "| mean session, s | of the shorter half | longest session, s |",
        "| ---: | --- |" + " ---: |" * 6,
    ]
    for (count, way), found in figures.items():
        times = " | ".join(f"{found[name]:,.0f}" for name in ("session_mean", "session_short_mean", "session_longest"))
        lines.append(
            f"| {count} | {way} | {found['hits']:.0%} "
            f"| {found['first_token_p50']:.1f} / {found['first_token_p99']:.0f} | {found['steps_s']:.2f} | {times} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=lambda text: [int(one) for one in text.split(",")], default=list(LOADS))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--write", action="store_true", help="write the table of docs/models.md")
    chosen = parser.parse_args()
    text = table(figures_of(chosen.sessions, chosen.seed))
    print(text)
    if chosen.write:
        page = _ROOT / "docs" / "models.md"
        page.write_text(_MARKED.sub(lambda marks: f"{marks[1]}{text}{marks[2]}", page.read_text()))


if __name__ == "__main__":
    main()
