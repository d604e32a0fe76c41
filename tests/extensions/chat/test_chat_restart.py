"""kill -9 of the orchestrator's process while a chat is answered: the answer goes on by itself, from the last event."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from tests.chat_script import called, said
from tests.e2e.test_approvals import connected
from tests.e2e.test_restart import serving

ASKED = "What do the first cubes come to?"
TURNS = called("python_executor", code="result = 1 + 8 + 27"), Turn(content="They come to 36.", delay_seconds=3)
REQUEST = pb.SendRequest(session_id="survivor", text=ASKED, message_id="m1")


@pytest.mark.slow  # quick: extensions/chat/test_chat_resumption.py, cut behind every event
async def test_a_message_is_answered_after_its_process_was_killed(tmp_path: Path) -> None:
    async with ScriptedModelServer(Script(conversations=said(ASKED, *TURNS)), keep=100) as model:
        async with serving(tmp_path, model.url) as (process, card), connected(card) as client:
            told = ConversationServiceStub(client.channel).Send(REQUEST, **client.call)
            assert [(await anext(aiter(told))).WhichOneof("update") for _ in range(2)] == ["tool_called", "tool_ended"]
            listed = orchestrator.ListExecutionsRequest(task_id="survivor")
            (message,) = (await client.stub.ListExecutions(listed, **client.call)).executions
            request = orchestrator.StreamExecutionRequest(execution_id=message.execution_id)
            # What NATS has not taken yet dies with both.
            async for event in client.stub.StreamExecution(request, **client.call):
                if event.type == "tool_finished":
                    break
            process.kill()
            await process.wait()
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(told))
            (tmp_path / "fleet.json").unlink()
        before = len(model.bodies)
        async with serving(tmp_path, model.url) as (_, card), connected(card) as client:
            # Nobody asks for the answer.
            types = [event.type for event in await client.events(message.execution_id)]
            assert (types[-1], types.count("tool_finished")) == ("execution_finished", 1)
            *_, last = [update async for update in ConversationServiceStub(client.channel).Send(REQUEST, **client.call)]
            assert (last.answer.text, last.answer.repeated_message) == ("They come to 36.", True)
        asked = [body for body in model.bodies[before:] if ASKED in str(body["messages"])]
        assert len(asked) == 1
