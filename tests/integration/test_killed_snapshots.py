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

import pytest

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
    """A bucket whose process is killed as it puts a part."""

    bucket: KeyValue

    async def get(self, key: str) -> KeyValueEntry | None:
        return await self.bucket.get(key)

    async def put(self, key: str, value: bytes, *, revision: int | None = None) -> int:
        if not key.endswith(".head"):
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


async def write(url: str, token: str) -> None:
    """Save both projections, until killed."""
    async with JetStream.connect(url, credentials=Credentials(token=token)) as log:
        store = await log.snapshots(BUCKET)
        dying = replace(store, bucket=Dying(store.bucket), pause=0.01, least=1)  # pyright: ignore[reportArgumentType]
        async with projections(log, dying):
            await asyncio.Event().wait()


async def heads(store: Snapshots) -> set[bytes]:
    """Where the snapshots lie that are whole."""
    entries = [entry.value for entry in await store.bucket.entries() if entry.key.endswith(".head")]
    return {re.sub(rb'"claimed":[^,]*', b"", head) for head in entries if b'"sha256":""' not in head}


async def test_a_process_killed_while_it_saves_leaves_what_it_had_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", 1_000)
    async with (
        EmbeddedNats(tmp_path) as server,
        JetStream.connect(server.address.url, credentials=Credentials(token=server.address.token)) as log,
        asyncio.timeout(60),
    ):
        await log.ensure_streams()
        await tell(log)
        store = replace(await log.snapshots(BUCKET), pause=3600.0)
        async with projections(log, replace(store, pause=0.01, least=1)):
            while len(await heads(store)) < 2:
                await asyncio.sleep(0.01)
        whole = await heads(store)
        await tell(log)
        arguments = "-m", "tests.integration.test_killed_snapshots", server.address.url, server.address.token
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
        assert await process.wait() == -signal.SIGKILL
        assert await heads(store) == whole and await known(log, store) == await known(log, None)


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:]))
