"""A foreign tenant's admin asks every RPC for another tenant's things by their names, as made from the descriptors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from fleet.context.v1 import context_pb2 as context
from fleet.conversation.v1 import conversation_pb2 as chat
from fleet.notification.v1 import notification_pb2 as notification
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.planning.v1 import planning_pb2 as planning
from services.roles import ROLES
from swe_ai_fleet.domain.access import AccessRole
from swe_ai_fleet.extension_registry import extensions
from tests.integration.test_tenants import world
from tests.plan_script import PLAN_GOAL
from tests.served import SERVED
from tests.tenants import NORTH, SOUTH, Caller, World

__all__ = ["world"]

SECRET = "aurora-7f3a"
"""Stands in everything that the northern tenant has."""
_SECONDS = 30.0
_DEEP = 3
_SHOWN_TO_ITS_OWN = {
    "GetExecution",
    "ListExecutions",
    "StreamExecution",
    "GetConversation",
    "ListConversations",
    "GetPlanSession",
    "ListPlanSessions",
    "ListWebhooks",
    "ListStories",
    "GetContext",
    "RehydrateSession",
    "Recall",
}
"""RPCs that would tell the secret, as they do to its own tenant: without them the walk would prove nothing."""

_SHOWN_TO_EVE = ("GetExecution", "GetConversation", "GetPlanSession", "ListStories", "Recall")
_NO_NAMES = ("query", "reason", "title")


def filled(method: MethodDescriptor, names: Mapping[str, str]) -> Message:
    """A request for things of these names, wherever it has a field for one."""
    request = GetMessageClass(method.input_type)()
    _fill(request, names, _DEEP)
    return request


def _fill(message: Message, names: Mapping[str, str], depth: int) -> None:
    for one in message.DESCRIPTOR.fields:
        value = names.get(one.name, "")
        if one.type == FieldDescriptor.TYPE_STRING and value:
            if one.is_repeated:
                getattr(message, one.name).append(value)
            elif one.containing_oneof is None or message.WhichOneof(one.containing_oneof.name) is None:
                setattr(message, one.name, value)
        elif one.type == FieldDescriptor.TYPE_ENUM and not one.is_repeated and one.containing_oneof is None:
            setattr(message, one.name, 1)
        elif one.message_type is not None and not one.is_repeated and depth and one.containing_oneof is None:
            inner = GetMessageClass(one.message_type)()
            _fill(inner, names, depth - 1)
            if inner.ByteSize():
                getattr(message, one.name).CopyFrom(inner)


async def asked(who: Caller, method: MethodDescriptor, request: Message) -> tuple[str, bytes]:
    """The code that an RPC ends with, and everything that it told."""
    stub = who.world.stubs[_stub_of(who.world, method)]
    told = bytearray()
    call: Any = getattr(stub, method.name)
    try:
        async with asyncio.timeout(_SECONDS):
            shown = _one(request) if method.client_streaming else request
            if method.server_streaming:
                async for reply in call(shown, metadata=who.metadata):
                    told += reply.SerializeToString()
            else:
                told += (await call(shown, metadata=who.metadata)).SerializeToString()
    except grpc.aio.AioRpcError as error:
        trailing = b"".join(
            value if isinstance(value, bytes) else value.encode() for _, value in error.trailing_metadata() or ()
        )
        return error.code().name, bytes(told) + (error.details() or "").encode() + trailing
    return "OK", bytes(told)


async def _one(request: Message):
    yield request


def _stub_of(world: World, method: MethodDescriptor) -> type:
    name = f"{method.containing_service.name}Stub"
    return next(kind for kind in world.stubs if kind.__name__ == name)


async def asked_all(
    who: Caller, methods: Sequence[MethodDescriptor], names: Mapping[str, str]
) -> dict[str, tuple[str, bytes]]:
    return {method.name: await asked(who, method, filled(method, names)) for method in methods}


async def furnished(world: World) -> dict[str, str]:
    """The northern tenant's things; their names, by the fields that they are asked for with."""
    ann, zoe = world.by(NORTH, "ann"), world.by(NORTH, "zoe")
    mark = uuid4().hex[:8]
    task_id, session_id, story_id = f"t-{mark}", f"s-{mark}", f"S-{mark}"
    request = pb.DeliberateRequest(
        task_id=task_id,
        task_description=f"Add a greeting {SECRET}",
        num_agents=1,
        enable_peer_review=False,
        repo=pb.RepoRef(path="/srv/app"),
    )
    execution_id = (await ann.call("SubmitTask", pb.SubmitTaskRequest(deliberate=request))).execution_id
    await ann.ended(execution_id)
    result = await ann.call("GetDeliberationResult", pb.GetDeliberationResultRequest(task_id=task_id))
    digest = result.results[0].artifacts.patch.artifact.digest
    await ann.stream("Send", chat.SendRequest(session_id=session_id, text=f"Who are you? {SECRET}"))
    await ann.call("ExecutePlan", planning.ExecutePlanRequest(session_id=session_id, goal=f"{PLAN_GOAL} {SECRET}"))
    webhook_id = f"W-{mark}"
    if "webhooks" in extensions():
        hook = notification.CreateWebhookRequest(url=f"http://127.0.0.1:9/{SECRET}", webhook_id=webhook_id)
        await zoe.call("CreateWebhook", hook)
    story = context.Story(story_id=story_id, title=f"Greetings {SECRET}", case_id=f"C-{mark}")
    await ann.call("CreateStory", context.CreateStoryRequest(story=story))
    await ann.call("AddFact", context.AddFactRequest(namespace=f"agent:{mark}", text=f"Greetings are {SECRET}."))
    return {
        "task_id": task_id,
        "execution_id": execution_id,
        "session_id": session_id,
        "story_id": story_id,
        "case_id": f"C-{mark}",
        "webhook_id": webhook_id,
        "namespace": f"agent:{mark}",
        "namespaces": f"agent:{mark}",
        "query": "greetings",
        "node_id": story_id,
        "subject_id": execution_id,
        "plan_id": f"p-{mark}",
        "digest": digest,
        "approval_id": "plan",
        "reason": "so that it is asked whole",
        "title": "A title",
    }


