"""Who calls the context service and what they are refused; foreign clients, and the client that the fleet uses."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast
from uuid import uuid4

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.context.v1 import context_pb2 as pb
from services.context.main import open_context
from services.context.servicer import SERVICE
from swe_ai_fleet.adapters.context_service import ContextServiceClient
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.work_queue import Handler, WorkQueue
from swe_ai_fleet.domain.context import ContextRequest, Phase, StoredChange
from swe_ai_fleet.domain.errors import (
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from swe_ai_fleet.domain.memory import Memory, MemoryKind, MemoryScope
from swe_ai_fleet.domain.outcome import Outcome
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.learning.recommending import Question
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.context_serving import TOKEN, Service, serving, settings_for


@pytest.fixture(scope="module")
async def nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(tmp_path_factory.mktemp("nats-context")) as server:
        yield server


@pytest.fixture(scope="module")
async def service(nats: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with serving(settings_for(tmp_path_factory.mktemp("context"), nats)) as running:
        yield running


LONG = 70_000 * "x"

REFUSED = [
    ("CreateStory", pb.CreateStoryRequest(), "INVALID_ARGUMENT", "story.story_id"),
    (
        "CreateStory",
        pb.CreateStoryRequest(story=pb.Story(story_id="a b", title="T")),
        "INVALID_ARGUMENT",
        "story.story_id",
    ),
    ("CreateStory", pb.CreateStoryRequest(story=pb.Story(story_id="a")), "INVALID_ARGUMENT", "story.title"),
    (
        "CreateStory",
        pb.CreateStoryRequest(story=pb.Story(story_id="a", title="T", description=LONG)),
        "INVALID_ARGUMENT",
        "story.description",
    ),
    (
        "CreateStory",
        pb.CreateStoryRequest(story=pb.Story(story_id="a", title="T", acceptance_criteria=1000 * ["x"])),
        "INVALID_ARGUMENT",
        "story.acceptance_criteria",
    ),
    (
        "CreateStory",
        pb.CreateStoryRequest(story=pb.Story(story_id="a", title="T\0")),
        "INVALID_ARGUMENT",
        "story.title",
    ),
    (
        "CreateStory",
        pb.CreateStoryRequest(story=pb.Story(story_id="a", title="T", phase=99)),
        "INVALID_ARGUMENT",
        "story.phase",
    ),
    (
        "CreateTask",
        pb.CreateTaskRequest(task=pb.Task(task_id="t", story_id="nowhere", title="T")),
        "NOT_FOUND",
        "task.story_id",
    ),
    (
        "UpdateContext",
        pb.UpdateContextRequest(story_id="nowhere", title="T", expected_version=-1),
        "INVALID_ARGUMENT",
        "expected_version",
    ),
    ("UpdateContext", pb.UpdateContextRequest(story_id="nowhere", title="T"), "NOT_FOUND", "story_id"),
    ("TransitionPhase", pb.TransitionPhaseRequest(story_id="nowhere"), "INVALID_ARGUMENT", "phase"),
    ("TransitionPhase", pb.TransitionPhaseRequest(story_id="nowhere", phase=pb.PHASE_TEST), "NOT_FOUND", "story_id"),
    ("GetContext", pb.GetContextRequest(story_id="nowhere"), "NOT_FOUND", "story_id"),
    ("GetContext", pb.GetContextRequest(query=LONG), "INVALID_ARGUMENT", "query"),
    ("GetContext", pb.GetContextRequest(token_budget=10**9), "INVALID_ARGUMENT", "token_budget"),
    ("GetContext", pb.GetContextRequest(namespaces=["../../etc"]), "INVALID_ARGUMENT", "namespaces[0]"),
    ("GetContext", pb.GetContextRequest(namespaces=17 * ["fleet"]), "INVALID_ARGUMENT", "namespaces"),
    ("RehydrateSession", pb.RehydrateSessionRequest(), "INVALID_ARGUMENT", "story_id"),
    ("RehydrateSession", pb.RehydrateSessionRequest(case_id="nowhere"), "NOT_FOUND", "case_id"),
    ("ValidateScope", pb.ValidateScopeRequest(phase=pb.PHASE_TEST), "INVALID_ARGUMENT", "role"),
    ("ValidateScope", pb.ValidateScopeRequest(role=pb.ROLE_QA), "INVALID_ARGUMENT", "phase"),
    ("ValidateScope", pb.ValidateScopeRequest(scopes=300 * ["x"], role=1, phase=1), "INVALID_ARGUMENT", "scopes"),
    ("GetGraphRelationships", pb.GetGraphRelationshipsRequest(), "INVALID_ARGUMENT", "node"),
    ("GetGraphRelationships", pb.GetGraphRelationshipsRequest(node="story:nowhere"), "NOT_FOUND", "node"),
    ("GetGraphRelationships", pb.GetGraphRelationshipsRequest(node="story:a", depth=6), "INVALID_ARGUMENT", "depth"),
    ("GetGraphRelationships", pb.GetGraphRelationshipsRequest(page_size=5000), "INVALID_ARGUMENT", "page_size"),
    ("RecordOperations", pb.RecordOperationsRequest(), "INVALID_ARGUMENT", "record.execution_id"),
    (
        "RecordOperations",
        pb.RecordOperationsRequest(record=pb.WorkRecord(execution_id="x", files_changed=2000 * ["a"])),
        "INVALID_ARGUMENT",
        "record.files_changed",
    ),
    (
        "RecordOperations",
        pb.RecordOperationsRequest(record=pb.WorkRecord(execution_id="x", task_id="t", ended_at_ms=2**62)),
        "INVALID_ARGUMENT",
        "record.ended_at_ms",
    ),
    ("AddFact", pb.AddFactRequest(namespace="nowhere", text="x"), "INVALID_ARGUMENT", "namespace"),
    ("AddFact", pb.AddFactRequest(namespace="fleet"), "INVALID_ARGUMENT", "text"),
    ("AddFact", pb.AddFactRequest(namespace="fleet", text=LONG), "INVALID_ARGUMENT", "text"),
    ("AddFact", pb.AddFactRequest(namespace="fleet", text="x", source="the pope"), "INVALID_ARGUMENT", "source"),
    (
        "AddFact",
        pb.AddFactRequest(namespace="fleet", text="x", metadata={str(n): "x" for n in range(99)}),
        "INVALID_ARGUMENT",
        "metadata",
    ),
    (
        "AddFact",
        pb.AddFactRequest(namespace="fleet", text="x", metadata={"a": LONG}),
        "INVALID_ARGUMENT",
        "metadata[a]",
    ),
    ("AddInteraction", pb.AddInteractionRequest(namespace="fleet"), "INVALID_ARGUMENT", "user"),
    (
        "AddInteraction",
        pb.AddInteractionRequest(namespace="fleet", user="a", assistant=LONG),
        "INVALID_ARGUMENT",
        "assistant",
    ),
    ("Recall", pb.RecallRequest(query=LONG), "INVALID_ARGUMENT", "query"),
    ("Recall", pb.RecallRequest(query="x", limit=1000), "INVALID_ARGUMENT", "limit"),
    ("Recall", pb.RecallRequest(query="x", namespaces=["agent:"]), "INVALID_ARGUMENT", "namespaces[0]"),
    ("ClearMemory", pb.ClearMemoryRequest(), "INVALID_ARGUMENT", "namespaces"),
    ("ClearMemory", pb.ClearMemoryRequest(namespaces=["fleet"], everywhere=True), "INVALID_ARGUMENT", "everywhere"),
    ("ClearMemory", pb.ClearMemoryRequest(namespaces=["fleet"], memory_ids=["x"]), "INVALID_ARGUMENT", "memory_ids"),
    ("RecordOutcome", pb.RecordOutcomeRequest(), "INVALID_ARGUMENT", "outcome"),
    ("RecordOutcome", pb.RecordOutcomeRequest(outcome=pb.Outcome()), "INVALID_ARGUMENT", "outcome.subject_id"),
    (
        "RecordOutcome",
        pb.RecordOutcomeRequest(outcome=pb.Outcome(subject_id="x", evidence=float("nan"))),
        "INVALID_ARGUMENT",
        "outcome.evidence",
    ),
    (
        "RecordOutcome",
        pb.RecordOutcomeRequest(outcome=pb.Outcome(subject_id="x", memory_share=0.9, tool_share=0.9)),
        "INVALID_ARGUMENT",
        "outcome.tool_share",
    ),
    (
        "RecordOutcome",
        pb.RecordOutcomeRequest(rating=pb.Rating(subject_id="nowhere", rating=3)),
        "NOT_FOUND",
        "rating.subject_id",
    ),
    (
        "RecordOutcome",
        pb.RecordOutcomeRequest(rating=pb.Rating(subject_id="x", rating=9)),
        "INVALID_ARGUMENT",
        "rating.rating",
    ),
    (
        "RecordOutcome",
        pb.RecordOutcomeRequest(rating=pb.Rating(subject_id="x", rating=3, comment="x" * 2001)),
        "INVALID_ARGUMENT",
        "rating.comment",
    ),
    ("GetOutcome", pb.GetOutcomeRequest(), "INVALID_ARGUMENT", "subject_id"),
    ("GetOutcome", pb.GetOutcomeRequest(subject_id="nowhere"), "NOT_FOUND", "subject_id"),
    ("RecommendApproach", pb.RecommendApproachRequest(), "INVALID_ARGUMENT", "goal"),
    ("RecommendApproach", pb.RecommendApproachRequest(goal="x", agents=[0]), "INVALID_ARGUMENT", "agents[0]"),
    ("RecommendApproach", pb.RecommendApproachRequest(goal="x", councils=99 * ["x"]), "INVALID_ARGUMENT", "councils"),
]


async def test_what_is_wrong_is_refused_and_named(service: Service):
    for method, request, code, field in REFUSED:
        assert await service.refused(method, request) == (code, field), (method, str(request)[:200])


async def test_other_content_under_an_id_that_is_taken(service: Service):
    story_id = await service.story()
    other = pb.CreateStoryRequest(story=pb.Story(story_id=story_id, title="Another"))
    assert await service.refused("CreateStory", other) == ("ALREADY_EXISTS", "story.story_id")
    leap = pb.TransitionPhaseRequest(story_id=story_id, phase=pb.PHASE_REVIEW)
    assert await service.refused("TransitionPhase", leap) == ("FAILED_PRECONDITION", "phase")
    round_about = pb.CreateTaskRequest(task=pb.Task(task_id="T", story_id=story_id, title="T", depends_on=["T"]))
    assert await service.refused("CreateTask", round_about) == ("INVALID_ARGUMENT", "task.depends_on")


async def test_without_the_token_nothing_is_answered(service: Service):
    for method in ("GetContext", "Recall", "RecordOutcome"):
        request = {"GetContext": pb.GetContextRequest, "Recall": pb.RecallRequest}.get(method, pb.RecordOutcomeRequest)
        assert (await service.refused(method, request(), token="wrong"))[0] == "UNAUTHENTICATED"
    async with grpc.aio.insecure_channel(service.running.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            status = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert status.status == health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A connection whose log of changes, or whose queue, ends with a fault when that is wanted."""

    inner: JetStream
    part: str
    fault: asyncio.Event

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def changes(self) -> Any:
        return self if self.part == "changes" else self.inner.changes()

    async def read(self, *, from_sequence: int = 0, follow: bool = False) -> AsyncIterator[StoredChange | None]:
        async for stored in self.inner.changes().read(from_sequence=from_sequence):
            yield stored
        yield None
        await self.fault.wait()
        raise RuntimeError("as a bug of ours would")

    async def consume(self, queue: WorkQueue, handler: Handler) -> NoReturn:
        if self.part == "changes":
            await self.inner.consume(queue, handler)
        await self.fault.wait()
        raise RuntimeError("as a bug of ours would")


