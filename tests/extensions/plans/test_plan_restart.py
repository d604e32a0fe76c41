"""kill -9 of the orchestrator's process while a plan is proposed, and while it is carried out: both go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from fleet.planning.v1 import planning_pb2 as pb
from fleet.planning.v1.planning_pb2_grpc import PlanningServiceStub
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from tests.confinement import until
from tests.fleet_client import serving

GOAL = "Work out what the cubes come to"
SLOW_SECONDS = 2.0
TURNS = (
    Turn(tool_calls=(("calculator", {"expression": "2 ** 3"}),)),
    Turn(
        tool_calls=(("propose_approach", {"approach": "Add the cubes.", "reasoning": "There are two."}),),
        delay_seconds=SLOW_SECONDS,
    ),
    Turn(tool_calls=(("python_executor", {"code": "result = 8 + 27"}),)),
    Turn(tool_calls=(("final_answer", {"result": "They come to 35."}),), delay_seconds=SLOW_SECONDS),
)


@asynccontextmanager
async def connected(card: dict[str, str]) -> AsyncGenerator[tuple[PlanningServiceStub, dict[str, Any]]]:
    async with grpc.aio.insecure_channel(card["address"]) as channel:
        call = {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 90}
        yield PlanningServiceStub(channel), call


def replies_known(body: dict[str, Any]) -> int:
    """How many replies of its own a request to the model holds."""
    return sum(message["role"] == "assistant" for message in body["messages"])


@pytest.mark.slow  # quick: extensions/plans/test_plan_resumption.py, cut behind every event
async def test_a_plan_goes_on_after_its_process_was_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    asked = pb.ExecutePlanRequest(goal=GOAL, session_id="survivor")

    async with ScriptedModelServer(
        Script(conversations=(Conversation(match=f"# Goal\n{GOAL}", turns=TURNS),)), keep=100
    ) as model:

        def replies() -> list[int]:
            return [replies_known(body) for body in model.bodies if GOAL in str(body["messages"])]

        async def killed(waiting: int, card: dict[str, str], process: Any, work: Any) -> None:
            """End the process while the model thinks about the reply behind so many, which the log has."""
            await until(lambda: waiting in replies() and model.in_flight > 0)
            await _logged(card, f'"step":{waiting},')
            process.kill()
            await process.wait()
            assert isinstance((await _settled(work)), grpc.aio.AioRpcError)
            (home / "fleet.json").unlink()

        async with serving(home, model.url) as (process, card), connected(card) as (plans, call):
            await killed(1, card, process, plans.ExecutePlan(asked, **call))

        async with serving(home, model.url) as (process, card), connected(card) as (plans, call):
            proposal = await plans.ExecutePlan(asked, **call)
            assert (proposal.status, proposal.approach, proposal.proposal) == (
                "awaiting_approval", "Add the cubes.", 1,
            )  # fmt: skip
            # The first reply was not asked for again, and its call not made again.
            assert replies().count(0) == 1
            await plans.ApproveApproach(pb.ApproveApproachRequest(session_id="survivor", decision="approved"), **call)
            await killed(3, card, process, plans.ContinuePlan(pb.ContinuePlanRequest(session_id="survivor"), **call))

        async with serving(home, model.url) as (process, card), connected(card) as (plans, call):

            async def session() -> pb.PlanSession:
                return (await plans.GetPlanSession(pb.GetPlanSessionRequest(session_id="survivor"), **call)).session

            # Nobody has asked for it.
            async with asyncio.timeout(60):
                while (shown := await session()).status != "completed":
                    assert shown.status == "executing"
            result = await plans.ContinuePlan(pb.ContinuePlanRequest(session_id="survivor"), **call)
        assert (result.status, result.results, result.error) == ("completed", "They come to 35.", "")
        assert [(made.step, made.tool, made.success) for made in result.tool_calls_made] == [
            (1, "calculator", True),
            (2, "propose_approach", True),
            (3, "python_executor", True),
            (4, "final_answer", True),
        ]
        assert (result.usage.model_calls, result.usage.tool_calls, result.iterations) == (4, 4, 4)
        # What was being thought about when the process was killed was asked for again, and nothing else.
        assert sorted(replies()) == [0, 1, 1, 2, 3, 3]


async def _logged(card: dict[str, str], text: str) -> None:
    """Wait until the log has a reply of the model with a text: what NATS has not taken yet dies with both."""
    async with grpc.aio.insecure_channel(card["address"]) as channel:
        call = {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 60}
        stub = OrchestratorServiceStub(channel)
        [goal] = (await stub.ListExecutions(orchestrator.ListExecutionsRequest(), **call)).executions
        events = stub.StreamExecution(orchestrator.StreamExecutionRequest(execution_id=goal.execution_id), **call)
        async for event in events:
            if event.type == "model_replied" and text in event.payload_json:
                return


async def _settled(work: Any) -> object:
    try:
        return await work
    except grpc.aio.AioRpcError as fault:
        return fault


@pytest.mark.slow  # quick: extensions/plans/test_planning_service.py, a replica whose lease is said to have ended
async def test_a_plan_goes_on_in_the_replica_that_is_left(tmp_path: Path) -> None:
    """One is killed while the model thinks about its proposal; who asked the other one is answered."""
    homes = [tmp_path / "one", tmp_path / "two"]
    asked = pb.ExecutePlanRequest(goal=GOAL, session_id="left")
    async with (
        ScriptedModelServer(
            Script(conversations=(Conversation(match=f"# Goal\n{GOAL}", turns=TURNS),)), keep=100
        ) as model,
        EmbeddedNats(tmp_path / "nats") as nats,
        AsyncExitStack() as stack,
    ):
        shared = {
            "FLEET_NATS_URL": nats.address.url, "FLEET_NATS_TOKEN": nats.address.token, "FLEET_LEASE_SECONDS": "2",
        }  # fmt: skip
        for home in homes:
            home.mkdir()
        (process, card), (_, other) = [
            await stack.enter_async_context(serving(home, model.url, **shared)) for home in homes
        ]
        first, call = await stack.enter_async_context(connected(card))
        second, elsewhere = await stack.enter_async_context(connected(other))
        lost = asyncio.ensure_future(first.ExecutePlan(asked, **call))
        await until(lambda: any(replies_known(body) == 1 for body in model.bodies) and model.in_flight > 0)
        waiting = asyncio.ensure_future(second.ExecutePlan(asked, **elsewhere))
        process.kill()
        assert isinstance(await _settled(lost), grpc.aio.AioRpcError)
        proposal = await waiting
        assert (proposal.status, proposal.approach, proposal.proposal) == ("awaiting_approval", "Add the cubes.", 1)
        await second.ApproveApproach(pb.ApproveApproachRequest(session_id="left", decision="approved"), **elsewhere)
        result = await second.ContinuePlan(pb.ContinuePlanRequest(session_id="left"), **elsewhere)
        assert (result.status, result.results, result.error) == ("completed", "They come to 35.", "")
