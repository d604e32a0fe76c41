"""A chat with a running fleet, over gRPC: what it remembers, calculates, lists, and what words refer to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from fleet.orchestrator.v1 import orchestrator_pb2 as work
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from swe_ai_fleet.testing.repositories import make_repository
from tests.chat_script import ASKED_COLOUR, COLOUR, FIRST_TASK, SECOND_TASK
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO_FILES


@dataclass(frozen=True, kw_only=True)
class Person:
    """Somebody who writes to a fleet, in sessions of their own."""

    channel: grpc.aio.Channel
    metadata: tuple[tuple[str, str], ...]
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    async def says(self, text: str, session: str = "one", **fields: object) -> pb.Answer:
        """The answer, which ends the stream."""
        request = pb.SendRequest(session_id=f"{self.name}-{session}", text=text, **fields)  # type: ignore[arg-type]
        call = ConversationServiceStub(self.channel).Send(request, metadata=self.metadata, timeout=60)
        updates = [update async for update in call]
        assert [update.WhichOneof("update") for update in updates].index("answer") == len(updates) - 1
        return updates[-1].answer

    async def hands_in(self, task_id: str, repository: Path) -> str:
        """A task; its execution id."""
        request = work.DeliberateRequest(
            task_id=task_id, task_description="Look around", num_agents=1, repo=work.RepoRef(path=str(repository))
        )
        return (
            await OrchestratorServiceStub(self.channel).Deliberate(request, metadata=self.metadata, timeout=60)
        ).execution_id

    async def ended(self, execution_id: str) -> None:
        """Wait for the end of an execution."""
        request = work.StreamExecutionRequest(execution_id=execution_id)
        async for _ in OrchestratorServiceStub(self.channel).StreamExecution(request, metadata=self.metadata):
            pass


@pytest.fixture
async def person(fleet: FleetUnderTest) -> AsyncIterator[Person]:
    metadata = (("authorization", f"Bearer {fleet.running.token}"),)
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        yield Person(channel=channel, metadata=metadata)


async def test_what_one_session_was_told_another_recalls(person: Person) -> None:
    namespaces = [f"agent:{person.name}"]
    await person.says("Remember that my favourite colour is green.", memory_namespaces=namespaces)
    assert (await person.says(ASKED_COLOUR, "two", memory_namespaces=namespaces)).text == COLOUR
    assert (await person.says(ASKED_COLOUR, "three")).text == "You have not told me."


async def test_numbers_come_from_tools(person: Person) -> None:
    product = await person.says("15 * 23 + 17")
    assert (product.text, list(product.tools), product.model_calls) == ("15 * 23 + 17 = 362", ["calculator"], 0)
    squares = await person.says("Add the squares of 1 to 10")
    assert (squares.text, list(squares.tools)) == ("The sum is 385.", ["python_executor"])
    request = pb.GetConversationRequest(session_id=f"{person.name}-one")
    kept = await ConversationServiceStub(person.channel).GetConversation(request, metadata=person.metadata)
    assert [turn.answer for turn in kept.conversation.turns] == [product.text, squares.text]


async def test_the_second_one_is_the_second_one_that_was_listed(person: Person, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", HELLO_FILES)
    first = await person.hands_in(FIRST_TASK, repository)
    second = await person.hands_in(SECOND_TASK, repository)
    listed = await person.says("List what the fleet did", channel=pb.CHANNEL_MARKDOWN)
    (table,) = listed.tables
    place = list(table.columns).index("execution_id")
    assert [row.cells[place] for row in table.rows] == [second, first]
    shown = await person.says("Show me the second one")
    assert (shown.text, list(shown.tools), shown.success) == ("It is the older one.", ["show_execution"], True)
    (reference,) = shown.references
    assert (reference.phrase, reference.standing) == ("the second one", pb.REFERENCE_STANDING_RESOLVED)
    assert [thing.name for thing in reference.things] == [first]
    await asyncio.gather(person.ended(first), person.ended(second))
