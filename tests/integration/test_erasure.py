"""Erasure over real servers and a real NATS: what was erased is in no stream, bucket, object, file or process."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from fleet.context.v1 import context_pb2 as context
from fleet.conversation.v1 import conversation_pb2 as chat
from fleet.notification.v1 import notification_pb2 as hooks
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from fleet.planning.v1 import planning_pb2 as planning
from swe_ai_fleet.adapters.git_workspace import GitWorkspaceProvider
from swe_ai_fleet.adapters.git_workspace.uploads import UPLOADS
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import ExecutionErased, Writer
from swe_ai_fleet.domain.task import UPLOAD, RepoRef
from swe_ai_fleet.orchestrator.recipes import tenant_key
from swe_ai_fleet.snapshots import CONTEXT_SNAPSHOTS, EXECUTION_SNAPSHOTS
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.watching.events import audit_document
from tests.confinement import until
from tests.erasure import everywhere
from tests.integration.test_tenants import in_time, world
from tests.plan_script import PLAN_GOAL
from tests.tenants import NORTH, SOUTH, Caller, World, refused

__all__ = ["in_time", "world"]

REASON = "a key was printed"


def a_marker() -> str:
    return f"marker-{uuid.uuid4().hex[:12]}"


async def settled(world: World, tenant: str, execution_id: str) -> None:
    """Wait until the context service has recorded an execution, which it does last."""
    await until(lambda: world.running.store.graph(tenant).execution(execution_id) is not None)


def bundle(directory: Path, text: str) -> pb.UploadRepositoryRequest:
    """A repository with a text in it, as a client uploads it."""
    repository = make_repository(directory / text, {"a.txt": text})
    data = subprocess.run(
        ("git", "bundle", "create", "-q", "-", "--all"), cwd=repository, capture_output=True, check=True
    ).stdout
    return pb.UploadRepositoryRequest(chunk=data)


async def _blob(world: World, name: str) -> object:
    try:
        return await world.log.get(BlobRef(name=name, digest=name.rpartition("/")[2], size=0))
    except NotFound:
        return None


def _writer(execution_id: str) -> Writer:
    return Writer(tenant=NORTH, execution_id=execution_id, task_id="", generation=9)


async def erase(by: Caller, **fields: object) -> pb.EraseResponse:
    return await by.call("Erase", pb.EraseRequest(**{"reason": REASON, **fields}))


async def submitted(caller: Caller, marker: str, **fields: object) -> str:
    """A task with a text, whose memory remembers."""
    request = pb.DeliberateRequest(
        task_id=f"t-{uuid.uuid4().hex[:10]}",
        task_description=f"Greet {marker}",
        num_agents=2,
        repo=pb.RepoRef(path="/srv/app"),
        memory=pb.MemoryOptions(write=True),
        **fields,
    )
    return (await caller.call("SubmitTask", pb.SubmitTaskRequest(deliberate=request))).execution_id


async def test_an_erased_execution_is_nowhere_and_its_audit_still_verifies(world: World) -> None:
    zoe, marker, home = world.by(NORTH, "zoe"), a_marker(), world.home
    mine, other = await submitted(zoe, marker), await submitted(zoe, "somebody else")
    for execution in (mine, other):
        await zoe.ended(execution)
        await settled(world, NORTH, execution)
    before = audit_document(mine, [stored async for stored in world.log.read(NORTH, mine)]).verdicts(None)
    assert {"AGENT_EVENTS", "CONTEXT_CHANGES", "KV_agent-outcomes", "KV_agent-memories"} <= {
        place.partition(" ")[0] for place in await everywhere(world.log, marker, home)
    }
    assert world.running.outcomes.outcomes(NORTH)

    # What names it goes as a whole; how a store spells it makes no difference.
    record = f'{{"execution": "{mine}", "said": "{marker}"}}'.encode()
    answer = json.dumps({"said": marker, "body": base64.b64encode(b"-" * 31 + record * 2).decode()}).encode()
    for bucket, key, value in (
        ("CHATS", "north.c-1", record),
        ("CHATS", "card.north.c-1", record),
        ("agent-planning", "event.north.e-1", record),
        ("agent-webhook-deliveries", "list.north.w-1", record),
        ("HTTP_KEYS", f"north.{'a' * 64}", answer),
        ("PLAN_SESSIONS", f"north.{mine.replace('-', '')}", marker.encode()),
        ("agent-test-runs", f"{tenant_key(NORTH)}.{'b' * 64}", marker.encode()),
    ):
        await (await world.log.bucket(bucket)).put(key, value)
    about = {"Fleet-Subject": f"agent.events.north.{mine}._"}
    await world.log.connection.publish("agent.dlq.context-recorder", marker.encode(), headers=about, timeout=5)
    await (await world.log.bucket("CHATS")).put("south.c-1", record.replace(marker.encode(), b"other"))

    # What a host of agents says is no tombstone, whomever it claims to be.
    said = ExecutionErased(scope="execution", by="zoe.north", reason=marker)
    forged = to_json(replace(_writer(mine), agent_id="_").event(said, ordinal=1, at="2026-01-01T00:00:00+00:00"))
    await world.log.connection.publish(f"agent.events.north.{mine}.mallory", forged, headers={}, timeout=5)

    for kept in (EXECUTION_SNAPSHOTS, CONTEXT_SNAPSHOTS):
        saved = (await world.log.snapshots(kept)).of("said", dump=lambda: [marker.encode()], load=lambda lines: None)
        assert await saved.save(lambda: 1)
    assert {"KV_agent-snapshots", "KV_context-snapshots"} <= {
        place.partition(" ")[0] for place in await everywhere(world.log, marker, home)
    }

    would = await erase(zoe, execution_id=mine, dry_run=True)
    assert (list(would.execution_ids), would.record_id) == ([mine], "")
    assert (await zoe.ended(mine)).task_description == f"Greet {marker}"

    did = await erase(zoe, execution_id=mine)
    assert did.record_id == mine
    assert {one.store: one.items for one in did.stores}.keys() == {one.store: one.items for one in would.stores}.keys()
    assert await everywhere(world.log, marker, home) == []

    code, words = await refused(zoe.call("GetExecution", pb.GetExecutionRequest(execution_id=mine)))
    assert code is grpc.StatusCode.NOT_FOUND and "was erased on" in words and "zoe.north" in words
    [left] = [stored.event.body async for stored in world.log.read(NORTH, mine)]
    assert isinstance(left, ExecutionErased)
    assert (left.scope, left.by, left.reason) == ("execution", "zoe.north", REASON)
    [told] = await zoe.stream("StreamExecution", pb.StreamExecutionRequest(execution_id=mine))
    assert told.type == "execution_erased"
    after = audit_document(mine, [stored async for stored in world.log.read(NORTH, mine)]).verdicts(None)
    assert [replace(verdict, redacted=True) for verdict in before] == list(after), (before, after)

    assert await (await world.log.bucket("CHATS")).get("south.c-1") is not None
    # Nothing of the others went, and processes that run have forgotten.
    assert (await zoe.ended(other)).status == pb.DELIBERATION_STATUS_COMPLETED
    graph = world.running.store.graph(NORTH)
    await until(lambda: graph.execution(mine) is None)
    assert graph.execution(other) is not None
    assert mine not in {one.subject_id for one in world.running.outcomes.outcomes(NORTH)}
    # Again: nothing is left, and that is no fault.
    assert not (await erase(zoe, execution_id=mine)).stores


async def test_who_may_erase_what_and_what_runs_is_refused(world: World) -> None:
    zoe, marker = world.by(NORTH, "zoe"), a_marker()
    waiting = await submitted(zoe, marker, role="QA")
    await zoe.waits(waiting)
    nobody = str(uuid.uuid4())
    for caller, fields, code, words in (
        (world.by(NORTH, "bob"), {"execution_id": waiting}, grpc.StatusCode.PERMISSION_DENIED, "role"),
        (world.by(SOUTH, "zoe"), {"execution_id": waiting}, grpc.StatusCode.NOT_FOUND, "no execution"),
        (world.by(SOUTH, "zoe"), {"tenant": NORTH}, grpc.StatusCode.INVALID_ARGUMENT, "not that of your tenant"),
        (zoe, {"execution_id": nobody}, grpc.StatusCode.NOT_FOUND, "no execution"),
        (zoe, {"execution_id": waiting}, grpc.StatusCode.FAILED_PRECONDITION, "still running"),
        (zoe, {"caller": "zoe.north"}, grpc.StatusCode.FAILED_PRECONDITION, "still running"),
        (zoe, {"execution_id": waiting, "reason": ""}, grpc.StatusCode.INVALID_ARGUMENT, "reason"),
        (zoe, {}, grpc.StatusCode.INVALID_ARGUMENT, "nothing to erase"),
        (zoe, {"memories": pb.ErasedMemories()}, grpc.StatusCode.INVALID_ARGUMENT, "nothing to erase"),
    ):
        refusal = await refused(erase(caller, **fields))
        assert refusal[0] is code and words in refusal[1], (fields, refusal)
    assert (await erase(zoe, execution_id=waiting, dry_run=True)).execution_ids == [waiting]
    await erase(zoe, execution_id=waiting, cancel=True)
    assert not (left := await everywhere(world.log, marker, world.home)), left


async def test_what_an_interrupted_erasure_left_goes_with_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoe, marker = world.by(NORTH, "zoe"), a_marker()
    mine = await submitted(zoe, marker)
    await zoe.ended(mine)
    await settled(world, NORTH, mine)
    # The tombstone alone, as a process leaves it that is killed right then.
    async with world.log.journal(_writer(mine)) as journal:
        await journal.append(ExecutionErased(scope="execution", by="zoe.north", reason=REASON))
    code, words = await refused(zoe.call("GetExecution", pb.GetExecutionRequest(execution_id=mine)))
    assert code is grpc.StatusCode.NOT_FOUND and "was erased" in words
    assert await everywhere(world.log, marker, world.home)
    await erase(zoe, caller="nobody")
    assert not (left := await everywhere(world.log, marker, world.home)), left


async def test_an_erased_plan_is_nowhere(world: World) -> None:
    zoe, marker = world.by(NORTH, "zoe"), a_marker()
    await zoe.call("ExecutePlan", planning.ExecutePlanRequest(goal=f"{PLAN_GOAL} {marker}", session_id="mine"))
    [plan] = (await zoe.call("ListExecutions", pb.ListExecutionsRequest(task_id="mine"))).executions
    await zoe.call("CancelExecution", pb.CancelExecutionRequest(execution_id=plan.execution_id))
    await zoe.ended(plan.execution_id)
    await until(lambda: [one for one in world.running.outcomes.outcomes(NORTH) if one.subject_id == "mine"])
    seen = await erase(zoe, execution_id=plan.execution_id, dry_run=True)
    did = await erase(zoe, execution_id=plan.execution_id)
    gone = {one.store: one.items for one in did.stores}
    assert gone["KV_PLAN_SESSIONS"] == gone["KV_agent-outcomes"] == 1
    assert {one.store: one.items for one in seen.stores} == gone
    assert not (left := await everywhere(world.log, marker, world.home)), left
    again = await zoe.call("ExecutePlan", planning.ExecutePlanRequest(goal=PLAN_GOAL, session_id="mine"))
    assert again.status == "awaiting_approval"
    await zoe.call("ApproveApproach", planning.ApproveApproachRequest(session_id="mine", decision="rejected"))


async def test_an_erased_message_takes_its_chat_with_it(world: World) -> None:
    zoe, marker = world.by(NORTH, "zoe"), a_marker()
    for text in (marker, "And you?"):
        await zoe.stream("Send", chat.SendRequest(session_id="talk", text=text))
    *_, message = (await zoe.call("ListExecutions", pb.ListExecutionsRequest(task_id="talk"))).executions
    assert message.task_description == marker
    did = await erase(zoe, execution_id=message.execution_id)
    assert {one.store: one.items for one in did.stores}["KV_CHATS"] == 2
    # Later messages have the conversation before them.
    left = await everywhere(world.log, marker, world.home)
    assert {place.partition(" ")[0] for place in left} <= {"AGENT_EVENTS"}, left
    await erase(zoe, caller="zoe.north")
    assert not (left := await everywhere(world.log, marker, world.home)), left
    *_, last = await zoe.stream("Send", chat.SendRequest(session_id="talk", text="Who are you?"))
    assert last.answer.success and last.answer.turn > 2


async def test_erasing_memories_and_a_caller(world: World) -> None:
    zoe, ann, marker = world.by(NORTH, "zoe"), world.by(NORTH, "ann"), a_marker()
    facts = [
        await who.call("AddFact", context.AddFactRequest(text=f"{word} {marker}", namespace=f"agent:{word}"))
        for who, word in ((zoe, "one"), (zoe, "two"), (zoe, "three"), (ann, "four"))
    ]
    did = await erase(zoe, memories=pb.ErasedMemories(memory_ids=[facts[0].memory_id], namespaces=["agent:two"]))
    assert [(one.store, one.items) for one in did.stores] == [("KV_agent-memories", 2)] and did.record_id
    [record] = [stored.event.body async for stored in world.log.read(NORTH, did.record_id)]
    assert isinstance(record, ExecutionErased) and (record.scope, record.by) == ("memories", "zoe.north")
    left = await zoe.call("Recall", context.RecallRequest(query=marker, limit=9))
    assert {one.memory.text.split()[0] for one in left.recollections} == {"three", "four"}
    mine = await submitted(ann, marker)
    await ann.ended(mine)
    await settled(world, NORTH, mine)
    assert list((await erase(zoe, caller="ann.north")).execution_ids) == [mine]
    left = await zoe.call("Recall", context.RecallRequest(query=marker, limit=9))
    assert {one.memory.text.split()[0] for one in left.recollections} == {"three"}, left


async def test_an_erased_tenant_is_nowhere_and_the_other_one_is_as_it_was(world: World, tmp_path: Path) -> None:
    marker, kept, uploads = a_marker(), a_marker(), dict[str, pb.RepoRef]()
    for tenant, text in ((SOUTH, marker), (NORTH, kept)):
        zoe = world.by(tenant, "zoe")
        execution = await submitted(zoe, text)
        await zoe.ended(execution)
        await settled(world, tenant, execution)
        story = context.Story(story_id=f"S-{text}", title=f"About {text}", description=text)
        await zoe.call("CreateStory", context.CreateStoryRequest(story=story))
        await zoe.call("AddFact", context.AddFactRequest(text=f"Known: {text}", namespace="fleet"))
        await zoe.call("CreateWebhook", hooks.CreateWebhookRequest(url=f"https://hooks.example.org/{text}"))
        await zoe.stream("Send", chat.SendRequest(session_id=text, text="Who are you?"))
        await zoe.call("ExecutePlan", planning.ExecutePlanRequest(goal=f"{PLAN_GOAL} {text}", session_id="plan"))
        pieces = (pb.UploadRepositoryRequest(header=pb.UploadRepositoryHeader(ref="main")), bundle(tmp_path, text))
        stub = world.stubs[OrchestratorServiceStub]
        [workspaces] = world.erasures.nodes
        assert isinstance(workspaces, GitWorkspaceProvider)
        uploads[tenant] = await stub.UploadRepository(iter(pieces), metadata=zoe.metadata, timeout=30)
        await workspaces.pin(tenant, RepoRef(location=f"{UPLOAD}{uploads[tenant].upload_id}"))
    zoe = world.by(SOUTH, "zoe")
    places = {place.partition(" ")[0] for place in await everywhere(world.log, marker, world.home)}
    assert places >= {
        *("AGENT_EVENTS", "CONTEXT_CHANGES", "KV_agent-memories", "KV_agent-webhooks"),
        *("KV_CHATS", "KV_PLAN_SESSIONS", "KV_PLAN_SESSION_PARTS"),
    }
    others = await everywhere(world.log, kept, world.home)
    await erase(zoe, tenant=SOUTH, cancel=True)
    assert not (left := await everywhere(world.log, marker, world.home)), left
    assert not (changed := set(others) - set(await everywhere(world.log, kept, world.home))), changed
    assert not (await zoe.call("ListExecutions", pb.ListExecutionsRequest())).executions
    for tenant, there in ((SOUTH, False), (NORTH, True)):
        name = f"{tenant}/{UPLOADS}/{uploads[tenant].upload_id}"
        assert (await _blob(world, name) is not None) == there
        held = world.home / "held" / tenant
        assert bool(held.is_dir() and [one for one in held.iterdir() if not one.name.startswith(".")]) == there
    # Its context service goes on with an empty graph, from the first version on.
    await zoe.call("CreateStory", context.CreateStoryRequest(story=context.Story(story_id=f"S-{marker}", title="Anew")))
    listed = await zoe.call("ListStories", context.ListStoriesRequest(page_size=100))
    assert [(one.story_id, one.title) for one in listed.stories] == [(f"S-{marker}", "Anew")]
