"""The context service's RPCs over real gRPC and real NATS."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast
from uuid import uuid4

import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.context.v1 import context_pb2 as pb
from fleet.context.v1.context_pb2_grpc import ContextServiceStub
from services.context.main import RunningContext, open_context
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
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings

TOKEN = "a-token-for-tests"
SECRET = "sk-quite-a-secret-wxyz"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running service, a stub that shows its token, and a client as the fleet has it."""

    running: RunningContext
    log: JetStream
    stub: ContextServiceStub
    client: ContextServiceClient

    async def call(self, method: str, request: Message, *, caller: str = "", token: str = TOKEN):
        named = (("fleet-caller", caller),) if caller else ()
        metadata = (("authorization", f"Bearer {token}"), *named)
        return await getattr(self.stub, method)(request, metadata=metadata, timeout=20)

    async def refused(self, method: str, request: Message, **how: str) -> tuple[str, str]:
        """The code that a call ends with, and the field that it names."""
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await self.call(method, request, **how)
        return refusal.value.code().name, field_of(refusal.value)

    async def story(self, **fields: object) -> str:
        """A new story of its own; its id."""
        story_id = f"S-{uuid4().hex[:8]}"
        await self.call("CreateStory", pb.CreateStoryRequest(story=pb.Story(story_id=story_id, title="T", **fields)))
        return story_id


def field_of(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                request = error_details_pb2.BadRequest()
                if detail.Unpack(request):
                    return request.field_violations[0].field
    return ""


def settings_for(home: Path, nats: EmbeddedNats) -> Settings:
    return Settings(
        home=home,
        nats_url=nats.address.url,
        nats_token=nats.address.token,
        context_listen="127.0.0.1:0",
        embeddings="none",
        model_api_key=SECRET,
    )


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Service]:
    async with connect_log(settings, name="context-test") as log:
        await log.ensure_streams()
        async with (
            open_context(settings, log, token=TOKEN) as running,
            grpc.aio.insecure_channel(running.address) as channel,
            ContextServiceClient(running.address, TOKEN) as client,
        ):
            yield Service(running=running, log=log, stub=ContextServiceStub(channel), client=client)


@pytest.fixture(scope="module")
async def nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(tmp_path_factory.mktemp("nats-context")) as server:
        yield server


