"""Two tenants on one fleet, through real gRPC servers over a real NATS: what is one's, the other never finds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import nats
import pytest

from fleet.context.v1 import context_pb2 as context
from fleet.conversation.v1 import conversation_pb2 as chat
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.planning.v1 import planning_pb2 as planning
from services.orchestrator.main import TASKS, open_intake
from swe_ai_fleet.adapters.git_workspace.uploads import UPLOADS
from swe_ai_fleet.domain.errors import FleetError, NotFound
from swe_ai_fleet.domain.event import ApprovalRefused, ApprovalResolved
from swe_ai_fleet.domain.task import UPLOAD, RepoRef
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository
from tests.plan_script import PLAN_GOAL
from tests.tenants import NORTH, SOUTH, World, refused, tenants

SECONDS = 90


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with tenants(tmp_path_factory.mktemp("tenants")) as made:
        yield made


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    async with asyncio.timeout(SECONDS):
        yield


def a_name() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


async def test_one_task_id_is_another_task_in_each_tenant(world: World) -> None:
    ann, other, name = world.by(NORTH, "ann"), world.by(SOUTH, "ann"), a_name()
    ids = [await caller.submit(name) for caller in (ann, other)]
    assert ids[0] != ids[1]
    for caller, mine, theirs in ((ann, *ids), (other, *reversed(ids))):
        told = await caller.ended(mine)
        assert (told.status, told.task_id) == (pb.DELIBERATION_STATUS_COMPLETED, name)
        listed = (await caller.call("ListExecutions", pb.ListExecutionsRequest(page_size=500))).executions
        assert mine in {one.execution_id for one in listed}
        assert theirs not in {one.execution_id for one in listed}
        result = await caller.call("GetDeliberationResult", pb.GetDeliberationResultRequest(task_id=name))
        assert result.metadata["execution_id"] == mine
    assert (await world.by(NORTH, "ann").submit(name)) == ids[0]


async def test_an_approver_is_somebody_else_of_the_same_tenant(world: World) -> None:
    bob, host = world.by(NORTH, "bob"), world.by("default", "host")
    # What a service hands in for somebody is theirs.
    mine = await host.on_behalf(NORTH, "bob.north").submit(a_name(), role="QA")
    assert (await world.executions.get(NORTH, mine)).task.caller == "bob.north"
    approval = await bob.waits(mine)
    yes = pb.ResolveApprovalRequest(
        execution_id=mine, approval_id=approval.approval_id, decision=pb.APPROVAL_DECISION_APPROVED
    )
    otherwise = pb.ResolveApprovalRequest(adjustment="x")
    otherwise.MergeFrom(yes)
    otherwise.decision = pb.APPROVAL_DECISION_ADJUSTED
    for answer in (yes, otherwise):
        code, words = await refused(bob.call("ResolveApproval", answer))
        assert (code, "cannot approve" in words) == (grpc.StatusCode.PERMISSION_DENIED, True)
    assert (await refused(world.by(NORTH, "ann").call("ResolveApproval", yes)))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert (await refused(world.by(SOUTH, "bob").call("ResolveApproval", yes)))[0] is grpc.StatusCode.NOT_FOUND
    # A service asks in the name of whoever it serves; that it is a service changes nothing for them.
    code, _ = await refused(host.on_behalf(NORTH, "bob.north").call("ResolveApproval", yes))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    named = pb.ResolveApprovalRequest(approver="somebody else")
    named.MergeFrom(yes)
    await world.by(NORTH, "zoe").call("ResolveApproval", named)
    assert (await bob.ended(mine)).status == pb.DELIBERATION_STATUS_COMPLETED
    bodies = [stored.event.body async for stored in world.log.read(NORTH, mine)]
    [decided] = [body.resolution for body in bodies if isinstance(body, ApprovalResolved) and body.resolution.caller]
    assert (decided.caller, decided.approver) == ("zoe.north", "somebody else")
    # Told once, however often it is tried.
    refusals = [(body.approval_id, body.caller) for body in bodies if isinstance(body, ApprovalRefused)]
    assert refusals == [(approval.approval_id, "bob.north")]


async def test_what_evidence_refused_is_delivered_by_somebody_else_and_the_log_says_who(world: World) -> None:
    bob = world.by(NORTH, "bob")
    strict = pb.TaskConstraints(require_verified=True)
    ended = {
        name: await bob.ended(await bob.submit(a_name(), constraints=asked))
        for name, asked in (("strict", strict), ("free", pb.TaskConstraints()))
    }
    assert ended["strict"].status == pb.DELIBERATION_STATUS_NO_WINNER

    def deliver(name: str) -> pb.DeliverCandidateRequest:
        # A name that is long enough to push out who they are, and looks like another.
        approver = "zoe.north" + "\u2800" * 300
        candidate = ended[name].results[0].candidate_id
        return pb.DeliverCandidateRequest(
            execution_id=ended[name].execution_id, candidate_id=candidate, approver=approver
        )

    assert (await refused(bob.call("DeliverCandidate", deliver("strict"))))[0] is grpc.StatusCode.PERMISSION_DENIED
    # The control: where evidence need not verify anything nobody is overruled.
    await bob.call("DeliverCandidate", deliver("free"))
    await world.by(NORTH, "zoe").call("DeliverCandidate", deliver("strict"))
    for name, who in (("free", "bob.north"), ("strict", "zoe.north")):
        (done,) = (await bob.ended(ended[name].execution_id)).hand_deliveries
        assert done.by.endswith(f"({who})")
        assert len(done.by) < 200


async def test_councils_and_where_their_agents_may_be(world: World) -> None:
    zoe, other = world.by(NORTH, "zoe"), world.by(SOUTH, "zoe")
    await zoe.call("CreateCouncil", pb.CreateCouncilRequest(role="DEVOPS", num_agents=2))
    assert not (await other.call("ListCouncils", pb.ListCouncilsRequest())).councils
    assert not (await other.call("DeleteCouncil", pb.DeleteCouncilRequest(role="DEVOPS"))).success
    await other.call("CreateCouncil", pb.CreateCouncilRequest(role="DEVOPS", num_agents=1))
    [mine] = (await zoe.call("ListCouncils", pb.ListCouncilsRequest())).councils
    assert mine.num_agents == 2
    allowed, elsewhere = "agents.example.org:50060", "more.example.org:50060"

    def agent(endpoint: str) -> pb.RegisterAgentRequest:
        return pb.RegisterAgentRequest(role="DATA", agent_id="theirs", endpoint=endpoint)

    assert (await other.call("RegisterAgent", agent(allowed))).success
    for caller, endpoint, code in (
        (other, elsewhere, grpc.StatusCode.INVALID_ARGUMENT),
        (other, "stranger.example.org:50060", grpc.StatusCode.INVALID_ARGUMENT),
        (zoe, allowed, grpc.StatusCode.INVALID_ARGUMENT),
        (world.by(SOUTH, "bob"), allowed, grpc.StatusCode.PERMISSION_DENIED),
    ):
        assert (await refused(caller.call("RegisterAgent", agent(endpoint))))[0] is code, endpoint


async def test_one_session_id_is_another_one_in_each_tenant_and_who_starts_a_plan_does_not_approve(
    world: World,
) -> None:
    bob, other, name = world.by(NORTH, "bob"), world.by(SOUTH, "zoe"), a_name()
    for caller in (bob, other):
        answers = await caller.stream("Send", chat.SendRequest(session_id=name, text="Who are you?"))
        assert answers[-1].answer.turn == 1
    await bob.call("ExecutePlan", planning.ExecutePlanRequest(goal=PLAN_GOAL, session_id=name))
    yes = planning.ApproveApproachRequest(session_id=name, decision="approved")
    assert (await refused(other.call("ApproveApproach", yes)))[0] is grpc.StatusCode.NOT_FOUND
    code, words = await refused(bob.call("ApproveApproach", yes))
    assert (code, "cannot approve" in words) == (grpc.StatusCode.PERMISSION_DENIED, True)
    await world.by(NORTH, "zoe").call("ApproveApproach", yes)


async def test_memories_and_contexts_are_the_tenants_own(world: World) -> None:
    ann, other, word = world.by(NORTH, "ann"), world.by(SOUTH, "ann"), uuid.uuid4().hex
    await ann.call("AddFact", context.AddFactRequest(namespace="fleet", text=f"The colour of {word} is green."))
    recall = context.RecallRequest(query=f"colour of {word}", namespaces=["fleet"])
    assert not (await other.call("Recall", recall)).recollections
    clear = context.ClearMemoryRequest(everywhere=True)
    assert (await world.by(SOUTH, "zoe").call("ClearMemory", clear)).removed == 0
    assert len((await ann.call("Recall", recall)).recollections) == 1
    for caller, title in ((ann, "Northern"), (other, "Southern")):
        story = context.Story(story_id=f"S-{word}", title=title)
        assert (await caller.call("CreateStory", context.CreateStoryRequest(story=story))).version == 1
        found = await caller.call("RehydrateSession", context.RehydrateSessionRequest(story_id=f"S-{word}"))
        assert [one.story.title for one in found.stories] == [title]
    record = context.WorkRecord(execution_id=await ann.submit(a_name()), story_id=f"S-{word}")
    told = context.RecordOperationsRequest(record=record)
    assert await refused(ann.call("RecordOperations", told)) == await refused(other.call("RecordOperations", told))


async def test_tasks_from_nats_go_to_the_tenant_of_their_subject(world: World) -> None:
    body = json.dumps(
        {"deliberate": {"taskId": a_name(), "taskDescription": "Add", "numAgents": 1, "repo": {"path": "/srv/app"}}}
    )
    task_id = json.loads(body)["deliberate"]["taskId"]
    async with await nats.connect(world.nats.address.url) as client:
        heard = await client.subscribe(f"agent.results._{NORTH}.{task_id}")
        lost = await client.subscribe(f"agent.dlq.{TASKS.consumer}")
        await client.flush()
        async with open_intake(world.log, world.executions, world.planning, known=(NORTH, SOUTH).__contains__):
            await client.jetstream().publish(f"agent.cmd.execute.{NORTH}.high", body.encode())
            await client.jetstream().publish("agent.cmd.execute.nowhere.high", body.encode())
            assert task_id.encode() in (await heard.next_msg(timeout=30)).data
            assert b"nowhere" in (letter := await lost.next_msg(timeout=30)).data or "nowhere" in str(letter.headers)
    state = await world.executions.latest(NORTH, task_id)
    assert (state.task.priority, state.task.tenant, state.task.caller) == (8, NORTH, "nats")
    with pytest.raises(NotFound):
        await world.executions.latest(SOUTH, task_id)


async def test_a_repository_is_cached_and_an_upload_kept_for_one_tenant_alone(world: World, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "app", {"hello.py": "print('hello')\n"})
    settings = Settings(home=tmp_path / "home", sandbox="none")
    workspaces = workspace_provider(settings, world.log)
    caches: list[int] = []
    for tenant in (NORTH, SOUTH):
        assert (await workspaces.pin(tenant, RepoRef(location=str(repository)))).tenant == tenant
        caches.append(len(list((tmp_path / "home").rglob("HEAD"))))
    assert caches[1] > caches[0]
    bundle = tmp_path / "bundle"
    await asyncio.to_thread(
        subprocess.run, ["git", "bundle", "create", str(bundle), "--all"], cwd=repository, check=True
    )
    data = bundle.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    upload = RepoRef(location=f"{UPLOAD}{digest}")

    async def store() -> None:
        await world.log.put(NORTH, UPLOADS, data, "application/x-git-bundle")

    await workspaces.take(NORTH, bundle, digest, upload, store)
    assert (await workspaces.pin(NORTH, upload)).commit
    with pytest.raises(FleetError) as foreign:
        await workspaces.pin(SOUTH, upload)
    with pytest.raises(FleetError) as unknown:
        await workspaces.pin(SOUTH, RepoRef(location=f"{UPLOAD}{'0' * 64}"))
    assert str(foreign.value).replace(digest[:12], "?") == str(unknown.value).replace("0" * 12, "?")


async def test_tokens_of_pages_do_not_cross_tenants(world: World) -> None:
    for number in range(2):
        for tenant in (NORTH, SOUTH):
            await world.by(tenant, "ann").submit(a_name())
            story = context.Story(story_id=f"P-{number}", title="A page")
            await world.by(tenant, "ann").call("CreateStory", context.CreateStoryRequest(story=story))
    for method, kind in (("ListExecutions", pb.ListExecutionsRequest), ("ListStories", context.ListStoriesRequest)):
        first = await world.by(NORTH, "eve").call(method, kind(page_size=1))
        following = kind(page_size=1, page_token=first.next_page_token)
        assert (await world.by(NORTH, "eve").call(method, following)).ByteSize()
        code, _ = await refused(world.by(SOUTH, "eve").call(method, following))
        assert code is grpc.StatusCode.INVALID_ARGUMENT, method


async def test_counts_are_the_tenants_own_and_the_fleet_is_for_admins(world: World) -> None:
    ann = world.by(NORTH, "ann")
    request = pb.GetStatusRequest(include_stats=True, include_fleet=True)
    before = await world.by(SOUTH, "eve").call("GetStatus", request)
    for _ in range(2):
        await ann.ended(await ann.submit(a_name()))
    after = await world.by(SOUTH, "eve").call("GetStatus", request)
    assert after.stats.total_deliberations == before.stats.total_deliberations
    assert (await ann.call("GetStatus", request)).stats.total_deliberations >= 2
    assert not after.replicas
    assert "secret-host" not in str(after)
    admins = await world.by(SOUTH, "zoe").call("GetStatus", request)
    assert admins.replicas


async def test_a_tenant_uses_the_harnesses_that_the_operator_gives_it(world: World) -> None:
    zoe, other = world.by(NORTH, "zoe"), world.by(SOUTH, "zoe")
    with pytest.raises(grpc.aio.AioRpcError) as seats:
        await other.submit(a_name(), seats=("fleet", "acp:large"), num_agents=2)
    assert seats.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "[tenants.south] harnesses" in str(seats.value.details())
    assert "seats[1]" in str(seats.value.trailing_metadata())
    for caller, seat in ((other, "acp:small"), (zoe, "acp:large")):
        assert await caller.submit(a_name(), seats=(seat,), num_agents=1)
