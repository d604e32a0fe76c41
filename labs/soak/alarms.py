"""Prometheus with the fleet's own rules beside a soak: which alerts fire, and when.

Where no `prometheus` is installed (Debian's package has one) nothing is watched, and the report says so.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from labs.children import ROOT, free_port

RULES = ROOT / "deploy" / "observability" / "prometheus" / "alerts.yaml"
_SCRAPE_SECONDS = 5
_READY_SECONDS = 30.0


class Alarms:
    """What Prometheus says of alerts. Made by `open_alarms`."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def fired(self, *, since: float) -> set[str]:
        """The names of the alerts that fired at any time since `time.time()` was `since`."""
        query = {
            "query": 'ALERTS{alertstate="firing"}',
            "start": f"{since:.3f}",
            "end": f"{time.time():.3f}",
            "step": str(_SCRAPE_SECONDS),
        }
        return {series["metric"]["alertname"] for series in await self._get("query_range", query)}

    async def up(self) -> float:
        """The share of scrapes so far that were answered."""
        found = await self._get("query", {"query": "avg_over_time(up[1d])"})
        return min((float(series["value"][1]) for series in found), default=0.0)

    async def _get(self, call: str, query: dict[str, str]) -> list[Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._url}/api/v1/{call}", params=query) as answer,
        ):
            return (await answer.json())["data"]["result"]


@asynccontextmanager
async def open_alarms(directory: Path, metrics: str) -> AsyncGenerator[Alarms | None]:
    """A Prometheus that asks `metrics` (host:port) every five seconds; None where it is not installed."""
    program = shutil.which("prometheus")
    if program is None:
        yield None
        return
    config, listen = directory / "prometheus.yaml", f"127.0.0.1:{free_port()}"
    scrape = {"job_name": "fleet-orchestrator", "static_configs": [{"targets": [metrics]}]}
    every = {"scrape_interval": f"{_SCRAPE_SECONDS}s", "evaluation_interval": f"{_SCRAPE_SECONDS}s"}
    config.write_text(yaml.safe_dump({"global": every, "scrape_configs": [scrape], "rule_files": [str(RULES)]}))
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(program, f"--config.file={config}", f"--storage.tsdb.path={directory / 'prometheus'}"),
            f"--web.listen-address={listen}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        await _ready(f"http://{listen}", process)
        yield Alarms(f"http://{listen}")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(_READY_SECONDS), aiohttp.ClientSession() as session:
        while True:
            assert process.returncode is None, "prometheus ended; its log is prometheus.log"
            try:
                async with session.get(f"{url}/-/ready") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)
