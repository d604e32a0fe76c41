"""The context service's graph on a real server and a real NATS: stories, tasks, decisions; memories beside them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import grpc.aio
import pytest

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.domain.context import Phase
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.context_serving import SECRET, Service, serving, settings_for


@pytest.fixture(scope="module")
async def nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(tmp_path_factory.mktemp("nats-context")) as server:
        yield server


@pytest.fixture(scope="module")
async def service(nats: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with serving(settings_for(tmp_path_factory.mktemp("context"), nats)) as running:
        yield running


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