@pytest.fixture(scope="module")
async def service(nats: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with serving(settings_for(tmp_path_factory.mktemp("context"), nats)) as running:
        yield running


# --- the graph ----------------------------------------------------------------------------------------------------


async def test_a_story_from_its_beginning_to_its_context(service: Service):
    story_id, case_id = f"S-{uuid4().hex[:8]}", f"C-{uuid4().hex[:8]}"
    story = pb.Story(
        story_id=story_id,
        title="Log in with a passkey",
        description="People want to log in without a password.",
        acceptance_criteria=["a passkey can be registered"],
        case_id=case_id,
        notes={"owner": "ada"},
    )
    made = await service.call("CreateStory", pb.CreateStoryRequest(story=story))
    assert (made.version, made.story.phase, made.story.title) == (1, pb.PHASE_PLAN, story.title)
    assert dict(made.story.notes) == {"owner": "ada"}
    assert made.story.created_at_ms == made.story.updated_at_ms > 1_700_000_000_000
    assert await service.call("CreateStory", pb.CreateStoryRequest(story=story)) == made

    first = pb.Task(task_id="schema", story_id=story_id, title="Tables for passkeys", role=pb.ROLE_DATA)
    second = pb.Task(task_id="login", story_id=story_id, title="The endpoint", depends_on=["schema"])
    added = await service.call("CreateTask", pb.CreateTaskRequest(task=first, expected_version=1))
    assert (added.version, added.task.state, added.task.role) == (2, pb.TASK_STATE_OPEN, pb.ROLE_DATA)
    assert (await service.call("CreateTask", pb.CreateTaskRequest(task=second))).version == 3

    decision = pb.Decision(
        decision_id="D-1",
        story_id=story_id,
        title="WebAuthn level 2",
        rationale="Every browser has it.",
        alternatives=["a protocol of our own"],
        roles=[pb.ROLE_DEV, pb.ROLE_DEV],
        task_ids=["login"],
    )
    decided = await service.call("AddProjectDecision", pb.AddProjectDecisionRequest(decision=decision), caller="ada")
    assert (decided.version, decided.decision.decided_by, list(decided.decision.roles)) == (4, "ada", [pb.ROLE_DEV])
    moved = await service.call("TransitionPhase", pb.TransitionPhaseRequest(story_id=story_id, phase=pb.PHASE_DESIGN))
    assert (moved.version, moved.previous, moved.story.phase) == (5, pb.PHASE_PLAN, pb.PHASE_DESIGN)
    changed = await service.call(
        "UpdateContext",
        pb.UpdateContextRequest(
            story_id=story_id, task_id="schema", state=pb.TASK_STATE_DONE, title="Tables", expected_version=5
        ),
    )
    assert (changed.version, changed.task.state, changed.task.title) == (6, pb.TASK_STATE_DONE, "Tables")
    noted = await service.call(
        "UpdateContext",
        pb.UpdateContextRequest(
            story_id=story_id, acceptance_criteria=pb.Texts(values=["two", "criteria"]), notes={"owner": "", "a": "b"}
        ),
    )
    assert (dict(noted.story.notes), list(noted.story.acceptance_criteria)) == ({"a": "b"}, ["two", "criteria"])
    assert not noted.HasField("task")

    record = pb.WorkRecord(
        execution_id=f"X-{uuid4().hex}",
        task_id="schema",
        story_id=story_id,
        status="completed",
        summary="The tables are there.",
        commits=["0123456789abcdef0123456789abcdef01234567"],
        files_changed=["app/tables.py"],
        operations={"files_write_file": 3},
        tests=pb.TestSummary(passed=4, failed=1, failing=["test_login"]),
        checks={"tests": "passed"},
        usage=pb.Usage(prompt_tokens=10, cost=0.5),
    )
    recorded = await service.call("RecordOperations", pb.RecordOperationsRequest(record=record))
    assert (recorded.already_existed, recorded.version) == (False, 7)
    assert (await service.call("RecordOperations", pb.RecordOperationsRequest(record=record))).already_existed

    asked = pb.GetContextRequest(story_id=story_id, task_id="login", role=pb.ROLE_DEV, query="WebAuthn endpoint")
    context = await service.call("GetContext", asked)
    assert context.version == 7
    for words in ("Log in with a passkey", "WebAuthn level 2", "The endpoint"):
        assert words in context.context_text
    assert {block.kind for block in context.blocks} >= {"story", "task", "decision", "history"}
    assert len(context.version_hash) == 64
    assert await service.call("GetContext", asked) == context
    without = pb.GetContextRequest(story_id=story_id, role=pb.ROLE_DEV, include_decisions=False, include_history=False)
    assert not {"decision", "history"} & {block.kind for block in (await service.call("GetContext", without)).blocks}
    small = await service.call("GetContext", pb.GetContextRequest(story_id=story_id, token_budget=60))
    assert small.token_count <= 60
    assert small.omitted

    again = await service.call("RehydrateSession", pb.RehydrateSessionRequest(case_id=case_id, role=pb.ROLE_DEV))
    [session] = again.stories
    assert (session.story.story_id, session.version) == (story_id, 7)
    assert ([task.task_id for task in session.open_tasks], list(session.ready)) == (["login"], ["login"])
    assert [one.decision_id for one in session.decisions] == ["D-1"]
    assert [step.phase for step in session.phases] == [pb.PHASE_PLAN, pb.PHASE_DESIGN]
    [work] = session.work
    assert replace_ended(work) == record
    assert session.next_steps
    assert "Log in with a passkey" in again.context.context_text


def replace_ended(work: pb.WorkRecord) -> pb.WorkRecord:
    """A record without what the server adds."""
    assert work.ended_at_ms > 1_700_000_000_000
    work.ended_at_ms = 0
    return work


async def test_a_task_and_a_decision_are_changed(service: Service):
    story_id = await service.story()
    first, second, decision_id = (f"{story_id}-{name}" for name in ("T1", "T2", "D1"))
    for task_id, needs in ((first, []), (second, [first])):
        task = pb.Task(task_id=task_id, story_id=story_id, title="T", role=pb.ROLE_DEV, depends_on=needs)
        await service.call("CreateTask", pb.CreateTaskRequest(task=task))
    update = pb.UpdateContextRequest(story_id=story_id, task_id=second, role=pb.ROLE_QA, depends_on=pb.Texts())
    changed = (await service.call("UpdateContext", update)).task
    assert (changed.role, list(changed.depends_on), changed.title) == (pb.ROLE_QA, [], "T")
    anybody = pb.UpdateContextRequest(story_id=story_id, task_id=second, role=pb.ROLE_UNSPECIFIED)
    assert (await service.call("UpdateContext", anybody)).task.role == pb.ROLE_UNSPECIFIED
    circle = pb.UpdateContextRequest(story_id=story_id, task_id=first, depends_on=pb.Texts(values=[second, first]))
    assert await service.refused("UpdateContext", circle) == ("INVALID_ARGUMENT", "depends_on")
    for of in (story_id, ""):
        decision = pb.Decision(
            decision_id=f"{decision_id}{of}", story_id=of, title="D", state=pb.DECISION_STATE_PROPOSED
        )
        await service.call("AddProjectDecision", pb.AddProjectDecisionRequest(decision=decision))
        accept = pb.UpdateContextRequest(
            story_id=of, decision_id=decision.decision_id, decision_state=pb.DECISION_STATE_ACCEPTED
        )
        accepted = await service.call("UpdateContext", accept)
        assert (accepted.decision.state, accepted.HasField("story")) == (pb.DECISION_STATE_ACCEPTED, bool(of))
        accept.decision_state = pb.DECISION_STATE_PROPOSED
        assert await service.refused("UpdateContext", accept) == ("FAILED_PRECONDITION", "decision_state")


async def test_a_write_with_a_stale_version_changes_nothing(service: Service):
    story_id = await service.story()
    first, second, decision_id = (f"{story_id}-{name}" for name in ("T1", "T2", "D1"))
    task = pb.Task(task_id=first, story_id=story_id, title="One")
    await service.call("CreateTask", pb.CreateTaskRequest(task=task))
    stale = {
        "UpdateContext": pb.UpdateContextRequest(story_id=story_id, title="Other", expected_version=1),
        "CreateTask": pb.CreateTaskRequest(
            task=pb.Task(task_id=second, story_id=story_id, title="Two"), expected_version=1
        ),
        "AddProjectDecision": pb.AddProjectDecisionRequest(
            decision=pb.Decision(decision_id=decision_id, story_id=story_id, title="D"), expected_version=1
        ),
        "TransitionPhase": pb.TransitionPhaseRequest(story_id=story_id, phase=pb.PHASE_DESIGN, expected_version=1),
    }
    for method, request in stale.items():
        assert await service.refused(method, request) == ("FAILED_PRECONDITION", "expected_version"), method
    state = service.running.book.graph("default").story(story_id)
    assert (state.version, list(state.tasks), dict(state.decisions)) == (2, [first], {})
    assert state.story is not None
    assert (state.story.title, state.story.phase) == ("T", Phase.PLAN)
    for method, request in stale.items():
        request.expected_version = service.running.book.graph("default").version(story_id)
        assert (await service.call(method, request)).version == request.expected_version + 1, method


async def test_of_two_writers_who_saw_the_same_version_one_gets_through(service: Service):
    story_id = await service.story()
    requests = [
        pb.UpdateContextRequest(story_id=story_id, notes={f"n{number}": "x"}, expected_version=1) for number in range(8)
    ]
    answers = await asyncio.gather(
        *(service.call("UpdateContext", request) for request in requests), return_exceptions=True
    )
    refused = [one for one in answers if isinstance(one, grpc.aio.AioRpcError)]
    assert {one.code().name for one in refused} == {"FAILED_PRECONDITION"}
    [written] = [one for one in answers if isinstance(one, pb.UpdateContextResponse)]
    assert written.version == 2
    story = service.running.book.graph("default").story(story_id).story
    assert story is not None
    assert len(story.notes) == 1


async def test_relations_come_in_pages(service: Service):
    story_id = await service.story()
    for number in range(5):
        task = pb.Task(
            task_id=f"{story_id}-{number}",
            story_id=story_id,
            title="T",
            depends_on=[f"{story_id}-{number - 1}"] if number else [],
        )
        await service.call("CreateTask", pb.CreateTaskRequest(task=task))
    request = pb.GetGraphRelationshipsRequest(node=f"story:{story_id}", depth=2)
    whole = await service.call("GetGraphRelationships", request)
    told = {(one.source, one.kind, one.target) for one in whole.relations}
    assert len(told) == len(whole.relations) == 9
    assert not whole.next_page_token
    assert not whole.truncated
    assert whole.version == 6
    assert whole.nodes[0] == f"story:{story_id}"
    pages: list[pb.Relation] = []
    request.page_size = 4
    for _ in range(3):
        page = await service.call("GetGraphRelationships", request)
        pages.extend(page.relations)
        request.page_token = page.next_page_token
    assert pages == list(whole.relations)
    assert not request.page_token
    some = await service.call(
        "GetGraphRelationships",
        pb.GetGraphRelationshipsRequest(node=f"story:{story_id}", depth=2, kinds=[pb.RELATION_KIND_CONTAINS]),
    )
    assert {one.kind for one in some.relations} == {pb.RELATION_KIND_CONTAINS}
    request.page_token = page_token = (
        await service.call(
            "GetGraphRelationships",
            pb.GetGraphRelationshipsRequest(node=f"story:{story_id}", depth=2, page_size=4),
        )
    ).next_page_token
    asked = json.loads(base64.urlsafe_b64decode(page_token))[0]
    forged = [
        base64.urlsafe_b64encode(f'["{asked}", {place}]'.encode()).decode() for place in ("-1", "Infinity", '"x"')
    ]
    for token in ("nonsense", "bnVsbA==", "W10=", 10_000 * "A", *forged):
        request.page_token = token
        assert await service.refused("GetGraphRelationships", request) == ("INVALID_ARGUMENT", "page_token")
    request.page_token, request.depth = page_token, 3
    assert await service.refused("GetGraphRelationships", request) == ("INVALID_ARGUMENT", "page_token")


async def test_stories_are_listed_the_last_changed_first_in_pages(service: Service):
    case = f"C-{uuid4().hex[:8]}"
    first, second, third = [await service.story(case_id=case) for number in range(3)]
    await service.call("TransitionPhase", pb.TransitionPhaseRequest(story_id=second, phase=pb.PHASE_DESIGN))
    for number, state in enumerate((pb.TASK_STATE_OPEN, pb.TASK_STATE_DONE, pb.TASK_STATE_DROPPED)):
        task = pb.Task(task_id=f"{first}-{number}", story_id=first, title="T", state=state)
        await service.call("CreateTask", pb.CreateTaskRequest(task=task))
    decision = pb.Decision(decision_id=f"{first}-d", story_id=first, title="D")
    await service.call("AddProjectDecision", pb.AddProjectDecisionRequest(decision=decision))
    common = pb.Decision(decision_id=f"{first}-common", title="It belongs to no story, so it makes none")
    await service.call("AddProjectDecision", pb.AddProjectDecisionRequest(decision=common))

    async def listed(**fields: Any) -> list[pb.StoryCard]:
        found: list[pb.StoryCard] = []
        request = pb.ListStoriesRequest(**fields)
        while True:
            page = await service.call("ListStories", request)
            found.extend(page.stories)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found
            assert len(page.stories) == (request.page_size or 50)

    cards = await listed(case_id=case)
    assert [one.story_id for one in cards] == [first, second, third]
    assert [one.changed_at_ms for one in cards] == sorted((one.changed_at_ms for one in cards), reverse=True)
    top = cards[0]
    assert (top.title, top.case_id, top.phase, top.version) == ("T", case, pb.PHASE_PLAN, 5)
    assert (top.task_count, top.open_task_count, top.decision_count) == (3, 1, 1)
    assert top.created_at_ms < top.changed_at_ms
    assert await listed(case_id=case, page_size=1) == await listed(case_id=case, page_size=2) == cards
    assert [one.story_id for one in await listed(case_id=case, phases=[pb.PHASE_DESIGN, pb.PHASE_DONE])] == [second]
    assert await listed(case_id="nobody's") == []
    everything = [one.story_id for one in await listed(page_size=7)]
    assert everything[:3] == [first, second, third]
    assert len(set(everything)) == len(everything)
    assert "" not in {one.title for one in await listed()}


async def test_a_story_that_is_changed_meanwhile_is_not_listed_twice(service: Service):
    case = f"C-{uuid4().hex[:8]}"
    names = [await service.story(case_id=case) for _ in range(4)]
    request = pb.ListStoriesRequest(case_id=case, page_size=2)
    page = await service.call("ListStories", request)
    assert [one.story_id for one in page.stories] == names[:1:-1]
    await service.call("UpdateContext", pb.UpdateContextRequest(story_id=names[0], title="Changed"))
    request.page_token = page.next_page_token
    rest = await service.call("ListStories", request)
    assert ([one.story_id for one in rest.stories], rest.next_page_token) == ([names[1]], "")
    other = pb.ListStoriesRequest(case_id="another", page_token=page.next_page_token)
    assert await service.refused("ListStories", other) == ("INVALID_ARGUMENT", "page_token")
    asked = json.loads(base64.urlsafe_b64decode(page.next_page_token))[0]
    for place in ("7", "null", '["a"]', "[1, 2]", '{"a": 1}'):
        request.page_token = base64.urlsafe_b64encode(f'["{asked}", {place}]'.encode()).decode()
        assert await service.refused("ListStories", request) == ("INVALID_ARGUMENT", "page_token"), place
    for fields, field in (
        ({"page_size": 501}, "page_size"),
        ({"case_id": 129 * "c"}, "case_id"),
        ({"phases": [9]}, "phases[0]"),
    ):
        _, named = await service.refused("ListStories", pb.ListStoriesRequest(**fields))
        assert named.startswith(field.partition("[")[0]), fields


async def test_a_large_story_still_fits_a_message(service: Service):
    story_id, text = await service.story(description=5_000 * "words "[:-2]), 19_900 * "é"
    for number in range(40):
        task = pb.Task(task_id=f"{story_id}-{number}", story_id=story_id, title="T", description=text)
        await service.call("CreateTask", pb.CreateTaskRequest(task=task))
    session = await service.call("RehydrateSession", pb.RehydrateSessionRequest(story_id=story_id))
    [story] = session.stories
    assert session.ByteSize() < 3 * 1024 * 1024
    assert 0 < len(story.open_tasks) < 40 == len(story.ready)


async def test_what_a_role_is_to_be_given(service: Service):
    answer = await service.call(
        "ValidateScope", pb.ValidateScopeRequest(role=pb.ROLE_DEV, phase=pb.PHASE_BUILD, scopes=[])
    )
    assert not answer.allowed
    assert answer.missing
    right = pb.ValidateScopeRequest(role=pb.ROLE_DEV, phase=pb.PHASE_BUILD, scopes=answer.missing)
    assert (await service.call("ValidateScope", right)).allowed
    wrong = pb.ValidateScopeRequest(role=pb.ROLE_DEV, phase=pb.PHASE_BUILD, scopes=["the weather"])
    assert await service.refused("ValidateScope", wrong) == ("INVALID_ARGUMENT", "scopes")


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


async def test_secrets_are_masked_before_they_are_kept(service: Service, nats: EmbeddedNats):
    story_id = await service.story(description=f"use the key {SECRET} there")
    fact = pb.AddFactRequest(namespace=f"agent:{story_id}", text=f"the key is {SECRET}", metadata={"k": SECRET})
    await service.call("AddFact", fact)
    outcome = pb.Outcome(subject_id=story_id, goal=f"try {SECRET}")
    await service.call("RecordOutcome", pb.RecordOutcomeRequest(outcome=outcome))
    context = await service.call("GetContext", pb.GetContextRequest(story_id=story_id))
    found = await service.call("Recall", pb.RecallRequest(query="key", namespaces=[f"agent:{story_id}"]))
    assert "[masked]" in context.context_text
    assert "[masked]" in found.recollections[0].memory.text
    assert SECRET not in f"{context}{found}"


# --- memory and learning ------------------------------------------------------------------------------------------


async def test_facts_and_turns_are_recalled_and_forgotten(service: Service):
    namespace = f"agent:{uuid4().hex[:8]}"
    fact = pb.AddFactRequest(namespace=namespace, text="Her favourite colour is teal.", metadata={"about": "ada"})
    kept = await service.call("AddFact", fact, caller="ada")
    assert not kept.already_existed
    again = await service.call("AddFact", fact)
    assert (again.already_existed, again.memory_id) == (True, kept.memory_id)
    turn = pb.AddInteractionRequest(
        namespace=namespace, user="Which port does it listen on?", assistant="On 8443.", source="agent:dev-1"
    )
    assert not (await service.call("AddInteraction", turn, caller="bob")).already_existed

    [colour, *_] = (
        await service.call("Recall", pb.RecallRequest(query="favourite colour", namespaces=[namespace]))
    ).recollections
    assert (colour.memory.memory_id, colour.memory.source) == (kept.memory_id, "caller:ada")
    assert (dict(colour.memory.metadata), colour.memory.kind) == ({"about": "ada"}, pb.MEMORY_KIND_FACT)
    assert 0 < colour.score <= 1
    [port] = (
        await service.call(
            "Recall",
            pb.RecallRequest(query="port", namespaces=[namespace], kinds=[pb.MEMORY_KIND_INTERACTION], limit=1),
        )
    ).recollections
    assert (port.memory.text, port.memory.source) == (
        "User: Which port does it listen on?\nAssistant: On 8443.",
        "agent:dev-1, caller:bob",
    )
    elsewhere = pb.RecallRequest(query="favourite colour", namespaces=["agent:somebody-else"])
    assert not (await service.call("Recall", elsewhere)).recollections

    one = pb.ClearMemoryRequest(namespaces=[namespace], memory_ids=[kept.memory_id])
    assert (await service.call("ClearMemory", one)).removed == 1
    assert (await service.call("ClearMemory", one)).removed == 0
    rest = pb.ClearMemoryRequest(namespaces=[namespace], kinds=[pb.MEMORY_KIND_INTERACTION])
    assert (await service.call("ClearMemory", rest)).removed == 1


async def test_outcomes_are_recorded_rated_and_learnt_from(service: Service):
    names = [uuid4().hex for _ in range(12)]
    for number, name in enumerate(names):
        good = number % 2 == 0
        outcome = pb.Outcome(
            subject_id=name,
            goal="Fix the failing test of the parser",
            approach="orchestrate" if good else "deliberate",
            agents=3,
            success=good,
            evidence=1.0 if good else 0.0,
            status="completed" if good else "no_winner",
        )
        told = (await service.call("RecordOutcome", pb.RecordOutcomeRequest(outcome=outcome))).outcome
        assert told.goal_type
        assert not told.rated_by
        assert told.ended_at_ms > 1_700_000_000_000
    rated = await service.call(
        "RecordOutcome", pb.RecordOutcomeRequest(rating=pb.Rating(subject_id=names[0], rating=5)), caller="ada"
    )
    assert (rated.outcome.rating, rated.outcome.rated_by, rated.outcome.evidence) == (5, "ada", 1.0)
    assert (await service.call("GetOutcome", pb.GetOutcomeRequest(subject_id=names[0]))).outcome == rated.outcome
    said = pb.Rating(subject_id=names[0], rating=4, comment="too long")
    await service.call("RecordOutcome", pb.RecordOutcomeRequest(rating=said), caller="bob")
    # Who says nothing more leaves the words there; an empty comment takes them away.
    for comment, kept in ((None, "too long"), ("", "")):
        said = pb.Rating(subject_id=names[0], rating=3, comment=comment)
        await service.call("RecordOutcome", pb.RecordOutcomeRequest(rating=said))
        found = (await service.call("GetOutcome", pb.GetOutcomeRequest(subject_id=names[0]))).outcome
        assert (found.rating, found.comment) == (3, kept)
    request = pb.RecommendApproachRequest(goal="Fix the test of the lexer", agents=[3], seed=7)
    advice = await service.call("RecommendApproach", request)
    assert advice == await service.call("RecommendApproach", request)
    assert advice.outcomes >= 12
    options = {option.value: option for option in advice.approach.options}
    assert options["orchestrate"].expected > options["deliberate"].expected
    assert 0 <= options["orchestrate"].low <= options["orchestrate"].high <= 1
    assert advice.approach.reason


# --- callers ------------------------------------------------------------------------------------------------------


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


# --- the client that the fleet uses -------------------------------------------------------------------------------


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
