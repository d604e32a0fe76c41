"""`python -m labs.bench.routing`: which server, and in which order, at several model servers with KV caches.

Sessions of coding agents at four simulated servers (`kv_cache.py`) on virtual time, by the product's own pool and by
two ways that it is measured against. Their statistics are those published of real coding sessions: a median of 43 turns
and of 142,000 tokens in the last prompt, 444 written a turn, 96 % of the prompts seen before.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from random import Random

from labs.bench.kv_cache import Engine, KVServer, Prompt
from swe_ai_fleet.adapters.model_pool import Member, ModelPool, PoolRules
from swe_ai_fleet.ports import ChatModel
from tests.simulation.virtual_loop import on_virtual_time

SERVERS = 4
LOADS = (40, 100, 200)
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


Open = Callable[[Sequence[KVServer], AsyncExitStack], "asyncio.Future[Callable[[int], ChatModel]]"]


class Sticky:
    """Each session at one server, by a hash of its name, whatever happens there: what routers do with a header."""

    def __init__(self, servers: Sequence[KVServer]) -> None:
        self._servers = servers

    def session(self, number: int) -> ChatModel:
        return self._servers[zlib.crc32(f"session-{number}".encode()) % len(self._servers)]


class LeastBusy:
    """Each call at the server with the fewest requests at that moment."""

    def __init__(self, servers: Sequence[KVServer]) -> None:
        self._servers = servers

    def session(self, number: int) -> ChatModel:
        servers = self._servers

        class Chosen:
            async def probe(self):
                return await servers[0].probe()

            async def ping(self):
                return None

            async def reply(self, request):
                return await min(servers, key=lambda server: server.in_flight).reply(request)

        return Chosen()


class Pooled:
    """The product's pool."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def session(self, number: int) -> ChatModel:
        return self._pool.session(f"session-{number}")


async def play(way: str, load: Sequence[Session], engine: Engine) -> Outcome:
    """All sessions to their ends."""
    outcome, loop = Outcome(), asyncio.get_running_loop()
    servers = [KVServer(engine=engine) for _ in range(SERVERS)]
    by_length = sorted(len(session.turns) for session in load)
    short = by_length[len(by_length) // 2]

    async def run(session: Session) -> None:
        await asyncio.sleep(session.begins)
        model = chooser.session(session.number)
        began = loop.time()
        for turn in session.turns:
            asked = loop.time()
            prompt = Prompt(
                session=session.number, shared=SHARED_TOKENS, tokens=turn.tokens, reply_tokens=turn.reply_tokens
            )
            request = replace(
                prompt.request, on_delta=lambda _, asked=asked: outcome.first_tokens.append(loop.time() - asked)
            )
            reply = await model.reply(request)
            outcome.prompted += reply.usage.prompt_tokens
            outcome.cached += reply.usage.cached_tokens
            outcome.ended.append(loop.time())
            await asyncio.sleep(turn.pause)
        outcome.lasted.append(loop.time() - began)
        if len(session.turns) <= short:
            outcome.short.append(loop.time() - began)

    async with AsyncExitStack() as stack:
        if way == "sticky":
            chooser = Sticky(servers)
        elif way == "least busy":
            chooser = LeastBusy(servers)
        else:
            rules = PoolRules() if way == "ours" else PoolRules(quantum=0)
            members = [Member(name=str(number), model=server, load=server) for number, server in enumerate(servers)]
            pool = await stack.enter_async_context(ModelPool(members, rules=rules))
            chooser = Pooled(pool)
        await asyncio.gather(*(run(session) for session in load))
    return outcome


WAYS = ("sticky", "least busy", "ours, first come", "ours")

if __name__ == "__main__":
    import sys

    loads = [int(x) for x in (sys.argv[1].split(",") if len(sys.argv) > 1 else ["40", "100", "200"])]
    ways = sys.argv[2].split(",") if len(sys.argv) > 2 else WAYS
    for n in loads:
        load = sessions(n)
        print(
            n,
            "steps",
            sum(len(s.turns) for s in load),
            "ideal cached",
            1 - sum(s.turns[-1].tokens for s in load) / sum(t.tokens for s in load for t in s.turns),
        )
        for way in ways:
            random.seed(1)
            t0 = time.process_time()
            o = on_virtual_time(play(way.replace("+", ", "), load, Engine()))
            print(f"  {way:18s}", o.figures, f"cpu {time.process_time() - t0:.1f}", flush=True)
