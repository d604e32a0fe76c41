"""kill -9 of the gateway, and of the orchestrator under it, while somebody watches: every message once and in order."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing import ScriptedModelServer
from tests.fleet_command import program
from tests.scripts import SLOW
from tests.secured import free_port


@asynccontextmanager
async def _process(
    module: str, variables: Mapping[str, str], answers: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A service in a process of its own, from when its port answers."""
    log, (host, _, port) = Path(f"{variables['FLEET_HOME']}.log"), answers.rpartition(":")
    async with program(sys.executable, "-m", module, log=log, **variables) as process:
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, log.read_text()[-3000:]
                try:
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        yield process


class Watcher:
    """Watches an execution through whatever dies under it, going on behind the last message each time."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._headers = url, {"Authorization": f"Bearer {token}"}
        self.messages: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self._changed = asyncio.Event()

    async def watch(self) -> None:
        while not (self.messages and self.messages[-1]["type"] in ("completion", "error")):
            last = self.messages[-1]["sequence"] if self.messages else -1
            try:
                async with connect(
                    f"{self._url}?from={last + 1}", additional_headers=self._headers, max_queue=None
                ) as socket:
                    async for text in socket:
                        self._take(json.loads(text))
            except (OSError, ConnectionClosed, EOFError, TimeoutError):
                await asyncio.sleep(0.1)

    async def heard(self, count: int) -> None:
        """Wait for so many messages."""
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "notice":
            self.notices.append(message["notice"]["code"])
        else:
            self.messages.append(message)
        self._changed.set()


@pytest.mark.slow
async def test_whatever_dies_watchers_are_told_everything_once(
    model_server: ScriptedModelServer, repository: Path, tmp_path: Path
) -> None:
    grpc_port, context_port, http_port = free_port(), free_port(), free_port()
    address, http = f"127.0.0.1:{grpc_port}", f"127.0.0.1:{http_port}"
    async with EmbeddedNats(tmp_path / "nats") as nats:
        common = {
            "FLEET_NATS_URL": nats.address.url,
            "FLEET_NATS_TOKEN": nats.address.token,
            "FLEET_HOME": str(tmp_path / "home"),
        }
        orchestrator = common | {
            "FLEET_MODEL_URL": model_server.url,
            "FLEET_MODEL": "scripted",
            "FLEET_LISTEN": address,
            "FLEET_CONTEXT_LISTEN": f"127.0.0.1:{context_port}",
            "FLEET_HTTP_LISTEN": "off",
            "FLEET_LEASE_SECONDS": "2",
        }
        async with _process("services.orchestrator.main", orchestrator, address) as first:
            token = (tmp_path / "home" / "token").read_text().strip()
            gateway = common | {
                "FLEET_HTTP_LISTEN": http,
                "FLEET_ORCHESTRATOR_URL": address,
                "FLEET_ORCHESTRATOR_TOKEN": token,
                "FLEET_CONTEXT_URL": f"127.0.0.1:{context_port}",
            }
            headers = {"Authorization": f"Bearer {token}"}
            task = {"task_id": f"watched-{uuid.uuid4().hex[:8]}", "task_description": SLOW, "num_agents": 2}
            body = {"deliberate": task | {"repo": {"path": str(repository)}}}
            async with _process("services.gateway.main", gateway, http) as killed, aiohttp.ClientSession() as client:
                async with client.post(f"http://{http}/api/executions", json=body, headers=headers) as answer:
                    execution_id = (await answer.json())["execution_id"]
                watcher = Watcher(f"ws://{http}/api/ws/executions/{execution_id}", token)
                watching = asyncio.create_task(watcher.watch())
                await watcher.heard(8)
                killed.kill()
                await killed.wait()
            async with _process("services.gateway.main", gateway, http):
                await watcher.heard(len(watcher.messages) + 1)
                first.kill()
                await first.wait()
                async with _process("services.orchestrator.main", orchestrator, address), asyncio.timeout(90):
                    await watching
                    page = f"http://{http}/api/executions/{execution_id}/events?limit=1000"
                    async with aiohttp.ClientSession() as client, client.get(page, headers=headers) as answer:
                        stored = [event["sequence"] for event in (await answer.json())["events"]]
    told = [message["sequence"] for message in watcher.messages]
    assert told == stored
    assert watcher.messages[-1]["type"] == "completion"
    assert {"source_lost", "source_back"} <= set(watcher.notices)
