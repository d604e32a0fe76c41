"""A model server with a KV cache, on virtual time: what a request finds there, waits for, and costs.

An engine of the kind of vLLM's, in the large: prompts are blocks of tokens, found again by what stands before them.
What no request uses is kept; the block longest unused makes room, of one conversation its last ones first. Requests
begin in the order in which they came, once there is room in the batch and in the cache. Prompts are read one after the
other, while all others write half as fast; the more tokens those hold that write at once, the slower each.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from swe_ai_fleet.adapters.model_pool.load import ServerLoad
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest, UserMessage

BLOCK_TOKENS = 512
_MOST_BLOCKS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What a server can do: an 8B model on an H200, as `gpu.py` measured it (plain PyTorch, bfloat16).

    `cache_tokens` fit its KV cache. A new token of a prompt is read in `read_seconds`, and in `attend_seconds` more for
    each token before it, cached or not. A step, in which all of a batch write a token, takes `step_seconds` and
    `held_seconds` more for each token that they hold.
    """

    cache_tokens: int = 750_000
    batch: int = 64
    read_seconds: float = 2.8e-5
    attend_seconds: float = 1.8e-9
    step_seconds: float = 0.0054
    held_seconds: float = 4e-8

    def reading(self, cached: int, new: int) -> float:
        """Seconds in which so many new tokens are read behind cached ones."""
        return new * (self.read_seconds + self.attend_seconds * (cached + new / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation so far: `shared` tokens that all sessions begin with, and the length of the reply to come."""

    session: int
    shared: int
    tokens: int
    reply_tokens: int

    @property
    def request(self) -> ModelRequest:
        return ModelRequest((UserMessage(content=f"{self.session} {self.shared} {self.tokens} {self.reply_tokens}"),))

    @staticmethod
    def of(request: ModelRequest) -> Prompt:
        session, shared, tokens, reply_tokens = map(int, request.messages[0].content.split())
        return Prompt(session=session, shared=shared, tokens=tokens, reply_tokens=reply_tokens)

    def blocks(self, tokens: int) -> Iterator[int]:
        """The whole blocks of so many tokens of the conversation; equal ones have the same number."""
        for index in range(tokens // BLOCK_TOKENS):
            own = self.session + 1 if (index + 1) * BLOCK_TOKENS > self.shared else 0
            yield own * _MOST_BLOCKS + index


class BlockCache:
    """Blocks by their number: those in use, and unused ones, the longest unused first."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._used = Counter[int]()
        self._unused = OrderedDict[int, None]()

    @property
    def in_use(self) -> float:
        """The part of the cache that requests use."""
        return len(self._used) / self._blocks

    def found(self, blocks: list[int]) -> int:
        """How many of these are there, up to the first that is not."""
        for index, block in enumerate(blocks):
            if block not in self._used and block not in self._unused:
                return index
        return len(blocks)

    def take(self, blocks: list[int]) -> bool:
        """Use these, those that are new in the place of unused ones; False where there is no room."""
        new = sum(block not in self._used for block in blocks)
        if len(self._used) + new > self._blocks and self._used:
            return False
        for block in blocks:
            self._unused.pop(block, None)
        self._used.update(blocks)
        while self._unused and len(self._used) + len(self._unused) > self._blocks:
            self._unused.popitem(last=False)
        return True

    def leave(self, blocks: list[int]) -> None:
        """Use these no more."""
        for block in reversed(blocks):
            self._used[block] -= 1
            if not self._used[block]:
                del self._used[block]
                self._unused[block] = None


@dataclass(eq=False, slots=True, kw_only=True)
class _Call:
    prompt: Prompt
    blocks: list[int]
    request: ModelRequest
    done: asyncio.Future[None]
    cached: int = 0


@dataclass(kw_only=True)
class KVServer:
    """A `ChatModel` and what tells its load, as a pool has them; `request.on_delta` hears of the first token."""

    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        self._cache = BlockCache(self.engine.cache_tokens // BLOCK_TOKENS)
        self._waiting = deque[_Call]()
        self._reading: _Call | None = None
        self._read_at = 0.0
        self._writing: list[tuple[float, int, _Call]] = []
        self._written = self._at = 0.0
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self.hits = self.queries = 0

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + self._running

    @property
    def _running(self) -> int:
        return len(self._writing) + (self._reading is not None)

    async def load(self) -> ServerLoad:
        """What vLLM's metrics would say."""
        return ServerLoad(
            running=self._running,
            waiting=len(self._waiting),
            cache=self._cache.in_use,
            prefix_hits=self.hits,
            prefix_queries=self.queries,
        )

    async def probe(self) -> ModelCapabilities:
        return ModelCapabilities(model="simulated")

    async def ping(self) -> None:
        """It is always there."""

    async def reply(self, request: ModelRequest) -> ModelReply:
        """A reply, when it would be there."""
        prompt = Prompt.of(request)
        blocks = list(prompt.blocks(prompt.tokens + prompt.reply_tokens))
        done = asyncio.get_running_loop().create_future()
        call = _Call(prompt=prompt, blocks=blocks, request=request, done=done)
        self._advance()
        self._waiting.append(call)
        self._go_on()
        await done
        usage = Usage(
            prompt_tokens=prompt.tokens,
            completion_tokens=prompt.reply_tokens,
            cached_tokens=call.cached,
            model_calls=1,
        )
        return ModelReply(message=AssistantMessage(content="done"), finish_reason="stop", usage=usage)

    def _rate(self) -> float:
        """Tokens a second that each request that writes gets."""
        held = sum(call.prompt.tokens for _, _, call in self._writing)
        seconds = self.engine.step_seconds + self.engine.held_seconds * held
        return (0.5 if self._reading else 1.0) / seconds

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        self._written += self._rate() * (now - self._at)
        self._at = now

    def _event(self) -> None:
        self._advance()
        if self._reading is not None and self._read_at <= self._at + 1e-9:
            call, self._reading = self._reading, None
            self._numbers += 1
            heappush(self._writing, (self._written + call.prompt.reply_tokens, self._numbers, call))
            if call.request.on_delta is not None:
                call.request.on_delta("first")
        while self._writing and self._writing[0][0] <= self._written + 1e-6:
            call = heappop(self._writing)[2]
            self._cache.leave(call.blocks)
            call.done.set_result(None)
        self._go_on()

    def _go_on(self) -> None:
        """Begin what can begin, and wait for what happens next."""
        engine = self.engine
        if self._reading is None and self._waiting and self._running < engine.batch:
            call = self._waiting[0]
            known = min(self._cache.found(call.blocks), (call.prompt.tokens - 1) // BLOCK_TOKENS)
            if self._cache.take(call.blocks):
                self._waiting.popleft()
                call.cached = known * BLOCK_TOKENS
                self.hits += call.cached
                self.queries += call.prompt.tokens
                self._reading = call
                self._read_at = self._at + engine.reading(call.cached, call.prompt.tokens - call.cached)
        times = [self._read_at] if self._reading else []
        if self._writing:
            times.append(self._at + (self._writing[0][0] - self._written) / self._rate())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            self._timer = asyncio.get_running_loop().call_at(max(self._at, min(times)), self._event)
