"""`python -m labs.bench.model_server --url http://HOST:8000/v1 --model NAME`: how many agents a model server carries.

Each agent makes a run whose prompt only grows: instructions and tools that all agents share, a task, then a reply and
a tool's result a step. Agents start at different steps, so that a short measurement sees prompts of every length, and
go on where they are with the next number of agents. What counts begins once each has had a reply. Texts are pieces
of this repository, their lengths tokens of the server's own tokenizer. Whatever the model says, a text as long goes
into the history: a model with random weights has the same arithmetic as any other. Needs Python and aiohttp only, and
FLEET_MODEL_API_KEY where the server wants a key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

_SOURCES = Path(__file__).parents[2] / "src" / "swe_ai_fleet"
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)
_AFTER_FAILURE_SECONDS = 0.5
_HEAD = (
    "| agents | steps/s | steps/min an agent | reply p50 / p95, s | first token, s | tokens/s written "
    "| prompt tokens/s | of them cached | KV cache in use | failures |\n|" + " ---: |" * 10
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Lengths in tokens, `steps` of a run; `pause` is the seconds that a tool takes between a reply and a prompt."""

    shared_tokens: int = 4000
    task_tokens: int = 300
    reply_tokens: int = 150
    result_tokens: int = 400
    steps: int = 20
    pause: float = 0.0


@dataclass(slots=True, kw_only=True)
class Row:
    """What so many agents had of the server in `seconds`; failures are those of the warm-up too.

    `first_token` (mean seconds) and `in_use` (share of the KV cache) are vLLM's own, None from other servers.
    """

    agents: int
    counting: bool = False
    seconds: float = 0.0
    replies: list[float] = field(default_factory=list[float])
    written: int = 0
    prompted: int = 0
    cached: int = 0
    first_token: float | None = None
    in_use: float | None = None
    failures: Counter[str] = field(default_factory=Counter[str])

    def line(self) -> str:
        """The row in Markdown."""
        steps, rate, times = len(self.replies), 1 / max(self.seconds, 1e-9), sorted(self.replies)
        p50, p95 = (f"{times[int(share * steps)]:.1f}" if times else "-" for share in (0.5, 0.95))
        first = "-" if self.first_token is None else f"{self.first_token:.2f}"
        cached = f"{self.cached / self.prompted:.0%}" if self.prompted else "-"
        in_use = "-" if self.in_use is None else f"{self.in_use:.0%}"
        return (
            f"| {self.agents} | {steps * rate:.2f} | {60 * steps * rate / self.agents:.1f} | {p50} / {p95} | {first} "
            f"| {self.written * rate:,.0f} | {self.prompted * rate:,.0f} | {cached} | {in_use} "
            f"| {self.failures.total()} |"
        )


