"""Work that comes in over NATS: shared by replicas, never lost, never handled for ever."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nats
import pytest
import structlog
from google.protobuf import json_format
from google.protobuf.message import Message
from nats.aio.client import Client
from typer.testing import CliRunner

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.main import PLANS, TASKS, open_intake
from swe_ai_fleet.adapters.jetstream import PermanentError, WorkMessage, WorkQueue
from swe_ai_fleet.cli.main import app
from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.task import DEFAULT_TENANT, TaskKind
from swe_ai_fleet.orchestrator.derivations import Derivations, PlanningEvents
from swe_ai_fleet.runtime.nats_server import EmbeddedNats, NatsAddress
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.nats_logs import connected
from tests.orchestrator_service import Service

SECONDS = 30


async def nothing_in(client: Client, stream: str) -> None:
    """Wait until every message of a stream is acknowledged or terminated."""
    async with asyncio.timeout(SECONDS):
        while (await client.jetstream().stream_info(stream)).state.messages:
            await asyncio.sleep(0.02)


async def dead_letter(client: Client, consumer: str, sequence: int = 0) -> tuple[bytes, dict[str, str]]:
    """The newest dead letter of a consumer, once it is that of a message from this sequence number on."""
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(nats.js.errors.NotFoundError):
                found = await client.jetstream().get_last_msg("AGENT_DLQ", f"agent.dlq.{consumer}")
                headers = dict(found.headers or {})
                if int(headers["Fleet-Sequence"]) >= sequence:
                    return found.data or b"", headers
            await asyncio.sleep(0.02)


@dataclass(kw_only=True)
class Place:
    """A queue of the test's own, and who puts work into it."""

    address: NatsAddress
    queue: WorkQueue
    client: Client

    @property
    def subject(self) -> str:
        return self.queue.subjects[0].removesuffix(".>")

    async def put(self, *bodies: str) -> None:
        for body in bodies:
            await self.client.jetstream().publish(f"{self.subject}.task", body.encode())

    async def empty(self) -> None:
        await nothing_in(self.client, self.queue.stream)

    async def dead_letter(self) -> tuple[bytes, dict[str, str]]:
        return await dead_letter(self.client, self.queue.consumer)

    @asynccontextmanager
    async def replica(
        self, handler: Callable[[WorkMessage], Awaitable[None]], **changes: object
    ) -> AsyncIterator[None]:
        async with connected(self.address) as log:
            consumer = asyncio.create_task(log.consume(replace(self.queue, **changes), handler))
            try:
                yield
            finally:
                consumer.cancel()
                await asyncio.gather(consumer, return_exceptions=True)


@asynccontextmanager
async def a_place(address: NatsAddress, **changes: object) -> AsyncIterator[Place]:
    name = f"work-{uuid.uuid4().hex[:8]}"
    queue = WorkQueue(
        stream=name.upper(),
        subjects=(f"{name}.>",),
        consumer=f"{name}-taker",
        first_delay_seconds=0.02,
        last_delay_seconds=0.1,
    )
    async with connected(address), await nats.connect(address.url) as client:
        await client.jetstream().add_stream(name=queue.stream, subjects=list(queue.subjects), retention="workqueue")
        yield Place(address=address, queue=replace(queue, **changes), client=client)
        await client.jetstream().delete_stream(queue.stream)


@pytest.fixture
async def place(nats_server: EmbeddedNats) -> AsyncIterator[Place]:
    async with a_place(nats_server.address) as found:
        yield found


@dataclass
class Diary:
    """A handler that writes down what it gets."""

    got: list[str] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __call__(self, work: WorkMessage) -> None:
        async with self.news:
            self.got.append(work.data.decode())
            self.news.notify_all()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(SECONDS), self.news:
            await self.news.wait_for(lambda: len(self.got) >= count)


