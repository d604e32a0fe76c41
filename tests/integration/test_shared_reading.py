"""What a process reads of an execution while it follows the whole log: the same events, and nothing asked for twice."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.adapters.jetstream import JetStream, StreamSettings
from swe_ai_fleet.adapters.jetstream.protocol import event_subject
from swe_ai_fleet.agents.run_deps import RunDeps
from swe_ai_fleet.cli.findings import Health
from swe_ai_fleet.cli.service_findings import nats as nats_finding
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.budget import Totals, Usage
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionStarted, StoredEvent, Writer
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest
from swe_ai_fleet.domain.task import Limits, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.runtime.fleet_view import LogUsage
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.secrets import Secrets
from tests.confinement import until
from tests.contract.test_event_log import everything, note, notes, write, writer
from tests.nats_logs import connected
from tests.orchestrator_service import Service, deliberation, field_named, refusal
from tests.scripted_fleet import ScriptedRun

REPOSITORY = PinnedRepository(tenant="acme", location="/r", commit="a" * 40)
STARTED = ExecutionStarted(
    task=Task(task_id="t", kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/r")),
    repository=REPOSITORY,
    fingerprint="f",
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A log that is followed as an orchestrator does it, the same log seen by nobody, and what the follower heard."""

    log: JetStream
    plain: JetStream
    heard: list[StoredEvent]
    following: asyncio.Task[None]

    async def begun(self, *texts: str) -> Writer:
        """An execution whose agent has said something."""
        head = writer("_")
        async with self.plain.journal(head, fresh=True) as journal:
            await journal.append(STARTED)
        await write(self.plain, replace(head, agent_id="agent-1"), *texts)
        return head

    async def publish(self, who: Writer, data: bytes) -> None:
        subject = event_subject(who.tenant, who.execution_id, who.agent_id)
        await self.plain.connection.publish(subject, data, headers={}, timeout=5.0)

    async def both(self, who: Writer) -> list[StoredEvent]:
        """The events of an execution, which must be those that the server has."""
        shared = await everything(self.log, who)
        assert shared == await everything(self.plain, who)
        return shared


@pytest.fixture
async def world(nats_server: EmbeddedNats) -> AsyncIterator[World]:
    async with connected(nats_server.address) as log, connected(nats_server.address) as plain:
        heard, caught_up = list[StoredEvent](), asyncio.Event()

        async def follow() -> None:
            async with aclosing(log.everything(follow=True)) as told:
                async for one in told:
                    if one is None:
                        caught_up.set()
                    else:
                        heard.append(one)

        following = asyncio.create_task(follow())
        async with asyncio.timeout(20):
            await caught_up.wait()
        yield World(log=log, plain=plain, heard=heard, following=following)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def consumers(world: World) -> set[str]:
    return set(await world.plain.consumers("AGENT_EVENTS"))


async def test_an_execution_that_began_meanwhile_is_read_without_a_reader(world: World) -> None:
    who = await world.begun(*map(str, range(300)))
    stored, before = await world.both(who), await consumers(world)
    agent = [one async for one in world.log.read("acme", who.execution_id, agent_id="agent-1")]
    assert notes(agent) == notes(stored) == [str(number) for number in range(300)]
    assert await everything(world.log, who, from_sequence=stored[299].sequence) == stored[299:]
    assert await everything(world.log, who, from_sequence=stored[-1].sequence + 1) == []
    # The very events that the follower got.
    assert all(any(one is heard for heard in world.heard) for one in stored[:3])
    async with aclosing(world.log.read("acme", who.execution_id, follow=True)) as reading, asyncio.timeout(20):
        assert [await anext(reading) for _ in stored] == stored
        coming = asyncio.ensure_future(anext(reading))
        await write(world.plain, replace(who, agent_id="agent-2"), "more")
        assert notes([await coming]) == ["more"]
        assert await consumers(world) == before
    # What is durable is read, whoever wrote it and however late the follower hears it.
    for number in range(20):
        await world.plain.tell(replace(who, agent_id="~", generation=0), note(f"told {number}"))
        assert notes(await everything(world.log, who))[-1] == f"told {number}"
    assert await consumers(world) == before


async def test_what_is_not_known_from_its_beginning_is_read_from_the_server(world: World) -> None:
    unknown = writer("agent-1")
    await write(world.plain, unknown, "of an execution without a start")
    assert notes(await world.both(unknown)) == ["of an execution without a start"]
    first = await world.begun("a")
    async with aclosing(world.log.read("acme", first.execution_id, follow=True)) as reading, asyncio.timeout(20):
        assert [notes([await anext(reading)]) for _ in range(2)] == [[], ["a"]]
        # Where nothing is followed any more, who reads it goes on.
        world.following.cancel()
        await write(world.plain, replace(first, agent_id="agent-2"), "f")
        assert notes([await anext(reading)]) == ["f"]
        assert len(await world.both(first)) == 3