class Load:
    """Agents at one server; what they say was never said to it before."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, shape: Shape) -> None:
        self._session, self._url, self._model, self._shape = session, url.rstrip("/"), model, shape
        self._text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_SOURCES.rglob("*.py")))
        self._salt, self._characters = secrets.token_hex(4), 4.0
        self._places: dict[int, tuple[int, int]] = {}

    async def calibrate(self) -> None:
        """Learn how many characters a token has; raises where the server does not answer as it should."""
        text = self._piece("calibration", 2000)
        usage = await self._ask([{"role": "user", "content": text}], 1)
        self._characters = len(text) / usage["prompt_tokens"]

    async def measure(self, agents: int, *, seconds: float, warm_up: float) -> Row:
        """Let them work until each had a reply, `warm_up` seconds at most, then for the `seconds` that count."""
        row, answered, ready = Row(agents=agents), set[int](), asyncio.Event()

        async def work(agent: int) -> None:
            while True:
                if await self._step(agent, row):
                    answered.add(agent)
                    if len(answered) == agents:
                        ready.set()

        waiting = asyncio.create_task(ready.wait())
        working = [asyncio.create_task(work(agent)) for agent in range(agents)]
        try:
            await asyncio.wait((waiting, *working), timeout=warm_up, return_when=asyncio.FIRST_COMPLETED)
            if len(answered) < agents:
                row.failures["an agent without a reply in the warm-up"] = agents - len(answered)
            before, began, row.counting = await self._metrics(), time.perf_counter(), True
            ended, _ = await asyncio.wait(working, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            row.counting, row.seconds, after = False, time.perf_counter() - began, await self._metrics()
            for task in ended:
                task.result()
        finally:
            for task in (waiting, *working):
                task.cancel()
            await asyncio.gather(waiting, *working, return_exceptions=True)
        total, count = (f"vllm:time_to_first_token_seconds_{what}" for what in ("sum", "count"))
        if (answers := after[count] - before[count]) > 0:
            row.first_token = (after[total] - before[total]) / answers
        row.in_use = after.get("vllm:kv_cache_usage_perc")
        return row

    async def _step(self, agent: int, row: Row) -> bool:
        """Whether a reply came; the agent is at its next step then."""
        run, step = self._places.get(agent, (0, agent % self._shape.steps))
        began = time.perf_counter()
        try:
            usage = await self._ask(self._prompt(f"{self._salt}/{agent}/{run}", step), self._shape.reply_tokens)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            row.failures[f"{type(error).__name__} {error}"[:200]] += 1
            await asyncio.sleep(_AFTER_FAILURE_SECONDS)
            return False
        self._places[agent] = (run, step + 1) if step + 1 < self._shape.steps else (run + 1, 0)
        if row.counting:
            row.replies.append(time.perf_counter() - began)
            row.prompted += usage["prompt_tokens"]
            row.written += usage["completion_tokens"]
            details: dict[str, int | None] = usage.get("prompt_tokens_details") or {}
            row.cached += details.get("cached_tokens") or 0
        await asyncio.sleep(self._shape.pause)
        return True

    def _prompt(self, key: str, step: int) -> list[dict[str, str]]:
        shape, piece = self._shape, self._piece
        said = [("system", piece("instructions and tools", shape.shared_tokens))]
        said.append(("user", f"Task {key}: {piece(key, shape.task_tokens)}"))
        for past in range(step):
            said.append(("assistant", piece(f"{key}/{past}/reply", shape.reply_tokens)))
            said.append(("user", piece(f"{key}/{past}/result", shape.result_tokens)))
        return [{"role": role, "content": content} for role, content in said]

    def _piece(self, key: str, tokens: int) -> str:
        length = int(tokens * self._characters)
        start = Random(key).randrange(len(self._text) - length)
        return self._text[start : start + length]

    async def _ask(self, messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
        body = {"model": self._model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
        async with self._session.post(f"{self._url}/chat/completions", json=body) as answer:
            if answer.status != 200:
                raise ValueError(f"{answer.status}: {await answer.text()}")
            usage = (await answer.json()).get("usage")
        if not usage:
            raise ValueError("a reply without usage")
        return usage

    async def _metrics(self) -> defaultdict[str, float]:
        """vLLM's own metrics, those of one name added up; none of another server."""
        sums = defaultdict[str, float](float)
        try:
            async with self._session.get(self._url.removesuffix("/v1") + "/metrics") as answer:
                for name, value in _SAMPLE.findall(await answer.text()) if answer.status == 200 else ():
                    sums[name] += float(value)
        except (aiohttp.ClientError, TimeoutError):
            pass
        return sums


async def measured(options: argparse.Namespace) -> int:
    """Print the table, each row as soon as it is there; 1 where anything failed."""
    shape = Shape(**{name: getattr(options, name) for name in asdict(Shape())})
    key = os.environ.get("FLEET_MODEL_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # vLLM closes what was idle for 5 s; a request that meets that would be a failure of this load, not of the server.
    connector, timeout = aiohttp.TCPConnector(limit=0, keepalive_timeout=2), aiohttp.ClientTimeout(total=300)
    failures = Counter[str]()
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        load = Load(session, options.url, options.model, shape)
        await load.calibrate()
        print(f"{shape}\n\n{_HEAD}", flush=True)
        for agents in options.agents:
            row = await load.measure(agents, seconds=options.seconds, warm_up=options.warm_up)
            failures += row.failures
            print(row.line(), flush=True)
    for what, count in failures.most_common(10):
        print(f"failed {count} times: {what}")
    return 1 if failures else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="model_server", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--url", required=True, help="up to and with /v1")
    parser.add_argument("--model", required=True)
    numbers = [1, 8, 32, 64, 128]
    parser.add_argument("--agents", type=lambda text: [int(one) for one in text.split(",")], default=numbers)
    parser.add_argument("--seconds", type=float, default=40.0, help="measured for each number of agents")
    parser.add_argument("--warm-up", type=float, default=90.0, help="seconds at most before that")
    defaults: dict[str, float] = asdict(Shape())
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return asyncio.run(measured(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
