"""How long projections take to know a log, from its start and from snapshots, and what a process that holds them takes.

`python -m labs.bench.starts EVENTS [EVENTS …]` fills a NATS server of its own with whole executions (those of the
golden logs, spread over 90 days, with a record of work each) and starts a process on them twice: on the log, of which
it saves snapshots, and on those.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.context import Change, WorkRecord, WorkRecorded
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.orchestrator.meter import Meter
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.orchestrator.quotas import StorageUsage
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.tools.secrets import Secrets

_LOGS = Path(__file__).parents[2] / "tests/unit/golden_logs/v0.1.0"
_DAYS = 89
_ROUNDS = ("from the log", "from snapshots")


def executions(events: int) -> Iterator[tuple[str, list[bytes]]]:
    """Whole executions of so many events in all, the oldest first, each with the subject of its lines before them."""
    logs = [path.read_text(encoding="utf-8") for path in sorted(_LOGS.glob("*.jsonl"))]
    begin, written, number = datetime.now(UTC) - timedelta(days=_DAYS), 0, 0
    while written < events:
        # Seven of nine are long.
        text = logs[{0: 0, 1: 1}.get(number % 9, 2)]
        lines = text.splitlines()
        old, new = json.loads(lines[0])["execution_id"], str(uuid.uuid5(uuid.NAMESPACE_OID, str(number)))
        at = (begin + timedelta(days=_DAYS * written / events)).isoformat()
        text = re.sub(r'"at":"20[^"]*"', f'"at":"{at}"', text.replace(old, new))
        yield new, [line.encode() for line in text.splitlines()]
        written, number = written + len(lines), number + 1


async def fill(log: JetStream, events: int) -> int:
    """Write the executions without waiting for each; how many there are."""
    number = 0
    for number, (execution_id, lines) in enumerate(executions(events), start=1):
        at = ""
        for line in lines:
            event: dict[str, str] = json.loads(line)
            at = event["at"]
            await log.connection.send(f"agent.events.default.{execution_id}.{event['agent_id']}", line)
        record = WorkRecord(
            execution_id=execution_id,
            task_id=f"T-{number}",
            story_id=f"S-{number % 50}",
            instruction="Fix the rounding of totals. " * 10,
            repository="https://git.example/acme/app",
            files_changed=tuple(f"src/module_{(number * 7 + part) % 900}.py" for part in range(6)),
            commits=(f"{number:040x}",),
        )
        change = Change(tenant="default", story_id=record.story_id, version=0, at=at, body=WorkRecorded(record=record))
        await log.connection.send(f"context.work.default.{execution_id}", to_json(change))
        if number % 20 == 0:
            await log.last_sequence()
    return number


async def start(url: str, token: str, round_name: str) -> None:
    """Start all projections, one after the other; prints seconds and memory as JSON."""
    figures: dict[str, object] = {}
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(JetStream.connect(url, credentials=NatsCredentials(token=token)))
        saved: dict[str, Any] = {}
        if round_name in _ROUNDS:
            found = await log.snapshots("agent-snapshots")
            saved["snapshots"] = type(found)(bucket=found.bucket, origin=found.origin, pause=2.0, least=100)
        before = time.perf_counter()

        def took(name: str) -> None:
            nonlocal before
            now = time.perf_counter()
            figures[name], before = round(now - before, 2), now

        # It is an extension.
        from swe_ai_fleet.extensions.knowledge.store import ContextStore

        store = await stack.enter_async_context(ContextStore(log.changes(), mask=Secrets(), **saved))
        took("graph")
        projection = Projection(log, **saved)
        await projection.start()
        stack.push_async_callback(projection.stop)
        took("executions")
        meter = Meter(lambda at: log.everything(from_sequence=at, follow=True), **saved)
        await stack.enter_async_context(meter)
        await meter.whole()
        took("metrics")
        usage = await stack.enter_async_context(StorageUsage({"events": log.sizes("AGENT_EVENTS")}, **saved))
        while True:
            with suppress(Unavailable):
                await usage.bytes_of("default")
                break
            await asyncio.sleep(0.01)
        took("storage")
        figures["MiB"] = psutil.Process().memory_info().rss >> 20
        known = projection.select("default")
        figures["executions known"] = sum(1 for _ in known)
        took("all of them listed")
        assert store.graph("default").execution(str(uuid.uuid5(uuid.NAMESPACE_OID, "0"))) is not None
        if round_name == _ROUNDS[0]:
            bucket, names = saved["snapshots"].bucket, 0
            while names < 4:
                heads = [entry for entry in await bucket.entries() if entry.key.endswith(".head")]
                names = sum(json.loads(entry.value)["sha256"] != "" for entry in heads)
                await asyncio.sleep(0.5)
            figures["KiB of snapshots"] = sum(len(entry.value) for entry in await bucket.entries()) >> 10
    print(json.dumps(figures), flush=True)


async def measure(events: int) -> None:
    """Fill a server and start on it, once for each round."""
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedNats(Path(directory)) as server:
            address = server.address
            async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token)) as log:
                await log.ensure_streams()
                number = await fill(log, events)
                print(f"{await log.last_sequence():,} events of {number:,} executions; load {os.getloadavg()[0]:.0f}")
            for name in _ROUNDS:
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "labs.bench.starts", "--start", address.url, address.token, name
                )
                print(f"  {name}: ", end="", flush=True)
                if await child.wait():
                    raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1] == "--start":
        asyncio.run(start(*sys.argv[2:5]))
    else:
        for wanted in sys.argv[1:]:
            asyncio.run(measure(int(wanted)))
