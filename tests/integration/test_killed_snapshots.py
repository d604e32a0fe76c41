"""Snapshots on a real NATS, by processes that are killed while they write them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet import snapshots
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.orchestrator.metrics import Meter
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.ports import KeyValue, KeyValueEntry
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.snapshots import Snapshots

LOGS = sorted((Path(__file__).parents[1] / "unit" / "golden_logs").glob("v*/*.jsonl"))
BUCKET = "killed-snapshots"


@dataclass
class Dying:
    """A bucket whose process is killed at a put of parts."""

    bucket: KeyValue
    left: int

    async def get(self, key: str) -> KeyValueEntry | None:
        return await self.bucket.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        self.left -= not key.endswith(".head")
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await self.bucket.put(key, value, revision=revision)


@asynccontextmanager
async def projections(log: JetStream, store: Snapshots | None) -> AsyncGenerator[tuple[Projection, Meter]]:
    projection = Projection(log, snapshots=store)
    await projection.start()
    try:
        async with Meter(lambda at: log.everything(from_sequence=at, follow=True), snapshots=store) as meter:
            await meter.whole()
            yield projection, meter
    finally:
        await projection.stop()


async def known(log: JetStream, store: Snapshots | None) -> object:
    async with projections(log, store) as (projection, meter):
        totals = {
            tenant: (figures.accepted, figures.usage, figures.tools) for tenant, figures in meter.totals().items()
        }
        return list(projection.select("default")), projection.unfinished("default"), totals


async def tell(log: JetStream) -> None:
    """Some more whole executions."""
    for path in LOGS:
        text = path.read_text(encoding="utf-8")
        (old,) = set(re.findall(r'"execution_id":"([^"]*)","task_id"', text))
        new = str(uuid.uuid4())
        for line in text.replace(old, new).splitlines():
            (agent,) = re.findall(r'^.*?"agent_id":"([^"]*)"', line)
            await log.connection.publish(f"agent.events.default.{new}.{agent}", line.encode(), headers={}, timeout=10)


async def write(url: str, token: str, left: int) -> None:
    """Save both projections, until killed at a part."""
    snapshots.PART_BYTES = 1_000
    async with JetStream.connect(url, credentials=Credentials(token=token)) as log:
        store = await log.snapshots(BUCKET)
        dying = replace(store, bucket=Dying(store.bucket, left), pause=0.01, least=1)  # pyright: ignore[reportArgumentType]
        async with projections(log, dying):
            while len(await heads(store)) < 2:
                await asyncio.sleep(0.01)
            if left < 1_000:
                await asyncio.Event().wait()


async def heads(store: Snapshots) -> set[bytes]:
    """Where the snapshots lie that are whole."""
    entries = [entry.value for entry in await store.bucket.entries() if entry.key.endswith(".head")]
    return {re.sub(rb'"claimed":[^,]*', b"", head) for head in entries if b'"sha256":""' not in head}


async def test_a_process_killed_while_it_saves_leaves_what_it_had_saved(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        address = server.address

        async def child(left: int) -> int:
            arguments = "-m", "tests.integration.test_killed_snapshots", address.url, address.token, str(left)
            process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
            async with asyncio.timeout(60):
                return await process.wait()

        async with JetStream.connect(address.url, credentials=Credentials(token=address.token)) as log:
            await log.ensure_streams()
            await tell(log)
            store = replace(await log.snapshots(BUCKET), pause=3600.0)
            assert await child(0) == -signal.SIGKILL
            assert await heads(store) == set() and await known(log, store) == await known(log, None)
            assert await child(1_000) == 0
            whole = await heads(store)
            assert len(whole) == 2
            await tell(log)
            assert await child(0) == -signal.SIGKILL
            assert await heads(store) == whole and await known(log, store) == await known(log, None)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], sys.argv[2], int(sys.argv[3])))
