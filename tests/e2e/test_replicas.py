"""Two orchestrators against one NATS: what one has accepted can be had through the other, and outlives the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git
from swe_ai_fleet.watching.events import verify_events
from tests.fleet_client import Client, bodies, serving, to_orchestrate
from tests.scripts import PROPOSING, SLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
async def pair(
    model_server: ScriptedModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two orchestrators with homes and Rays of their own; the second one lives to the end."""
    directory = tmp_path_factory.mktemp("replicas")
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(EmbeddedNats(directory / "nats"))
        homes = [directory / "one", directory / "two"]
        one, two = [await stack.enter_async_context(replica(home, nats, model_server.url)) for home in homes]
        yield one, two


async def agree(one: Replica, two: Replica, execution_id: str) -> None:
    """Wait until both list the same, the execution as ended among it."""
    async with asyncio.timeout(10):
        while True:
            listed = await one.listed()
            ended = [entry for entry in listed if entry[0] == execution_id and entry[2]]
            if ended and listed == await two.listed():
                return
            await asyncio.sleep(0.05)


class Replica(Client):
    """A client of one of them, and its process."""

    process: asyncio.subprocess.Process

    async def listed(self) -> list[tuple[str, int, int, str]]:
        """What it says of every execution."""
        reply = await self.stub.ListExecutions(pb.ListExecutionsRequest(page_size=100), **self.call)
        return [(entry.execution_id, entry.status, entry.finished_at_ms, entry.winner_id) for entry in reply.executions]


@asynccontextmanager
async def replica(home: Path, nats: EmbeddedNats, model_url: str) -> AsyncIterator[Replica]:
    home.mkdir()
    variables = {
        "FLEET_NATS_URL": nats.address.url,
        "FLEET_NATS_TOKEN": nats.address.token,
        "FLEET_LEASE_SECONDS": "2",
        "FLEET_CHECKPOINT_SECONDS": "0",
    }
    async with (
        serving(home, model_url, **variables) as (process, card),
        grpc.aio.insecure_channel(card["address"]) as channel,
    ):
        replica = Replica(channel, card["token"])
        replica.process = process
        yield replica


async def test_what_a_killed_one_drove_is_ended_by_the_other(
    model_server: ScriptedModelServer, repository: Path, tmp_path: Path
) -> None:
    """Each has a home and a Ray of its own."""
    wanted = to_orchestrate(SLOW, repository)
    async with (
        EmbeddedNats(tmp_path / "nats") as nats,
        replica(tmp_path / "one", nats, model_server.url) as one,
        replica(tmp_path / "two", nats, model_server.url) as two,
    ):
        execution_id = await one.submit(wanted)
        await two.until(execution_id, "tool_started")
        one.process.kill()

        reply = await two.stub.Orchestrate(wanted, **two.call)
        assert reply.execution_id == execution_id
        assert reply.status == pb.DELIBERATION_STATUS_COMPLETED
        assert git(repository, "rev-parse", reply.branch) == reply.commit_sha
        events = await two.events(execution_id)
        claims = bodies(events, "execution_claimed")
        assert [claim["generation"] for claim in claims] == [1, 2]
        assert all(str(each.process.pid) in claim["owner"] for each, claim in zip((one, two), claims, strict=True))
        # The conversation went on where it was: nothing that had been answered was asked again.
        steps = [body["step"] for body in bodies(events, "model_replied")]
        assert steps == sorted(set(steps))
        assert all(verdict.intact for verdict in verify_events(events))


async def test_a_task_of_one_is_watched_approved_and_fetched_through_the_other(
    pair: tuple[Replica, Replica], repository: Path
) -> None:
    one, two = pair
    wanted = to_orchestrate(PROPOSING, repository, approval=pb.APPROVAL_POLICY_PLAN)
    execution_id = await one.submit(wanted)
    (asked,) = (await two.until(execution_id, "approval_requested")).pending_approvals
    assert asked.proposal.startswith("Append hello_world")
    assert (await two.submit(wanted)) == execution_id

    await two.resolve(execution_id, "APPROVED", approval_id=asked.approval_id, approver="ada")
    events = await two.events(execution_id)
    assert [event.sequence for event in events] == [event.sequence for event in await one.events(execution_id)]
    assert all(verdict.intact for verdict in verify_events(events))

    request = pb.GetDeliberationResultRequest(task_id=wanted.task_id)
    fetched = await two.stub.GetDeliberationResult(request, **two.call)
    assert fetched.status == pb.DELIBERATION_STATUS_COMPLETED
    assert b"def hello_world" in fetched.results[0].patch.text
    assert fetched == await one.stub.GetDeliberationResult(request, **one.call)
    await agree(one, two, execution_id)
