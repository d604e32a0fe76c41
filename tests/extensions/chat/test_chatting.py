"""A chat with a running fleet, over gRPC: what it remembers, calculates, lists, and what words refer to."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from fleet.conversation.v1 import conversation_pb2 as pb
from fleet.conversation.v1.conversation_pb2_grpc import ConversationServiceStub
from tests.chat_script import ASKED_COLOUR, COLOUR
from tests.conftest import FleetUnderTest


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
