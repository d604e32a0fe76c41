"""Plan sessions over real gRPC, NATS and the context service; only agents and model are scripted."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest

from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import Memory
from swe_ai_fleet.domain.task import DEFAULT_TENANT, TaskKind
from swe_ai_fleet.extensions.plans.opening import open_tenant_plans
from swe_ai_fleet.extensions.plans.service import PlanningServicer, plan_buckets
from swe_ai_fleet.extensions.plans.session import PlanSession, SessionStatus
from swe_ai_fleet.extensions.plans.store import KeyValueSessions
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.ports import KeyValue, Replicas
from swe_ai_fleet.runtime.channels import named_field
from swe_ai_fleet.runtime.execution_tools import ExecutionsView
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Failure, Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools.secrets import Secrets
from tests.memory_parts import context_service
from tests.scripted_fleet import execution_deps
from tests.search_server import SearchServer
from tests.sub_agent_world import RESEARCHER, call

TOKEN = "a-token-for-tests"
METADATA = (("authorization", f"Bearer {TOKEN}"),)
PROPOSE = call("propose_approach", approach="Start a task that rounds.", reasoning="It is small.")
AGAIN = call("propose_approach", approach="Start one with two agents.", reasoning="As you asked.")
START = call("start_task", description="Round totals", repository="/srv/app", agents=2)
DONE = call("final_answer", result="The task runs.")
HIDDEN = "hunter2hunter2"


def planned(goal: str, *turns: Turn | Failure) -> Conversation:
    return Conversation(match=f"# Goal\n{goal}", turns=turns)


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What all tests share: NATS, and a context service on it."""

    log: JetStream
    context: Any
    client: Any
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One running service."""

    stub: PlanningServiceStub
    executions: Executions
    model: ScriptedModelServer
    since: str
    buckets: tuple[KeyValue, KeyValue]

    async def execute(self, goal: str, session_id: str, *entities: str) -> pb.ExecutePlanResponse:
        request = pb.ExecutePlanRequest(goal=goal, session_id=session_id, selected_entities=entities)
        return await self.stub.ExecutePlan(request, metadata=METADATA)

    async def decide(self, session_id: str, decision: str, adjustment: str = "") -> pb.ApproveApproachResponse:
        request = pb.ApproveApproachRequest(session_id=session_id, decision=decision, adjustment=adjustment)
        return await self.stub.ApproveApproach(request, metadata=METADATA)

    async def go_on(self, session_id: str) -> pb.ContinuePlanResponse:
        return await self.stub.ContinuePlan(pb.ContinuePlanRequest(session_id=session_id), metadata=METADATA)

    async def show(self, session_id: str) -> pb.PlanSession:
        request = pb.GetPlanSessionRequest(session_id=session_id)
        return (await self.stub.GetPlanSession(request, metadata=METADATA)).session

    @property
    def asked(self) -> list[dict[str, object]]:
        """The requests of sessions, without those that find out what a model can do."""
        return [body for body in self.model.bodies if body["messages"][0]["role"] == "system"]

    @property
    def started(self) -> list[str]:
        """What tasks were started here."""
        return [state.task.description for state in self.tasks]

    @property
    def tasks(self) -> list[ExecutionState]:
        """The tasks that were started by plans of this test."""
        states = self.executions.projection.select(DEFAULT_TENANT, created_after=self.since)
        return [state for state in states if state.task.kind is TaskKind.ORCHESTRATE]


@pytest.fixture(scope="module")
async def knowledge(search_server: SearchServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Knowledge]:
    async with (
        # What other tests left unfinished would be gone on with.
        EmbeddedNats(tmp_path_factory.mktemp("nats")) as server,
        JetStream.connect(server.address.url, credentials=NatsCredentials(token=server.address.token)) as log,
    ):
        address = server.address
        await log.ensure_streams()
        settings = Settings(
            home=tmp_path_factory.mktemp("plans"),
            model="scripted",
            nats_url=address.url,
            nats_token=address.token,
            context_listen="127.0.0.1:0",
            embeddings="none",
            search_url=search_server.url,
            model_api_key=HIDDEN,
        )
        async with context_service(settings, log, token=TOKEN) as (context, client):
            if client is None:
                pytest.skip("the extension knowledge is not there")
            await client.remember(Memory(namespace="fleet", text="Invoice totals are rounded half up."))
            yield Knowledge(log=log, context=context, client=client, settings=settings)


@dataclass
class Crew:
    """The `Replicas` of a test: two that live."""

    me: str

    def alive(self) -> set[str]:
        return {"first", "second"}


@asynccontextmanager
async def replica(
    knowledge: Knowledge,
    model: ScriptedModelServer,
    *,
    tenant: str = DEFAULT_TENANT,
    replicas: Replicas | None = None,
) -> AsyncIterator[Replica]:
    since, buckets = datetime.now(UTC).isoformat(), await plan_buckets(knowledge.log)
    settings = knowledge.settings.model_copy(update={"model_url": model.url})
    known = knowledge.client if tenant == DEFAULT_TENANT else None
    owner = replicas.me if replicas is not None else f"replica-{uuid.uuid4().hex}"
    deps = execution_deps(knowledge.log, owner=owner)
    async with Executions(deps, replicas=replicas) as executions:
        view = ExecutionsView(executions, tenant=DEFAULT_TENANT, caller="plan")
        async with open_tenant_plans(
            settings,
            executions=executions,
            buckets=buckets,
            context=known,
            fleet=lambda _: view,
            starter=lambda _: view,
            repositories=workspace_provider(settings),
        ) as plans:
            servicer = PlanningServicer(
                plans=lambda _: plans(tenant), mask=Secrets([HIDDEN]), admit=executions.check_tokens
            )
            service = service_of(servicer)
            serving = serve_grpc([service], "127.0.0.1:0", TOKEN, _ready, grace_seconds=0.1)
            async with serving as address, grpc.aio.insecure_channel(address) as channel:
                yield Replica(
                    stub=PlanningServiceStub(channel),
                    executions=executions,
                    model=model,
                    since=since,
                    buckets=buckets,
                )


@asynccontextmanager
async def served(
    knowledge: Knowledge, *conversations: Conversation, tenant: str = DEFAULT_TENANT, replicas: Replicas | None = None
) -> AsyncIterator[Replica]:
    async with (
        asyncio.timeout(40),
        ScriptedModelServer(Script(conversations=conversations), keep=100) as model,
        replica(knowledge, model, tenant=tenant, replicas=replicas) as one,
    ):
        yield one


async def _ready() -> bool:
    return True


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex}"


class TestTheWholeWay:
    async def test_proposed_adjusted_approved_and_carried_out(self, knowledge: Knowledge, name: str) -> None:
        found = json.dumps({"summary": "It pays.", "answers": [{"gap": "Stripe", "answer": "A service."}]})
        research = Conversation(match=RESEARCHER, turns=(call("final_answer", result=found),))
        goal = planned("Round invoice totals", PROPOSE, AGAIN, START, DONE)
        async with served(knowledge, research, goal) as one:
            first = await one.execute("Round invoice totals", name, "Invoice", "Stripe")
            assert (first.status, first.approach) == ("awaiting_approval", "Start a task that rounds.")
            memory = first.memory_results
            assert (memory.coverage, list(memory.gaps), memory.research.summary) == (50.0, ["Stripe"], "It pays.")
            assert any(source.startswith("memory:") for source in memory.sources)

            second = await one.decide(name, "adjusted", "with two agents")
            assert (second.status, second.approach, second.goal) == (
                "awaiting_approval", "Start one with two agents.", "Round invoice totals",
            )  # fmt: skip
            before, after = (body["messages"] for body in one.asked if RESEARCHER not in str(body))
            # One conversation: what was said before stands in front of what came after.
            assert after[: len(before)] == before
            assert "What they ask for: with two agents" in after[-1]["content"]
            # A decision about the proposal that does not wait any more is none.
            request = pb.ApproveApproachRequest(session_id=name, decision="approved", proposal=first.proposal)
            with pytest.raises(grpc.aio.AioRpcError, match="proposal 2 is pending") as stale:
                await one.stub.ApproveApproach(request, metadata=METADATA)
            assert stale.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            request.proposal = second.proposal
            approved = await one.stub.ApproveApproach(request, metadata=METADATA)
            assert (approved.status, bool(approved.message)) == ("approved", True)
            assert one.started == []
            result = await one.go_on(name)
            assert one.started == ["Round totals"]
            again = await one.go_on(name)
            assert (again, one.started) == (result, ["Round totals"])
            (state,) = one.tasks
            session = await one.show(name)
        assert (result.status, result.final_plan, result.results, result.iterations) == (
            "completed", "Start one with two agents.", "The task runs.", 4,
        )  # fmt: skip
        assert [(made.tool, made.success) for made in result.tool_calls_made][-2:] == [
            ("start_task", True), ("final_answer", True),
        ]  # fmt: skip
        assert state.execution_id in result.tool_calls_made[-2].result
        assert (state.task.num_agents, state.task.caller) == (2, "plan")
        assert (session.status, session.proposals, session.working, session.results) == (
            "completed", 2, False, "The task runs.",
        )  # fmt: skip
        assert (await knowledge.context.outcomes.rate(DEFAULT_TENANT, name, 5)).rating == 5
        outcome = await knowledge.context.outcomes.get(DEFAULT_TENANT, name)
        assert (outcome.approach, outcome.success, outcome.approach_ratio, outcome.rating) == ("plan", True, 0.5, 5)
        # Memory was searched, a gap researched, a task started.
        assert outcome.memory_share == outcome.research_share == outcome.tool_share == pytest.approx(1 / 3)


class TestLimits:
    async def test_a_request_has_the_limits_that_its_caller_gives(self, knowledge: Knowledge, name: str) -> None:
        look = Turn(tool_calls=(("calculator", {"expression": "1 + 1"}),))
        limits = pb.PlanLimits(max_iterations=1)
        turns = (look, Turn(content="I would begin."), *[look] * 6, PROPOSE, look, Turn(content="That was all."))
        async with served(knowledge, planned("Bounded", *turns)) as one:
            request = asked("Bounded", name)
            request.limits.CopyFrom(limits)
            first = await one.stub.ExecutePlan(request, metadata=METADATA)
            assert first.approach == "I would begin."
            adjusted = pb.ApproveApproachRequest(session_id=name, decision="adjusted", adjustment="look longer")
            adjusted.limits.max_iterations = 9
            assert (await one.stub.ApproveApproach(adjusted, metadata=METADATA)).approach == "Start a task that rounds."
            await one.decide(name, "approved")
            going_on = pb.ContinuePlanRequest(session_id=name, limits=pb.PlanLimits(max_tokens=10))
            result = await one.stub.ContinuePlan(going_on, metadata=METADATA)
        assert (result.status, result.stop_reason, result.results) == (
            "limit_reached", "max_tokens", "That was all.",
        )  # fmt: skip
        # A reply is counted once it is there: how far it went beyond the limit is said.
        spent = re.search(r"(\d+) tokens were used, 10 allowed", result.error)
        assert spent is not None and int(spent[1]) > 10, result.error

    async def test_a_plan_is_carried_out_with_the_limits_of_a_task(self, knowledge: Knowledge, name: str) -> None:
        """A search for an approach has five replies, the run of one a hundred."""
        look = Turn(tool_calls=(("calculator", {"expression": "1 + 1"}),), times=8)
        async with served(knowledge, planned("Long", PROPOSE, look, DONE)) as one:
            await one.execute("Long", name)
            await one.decide(name, "approved")
            result = await one.go_on(name)
        assert (result.status, result.results, result.iterations) == ("completed", "The task runs.", 10)


class TestWhatGoesWrong:
    async def test_what_cannot_be_asked_names_its_field(self, knowledge: Knowledge, name: str) -> None:
        async with served(knowledge, planned("Known", PROPOSE)) as one:
            await one.execute("Known", name)
            # Whoever lists sessions would read a password.
            address = pb.ExecutePlanRequest(goal="x", repository="https://ada:hunter2@example.org/app.git")
            bad = pb.ExecutePlanRequest(goal="x", limits=pb.PlanLimits(max_tokens=-1))
            for asked, code, field in (
                (one.execute("x", name, "e" * 201), grpc.StatusCode.INVALID_ARGUMENT, "selected_entities"),
                (one.execute("x", name, *map(str, range(31))), grpc.StatusCode.INVALID_ARGUMENT, "selected_entities"),
                (one.stub.ExecutePlan(address, metadata=METADATA), grpc.StatusCode.INVALID_ARGUMENT, "repository"),
                (one.stub.ExecutePlan(bad, metadata=METADATA), grpc.StatusCode.INVALID_ARGUMENT, "limits.max_tokens"),
                (one.decide(name, "adjusted"), grpc.StatusCode.INVALID_ARGUMENT, "adjustment"),
                (one.decide("nobody", "approved"), grpc.StatusCode.NOT_FOUND, "session_id"),
                (one.go_on(name), grpc.StatusCode.FAILED_PRECONDITION, ""),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as fault:
                    await asked
                assert (fault.value.code(), named_field(fault.value)) == (code, field), fault.value.details()
                assert "hunter2" not in str(fault.value.details())
            with pytest.raises(grpc.aio.AioRpcError) as stranger:
                await one.stub.ContinuePlan(pb.ContinuePlanRequest(session_id=name))
            # An absent id begins a session.
            assert (await one.show((await one.execute("Known", "")).session_id)).goal == "Known"
        assert stranger.value.code() is grpc.StatusCode.UNAUTHENTICATED

    async def test_two_replicas_carry_a_plan_out_once(self, knowledge: Knowledge, name: str) -> None:
        slow = Turn(tool_calls=START.tool_calls, delay_seconds=0.3)
        goal = planned("Race", PROPOSE, slow, DONE)
        first, second = Crew("first"), Crew("second")
        async with (
            served(knowledge, goal, replicas=first) as one,
            replica(knowledge, one.model, replicas=second) as other,
        ):
            await one.execute("Race", name)
            await other.decide(name, "approved")
            results = await asyncio.gather(*(each.go_on(name) for each in (one, other) * 2))
            assert one.started == ["Round totals"]
            # All wait for the same answer, whichever of both carries it out.
            assert all(result == results[0] for result in results)
            assert results[0] == await other.go_on(name)
            assert (results[0].status, len(one.asked)) == ("completed", 3)

    async def test_what_an_earlier_version_left_is_told_of_or_goes_on(self, knowledge: Knowledge, name: str) -> None:
        """Documents alone, of which the log knows nothing: one at work, one that waits, one that is approved."""
        async with served(knowledge, planned("Left", PROPOSE, START, DONE)) as one:
            store = KeyValueSessions(*one.buckets, tenant=DEFAULT_TENANT)
            left = PlanSession(session_id=name, goal="Died", approach="Go", revision=1, status=SessionStatus.EXECUTING)
            await store.put(left)
            result = await one.go_on(name)
            assert (result.status, one.started, one.asked) == ("error", [], [])
            session = await one.show(name)
            assert "its process ended" in result.error
            assert (session.status, session.error, session.working) == ("error", result.error, False)
            await one.execute("Left", f"{name}-0")
            waiting = await store.get(f"{name}-0")
            assert waiting is not None and waiting.status is SessionStatus.AWAITING_APPROVAL
            for status in (SessionStatus.AWAITING_APPROVAL, SessionStatus.APPROVED):
                copy = replace(waiting, session_id=f"{name}-{status}", status=status, revision=1)
                await store.put(copy)
                assert (await one.show(copy.session_id)).status == status
                assert (await one.decide(copy.session_id, "approved")).status == "approved"
                result = await one.go_on(copy.session_id)
                assert (result.status, result.results, result.final_plan) == (
                    "completed", "The task runs.", "Start a task that rounds.",
                )  # fmt: skip

    async def test_hostile_text_stays_text(self, knowledge: Knowledge, name: str) -> None:
        text = "<script>alert(1)</script>\ud800\x1b[2J\u202e" + "x" * 50_000
        propose = call("propose_approach", approach=text, reasoning=f"{HIDDEN} \udfff")
        odd = Turn(tool_calls=(("list_executions", '{"status": "\ud800'), ("\ud800", {"a": "\udfff"})))
        async with served(knowledge, planned("Hostile", odd, propose, DONE)) as one:
            proposal = await one.execute("Hostile \u202e", name, "\u202egnp.exe", "</data>")
            await one.decide(name, "approved")
            result = await one.go_on(name)
            session = await one.show(name)
        assert proposal.approach.startswith("<script>alert(1)</script>\ufffd")
        assert len(proposal.approach) <= 40_000
        assert HIDDEN not in str(session)
        assert (result.status, result.final_plan) == ("completed", proposal.approach)


def asked(goal: str, session_id: str, *entities: str) -> pb.ExecutePlanRequest:
    return pb.ExecutePlanRequest(goal=goal, session_id=session_id, selected_entities=entities)


class TestCommand:
    async def test_the_reason_of_a_rejection_stands(self, knowledge: Knowledge, name: str) -> None:
        """In the session, in its outcome, and where the same is said again."""
        why = f"not before the audit of {HIDDEN}"
        async with served(knowledge, planned("Refused", PROPOSE)) as one:
            await one.execute("Refused", name)
            told = [await one.decide(name, "rejected", why) for _ in range(2)]
            session = await one.show(name)
        reason = "not before the audit of [masked]"
        assert told[0] == told[1]
        assert (told[0].status, session.status, session.error, session.stop_reason) == (
            "rejected", "rejected", "", "rejected",
        )  # fmt: skip
        outcome = await knowledge.context.outcomes.get(DEFAULT_TENANT, name)
        assert (outcome.success, outcome.status, outcome.approach_ratio) == (False, "rejected", 0.0)
        for text in (told[0].message, session.rejection, outcome.reason):
            assert reason in text

    async def test_a_goal_for_which_nothing_was_proposed_is_an_outcome(self, knowledge: Knowledge, name: str) -> None:
        async with served(knowledge, planned("Mute", Turn(content="", times=9))) as one:
            failed = await one.execute("Mute", name)
            outcome = await knowledge.context.outcomes.get(DEFAULT_TENANT, name)
            assert (failed.status, outcome.status, outcome.success) == ("error", "failed", False)
            assert (outcome.reason, outcome.memory_share) == (failed.error, 1.0)
            # It teaches: tokens were spent on it.
            assert outcome.usage.total_tokens > 0
