"""Chats over a real gRPC server: the RPCs, and `fleet chat`. Agents and model are scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from rich.console import Console

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.extensions.chat.commands import ChatOrder, converse
from swe_ai_fleet.extensions.chat.opening import open_chats
from swe_ai_fleet.extensions.chat.service import ConversationServicer
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.runtime.execution_tools import ExecutionsView
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.chat_script import answered, called, said
from tests.scripted_fleet import ScriptedFleet, ScriptedModel
from tests.scripted_workspaces import ScriptedWorkspaces

TOKEN = "a-token-for-tests"
METADATA = (("authorization", f"Bearer {TOKEN}"),)
SCRIPT = Script(
    conversations=(
        *said("What runs", called("list_executions"), answered("Here is **everything**.")),
        *said("second", called("show_execution", execution="task-1"), answered("It won.")),
        *said("slow", Turn(content="Late.", delay_seconds=30)),
        *said("Mend", called("start_task", description="Fix the parser", repository="/srv/app"), answered("Shall I?")),
    ),
    default=Conversation(turns=(answered("Hello."),)),
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running service and what stands behind it."""

    address: str
    channel: grpc.aio.Channel
    executions: Executions
    settings: Settings

    @property
    def stub(self) -> ConversationServiceStub:
        return ConversationServiceStub(self.channel)

    async def call(self, request: Message):
        method = type(request).__name__.removesuffix("Request")
        return await getattr(self.stub, method)(request, metadata=METADATA)

    async def send(self, session_id: str, text: str, **fields: object) -> list[pb.SendResponse]:
        request = pb.SendRequest(session_id=session_id, text=text, **fields)  # type: ignore[arg-type]
        return [update async for update in self.stub.Send(request, metadata=METADATA)]

    async def answer(self, session_id: str, text: str, **fields: object) -> pb.Answer:
        return (await self.send(session_id, text, **fields))[-1].answer

    async def run(self, *task_ids: str) -> None:
        """Carry tasks out, one after the other."""
        for task_id in task_ids:
            common = {"kind": TaskKind.ORCHESTRATE, "repo": RepoRef(location="/srv/app"), "num_agents": 2}
            accepted = await self.executions.submit(Task(task_id=task_id, description=f"Do {task_id}", **common))
            await self.executions.wait(DEFAULT_TENANT, accepted.execution_id)


@asynccontextmanager
async def served(home: Path) -> AsyncIterator[Service]:
    log = MemoryLog()
    deps = ExecutionDeps(
        log=log,
        blobs=log,
        results=log,
        fleet=ScriptedFleet(storage=log),
        workspaces=ScriptedWorkspaces(),
        model=ScriptedModel(),
        owner="test",
        pauses=(0.0,),
    )
    async with ScriptedModelServer(SCRIPT) as model, Executions(deps) as executions:
        settings = Settings(home=home, model_url=model.url, model="scripted")
        view = ExecutionsView(executions, tenant=DEFAULT_TENANT)
        async with open_chats(settings, store=MemoryKeyValue(), fleet=lambda _: view, starter=lambda _: view) as chats:
            service = service_of(ConversationServicer(chats.of))
            serving = serve_grpc([service], "127.0.0.1:0", TOKEN, _ready, grace_seconds=0.1)
            async with serving as address, grpc.aio.insecure_channel(address) as channel:
                yield Service(address=address, channel=channel, executions=executions, settings=settings)


async def _ready() -> bool:
    return True


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with asyncio.timeout(30), served(tmp_path) as running:
        yield running