@pytest.mark.parametrize("part", ["changes", "queue"])
async def test_a_service_that_hears_no_more_is_not_ready(
    service: Service, nats: EmbeddedNats, tmp_path: Path, part: str
):
    fault = asyncio.Event()
    failing = cast("JetStream", Failing(inner=service.log, part=part, fault=fault))
    async with open_context(settings_for(tmp_path, nats), failing, token=TOKEN) as running:
        assert await running.ready()
        fault.set()
        async with asyncio.timeout(10):
            while await running.ready():
                await asyncio.sleep(0)
        if part == "changes":
            with pytest.raises(Unavailable, match="not followed any more: as a bug of ours would"):
                running.book.graph("default")


async def test_a_foreign_client_gets_along_with_reflection(service: Service):
    story_id = await service.story()
    status, out, err = await curl(service, "GetContext", json.dumps({"storyId": story_id}))
    assert status == 0, err
    assert json.loads(out)["version"] == "1"
    status, _, err = await curl(service, "GetContext", '{"storyId": "nowhere"}')
    assert status != 0
    assert "not_found" in err


async def curl(service: Service, method: str, data: str) -> tuple[int, str, str]:
    bearer = f"authorization: Bearer {TOKEN}"
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "buf"), "curl", "--http2-prior-knowledge", "--protocol=grpc", "--reflect"),
        *("--header", bearer, "--reflect-header", bearer, "--data", data),
        f"http://{service.running.address}/{SERVICE}/{method}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_client_is_what_the_parts_behind_it_are(service: Service):
    story_id, namespace = await service.story(), f"agent:{uuid4().hex[:8]}"
    request = ContextRequest(story_id=story_id, role=Role.QA, phase=Phase.TEST, query="T")
    assert await service.client.gather(request) == await service.running.source.gather(request)
    memory = Memory(
        namespace=namespace, text="The tests need a database.", kind=MemoryKind.OUTCOME, source="execution:e-1"
    )
    assert await service.client.remember(memory)
    assert not await service.client.remember(memory)
    scope = MemoryScope(namespaces=(namespace,), kinds=(MemoryKind.OUTCOME,))
    [found] = await service.client.recall("database tests", scope)
    assert (found,) == await service.running.memories.recall("database tests", scope)
    assert (found.memory.text, found.memory.source) == (memory.text, "execution:e-1, caller:fleet")
    assert await service.client.forget(scope, [found.memory.memory_id]) == 1
    assert await service.client.forget(scope) == 0
    outcome = Outcome(subject_id=uuid4().hex, goal="Add a page", goal_type="feature", agents=2, metadata={"a": "b"})
    kept = await service.client.record_outcome(outcome)
    assert replace(kept, ended_at="") == outcome
    assert (await service.client.rate(outcome.subject_id, 4, by="ada")).rated_by == "ada"
    question = Question(goal="Add another page", now="", role="DEV", agents=(2, 4), approaches=("deliberate",))
    advice = await service.client.recommend(question)
    assert {option.value for option in advice.agents.options} >= {"2", "4"}


