"""A fleet started from what `fleet init` wrote: TLS, nkeys, an access file; nothing of it in plain text."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import nats
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.runtime.channels import ChannelTls
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.fleet_client import serving
from tests.scripts import HELLO, HELLO_FILES
from tests.secured import SecuredNats, secured_nats

pytestmark = pytest.mark.slow


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

    (home := tmp_path / "home").mkdir()
    variables = {
        "FLEET_CONFIG": str(tmp_path / "fleet.toml"),
        "FLEET_LOG_FORMAT": "json",
        "FLEET_REPOSITORY_ROOTS": f"{tmp_path}/repositories/{{tenant}}",
    }
    async with (
        secured_nats(tmp_path, ("a", "b")) as secured,
        serving(home, model_server.url, **variables) as (_, card),
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
        execution_id = await _solved(secured, card["address"], tmp_path)
        async with asyncio.timeout(20):
            await ended.wait()
        # What is not theirs does not come late either: it would have come before this, to b's client.
        await client.flush()
    assert heard["b"] == []
    assert f"agent.events.{execution_id}._" in heard["a"]
    assert "nats.forbidden" not in (home / "fleet.log").read_text()
