"""What requests of the orchestrator bring to the task, field by field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator.intake import task_of
from swe_ai_fleet.adapters.jetstream import WorkMessage
from swe_ai_fleet.codec import to_plain
from tests.orchestrator_service import Service

EVERY_FIELD = Path(__file__).with_name("every_field.json")
"""A request with a value in every field, and the task that is stored of it."""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service().running() as running:
        yield running


async def test_every_field_reaches_the_task(service: Service):
    given = json.loads(EVERY_FIELD.read_text())
    request = json_format.ParseDict(given["request"], pb.OrchestrateRequest())
    await service.stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request), metadata=(("fleet-caller", "ada"),))
    assert to_plain(service.log.events[0].body.task) == given["task"]
    # So it does from NATS; who asks, and what its council decides, is said otherwise.
    data = json.dumps({"orchestrate": given["request"]}).encode()
    work = WorkMessage(subject="agent.cmd.execute", data=data, headers={}, sequence=1, deliveries=1)
    assert to_plain(task_of(work)) == {**given["task"], "caller": "nats"}
    # A field that is new has to be in the file, or here with the reason.
    assert unset(request) == {
        *("context_options.include_decisions", "memory"),
        # Other tests have these.
        *(f"delivery.{name}" for name in ("branch", "push", "author_name", "author_email")),
        *("model_profile", "options.architect_top_k"),
    }


def unset(message: Message, path: str = "") -> set[str]:
    """Fields without a value, at any depth."""
    found: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        name, value = f"{path}{field.name}", getattr(message, field.name)
        mapped = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name) not in (
            None,
            field.name,
        ):
            continue
        if field.message_type is None or mapped or not (field.is_repeated or message.HasField(field.name)):
            given = message.HasField(field.name) if field.has_presence else bool(value)
            found |= set() if given else {name}
        elif field.is_repeated:
            inner = [unset(one, f"{name}.") for one in value]
            found |= set.intersection(*inner) if inner else {name}
        else:
            found |= unset(value, f"{name}.")
    return found