class TestRpcs:
    async def test_progress_comes_first_and_the_answer_last(self, service: Service) -> None:
        await service.run("task-1", "task-2")
        updates = await service.send("s", "What runs here?", channel=pb.CHANNEL_TELEGRAM)
        kinds = [update.WhichOneof("update") for update in updates]
        assert kinds[:2] == ["tool_called", "tool_ended"]
        assert set(kinds[2:-1]) == {"text_delta"}
        answer = updates[-1].answer
        assert (answer.success, answer.turn, list(answer.tools)) == (True, 1, ["list_executions"])
        assert answer.pages[0].startswith("Here is *everything*\\.")
        assert [row.cells[2] for row in answer.tables[0].rows] == ["Do task-2", "Do task-1"]
        assert answer.model_calls == 2

    async def test_a_turn_keeps_its_tables_and_references(self, service: Service) -> None:
        await service.run("task-1", "task-2")
        first = await service.answer("s", "What runs here?")
        second = await service.answer("s", "Show me the second one")
        turns = (await service.call(pb.GetConversationRequest(session_id="s"))).conversation.turns
        assert [list(turn.tables) for turn in turns] == [list(first.tables), list(second.tables)]
        assert all(turn.tables for turn in turns)
        assert [list(turn.references) for turn in turns] == [[], list(second.references)]
        assert turns[1].references[0].things[0].kind == "execution"

    async def test_a_yes_starts_the_task_on_the_fleet(self, service: Service) -> None:
        proposed = await service.answer("s", "Mend the parser please")
        assert proposed.task_proposed
        assert list(service.executions.projection.select(DEFAULT_TENANT)) == []
        started = await service.answer("s", "yes")
        state = await service.executions.wait(DEFAULT_TENANT, started.execution_id)
        assert (state.task.description, state.task.repo.location, state.task.caller) == (
            "Fix the parser", "/srv/app", "chat",
        )  # fmt: skip

    async def test_a_caller_that_goes_away_ends_the_work_and_frees_the_session(self, service: Service) -> None:
        async def answer() -> pb.Answer | None:
            try:
                return await service.answer("s", "Hi")
            except grpc.aio.AioRpcError as fault:
                assert fault.code() is grpc.StatusCode.FAILED_PRECONDITION
                return None

        slow = asyncio.ensure_future(service.send("s", "a slow one"))
        while not (await service.call(pb.ListConversationsRequest())).conversations:
            pass
        assert await answer() is None
        slow.cancel()
        while (answered_ := await answer()) is None:
            pass
        assert (answered_.turn, answered_.text) == (1, "Hello.")

    async def test_sessions_are_shown_listed_and_ended(self, service: Service) -> None:
        for name in ("a", "b", "c"):
            await service.answer(name, f"Hi from {name}", memory_namespaces=["fleet"] if name == "a" else [])
        shown = (await service.call(pb.GetConversationRequest(session_id="a"))).conversation
        (turn,) = shown.turns
        assert (turn.number, turn.text, turn.answer, turn.success) == (1, "Hi from a", "Hello.", True)
        assert list(shown.memory_namespaces) == ["fleet"]
        first = await service.call(pb.ListConversationsRequest(page_size=2))
        last = await service.call(pb.ListConversationsRequest(page_size=2, page_token=first.next_page_token))
        assert [one.session_id for one in (*first.conversations, *last.conversations)] == ["c", "b", "a"]
        assert not last.next_page_token
        assert (await service.call(pb.EndConversationRequest(session_id="a"))).existed
        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await service.call(pb.GetConversationRequest(session_id="a"))
        assert gone.value.code() is grpc.StatusCode.NOT_FOUND


def screen(*, as_json: bool = False) -> tuple[Screen, StringIO, StringIO]:
    out, err = StringIO(), StringIO()
    return Screen(json=as_json, out=Console(file=out, width=160), err=Console(file=err, width=160)), out, err


class TestCommand:
    async def say(
        self, service: Service, *lines: str, as_json: bool = False, **fields: object
    ) -> tuple[Exit, str, str]:
        """What `fleet chat` ends with and says, to one message or to the lines of a person who then leaves."""
        shown, out, err = screen(as_json=as_json)
        order = ChatOrder(**{"session_id": "cli", "channel": "plain", "namespaces": ()} | fields)  # type: ignore[arg-type]
        waiting = list(lines)

        def read() -> str:
            if not waiting:
                raise EOFError
            return waiting.pop(0)

        async with connect(service.address, TOKEN) as client:
            code = await converse(shown, client.calls, order, read)
        return code, out.getvalue(), err.getvalue()

    async def test_one_message_for_a_script(self, service: Service) -> None:
        await service.run("task-1")
        code, out, _ = await self.say(service, as_json=True, once="What runs here?")
        document = json.loads(out)
        assert (code, document["turn"], document["tools"]) == (Exit.ACCEPTED, 1, ["list_executions"])
        assert document["text"] == "Here is **everything**."
        assert document["tables"][0]["columns"] == ["#", "status", "description", "execution_id", "started_at"]
        _, out, _ = await self.say(service, as_json=True, list_all=True)
        assert [one["session_id"] for one in json.loads(out)["conversations"]] == ["cli"]
        await self.say(service, end=True)
        with pytest.raises(CommandFault):
            await self.say(service, end=True)

    async def test_a_conversation(self, service: Service) -> None:
        await service.run("task-1", "task-2")
        told = ("What runs here?\n", "\n", "Show me the second one\n", "/list\n", "/new\n", "Hello\n", "/quit\n")
        code, out, err = await self.say(service, *told)
        assert (code, "list_executions ..." in err) == (Exit.ACCEPTED, True)
        for words in ("Here is everything.", "Do task-1", "It won."):
            assert words in out
        assert ["cli", "2", "Show", "me", "the", "second", "one"] in [line.split() for line in out.splitlines()]
