"""Idempotency keys: the same again gets the same answer, and is carried out once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.gateway_house import BEARER, house, refused


@pytest.fixture(scope="module")
async def keys(nats_server: EmbeddedNats) -> AsyncIterator[Any]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token)) as log:
        yield await log.bucket("KEYS", ttl_seconds=600.0)


async def test_the_same_again_gets_the_same_answer(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        first = await built.client.post("/api/count", json={"a": 1}, headers=BEARER | key)
        assert first.status_code == 201 and "idempotency-replayed" not in first.headers
        again = await built.client.post("/api/count", json={"a": 1}, headers=BEARER | key)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["location"] == "/api/things/1"
        assert again.headers["content-type"] == first.headers["content-type"]
        told = refused(await built.client.post("/api/count", json={"a": 2}, headers=BEARER | key), 422)
        assert told["field"] == "idempotency-key"
        elsewhere = await built.client.post("/api/answer", json={"a": 1}, headers=BEARER | key)
        assert elsewhere.status_code == 200, "a key is of one path"
        assert built.room.calls == 2
    # Another gateway before the same fleet knows the answer too.
    async with house(keys) as second:
        again = await second.client.post("/api/count", json={"a": 1}, headers=BEARER | key)
        assert again.content == first.content and second.room.calls == 0


async def test_keys_of_other_callers_are_others(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as one, house(keys, token="another") as two:
        await one.client.post("/api/count", json={}, headers=BEARER | key)
        answer = await two.client.post("/api/count", json={}, headers={"Authorization": "Bearer another"} | key)
        assert "idempotency-replayed" not in answer.headers and two.room.calls == 1
        for number, name in enumerate(("ada", "grace"), start=2):
            named = BEARER | key | {"Fleet-Caller": name}
            answer = await one.client.post("/api/count", json={}, headers=named)
            assert "idempotency-replayed" not in answer.headers and one.room.calls == number


async def test_of_many_at_once_one_is_carried_out(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        first = asyncio.create_task(built.client.post("/api/wait", json={}, headers=BEARER | key))
        await built.room.entered.wait()
        others = await asyncio.gather(
            *(built.client.post("/api/wait", json={}, headers=BEARER | key) for _ in range(5))
        )
        for other in others:
            assert refused(other, 409, "ABORTED")["retry_after_seconds"] >= 1
        built.room.go_on.set()
        assert (await first).status_code == 200
        racing = await asyncio.gather(
            *(built.client.post("/api/count", json={}, headers=BEARER | key | {"Fleet-Caller": "x"}) for _ in range(8))
        )
        assert built.room.calls == 2
        assert {answer.status_code for answer in racing} <= {201, 409}


async def test_a_client_that_left_finds_its_answer(keys: Any) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(keys) as built:
        leaving = asyncio.create_task(built.client.post("/api/wait", json={}, headers=BEARER | key))
        await built.room.entered.wait()
        leaving.cancel()
        await asyncio.wait([leaving])
        built.room.go_on.set()
        async with asyncio.timeout(10):
            while (again := await built.client.post("/api/wait", json={}, headers=BEARER | key)).status_code == 409:
                pass
        assert again.headers["idempotency-replayed"] == "true" and built.room.calls == 1


async def test_a_corrected_request_takes_the_key_of_the_refused_one() -> None:
    key = {"Idempotency-Key": uuid4().hex}
    async with house(MemoryKeyValue()) as built:
        refused = await built.client.post("/api/answer?status=400", json={"path": "wrong"}, headers=BEARER | key)
        assert (refused.status_code, refused.headers["idempotency-kept"]) == (400, "false")
        corrected = await built.client.post("/api/answer?status=400", json={"path": "right"}, headers=BEARER | key)
        assert (corrected.status_code, built.room.calls) == (400, 2), "the service answers, not the key"


async def test_a_secret_is_told_once_and_kept_nowhere() -> None:
    keys = MemoryKeyValue()
    async with house(keys) as built:
        key = {"Idempotency-Key": uuid4().hex}
        made = await built.client.post("/api/webhooks", json={}, headers=BEARER | key)
        assert made.json() == {"secret": "told once"} and made.headers["idempotency-kept"] == "false"
    assert await keys.entries() == ()
