"""kill -9 of the orchestrator's process while a chat is answered: the answer goes on by itself, from the last event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from tests.chat_script import called, said
from tests.fleet_client import serving

ASKED = "What do the first cubes come to?"
TURNS = called("python_executor", code="result = 1 + 8 + 27"), Turn(content="They come to 36.", delay_seconds=3)
REQUEST = pb.SendRequest(session_id="survivor", text=ASKED, message_id="m1")


@asynccontextmanager
async def connected(card: dict[str, str]) -> AsyncIterator[tuple[grpc.aio.Channel, dict[str, Any]]]:
    async with grpc.aio.insecure_channel(card["address"]) as channel:
        yield channel, {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 90}


@pytest.mark.slow  # quick: extensions/chat/test_chat_resumption.py, cut behind every event
async def test_a_message_is_answered_after_its_process_was_killed(tmp_path: Path) -> None:
    async with ScriptedModelServer(Script(conversations=said(ASKED, *TURNS)), keep=100) as model:
        async with serving(tmp_path, model.url) as (process, card), connected(card) as (channel, call):
            fleet, told = OrchestratorServiceStub(channel), ConversationServiceStub(channel).Send(REQUEST, **call)
            assert [(await anext(aiter(told))).WhichOneof("update") for _ in range(2)] == ["tool_called", "tool_ended"]
            listed = orchestrator.ListExecutionsRequest(task_id="survivor")
            (message,) = (await fleet.ListExecutions(listed, **call)).executions
            request = orchestrator.StreamExecutionRequest(execution_id=message.execution_id)
            # What NATS has not taken yet dies with both.
            async for event in fleet.StreamExecution(request, **call):
                if event.type == "tool_finished":
                    break
            process.kill()
            await process.wait()
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(told))
            (tmp_path / "fleet.json").unlink()
        before = len(model.bodies)
        async with serving(tmp_path, model.url) as (_, card), connected(card) as (channel, call):
            # Nobody asks for the answer.
            events = OrchestratorServiceStub(channel).StreamExecution(request, **call)
            types = [event.type async for event in events]
            assert (types[-1], types.count("tool_finished")) == ("execution_finished", 1)
            *_, last = [update async for update in ConversationServiceStub(channel).Send(REQUEST, **call)]
            assert (last.answer.text, last.answer.repeated_message) == ("They come to 36.", True)
        asked = [body for body in model.bodies[before:] if ASKED in str(body["messages"])]
        assert len(asked) == 1