async def test_the_client_raises_what_the_service_raised(service: Service):
    client = service.client
    with pytest.raises(NotFound) as missing:
        await client.gather(ContextRequest(story_id="nowhere"))
    assert missing.value.field == "story_id"
    with pytest.raises(InvalidRequest) as wrong:
        await client.remember(Memory(namespace="x", text="y"))
    assert wrong.value.field == "namespace"
    with pytest.raises(NotFound):
        await client.rate("nowhere", 3)
    assert await client.recall("x", MemoryScope(tenant="another")) == ()
    async with ContextServiceClient(service.running.address, TOKEN, names_tenant=False) as one:
        with pytest.raises(InvalidRequest) as foreign:
            await one.recall("x", MemoryScope(tenant="another"))
        assert foreign.value.field == "tenant"
    async with ContextServiceClient(service.running.address, "wrong") as stranger:
        with pytest.raises(PreconditionFailed) as refused:
            await stranger.recall("x", MemoryScope())
        assert refused.value.field == "context_token"


async def test_a_service_that_is_not_there_is_told_soon():
    loop = asyncio.get_running_loop()
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent:
        for address in ("127.0.0.1:1", f"127.0.0.1:{port}"):
            async with ContextServiceClient(address, TOKEN, seconds=0.2) as client:
                began = loop.time()
                with pytest.raises(Unavailable) as away:
                    await client.recall("x", MemoryScope())
                assert loop.time() - began < 2
                assert address in str(away.value)


async def test_an_address_that_is_taken_is_named_with_its_setting(service: Service, nats: EmbeddedNats, tmp_path: Path):
    settings = settings_for(tmp_path, nats).model_copy(update={"context_listen": service.running.address})
    with pytest.raises(PreconditionFailed) as taken:
        async with open_context(settings, service.log, token=TOKEN):
            pass
    assert taken.value.field == "context_listen"
