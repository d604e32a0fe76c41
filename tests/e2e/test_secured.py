"""A fleet started from what `fleet init` wrote: TLS, nkeys, an access file; nothing of it in plain text."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.runtime.channels import ChannelTls
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.scripts import HELLO, HELLO_FILES
from tests.secured import SecuredNats, secured_nats

pytestmark = pytest.mark.slow


@asynccontextmanager
async def _serving(directory: Path, model_url: str) -> AsyncIterator[tuple[dict[str, object], Path]]:
    variables = {
        "FLEET_MODEL_URL": model_url,
        "FLEET_MODEL": "scripted",
        "FLEET_LISTEN": "127.0.0.1:0",
        "FLEET_LOG_FORMAT": "json",
        "FLEET_REPOSITORY_ROOTS": f"{directory}/repositories/{{tenant}}",
    }
    card, log = directory / "home" / "fleet.json", directory / "fleet.log"
    with log.open("wb") as told:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.orchestrator.main"),
            env={**os.environ, **variables, "FLEET_CONFIG": str(directory / "fleet.toml")},
            stdout=told,
            stderr=told,
        )
    try:
        async with asyncio.timeout(60):
            while not card.exists():
                assert process.returncode is None, log.read_text()[-3000:]
                await asyncio.sleep(0.05)
        yield json.loads(card.read_text()), log
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _solved(secured: SecuredNats, address: str, directory: Path) -> str:
    """The execution of a task that tenant a has handed in and that has ended."""
    repository = make_repository(directory / "repositories/a/hello", HELLO_FILES)
    async with connect(address, secured.tokens["a"], tls=ChannelTls(ca=secured.layout.authority)) as fleet:
        task = pb.DeliberateRequest(
            task_id="secured-1", task_description=HELLO, num_agents=2, repo=pb.RepoRef(path=str(repository))
        )
        accepted = await fleet.submit(pb.SubmitTaskRequest(deliberate=task))
        assert [event.type async for event in fleet.events(accepted.execution_id)][-1] == "execution_finished"
        assert (await fleet.execution(accepted.execution_id)).status == pb.DELIBERATION_STATUS_COMPLETED
    return accepted.execution_id


async def test_a_task_of_a_tenant_goes_through_and_only_that_tenant_hears_of_it(
    model_server: ScriptedModelServer, tmp_path: Path
) -> None:
    heard: dict[str, list[str]] = {"a": [], "b": []}
    ended = asyncio.Event()

    def hearing(tenant: str):
        async def hear(message: object) -> None:
            heard[tenant].append(str(getattr(message, "subject", "")))
            if heard[tenant][-1] == "agent.results.secured-1":
                ended.set()

        return hear

    async with (
        secured_nats(tmp_path, ("a", "b")) as secured,
        _serving(tmp_path, model_server.url) as (card, log),
        AsyncExitStack() as stack,
    ):
        for tenant in heard:
            client = await nats.connect(
                secured.url,
                nkeys_seed=str(secured.layout.nkey(f"tenant-{tenant}")),
                tls=ssl.create_default_context(cafile=str(secured.layout.authority)),
                allow_reconnect=False,
            )
            stack.push_async_callback(client.close)
            for subject in ("agent.events.>", "agent.results.>"):
                await client.subscribe(subject, cb=hearing(tenant))
            await client.flush()
        execution_id = await _solved(secured, str(card["address"]), tmp_path)
        async with asyncio.timeout(20):
            await ended.wait()
        # What is not theirs does not come late either: it would have come before this, to b's client.
        await client.flush()
    assert heard["b"] == []
    assert f"agent.events.{execution_id}._" in heard["a"]
    assert "nats.forbidden" not in log.read_text()