async def test_what_fails_comes_again_and_at_last_lies_where_people_look(place: Place) -> None:
    deliveries: list[int] = []

    async def fail(work: WorkMessage) -> None:
        if work.data == b"fine" or (work.data == b"patient" and work.deliveries == 6):
            return
        if work.data == b"patient":
            raise ResourceExhausted("the queue is full")
        if work.data.startswith(b"permanent"):
            raise PermanentError("far too large, and said at length: " + "x" * 900)
        deliveries.append(work.deliveries)
        raise PreconditionFailed("not\r\nFleet-Forged: yes\nyet — ever")

    async with place.replica(fail, max_deliveries=3):
        # A permanent error is not retried and holds up nothing else; a dead letter that is too large lacks its body.
        whole = "permanent".ljust(place.client.max_payload)
        await place.put(whole, "fine")
        await place.empty()
        body, headers = await place.dead_letter()
        assert (body, headers["Fleet-Omitted-Bytes"], headers["Fleet-Deliveries"]) == (b"", str(len(whole)), "1")
        await place.put("poison")
        await place.empty()
        # A full fleet is no fault of the message.
        await place.put("patient")
        await place.empty()
        body, headers = await place.dead_letter()
    assert (body, deliveries) == (b"poison", [1, 2, 3])
    assert headers["Fleet-Reason"].startswith("failed 3 times; last error: not  Fleet-Forged: yes yet")
    assert "Fleet-Forged" not in headers
    told = ("Fleet-Subject", "Fleet-Stream", "Fleet-Sequence", "Fleet-Deliveries")
    assert [headers[name] for name in told] == [f"{place.subject}.task", place.queue.stream, "3", "3"]