@pytest.fixture(scope="module")
async def things(world: World) -> dict[str, str]:
    return await furnished(world)


async def test_a_foreign_admin_finds_what_nobody_has(world: World, things: dict[str, str]) -> None:
    stranger = world.by(SOUTH, "zoe")
    # As they are shaped, of things that nobody has.
    nothing = {
        name: value[:-8] + uuid4().hex[:8] if name.endswith(("_id", "digest")) else value
        for name, value in things.items()
    }
    foreign, unknown = [
        {
            name: (code, _without(told, names.values()))
            for name, (code, told) in (await asked_all(stranger, SERVED, names)).items()
        }
        for names in (things, nothing)
    ]
    for name, (code, told) in foreign.items():
        assert SECRET.encode() not in told, name
        if name.rpartition(".")[2] == "Drain":
            # It is about the machines that all tenants share.
            assert code == "PERMISSION_DENIED"
            continue
        assert code not in ("INTERNAL", "UNKNOWN", "UNAUTHENTICATED", "PERMISSION_DENIED"), (name, code, told)
        assert code == unknown[name][0], (name, code, unknown[name])
        assert code != "NOT_FOUND" or told == unknown[name][1], (name, told, unknown[name])
    denied = ("GetExecution", "CancelExecution", "ResolveApproval", "StreamExecution", "GetArtifact", "SteerWorkflow")
    for name in foreign.keys() & {*denied, "GetDeliberationResult", "GetPlanSession", "GetRun"}:
        assert foreign[name][0] == "NOT_FOUND", (name, foreign[name])
    # What the stranger deleted, cleared, cancelled and ended was nothing of theirs; and its own tenant sees it.
    own = world.by(NORTH, "zoe")
    reads = [method for method in SERVED if ROLES[method.full_name] is AccessRole.VIEWER]
    reads += [method for method in SERVED if method.name == "ListWebhooks"]
    shown = await asked_all(own, reads, things)
    telling = {name for name, (_, told) in shown.items() if SECRET.encode() in told}
    assert (_SHOWN_TO_ITS_OWN & {method.name for method in SERVED}) - telling == set()


def _without(told: bytes, names: Iterable[str]) -> bytes:
    """What was told but for the names that were asked for, and what only counts their bytes."""
    for name in sorted(names, key=len, reverse=True):
        told = told.replace(name.encode(), b"?")
    return told


SPELLINGS = {
    "with its tenant before it": lambda name: f"{NORTH}.{name}",
    "as a path from another one": lambda name: f"../{NORTH}/{name}",
    "in capitals": str.upper,
    "with a line feed behind it": lambda name: f"{name}\n",
    "with a NUL behind it": lambda name: f"{name}\0",
    "percent-encoded": lambda name: "".join(f"%{byte:02X}" for byte in name.encode()),
    "as all that is below": lambda _: ">",
    "with a star for its end": lambda name: f"{name[:-1]}*",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_no_spelling_of_a_name_leads_to_another_tenants_things(
    world: World, things: dict[str, str], spelling: str
) -> None:
    names = {name: SPELLINGS[spelling](value) if name not in _NO_NAMES else value for name, value in things.items()}
    stranger = world.by(SOUTH, "zoe")
    for name, (code, told) in (await asked_all(stranger, SERVED, names)).items():
        assert SECRET.encode() not in told, name
        denied = () if name.rpartition(".")[2] == "Drain" else ("PERMISSION_DENIED",)
        assert code not in ("INTERNAL", "UNKNOWN", "UNAUTHENTICATED", *denied), (name, code, told)
    # What the stranger deleted, cleared and ended by such names was nothing of the other tenant's.
    own = await asked_all(world.by(NORTH, "eve"), [method for method in SERVED if method.name in _SHOWN_TO_EVE], things)
    assert {name for name, (_, told) in own.items() if SECRET.encode() in told} == set(_SHOWN_TO_EVE)
