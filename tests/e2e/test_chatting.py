"""A chat with a running fleet, over gRPC: what it remembers, calculates, lists, and what words refer to."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    call: dict[str, Any]
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    async def says(self, text: str, session: str = "one", **fields: object) -> pb.Answer:
        """The answer, which ends the stream."""
        request = pb.SendRequest(session_id=f"{self.name}-{session}", text=text, **fields)  # type: ignore[arg-type]
        updates = [update async for update in ConversationServiceStub(self.channel).Send(request, **self.call)]
        assert [update.WhichOneof("update") for update in updates].index("answer") == len(updates) - 1
        return updates[-1].answer


@pytest.fixture
async def person(fleet: FleetUnderTest) -> AsyncIterator[Person]:
    call = {"metadata": (("authorization", f"Bearer {fleet.running.token}"),), "timeout": 60}
    async with grpc.aio.insecure_channel(fleet.running.address) as channel:
        yield Person(channel=channel, call=call)


async def test_what_one_session_was_told_another_recalls(person: Person) -> None:
    namespaces = [f"agent:{person.name}"]
    await person.says("Remember that my favourite colour is green.", memory_namespaces=namespaces)
    assert (await person.says(ASKED_COLOUR, "two", memory_namespaces=namespaces)).text == COLOUR
    assert (await person.says(ASKED_COLOUR, "three")).text == "You have not told me."
    product = await person.says("15 * 23 + 17")
    assert (product.text, list(product.tools), product.model_calls) == ("15 * 23 + 17 = 362", ["calculator"], 0)


async def test_the_second_one_is_the_second_one_that_was_listed(person: Person, tmp_path: Path) -> None:
    repo = work.RepoRef(path=str(make_repository(tmp_path / "repository", HELLO_FILES)))
    orchestrator = OrchestratorServiceStub(person.channel)
    submitted: list[str] = []
    for task_id in (FIRST_TASK, SECOND_TASK):
        task = work.DeliberateRequest(task_id=task_id, task_description="Look around", num_agents=1, repo=repo)
        submitted.append((await orchestrator.Deliberate(task, **person.call)).execution_id)
    first, second = submitted
    listed = await person.says("List what the fleet did", channel=pb.CHANNEL_MARKDOWN)
    (table,) = listed.tables
    place = list(table.columns).index("execution_id")
    assert [row.cells[place] for row in table.rows] == [second, first]
    shown = await person.says("Show me the second one")
    assert (shown.text, list(shown.tools), shown.success) == ("It is the older one.", ["show_execution"], True)
    (reference,) = shown.references
    assert (reference.phrase, reference.standing) == ("the second one", pb.REFERENCE_STANDING_RESOLVED)
    assert [thing.name for thing in reference.things] == [first]
