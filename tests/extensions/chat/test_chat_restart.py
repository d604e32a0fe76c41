"""kill -9 of the orchestrator's process while a chat is answered: the answer goes on by itself, from the last event."""

from __future__ import annotations

from collections.abc import AsyncGenerator
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
from tests.e2e.test_restart import serving
from tests.fleet_command import Shell

ASKED = "What do the first cubes come to?"
SCRIPT = Script(
    conversations=said(
        ASKED, called("python_executor", code="result = 1 + 8 + 27"), Turn(content="They come to 36.", delay_seconds=3)
    )
)


@asynccontextmanager
async def connected(card: dict[str, str]) -> AsyncGenerator[tuple[grpc.aio.Channel, dict[str, Any]]]:
    async with grpc.aio.insecure_channel(card["address"]) as channel:
        yield channel, {"metadata": (("authorization", f"Bearer {card['token']}"),), "timeout": 90}


@pytest.mark.slow  # quick: extensions/chat/test_chat_resumption.py, cut behind every event
async def test_a_message_is_answered_after_its_process_was_killed(warm: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    request = pb.SendRequest(session_id="survivor", text=ASKED, message_id="m1")
    listed = orchestrator.ListExecutionsRequest(task_id="survivor")
    async with ScriptedModelServer(SCRIPT, keep=100) as model:

        def asked() -> int:
            return sum(ASKED in str(body["messages"]) for body in model.bodies)

        async with serving(home, model.url) as (process, card), connected(card) as (channel, call):
            told = ConversationServiceStub(channel).Send(request, **call)
            kinds: list[str] = []
            with pytest.raises(grpc.aio.AioRpcError):
                async for update in told:
                    kinds.append(update.WhichOneof("update"))
                    if kinds[-1] != "tool_ended":
                        continue
                    # What is said last may not be in the log yet when both die.
                    stub = OrchestratorServiceStub(channel)
                    (message,) = (await stub.ListExecutions(listed, **call)).executions
                    watched = orchestrator.StreamExecutionRequest(execution_id=message.execution_id)
                    async for event in stub.StreamExecution(watched, **call):
                        if event.type == "tool_finished":
                            break
                    process.kill()
                    await process.wait()
            assert kinds[:2] == ["tool_called", "tool_ended"]
            (home / "fleet.json").unlink()
        before = asked()

        async with serving(home, model.url) as (_, card), connected(card) as (channel, call):
            # Nobody asks for the answer.
            stub = OrchestratorServiceStub(channel)
            watched = orchestrator.StreamExecutionRequest(execution_id=message.execution_id)
            events = [event async for event in stub.StreamExecution(watched, **call)]
            assert events[-1].type == "execution_finished"
            *_, last = [update async for update in ConversationServiceStub(channel).Send(request, **call)]
            assert (last.answer.text, last.answer.repeated_message) == ("They come to 36.", True)
            # The call that was answered is not made again, and its reply not asked for again.
            assert [event.type for event in events].count("tool_finished") == 1
            assert asked() - before == 1
            shell = Shell(home=home, warm=warm, more={"FLEET_TOKEN": card["token"]})
            verified = await shell.fleet("audit", "verify", "survivor", "--server", card["address"])
            assert verified.code == 0, verified.err
