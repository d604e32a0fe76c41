"""Every RPC, asked what nobody thought of: nothing crashes, and nothing a caller sends is called our fault."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor

from services.gateway.upstream import FILES
from tests.conftest import FleetUnderTest
from tests.fuzz.messages import broken, filled, message_of
from tests.integration.test_hostile_requests import REQUESTS

METHODS: Sequence[MethodDescriptor] = tuple(
    method for file in FILES for service in file.services_by_name.values() for method in service.methods
)
OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
SECONDS = 20.0
AT_ONCE = 16
# A model works on each of these, or what they begin goes on.
COSTLY = ("Send", "ExecutePlan", "ContinuePlan", "DeriveSubtasks")
# What gets past the first checks; a host that is really there is not drained.
BODIES = {name: base for name, (base, _) in REQUESTS.items() if name != "Drain"}
# Decide what is begun, forgotten or told to whom: these stay as they are there.
PINNED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ("Deliberate", "Orchestrate", "JudgePatches", "DeriveSubtasks", "RunWorkflow"), frozenset({"repo"})
    ),
    "SubmitTask": frozenset({"deliberate", "orchestrate", "judge"}),
    "ProcessPlanningEvent": frozenset({"repo", "dispatch", "event_type"}),
    **dict.fromkeys(("CreateCouncil", "RegisterAgent"), frozenset({"role"})),
    **dict.fromkeys(("AddInteraction", "AddFact"), frozenset({"namespace"})),
    "ClearMemory": frozenset({"namespaces", "everywhere"}),
    "RecordOutcome": frozenset({"outcome"}),
    "CreateWebhook": frozenset({"url"}),
}


@pytest.mark.slow  # quick: integration/test_hostile_requests.py
@pytest.mark.parametrize("requests", [600, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_ten_thousand_requests(fleet: FleetUnderTest, requests: int) -> None:
    dice = random.Random(f"{os.environ.get('FUZZ_SEED', '0')} {requests}")
    room, seen, wrong = asyncio.Semaphore(AT_ONCE), Counter[str](), list[str]()
    addresses = {True: fleet.running.context, False: fleet.running.address}
    async with (
        grpc.aio.insecure_channel(addresses[True]) as context,
        grpc.aio.insecure_channel(addresses[False]) as orchestrator,
        asyncio.TaskGroup() as group,
    ):

        async def ask(method: MethodDescriptor, data: bytes) -> None:
            channel = context if method.containing_service.full_name.startswith("fleet.context.") else orchestrator
            code, words = await _asked(channel, method, data, fleet.running.token)
            room.release()
            seen[code.name] += 1
            if code in OURS:
                wrong.append(f"{method.full_name} {code.name} {words[:200]}: {data[:200]!r}")

        for number in range(requests):
            method = METHODS[number % len(METHODS)]
            while method.name in COSTLY and dice.random() < 0.9:
                method = dice.choice(METHODS)
            await room.acquire()
            group.create_task(ask(method, _request(method, dice)))
    assert wrong == []
    assert sum(seen.values()) == requests
    # What went through whole and what was refused: both have to be there, or nothing was tried.
    assert seen["OK"] > requests // 50 and seen["INVALID_ARGUMENT"] > requests // 10, seen
    async with grpc.aio.insecure_channel(addresses[False]) as channel:
        status = next(one for one in METHODS if one.name == "GetStatus")
        assert (await _asked(channel, status, b"", fleet.running.token))[0] is grpc.StatusCode.OK


def _request(method: MethodDescriptor, dice: random.Random) -> bytes:
    base = json_format.ParseDict(BODIES.get(method.name, {}), message_of(method.input_type), ignore_unknown_fields=True)
    kept = PINNED.get(method.name.removeprefix("Stream"), frozenset())
    if method.name.startswith(("Stream", "Deliberate", "Orchestrate")):
        kept = kept | {"repo"}
    data = filled(base, dice, share=dice.choice((0.0, 0.1, 0.4, 0.9)), kept=tuple(kept)).SerializeToString()
    return broken(data, dice) if dice.random() < 0.25 else data


async def _asked(
    channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes, token: str
) -> tuple[grpc.StatusCode, str]:
    """How a call ends; one that streams may be let go after its first answers."""
    # Every kind of call is a stream on the wire.
    call: Any = channel.unary_stream(f"/{method.containing_service.full_name}/{method.name}")(
        data, metadata=(("authorization", f"Bearer {token}"),), timeout=SECONDS
    )
    try:
        for _ in range(3):
            if await call.read() is grpc.aio.EOF:
                break
        call.cancel()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""