@pytest.mark.parametrize("silent", [False, True])
async def test_the_work_of_a_replica_that_stops_or_falls_silent_goes_to_another(place: Place, silent: bool) -> None:
    began, deliveries = asyncio.Event(), []
    seconds = 0.4 if silent else 600.0

    async def hold(work: WorkMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    async def take(work: WorkMessage) -> None:
        deliveries.append(work.deliveries)

    await place.put("taken over")
    async with connected(place.address) as log:
        holding = asyncio.create_task(log.consume(replace(place.queue, ack_wait_seconds=seconds), hold))
        await began.wait()
        if not silent:
            holding.cancel()
            await asyncio.wait([holding])
    # Who fell silent has no connection any more, so it can neither say that it goes on nor give the message back.
    async with place.replica(take, ack_wait_seconds=seconds):
        await place.empty()
    holding.cancel()
    await asyncio.wait([holding])
    assert deliveries == [2]


async def test_a_dead_letter_is_handed_in_again_once(tmp_path: Path) -> None:
    queue = WorkQueue(stream="AGENT_COMMANDS", subjects=("agent.cmd.execute",), consumer="commands")
    diary = Diary()

    async def handle(work: WorkMessage) -> None:
        await diary(work)
        if len(diary.got) < 4:
            raise PermanentError("not today")

    async def settled(word: str, *numbers: int) -> tuple[int, dict[str, Any]]:
        where = {"HOME": str(tmp_path), "NATS_URL": server.address.url, "NATS_TOKEN": server.address.token}
        environment = {f"FLEET_{name}": value for name, value in where.items()}
        command = ["dlq", word, *map(str, numbers), "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command, env=environment)
        structlog.reset_defaults()
        return result.exit_code, json.loads(result.stdout)

    async with (
        EmbeddedNats(tmp_path / "nats") as server,
        await nats.connect(server.address.url) as client,
        connected(server.address),
    ):
        place = Place(address=server.address, queue=queue, client=client)
        async with place.replica(handle):
            for data in (b"one", b"two", b"three"):
                await client.jetstream().publish("agent.cmd.execute", data)
            await dead_letter(client, "commands", 3)
            # The newest goes, and the others are still there.
            assert (await settled("drop", 3))[0] == 0
            assert [letter["number"] for letter in (await settled("list"))[1]["letters"]] == [1, 2]
            again = {"number": 1, "subject": "agent.cmd.execute", "replayed": True}
            assert await settled("replay", 1) == (0, again)
            await diary.until(4)
            assert diary.got == ["one", "two", "three", "one"]
            assert (await settled("drop", 2))[0] == 0
            await nothing_in(client, "AGENT_DLQ")
            code, refusal = await settled("replay", 1)
            assert (code, "no dead letter 1" in refusal["error"]["message"]) == (2, True)


async def test_a_killed_server_loses_no_work(tmp_path: Path) -> None:
    diary, half = Diary(), asyncio.Event()

    async def work(work: WorkMessage) -> None:
        await diary(work)
        if work.data == b"5":
            half.set()
            await killed.wait()

    killed = asyncio.Event()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats(tmp_path / "data"))
        async with a_place(server.address, ack_wait_seconds=1.0, concurrency=2) as place:
            await place.put(*map(str, range(10)))
            async with place.replica(work):
                await half.wait()
                os.kill(server.address.pid, signal.SIGKILL)
                await server.wait()
                killed.set()
                await server.__aexit__(None, None, None)
                await server.__aenter__()
                async with await nats.connect(server.address.url) as client:
                    place.client = client
                    await place.put(*map(str, range(10, 15)))
                    await place.empty()
            assert set(diary.got) == {str(number) for number in range(15)}
            place.client = await stack.enter_async_context(await nats.connect(server.address.url))


# --- what the orchestrator takes ---


@dataclass(kw_only=True)
class Orchestrator:
    """An orchestrator whose agents are scripted, and a stranger who speaks NATS."""

    service: Service
    store: MemoryKeyValue
    client: Client

    async def put(self, subject: str, message: Message | bytes) -> int:
        body = message if isinstance(message, bytes) else json_format.MessageToJson(message).encode()
        return (await self.client.jetstream().publish(subject, body)).seq

    async def taken(self, stream: str) -> None:
        """Wait until nothing is left of what was put into a stream."""
        await nothing_in(self.client, stream)

    async def refused(self, consumer: str, sequence: int) -> str:
        """Why the message at a sequence number was given up."""
        return (await dead_letter(self.client, consumer, sequence))[1]["Fleet-Reason"]


@pytest.fixture
async def orchestrator(nats_server: EmbeddedNats) -> AsyncIterator[Orchestrator]:
    service, store = Service(), MemoryKeyValue()
    async with (
        connected(nats_server.address) as log,
        await nats.connect(nats_server.address.url) as client,
        service.running(),
        Derivations(fleet=service.fleet, log=service.log, workspaces=service.workspaces) as derivations,
    ):
        planning = PlanningEvents(executions=service.executions, derivations=derivations, store=store)
        quick = {"first_delay_seconds": 0.02, "last_delay_seconds": 0.1}
        tasks, plans = replace(TASKS, **quick), replace(PLANS, **quick)
        async with open_intake(log, service.executions, planning, tasks=tasks, plans=plans):
            yield Orchestrator(service=service, store=store, client=client)


def a_task(task_id: str, description: str = "Greet") -> pb.SubmitTaskRequest:
    request = pb.DeliberateRequest(
        task_id=task_id, task_description=description, repo=pb.RepoRef(path="/srv/app"), num_agents=1
    )
    return pb.SubmitTaskRequest(deliberate=request)


async def test_a_task_on_nats_runs_once_however_often_it_is_sent(orchestrator: Orchestrator) -> None:
    task_id = f"nats-{uuid.uuid4().hex[:8]}"
    for subject in ("agent.cmd.execute", "agent.cmd.execute.default.high", "agent.cmd.execute"):
        await orchestrator.put(subject, a_task(task_id))
        await orchestrator.taken("AGENT_COMMANDS")
    found = list(orchestrator.service.executions.projection.select(DEFAULT_TENANT, task_id=task_id))
    assert len(found) == 1
    ended = await orchestrator.service.executions.wait(DEFAULT_TENANT, found[0].execution_id)
    assert (ended.status, ended.task.caller) == (ExecutionStatus.COMPLETED, "nats")
    assert len(orchestrator.service.fleet.begun) == 1
    # What can never be a task is a dead letter with the reason.
    for subject, message, reason in (
        ("", b"{", "not valid JSON for a SubmitTaskRequest"),
        ("", a_task(""), "task_id: no task id given"),
        ("", a_task(task_id, "Insult"), "exists with different content"),
        (".acme.high", a_task(f"{task_id}-2"), "no tenant 'acme'"),
    ):
        sequence = await orchestrator.put(f"agent.cmd.execute{subject}", message)
        assert reason in await orchestrator.refused("orchestrator-tasks", sequence)
    await orchestrator.taken("AGENT_COMMANDS")


async def test_a_plan_on_nats_is_split_and_kept_or_an_execution(orchestrator: Orchestrator) -> None:
    event = pb.ProcessPlanningEventRequest(
        event_id=f"e-{uuid.uuid4().hex[:8]}", event_type="plan.approved", task_description="Greet"
    )
    for subject in ("agent.plans", "agent.plans.default"):
        await orchestrator.put(subject, event)
        await orchestrator.taken("AGENT_PLANS")
    assert len(orchestrator.service.fleet.derived) == 1
    assert [entry.key for entry in await orchestrator.store.entries()] == [f"event.default.{event.event_id}"]
    event.task_description = "Insult"
    sequence = await orchestrator.put("agent.plans", event)
    assert "another event was accepted" in await orchestrator.refused("orchestrator-plans", sequence)
    event.event_id, event.dispatch = f"{event.event_id}-2", True
    event.repo.path = "/srv/app"
    await orchestrator.put("agent.plans.default", event)
    await orchestrator.taken("AGENT_PLANS")
    state = await orchestrator.service.executions.latest(DEFAULT_TENANT, f"event-{event.event_id}")
    assert state.task.derive_subtasks and state.task.kind is TaskKind.ORCHESTRATE
