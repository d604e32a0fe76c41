"""Webhooks over real NATS, gRPC and HTTP: told once, signed, tried again after restarts. Agents are scripted."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import nats as nats_client
import pytest

from fleet.notification.v1 import notification_pb2 as pb
from fleet.notification.v1.notification_pb2_grpc import NotificationServiceStub
from services.grpc_server import serve_grpc
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalResolution
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionFinished, ExecutionStarted, ExecutionStatus, Writer
from swe_ai_fleet.domain.task import DEFAULT_TENANT, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.extensions.webhooks.sender import Schedule
from swe_ai_fleet.extensions.webhooks.service import open_notifications
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.channels import named_field
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.builtin import Network
from tests.extensions.webhooks.webhook_receiver import Answer, Received, WebhookReceiver
from tests.gateway_house import ready
from tests.scripted_fleet import ScriptedFleet, ScriptedRun, execution_deps
from tests.unit.test_http_tool import PUBLIC, Names

SECONDS = 40
TOKEN = "a-token-for-tests"
QUICK = Schedule(waits=(0.02, 0.04, 0.06), spread=0)
STREAM = "AGENT_EVENTS"


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Service:
    """A replica's webhooks, and how they are reached."""

    stub: NotificationServiceStub
    log: JetStream

    async def create(self, url: str, **fields: Any) -> pb.CreateWebhookResponse:
        return await self._call("CreateWebhook", url=url, **fields)

    async def told(self, url: str, task_id: str, **fields: Any) -> pb.CreateWebhookResponse:
        """A webhook for the ends of tasks whose ids begin so."""
        return await self.create(url, filter=only(task_id), events=("execution.finished",), **fields)

    async def list(self) -> Mapping[str, pb.Webhook]:
        return {one.webhook_id: one for one in (await self._call("ListWebhooks")).webhooks}

    async def delete(self, webhook_id: str) -> bool:
        return (await self._call("DeleteWebhook", webhook_id=webhook_id)).existed

    async def test(self, webhook_id: str) -> pb.TestWebhookResponse:
        return await self._call("TestWebhook", webhook_id=webhook_id)

    async def deliveries(self, webhook_id: str) -> list[pb.Delivery]:
        return list((await self._call("ListDeliveries", webhook_id=webhook_id)).deliveries)

    async def settled(self, webhook_id: str, count: int) -> list[pb.Delivery]:
        """The attempts, once there are so many."""
        async with asyncio.timeout(SECONDS):
            while len(found := await self.deliveries(webhook_id)) < count:
                await asyncio.sleep(0.01)
        return found

    async def idle(self, webhook_id: str) -> None:
        """Wait until nothing of a webhook waits or is under way."""
        place = f"CONSUMER.INFO.{STREAM}.{(await self.list())[webhook_id].consumer}"
        async with asyncio.timeout(SECONDS):
            while (info := await self.log.connection.api(place, timeout=5))["num_pending"] + info["num_ack_pending"]:
                await asyncio.sleep(0.01)

    async def gone(self, consumer: str) -> None:
        """Wait until a consumer is removed."""
        async with asyncio.timeout(SECONDS):
            while consumer in await self.log.consumers(STREAM):
                await asyncio.sleep(0.01)

    async def _call(self, method: str, **fields: Any) -> Any:
        request = getattr(pb, f"{method}Request")(**fields)
        return await getattr(self.stub, method)(request, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=30)


