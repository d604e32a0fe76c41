"""Chats over a real gRPC server: the RPCs, and `fleet chat`. Agents and model are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as fleet
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.grpc_server import serve_grpc, service_of
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.execution_context import ExecutionDeps
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from swe_ai_fleet.watching.events import audit_document
from tests.chat_script import answered, called, said
from tests.fleet_command import Ran, Shell, ended
from tests.orchestrator_service import servicer_of
from tests.scripted_fleet import ScriptedFleet, ScriptedModel
from tests.scripted_workspaces import ScriptedWorkspaces

TOKEN = "a-token-for-tests"
METADATA = (("authorization", f"Bearer {TOKEN}"),)
SCRIPT = Script(
    conversations=(
        *said("What runs", called("list_executions"), answered("Here is **everything**.")),
        *said("second", called("show_execution", execution="task-1"), answered("It won.")),
        *said("long one", answered("\n".join(f"{n}. **line** {n}!" for n in range(800)))),
        *said("slow", Turn(content="Late.", delay_seconds=30)),
        *said("Mend", called("start_task", description="Fix the parser", repository="/srv/app"), answered("Shall I?")),
    ),
    default=Conversation(turns=(answered("Hello."),)),
)


@dataclass(frozen=True)
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

    async def fleet(self, rpc: str, request: Message):
        return await getattr(OrchestratorServiceStub(self.channel), rpc)(request, metadata=METADATA)

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
    """The extension's service, as an orchestrator opens it."""
    log, store = MemoryLog(), MemoryKeyValue()
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
    (open_service,) = (one for one in load_parts("services") if ".chat." in one.__module__)

    async def bucket(*_: object, **__: object) -> MemoryKeyValue:
        return store

    async with ScriptedModelServer(SCRIPT) as model, Executions(deps) as executions:
        settings = Settings(home=home, model_url=model.url, model="scripted")
        kept = SimpleNamespace(bucket=bucket)
        shared = {"settings": settings, "executions": executions, "log": kept, "context": None}
        async with open_service(SimpleNamespace(**shared)) as service:
            orchestrator = service_of(servicer_of(executions, log))
            serving = serve_grpc([service, orchestrator], "127.0.0.1:0", TOKEN, _ready, grace_seconds=0.1)
            async with serving as address, grpc.aio.insecure_channel(address) as channel:
                yield Service(address, channel, executions, settings)


async def _ready() -> bool:
    return True


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with asyncio.timeout(30), served(tmp_path) as running:
        yield running


class TestRpcs:
    async def test_progress_comes_first_the_answer_last_and_turns_keep_it(self, service: Service) -> None:
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
        second = await service.answer("s", "Show me the second one")
        turns = (await service.call(pb.GetConversationRequest(session_id="s"))).conversation.turns
        assert [list(turn.tables) for turn in turns] == [list(answer.tables), list(second.tables)]
        assert [list(turn.references) for turn in turns] == [[], list(second.references)]
        assert turns[1].references[0].things[0].kind == "execution"

    async def test_a_yes_starts_the_task_on_the_fleet(self, service: Service) -> None:
        proposed = await service.answer("s", "Mend the parser please")
        assert proposed.task_proposed
        assert {state.task.kind for state in service.executions.projection.select(DEFAULT_TENANT)} == {TaskKind.CHAT}
        started = await service.answer("s", "yes")
        state = await service.executions.wait(DEFAULT_TENANT, started.execution_id)
        assert (state.task.description, state.task.repo.location) == ("Fix the parser", "/srv/app")

    async def test_a_message_is_an_execution_that_outlives_its_caller(self, service: Service) -> None:
        slow = asyncio.ensure_future(service.send("s", "a slow one", message_id="m"))
        while not (await service.call(pb.ListConversationsRequest())).conversations:
            pass
        slow.cancel()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.answer("s", "Hi")
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        (listed,) = (await service.fleet("ListExecutions", fleet.ListExecutionsRequest(task_id="s"))).executions
        assert (listed.kind, listed.task_description) == (fleet.EXECUTION_KIND_CHAT, "a slow one")
        again = asyncio.ensure_future(service.answer("s", "a slow one", message_id="m"))
        cancel = fleet.CancelExecutionRequest(execution_id=listed.execution_id, reason="not now")
        await service.fleet("CancelExecution", cancel)
        assert ((await again).stop_reason, "not now" in (await again).text) == ("cancelled", True)
        assert ((await service.answer("s", "Hi")).turn, (await service.answer("s", "Hi")).turn) == (2, 3)

    async def test_its_run_is_audited_and_its_tokens_are_its_executions(self, service: Service) -> None:
        answer = await service.answer("s", "What runs here?")
        (listed,) = (await service.fleet("ListExecutions", fleet.ListExecutionsRequest(task_id="s"))).executions
        shown = (
            await service.fleet("GetExecution", fleet.GetExecutionRequest(execution_id=listed.execution_id))
        ).execution
        spent = answer.prompt_tokens, answer.completion_tokens
        assert (shown.usage.prompt_tokens, shown.usage.completion_tokens) == spent and sum(spent) > 0
        stored = [event async for event in service.executions.watch(DEFAULT_TENANT, listed.execution_id)]
        (verdict,) = audit_document(listed.execution_id, stored).verdicts(None)
        assert (verdict.agent_id, verdict.intact, bool(verdict.recorded_head)) == ("assistant", True, True)

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


class TestCommand:
    async def test_one_message_for_a_script(self, service: Service, warm: str, tmp_path: Path) -> None:
        shell = Shell(home=tmp_path / "home", warm=warm, more={"FLEET_TOKEN": TOKEN})

        async def chat(*words: str) -> Ran:
            return await shell.fleet("chat", "--session", "cli", "--server", service.address, *words)

        await service.run("task-1")
        ran = await chat("--once", "What runs here?", "--json")
        assert (ran.code, ran.document["turn"], ran.document["tools"]) == (0, 1, ["list_executions"])
        assert ran.document["text"] == "Here is **everything**."
        assert ran.document["tables"][0]["columns"][:3] == ["#", "status", "description"]
        listed = (await chat("--list", "--json")).document["conversations"]
        assert [one["session_id"] for one in listed] == ["cli"]
        assert [(await chat("--end")).code for _ in range(2)] == [0, 2]

    async def test_a_conversation(self, service: Service, warm: str, tmp_path: Path) -> None:
        await service.run("task-1", "task-2")
        shell = Shell(home=tmp_path / "home", warm=warm, more={"FLEET_TOKEN": TOKEN})
        told = b"What runs here?\n\nShow me the second one\n/list\n/new\nHello\n/quit\n"
        process = await shell.start("chat", "--session", "cli", "--server", service.address, stdin=told, COLUMNS="160")
        ran = await ended(process)
        assert (ran.code, "list_executions ..." in ran.err) == (0, True)
        for words in ("Here is everything.", "Do task-1", "It won."):
            assert words in ran.out
        assert ["cli", "2", "Show", "me", "the", "second", "one"] in [line.split() for line in ran.out.splitlines()]
