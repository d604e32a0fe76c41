"""An OpenAI-compatible model server on loopback that follows a script.

The vectors of `/v1/embeddings` are made of the words of a text, the same on every machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Self

from aiohttp import web
from pydantic_core import from_json

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.testing.script import (
    CHARACTERS_PER_TOKEN,
    MOST_LOGPROBS,
    Conversation,
    Failure,
    Script,
    ScriptRequest,
    Turn,
    chunks_of,
    completion_of,
    fail,
    refusal,
    send_stream,
    too_long,
    unauthorized,
)

DIMENSIONS = 256

_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    re.findall(r"[a-z]+", "a an and are at be by do does for from how i in is it my of on or that the this to was what")
)
_REMEMBERED_CONVERSATIONS = 1024
# Which conversation: its place in memory, the seed, the hash of the opening.
_Key = tuple[int, int | None, int]
# A message as (hash, characters): enough to see a shared prefix without keeping the text.
_Fingerprint = tuple[int, int]


def word_vector(text: str) -> list[float]:
    """A vector of length 1; the cosine of two is the larger the more words the texts share, 0 where none (mostly).

    Each word is hashed to one dimension (Weinberger et al. 2009, "Feature hashing"), without a sign, so that words
    that meet there never cancel each other out.
    """
    counts = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.casefold()) or [""]:
        digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
        counts[int.from_bytes(digest) % DIMENSIONS] += 0.1 if word in _COMMON else 1.0
    length = math.sqrt(sum(count * count for count in counts))
    return [count / length for count in counts]


class EmbeddingsRoute:
    """The route of one server.

    `most_texts` are taken in one request and `longest` tokens (4 characters each) in one text, as servers limit them.
    """

    def __init__(self, knows: Callable[[web.Request], bool]) -> None:
        self._knows = knows
        self._failures: deque[Failure] = deque()
        self.most_texts = 2048
        self.longest = 8192
        self.requests = 0
        """How many requests came in."""
        self.inputs: deque[Sequence[str]] = deque(maxlen=32)
        """The texts of the last of them."""

    def fail_next(self, *failures: Failure) -> None:
        """Let the next requests fail, `times` for each failure."""
        self._failures.extend(failure for failure in failures for _ in range(failure.times))

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.read()
        if not self._knows(request):
            return unauthorized()
        if self._failures:
            return fail(request, self._failures.popleft())
        try:
            payload: dict[str, Any] = from_json(body)
            asked = payload["input"]
            texts: list[str] = [asked] if isinstance(asked, str) else asked
            vectors = [word_vector(text) for text in texts]
        except (ValueError, TypeError, KeyError):
            return refusal(400, "the body is not a request for embeddings")
        self.inputs.append(texts)
        if not 0 < len(texts) <= self.most_texts or not all(texts):
            return refusal(413 if len(texts) > self.most_texts else 400, f"batch size 1 to {self.most_texts}")
        tokens = [len(text) // CHARACTERS_PER_TOKEN for text in texts]
        if max(tokens) > self.longest:
            return too_long(self.longest, max(tokens))
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        usage = {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
        answered = {"object": "list", "data": data, "model": payload.get("model"), "usage": usage}
        return web.json_response(answered)


@dataclass(eq=False)
class ScriptedModelServer:
    """Answers `/v1/models`, `/v1/chat/completions` (streamed too) and `/health` by a script, for any number of agents.

    `/v1/embeddings` too, without a script.

    `latency_seconds` delays every reply. `faults` maps the number of a chat request (the first is 1, probes count) to
    what it gets instead. Without `native_tools` a request with tools is refused, without `strict_schemas` one with
    `strict`, as servers do. A `response_format` with a schema is `ignored`, `refused` or `obeyed`: then scripted calls
    come as the JSON that the schema asks for. Without `streaming` a wish for a stream is ignored, without
    `stream_options` a request with them is refused; `logprobs` are given, `ignored` or `refused`,
    and so are token ids (`sampled`); a stream's events carry `stream_characters` of text or arguments each. A prompt
    over `max_model_len` tokens (estimated: 4 characters each) is refused in vLLM's words. With an `api_key`, others are
    turned away. The last `keep` request bodies stay readable.
    """

    script: Script
    _: KW_ONLY
    model: str = "scripted"
    port: int = 0
    latency_seconds: float = 0.0
    max_model_len: int = 131_072
    native_tools: bool = True
    strict_schemas: bool = True
    json_schema: Literal["obeyed", "ignored", "refused"] = "ignored"
    streaming: bool = True
    stream_options: bool = True
    logprobs: Literal["given", "ignored", "refused"] = "given"
    sampled: Literal["given", "ignored", "refused"] = "given"
    stream_characters: int = 64
    api_key: str = ""
    host: str = "127.0.0.1"
    faults: dict[int, Failure] = field(default_factory=dict[int, Failure])
    keep: int = 32

    def __post_init__(self) -> None:
        self.faults = dict(self.faults)
        self._bodies: deque[bytes] = deque(maxlen=self.keep)
        self._failures_seen: dict[tuple[_Key, int], int] = {}
        self._prompts: OrderedDict[_Key, list[_Fingerprint]] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._changed = asyncio.Event()
        self.requests = 0
        """How many chat requests came in."""
        self.in_flight = 0
        """How many of them wait for their answer."""
        self.metrics: dict[str, float] | None = {}
        """What `/metrics` says in place of the truth, without vLLM's prefix; None takes the page away."""
        self.embeddings = EmbeddingsRoute(self._knows)
        """What answers `/v1/embeddings`."""

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_get("/health", _health)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/embeddings", self.embeddings.answer)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self.host, self.port, backlog=1024)
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = int(runner.addresses[0][1])
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """The base URL, `/v1` included."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The last chat requests, oldest first."""
        return [json.loads(body) for body in self._bodies]

    def fail_next(self, failure: Failure) -> None:
        """Let the next chat requests fail, as many as `failure.times` says (0: all from now on)."""
        numbers = range(self.requests + 1, self.requests + 1 + (failure.times or 100_000))
        self.faults.update(dict.fromkeys(numbers, failure))

    async def wait_until(self, *, in_flight: int) -> None:
        """Wait until that many chat requests wait for their answer."""
        while self.in_flight != in_flight:
            await self._changed.wait()

    def _count_in(self, step: int) -> None:
        self.in_flight += step
        self._changed.set()
        self._changed = asyncio.Event()

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.metrics is None:
            return web.Response(status=404)
        gauges = {"num_requests_running": self.in_flight, "num_requests_waiting": 0, "kv_cache_usage_perc": 0}
        lines = [
            f'vllm:{name}{{engine="0",model_name="{self.model}"}} {value:g}\n'
            for name, value in {**gauges, **self.metrics}.items()
        ]
        return web.Response(text="".join(lines))

    async def _models(self, request: web.Request) -> web.Response:
        if not self._knows(request):
            return unauthorized()
        entry = {"id": self.model, "object": "model", "owned_by": "scripted", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [entry]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self._count_in(1)
        try:
            return await self._answer(request)
        finally:
            self._count_in(-1)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests += 1
        self._bodies.append(body)
        if not self._knows(request):
            return unauthorized()
        fault = self.faults.pop(self.requests, None)
        if fault is not None and not fault.after_chunks:
            return fail(request, fault)
        try:
            payload: dict[str, Any] = from_json(body)
            messages: list[dict[str, Any]] = payload["messages"]
            opening, turn = _read_opening(messages)
            prompt = [_fingerprint(message) for message in messages]
        except (ValueError, TypeError, KeyError):
            return refusal(400, "the body is not a chat request")
        if objection := self._refusal(payload):
            return refusal(400, objection)
        asked = ScriptRequest(opening=opening, turn=turn, seed=payload.get("seed"), payload=payload)
        conversation = self.script.choose(asked)
        key = (id(conversation), asked.seed, hash(opening))
        usage = self._count(key, prompt)
        if usage.prompt_tokens > self.max_model_len:
            return too_long(self.max_model_len, usage.prompt_tokens)
        chosen = fault or self._next(key, conversation, turn)
        breaks: Failure | None = None
        streams = self.streaming and bool(payload.get("stream"))
        if isinstance(chosen, Failure):
            if not (chosen.after_chunks and streams):
                return fail(request, chosen)
            breaks, chosen = chosen, conversation.at(turn)[1]
        if delay := self.latency_seconds + chosen.delay_seconds:
            await asyncio.sleep(delay)
        completion = completion_of(
            chosen,
            asked,
            number=self.requests,
            model=self.model,
            prompt=usage,
            obeys_schemas=self.json_schema == "obeyed",
            gives_logprobs=self.logprobs == "given",
            gives_token_ids=self.sampled == "given",
        )
        if streams:
            chunks = chunks_of(completion, payload, characters=self.stream_characters)
            return await send_stream(request, chunks, breaks)
        return web.Response(body=json.dumps(completion).encode(), content_type="application/json")

    def _knows(self, request: web.Request) -> bool:
        return not self.api_key or request.headers.get("Authorization") == f"Bearer {self.api_key}"

    def _refusal(self, payload: Mapping[str, Any]) -> str:
        tools: list[dict[str, Any]] = payload.get("tools") or []
        if tools and not self.native_tools:
            return '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        if not self.strict_schemas and any("strict" in tool["function"] for tool in tools):
            return "Extra inputs are not permitted: tools.0.function.strict"
        if payload.get("response_format") and self.json_schema == "refused":
            return "Unsupported value: response_format of type json_schema"
        if payload.get("stream_options") and not self.stream_options:
            return "Extra inputs are not permitted: stream_options"
        if payload.get("logprobs") and self.logprobs == "refused":
            return "Unsupported parameter: 'logprobs' is not supported with this model."
        if payload.get("return_token_ids") and self.sampled == "refused":
            return "Extra inputs are not permitted: return_token_ids"
        if payload.get("top_logprobs") and not payload.get("logprobs"):
            return "when using `top_logprobs`, `logprobs` must be set to true"
        if payload.get("top_logprobs", 0) > MOST_LOGPROBS:
            return f"Requested sample logprobs of {payload['top_logprobs']}, which is greater than {MOST_LOGPROBS}"
        return ""

    def _next(self, key: _Key, conversation: Conversation, turn: int) -> Turn | Failure:
        failures, reply = conversation.at(turn)
        if not failures:
            return reply
        # A failed request adds no assistant message, so only counting tells a retry from the first try.
        seen = self._failures_seen.get((key, turn), 0)
        self._failures_seen[key, turn] = seen + 1
        for failure in failures:
            if not failure.times or seen < failure.times:
                return failure
            seen -= failure.times
        return reply

    def _count(self, key: _Key, prompt: list[_Fingerprint]) -> Usage:
        before = self._prompts.pop(key, [])
        self._prompts[key] = prompt
        if len(self._prompts) > _REMEMBERED_CONVERSATIONS:
            self._prompts.popitem(last=False)
        shared = 0
        for old, new in zip(before, prompt, strict=False):
            if old != new:
                break
            shared += new[1]
        total = sum(characters for _, characters in prompt)
        return Usage(prompt_tokens=total // CHARACTERS_PER_TOKEN, cached_tokens=shared // CHARACTERS_PER_TOKEN)


async def _health(_: web.Request) -> web.Response:
    return web.Response()


def _text(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def _read_opening(messages: list[dict[str, Any]]) -> tuple[str, int]:
    opening: list[str] = []
    turn = 0
    for message in messages:
        if message["role"] == "assistant":
            turn += 1
        elif turn == 0:
            opening.append(_text(message["content"]))
    return "\n".join(opening), turn


def _fingerprint(message: dict[str, Any]) -> _Fingerprint:
    parts = [_text(message.get("content") or "")]
    for call in message.get("tool_calls") or ():
        parts += (str(call["function"]["name"]), str(call["function"]["arguments"]))
    return hash((message["role"], *parts)), sum(map(len, parts))