@dataclass(frozen=True, kw_only=True)
class World:
    """Executions that can be run, and a way to serve webhooks as often as wanted."""

    nats: EmbeddedNats
    home: Path
    receiver: WebhookReceiver
    log: JetStream
    executions: Executions

    @asynccontextmanager
    async def served(self, *, network: Network | None = None, private: str | None = None) -> AsyncIterator[Service]:
        settings = Settings(
            home=self.home,
            nats_url=self.nats.address.url,
            nats_token=self.nats.address.token,
            webhook_private_hosts=self.receiver.address if private is None else private,
        )
        async with (
            connect_log(settings, name="webhooks-test") as log,
            open_notifications(log, settings, schedule=QUICK, network=network) as service,
            serve_grpc([service], "127.0.0.1:0", TOKEN, ready) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield Service(stub=NotificationServiceStub(channel), log=log)

    async def begin(self, task_id: str, description: str = "Do it") -> str:
        task = Task(
            task_id=task_id, kind=TaskKind.ORCHESTRATE, description=description,
            repo=RepoRef(location="/srv/app"), num_agents=1, rounds=0,
        )  # fmt: skip
        return (await self.executions.submit(task)).execution_id

    async def approve(self, execution_id: str, approval_id: str) -> None:
        decided = ApprovalResolution(approval_id=approval_id, decision=ApprovalDecision.APPROVED, approver="ada")
        await self.executions.resolve(DEFAULT_TENANT, execution_id, decided)

    async def quiet(self, task_id: str, description: str = "Do it") -> str:
        """Carry a task out in which somebody asks, which nobody here wants to hear of."""
        execution_id = await self.begin(task_id, description)
        async with asyncio.timeout(SECONDS):
            while True:
                state = self.executions.projection.get(DEFAULT_TENANT, execution_id)
                if state is not None and state.pending:
                    break
                await asyncio.sleep(0.01)
        await self.approve(execution_id, state.pending[0].approval_id)
        await self.executions.wait(DEFAULT_TENANT, execution_id)
        return execution_id


@pytest.fixture
async def world(nats: EmbeddedNats, receiver: WebhookReceiver, tmp_path: Path) -> AsyncIterator[World]:
    credentials = Settings(home=tmp_path, nats_url=nats.address.url, nats_token=nats.address.token)
    async with asyncio.timeout(SECONDS), connect_log(credentials, name="executions-test") as log:
        await log.ensure_streams()
        fleet = ScriptedFleet(storage=log, runs={"agent-dev-1": ScriptedRun(asks=1)})
        async with Executions(execution_deps(log, fleet=fleet)) as executions:
            yield World(nats=nats, home=tmp_path, receiver=receiver, log=log, executions=executions)


def a_name() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


def only(task_id: str) -> pb.WebhookFilter:
    return pb.WebhookFilter(task_id_prefix=task_id)


def content(message: Received) -> dict[str, Any]:
    return json.loads(message.body)


async def test_what_failed_is_tried_again_under_the_same_id(world: World) -> None:
    task_id, receiver = a_name(), world.receiver
    receiver.answers["/flaky"].extend([Answer(status=500, text="oh no"), Answer(status=302, headers={"Location": "/"})])
    async with world.served() as service:
        made = await service.told(receiver.url("/flaky"), task_id, webhook_id=task_id)
        await world.quiet(task_id)
        messages = await receiver.until("/flaky", 3)
        await service.idle(task_id)
        assert len({message.checked(made.secret) for message in messages}) == 1
        assert len({message.body for message in receiver.on("/flaky")}) == 1
        third, second, first = await service.settled(task_id, 3)
        assert [one.attempt for one in (first, second, third)] == [1, 2, 3]
        assert (first.status, first.error) == (pb.DELIVERY_STATUS_RETRYING, "HTTP 500: oh no")
        assert (second.http_status, second.error) == (302, "HTTP 302: redirects are not followed")
        assert (third.status, third.next_at_ms) == (pb.DELIVERY_STATUS_DELIVERED, 0)
        assert not receiver.on("/")


async def test_nothing_is_lost_or_told_twice_where_processes_end(world: World) -> None:
    """One receiver has failed once when the process ends, the other one has not yet answered."""
    task_id, receiver = a_name(), world.receiver
    receiver.answers["/later"].append(Answer(status=503))
    receiver.held["/slow"] = asyncio.Event()
    async with world.served() as service:
        later = await service.told(receiver.url("/later"), task_id, webhook_id=task_id)
        slow = await service.told(receiver.url("/slow"), f"{task_id}-1")
        await world.quiet(f"{task_id}-1")
        await service.settled(task_id, 1)
        await receiver.until("/slow", 1)
    receiver.held["/slow"].set()
    await world.quiet(f"{task_id}-2")
    async with world.served() as service:
        messages = await receiver.until("/later", 3)
        await service.idle(task_id)
        told = [content(message)["data"]["task_id"] for message in receiver.on("/later")]
        # What the end of the first process cut off is sent once more, so `-1` may have come three times.
        assert told.count(f"{task_id}-1") in (2, 3) and told.count(f"{task_id}-2") == 1
        for message in messages:
            message.checked(later.secret)
        attempts = {one.event_id: one.attempt for one in reversed(await service.settled(task_id, 3))}
        assert sorted(attempts.values()) in ([1, 2], [1, 3])
        one, other = await receiver.until("/slow", 2)
        assert one.checked(slow.secret) == other.checked(slow.secret)
        assert one.body == other.body


NASTY = (
    "`<!channel> @everyone @here <@U123> </b> *bold* _x_ [a](http://evil) \u202e ```\n# Execution completed\x00 & \\"
)


async def test_chats_show_words_as_words_and_mention_nobody(world: World) -> None:
    task_id, receiver = a_name(), world.receiver
    formats = {"/slack": pb.WEBHOOK_FORMAT_SLACK, "/discord": pb.WEBHOOK_FORMAT_DISCORD}
    async with world.served() as service:
        for path, kind in formats.items():
            url = receiver.url(path)
            await service.create(url, filter=only(task_id), events=("execution.started",), format=kind)
        await world.quiet(task_id, NASTY)
        slack, discord = [content((await receiver.until(path, 1))[0]) for path in formats]
    for said in (slack["text"], discord["content"]):
        # What is a stranger's stands between backticks on its line, so that nothing of it is a line of ours.
        first, *lines = said.split("\n")
        assert first.strip("*") == "Execution accepted"
        assert all(line.startswith("*") and line.count("`") == 2 and line.endswith("`") for line in lines)
    for mark in ("<!", "<@", "</b>", "@everyone", "@here", "```", "\x00", "\u202e"):
        assert mark not in slack["text"]
    assert "&lt;!channel&gt;" in slack["text"] and "[a](http://evil)" in discord["content"]
    assert discord["allowed_mentions"] == {"parse": []} and "@everyone" not in discord["content"]


async def test_what_cannot_be_delivered_is_a_dead_letter(world: World, nats: EmbeddedNats) -> None:
    task_id, receiver = a_name(), world.receiver
    receiver.answers["/broken"].extend([Answer(status=500)] * (len(QUICK.waits) + 2))
    async with world.served() as service:
        made = await service.told(receiver.url("/broken"), task_id, webhook_id=task_id)
        execution_id = await world.quiet(f"{task_id}-1")
        attempts = await service.settled(task_id, 4)
        assert [one.status for one in attempts] == [pb.DELIVERY_STATUS_DEAD] + 3 * [pb.DELIVERY_STATUS_RETRYING]
        await service.idle(task_id)
        marked = (await service.list())[task_id]
        assert (marked.active, marked.dead_letters, marked.last_error) == (True, 1, "HTTP 500")
        async with await nats_client.connect(nats.address.url) as client:
            letter = await client.jetstream().get_last_msg("AGENT_DLQ", f"agent.dlq.{made.webhook.consumer}")
        assert json.loads(letter.data or b"")["execution_id"] == execution_id
        assert "tried 4 times; last error: HTTP 500" in (letter.headers or {})["Fleet-Reason"]
        await world.quiet(f"{task_id}-2")
        await receiver.until("/broken", 6)
        await service.idle(task_id)
        assert (await service.list())[task_id].dead_letters == 0


async def test_a_deleted_webhook_hears_nothing_and_leaves_nothing(world: World) -> None:
    task_id, receiver = a_name(), world.receiver
    receiver.answers["/busy"].append(Answer(status=429, headers={"Retry-After": "90"}))
    url = receiver.url("/deleted")
    async with world.served() as service:
        made = await service.told(url, task_id, webhook_id=task_id)
        busy = (await service.told(receiver.url("/busy"), task_id)).webhook.webhook_id
        assert await service.delete(task_id)
        await service.gone(made.webhook.consumer)
        await world.quiet(task_id)
        # One that asks for time gets it.
        (attempt,) = await service.settled(busy, 1)
        assert attempt.status == pb.DELIVERY_STATUS_RETRYING
        assert 89_000 < attempt.next_at_ms - attempt.at_ms < 95_000
        assert not receiver.on("/deleted")
        await service.delete(busy)


NAMES = {
    "example.org": [[PUBLIC]],
    "inside.example.org": [["10.0.0.7"]],
    "both.example.org": [[PUBLIC, "127.0.0.1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "localhost": [["127.0.0.1"]],
}
INSIDE = """
http://example.org/hook http://example.org:443/hook ftp://example.org/hook https://example.org:22/hook
https://inside.example.org/ https://both.example.org/ https://metadata.google.internal/computeMetadata
https://localhost/ https://127.0.0.1/ https://127.0.0.1:8443/ http://127.0.0.1:4001/ https://[::1]/
https://[::ffff:127.0.0.1]/ https://169.254.169.254/latest/meta-data https://168.63.129.16/ https://0x7f000001/
https://0x7f.1/ https://2130706433/ https://127.1/ https://xn--a.ex_ample.org/ file:///etc/passwd //example.org
https://build.corp.evil.example:8080/
"""
OUTSIDE = ("https://example.org/hook?x=1", "https://unknown.example.org/", "http://127.0.0.1:4000/")


async def test_addresses_inside_are_refused(world: World) -> None:
    network, private = Network(resolver=Names(NAMES)), "127.0.0.1:4000, build.corp:8080"
    async with world.served(network=network, private=private) as service:
        for url in ("", "@".join(("https://user:pw", "example.org/hook")), *INSIDE.split()):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await service.create(url)
            told = (refused.value.code(), named_field(refused.value))
            assert told == (grpc.StatusCode.INVALID_ARGUMENT, "url"), url
        for url in (*OUTSIDE, "http://build.corp:8080"):
            assert await service.delete((await service.create(url)).webhook.webhook_id)
    # Private hosts are named one by one.
    with pytest.raises(InvalidRequest, match="corp"):
        async with world.served(private="*.corp:8080"):
            raise AssertionError("it opened")


async def test_a_name_that_moves_inside_is_not_followed_there(world: World) -> None:
    """The name is looked at once more for the very connection that is made."""
    names, task_id = Names({"moving.example.org": [[PUBLIC], ["127.0.0.1"]]}), a_name()
    async with world.served(network=Network(resolver=names), private="") as service:
        await service.create("https://moving.example.org/hook", webhook_id=task_id, filter=only(task_id))
        tried = (await service.test(task_id)).delivery
        assert tried.http_status == 0
        assert "not on the public internet" in tried.error
        await service.delete(task_id)
        # One that was allowed before settings changed.
        with pytest.raises(grpc.aio.AioRpcError):
            await service.create(world.receiver.url("/hook"))


async def test_secrets_are_told_once(world: World, nats: EmbeddedNats, capsys: pytest.CaptureFixture[str]) -> None:
    task_id, receiver = a_name(), world.receiver
    path, token = "/services/very-secret-path", "very-secret+token"
    async with world.served() as service:
        place = receiver.url(f"{path}?token={quote(token, safe='')}")
        made = await service.told(place, task_id, webhook_id=task_id, format=pb.WEBHOOK_FORMAT_SLACK)
        # The receiver says them, too.
        echo = f"no such hook {path} with {made.secret}, and {token} is none of ours"
        receiver.answers[path].extend([Answer(status=404, text=echo)] * (len(QUICK.waits) + 1))
        await world.quiet(task_id)
        attempts = await service.settled(task_id, 4)
        await service.idle(task_id)
        shown = f"{await service.list()}{attempts}{await service.test(task_id)}{made.webhook!r}"
        assert "HTTP 404: no such hook" in attempts[0].error
        assert (await service.list())[task_id].url == f"http://{receiver.address}/…"
        await service.delete(task_id)
    text, stored = capsys.readouterr(), ""
    async with await nats_client.connect(nats.address.url) as client:
        for stream in ("AGENT_DLQ", STREAM):
            info = await client.jetstream().stream_info(stream)
            for sequence in range(max(1, info.state.first_seq), info.state.last_seq + 1):
                message = await client.jetstream().get_msg(stream, sequence)
                stored += f"{message.headers}{message.data}"
    assert "Fleet-Reason" in stored
    for where in (shown, text.out, text.err, stored):
        assert "very-secret" not in where and made.secret.removeprefix("whsec_") not in where


async def test_messages_of_chats_are_not_told(world: World) -> None:
    task_id, unread = a_name(), PinnedRepository(tenant=DEFAULT_TENANT, location="", commit="")
    async with world.served() as service:
        webhook_id = (await service.told(world.receiver.url("/chats"), task_id)).webhook.webhook_id
        for kind in (TaskKind.CHAT, TaskKind.PLAN):
            task = Task(task_id=f"{task_id}-{kind}", kind=kind, description="Hello", repo=RepoRef(location=""))
            writer = Writer(tenant=DEFAULT_TENANT, execution_id=task.execution_id, task_id=task.task_id, generation=9)
            # Nobody drives it.
            await world.log.tell(writer, ExecutionStarted(task=task, repository=unread, fingerprint=""))
            await world.log.tell(writer, ExecutionFinished(status=ExecutionStatus.COMPLETED, duration_ms=1))
        await service.settled(webhook_id, 1)
        await service.idle(webhook_id)
        assert [content(message)["data"]["kind"] for message in world.receiver.on("/chats")] == ["plan"]