async def test_a_writer_says_nothing_of_others_and_hides_nothing(world: World) -> None:
    mine, victim = await world.begun("mine"), await world.begun("theirs")
    told = victim.event(note("forged"), ordinal=9, at="2026-01-01T00:00:00+00:00")
    stranger = Writer(tenant="evil.one", execution_id="e", task_id="t", agent_id="agent-1", generation=1)
    for forged in (told, replace(told, tenant="evil.one"), victim.event(STARTED, ordinal=9, at=told.at)):
        await world.publish(stranger, to_json(forged))
    assert notes(await world.both(victim)) == ["theirs"]
    assert {(one.event.tenant, one.event.execution_id) for one in await world.both(stranger)} == {("evil.one", "e")}
    # An event that cannot be read is one for everybody who reads the execution.
    strange = json.loads(to_json(told)) | {"body": {"type": "of a newer version"}}
    await world.publish(replace(mine, agent_id="agent-2"), json.dumps(strange).encode())
    for log in (world.log, world.plain):
        with pytest.raises(PreconditionFailed, match="cannot be read"):
            await everything(log, mine)
    assert len(await world.both(victim)) == 2


# --- what models say reaches watchers while they say it, masked, and costs nothing where nobody listens ---


SECRET = "hunter2hunter2"


@dataclass
class Speaking:
    """A model that says its text in pieces, if anybody wants pieces."""

    pieces: tuple[str, ...]
    streamed: list[bool] = field(default_factory=list[bool])

    async def probe(self) -> ModelCapabilities:
        return ModelCapabilities(model="speaking")

    async def ping(self) -> None:
        return None

    async def reply(self, request: ModelRequest) -> ModelReply:
        self.streamed.append(request.on_delta is not None)
        for piece in self.pieces if request.on_delta is not None else ():
            request.on_delta(piece)
        return ModelReply(
            message=AssistantMessage(content="".join(self.pieces)), finish_reason="stop", usage=Usage(model_calls=1)
        )


async def test_a_watcher_hears_masked_text_and_an_unwatched_model_does_not_stream(jetstream: JetStream) -> None:
    watched, other = (
        Task(task_id=uuid.uuid4().hex, kind=TaskKind.DELIBERATE, description="d", repo=RepoRef(location="/r"))
        for _ in range(2)
    )
    model = Speaking(("The key is hunter2", "hunter2, ", "said."))
    async with jetstream.live_texts() as live, aclosing(jetstream.watch_live("default", watched.execution_id)) as heard:

        def face(task: Task) -> ChatModel:
            trail = AuditTrail(execution_id=task.execution_id, agent_id="agent-dev-1")
            deps = RunDeps(models={"": model}, mask=Secrets((SECRET,)), live=live)
            return deps.model(task, Perspective(), trail)

        first = asyncio.create_task(anext(heard))
        async with asyncio.timeout(20):
            await until(lambda: live.is_followed("default", watched.execution_id))
            reply = await face(watched).reply(ModelRequest(()))
            texts = [await first]
            while "said." not in texts[-1].text:
                texts.append(await anext(heard))
            await face(other).reply(ModelRequest(()))
    assert "".join(delta.text for delta in texts) == "The key is [masked], said."
    assert texts[0].begins and texts[0].agent_id == "agent-dev-1"
    assert reply.message.content == "The key is hunter2hunter2, said."  # masking it is the history's business
    assert model.streamed == [True, False]


# --- a NATS that is nearly full: nothing new is accepted, what runs goes on to its end, and whoever asks is told ---


MOST = 4 * 2**20


async def test_what_is_nearly_full_takes_nothing_new_and_lets_what_runs_end(tmp_path: Path) -> None:
    settings, limited = Settings(home=tmp_path, blob_bytes=MOST), "OBJ_agent-blobs"
    server = EmbeddedNats(tmp_path / "nats")
    async with server, connected(server.address, settings=StreamSettings(max_blob_bytes=MOST)) as log:
        service = Service(log=log, quotas=Quotas(kept=LogUsage(log, seconds=0.0).storage))
        end = asyncio.Event()
        service.fleet.default = ScriptedRun(after=end)
        async with service.running():
            running = asyncio.ensure_future(service.stub.Deliberate(deliberation("before", num_agents=1)))
            await service.fleet.started(1)
            assert (await nats_finding(settings)).state is Health.OK
            await log.put("default", "other", b"x" * int(0.92 * MOST), "application/octet-stream")
            code, told, details = await refusal(service.stub.Deliberate(deliberation("after")))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and limited in told
            assert field_named(details) == "nats"
            finding = await nats_finding(settings)
            assert finding.state is Health.FAULT and limited in finding.cause
            end.set()
            assert (await running).status == pb.DELIBERATION_STATUS_COMPLETED


# --- what candidates may spend together ---


@given(
    st.integers(1, 300),
    st.builds(Limits, max_tokens=st.integers(0, 10**6), max_tool_calls=st.integers(1, 500), max_cost=st.floats(0, 100)),
    st.builds(
        Totals, max_tokens=st.integers(300, 10**6), max_tool_calls=st.integers(300, 10**5), max_cost=st.floats(0.1, 100)
    ),
)
def test_candidates_together_stay_within_the_task(parts: int, own: Limits, totals: Totals) -> None:
    share = totals.share(own, parts=parts)
    assert 1 <= share.max_tokens * parts <= totals.max_tokens
    assert 1 <= share.max_tool_calls * parts <= totals.max_tool_calls
    assert 0 < share.max_cost * parts <= totals.max_cost * 1.000001
    assert share.max_tool_calls <= own.max_tool_calls
    assert not own.max_tokens or share.max_tokens <= own.max_tokens
