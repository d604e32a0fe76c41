"""What ended executions leave behind, over real NATS: recorded once, whatever is killed in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import nats as nats_client
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from swe_ai_fleet.adapters.jetstream import JetStream, WorkQueue
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.context import Story, StoryTask, WorkRecorded
from swe_ai_fleet.domain.event import ExecutionFinished, ExecutionStarted, ExecutionStatus, Writer
from swe_ai_fleet.domain.memory import MEMORIES_BUCKET, OUTCOMES_BUCKET, Memory, MemoryScope, WorkOutcome
from swe_ai_fleet.domain.task import MemoryOptions, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.extensions.knowledge.gathering import ContextGatherer
from swe_ai_fleet.extensions.knowledge.recorder import RECORDER, Recorder, open_recorder
from swe_ai_fleet.extensions.knowledge.service import open_memories
from swe_ai_fleet.extensions.knowledge.store import ContextStore
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import KeyValueEntry
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.secrets import Secrets
from tests.scripted_fleet import execution_deps


@dataclass(frozen=True, kw_only=True)
class World:
    """The parts that a recorder records into, and a consumer of the test's own."""

    log: JetStream
    recorder: Recorder
    queue: WorkQueue
    jetstream: JetStreamContext

    async def run(self, task: Task | None = None, *, write: bool = True) -> str:
        """Carry out a task with agents that follow a script; the id of its execution."""
        context = ContextGatherer(self.recorder.store, self.recorder.memories, mask=Secrets())
        async with Executions(execution_deps(self.log, context=context)) as executions:
            execution_id = (await executions.submit(task or a_task(write))).execution_id
            await executions.wait("default", execution_id)
        return execution_id

    async def idle(self) -> None:
        """Wait until the consumer has had everything there is, and said so of each."""
        while True:
            with suppress(NotFoundError):
                info = await self.jetstream.consumer_info(self.queue.stream, self.queue.consumer)
                if not info.num_pending and not info.num_ack_pending:
                    return
            await asyncio.sleep(0.02)

    async def recorded(self, execution_id: str) -> int:
        """How often the work of an execution is in the stream."""
        bodies = [one.change.body async for one in self.log.changes().read() if one is not None]
        return sum(isinstance(body, WorkRecorded) and body.record.execution_id == execution_id for body in bodies)

    async def kept(self, bucket: str) -> Sequence[KeyValueEntry]:
        return await (await self.log.bucket(bucket)).entries("default.")

    async def revisions(self) -> list[tuple[str, int]]:
        kept = [*await self.kept(MEMORIES_BUCKET), *await self.kept(OUTCOMES_BUCKET)]
        return [(entry.key, entry.revision) for entry in kept]

    async def memories_of(self, execution_id: str) -> list[Memory]:
        memories = [from_json(Memory, entry.value) for entry in await self.kept(MEMORIES_BUCKET)]
        return [one for one in memories if one.source == f"execution:{execution_id}"]

    async def outcomes_of(self, execution_id: str) -> list[WorkOutcome]:
        outcomes = [from_json(WorkOutcome, entry.value) for entry in await self.kept(OUTCOMES_BUCKET)]
        return [one for one in outcomes if one.subject_id == execution_id]


def a_task(write: bool = True) -> Task:
    name = a_name()
    repo, memory = RepoRef(location=f"/srv/{name}"), MemoryOptions(write=write)
    return Task(task_id=name, kind=TaskKind.ORCHESTRATE, description=f"Greet {name}", repo=repo, memory=memory)


def a_name() -> str:
    return f"t-{uuid4().hex[:10]}"


@pytest.fixture
async def world(nats: EmbeddedNats, tmp_path: Path) -> AsyncIterator[World]:
    settings = Settings(home=tmp_path, embeddings="none", nats_url=nats.address.url, nats_token=nats.address.token)
    mask, delays = Secrets(), {"first_delay_seconds": 0.02, "last_delay_seconds": 0.1}
    async with (
        asyncio.timeout(40),
        connect_log(settings, name="recording-test") as log,
        await nats_client.connect(nats.address.url) as client,
        AsyncExitStack() as stack,
    ):
        await log.ensure_streams()
        recorder = Recorder(
            log=log,
            store=await stack.enter_async_context(ContextStore(log.changes(), mask=mask)),
            outcomes=await stack.enter_async_context(LearningTracker(await log.bucket(OUTCOMES_BUCKET), mask=mask)),
            memories=await stack.enter_async_context(open_memories(settings, log, mask=mask)),
        )
        queue = replace(RECORDER, consumer=f"recorder-{uuid4().hex[:8]}", **delays)
        yield World(log=log, recorder=recorder, queue=queue, jetstream=client.jetstream())


class Part:
    """A part whose method does what it is told and never says so."""

    def __init__(self, inner: object, method: str) -> None:
        self._inner, self._method = inner, method
        self.asked = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        inner = getattr(self._inner, name)
        if name != self._method:
            return inner

        async def called(*arguments: object) -> object:
            await inner(*arguments)
            self.asked.set()
            return await asyncio.Event().wait()

        return called


async def test_killed_anywhere_in_between_each_part_is_recorded_once(world: World):
    execution_id, silent = await world.run(), await world.run(write=False)
    for method, part in (("remember", "memories"), ("record", "outcomes"), ("record_work", "store")):
        halting = Part(getattr(world.recorder, part), method)
        async with open_recorder(replace(world.recorder, **{part: halting}), queue=world.queue):
            await halting.asked.wait()
    async with open_recorder(world.recorder, queue=world.queue):
        await world.idle()
    assert await world.recorded(execution_id) == 1
    assert len(await world.outcomes_of(execution_id)) == 1
    memories = await world.memories_of(execution_id)
    assert len({memory.memory_id for memory in memories}) == len(memories) >= 1
    assert (len(await world.outcomes_of(silent)), await world.memories_of(silent)) == (1, [])
    # Whoever is told everything from the beginning brings nothing back.
    assert await world.recorder.memories.forget(MemoryScope(), [memories[0].memory_id]) == 1
    revisions = await world.revisions()
    async with open_recorder(world.recorder, queue=replace(world.queue, consumer="somebody-new")):
        await replace(world, queue=replace(world.queue, consumer="somebody-new")).idle()
    assert await world.revisions() == revisions


async def test_a_finished_orchestration_closes_its_task_of_a_story(world: World):
    store, task = world.recorder.store, a_task(write=False)
    story_id = f"story-{task.task_id}"
    await store.create_story("default", Story(story_id=story_id, title="Greetings"))
    for name in (task.task_id, "another"):
        await store.create_task("default", StoryTask(task_id=name, story_id=story_id, title="Greet"))
    looked = replace(task, kind=TaskKind.DELIBERATE, story_id=story_id, attempt=2)
    async with open_recorder(world.recorder, queue=world.queue):
        # One that delivers nothing leaves it open.
        for one, state in ((looked, "open"), (replace(task, story_id=story_id), "done")):
            await world.run(one)
            await world.idle()
            tasks = store.graph("default").stories[story_id].tasks
            assert {name: each.state for name, each in tasks.items()} == {task.task_id: state, "another": "open"}


async def test_what_can_never_be_recorded_is_a_dead_letter_and_holds_nothing_up(world: World):
    broken, lost, large = a_name(), a_name(), str(uuid4())
    await world.jetstream.publish(f"agent.events.default.{broken}._", b'{"type": "execution_finished"')
    end = ExecutionFinished(status=ExecutionStatus.COMPLETED)
    await world.log.tell(Writer(tenant="default", execution_id=lost, task_id=lost), end)
    await world.jetstream.publish(f"agent.events.default.{a_name()}._", b"execution_finished is only said here")
    # An end too large for a message is found where it lies.
    task = a_task()
    repository = PinnedRepository(tenant="default", location=task.repo.location, commit="0" * 40)
    writer = Writer(tenant="default", execution_id=large, task_id=task.task_id)
    async with world.log.journal(writer, fresh=True) as journal:
        await journal.append(ExecutionStarted(task=task, repository=repository, fingerprint="f"))
        await journal.append(ExecutionFinished(status=ExecutionStatus.FAILED, error=400_000 * "x"))
    execution_id = await world.run()
    async with open_recorder(world.recorder, queue=world.queue):
        await world.idle()
    graph = world.recorder.store.graph("default")
    assert await world.recorded(execution_id) == 1
    assert graph.execution(lost) is None
    work = graph.execution(large)
    assert work is not None and work.record.status == "failed"
    letters = await dead_letters(world)
    assert {subject.rsplit(".", 2)[1] for subject in letters} >= {broken, lost}
    assert "cannot be read" in letters[f"agent.events.default.{broken}._"]
    assert "no longer in the log" in letters[f"agent.events.default.{lost}._"]


async def dead_letters(world: World) -> dict[str, str]:
    """The reason of each dead letter, by the subject it was on."""
    found: dict[str, str] = {}
    subscription = await world.jetstream.subscribe(f"agent.dlq.{world.queue.consumer}", ordered_consumer=True)
    info = await world.jetstream.stream_info("AGENT_DLQ", subjects_filter=f"agent.dlq.{world.queue.consumer}")
    for _ in range(sum((info.state.subjects or {}).values())):
        headers = (await subscription.next_msg(timeout=5)).headers or {}
        found[headers["Fleet-Subject"]] = headers["Fleet-Reason"]
    await subscription.unsubscribe()
    return found
