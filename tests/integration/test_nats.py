"""JetStream under the conditions it is there for: killed servers, lost answers, full disks, other clients."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import cast

import nats
import pytest

from swe_ai_fleet.adapters.jetstream import JetStream, StreamSettings
from swe_ai_fleet.adapters.jetstream.protocol import event_subject
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable
from swe_ai_fleet.domain.event import StoredEvent, Writer
from swe_ai_fleet.ports import KeyValueEntry
from swe_ai_fleet.runtime.nats_server import EmbeddedNats, read_address
from tests.confinement import until
from tests.contract.test_event_log import everything, note, notes, take_batches, write, writer
from tests.lost_answers import Proxy
from tests.nats_logs import connected


async def kill(server: EmbeddedNats) -> None:
    os.kill(server.address.pid, signal.SIGKILL)
    await server.wait()


# --- the server ---


async def test_a_restart_keeps_events_token_and_port(tmp_path: Path) -> None:
    who, data = writer(), tmp_path / "data"
    with pytest.raises(PreconditionFailed):
        read_address(data)
    async with EmbeddedNats(data) as server:
        first = server.address
        assert read_address(data) == first
        # Secrets are for the owner only.
        assert len(first.token) >= 32
        for name in ("nats.conf", "token", "address.json"):
            assert first.token in (data / name).read_text()
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o600
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        with pytest.raises(PreconditionFailed, match=f"in use by pid {os.getpid()}") as refusal:
            await EmbeddedNats(data).__aenter__()
        assert refusal.value.hint
        with pytest.raises(Unavailable, match="address already in use"):
            await EmbeddedNats(tmp_path / "two", port=int(first.url.rsplit(":", 1)[1])).__aenter__()
        async with connected(first) as log:
            await write(log, who, "kept")
    with pytest.raises(PreconditionFailed):
        read_address(data)
    async with EmbeddedNats(data) as server:
        assert (server.address.token, server.address.url) == (first.token, first.url)
        # Limits can be changed.
        async with connected(server.address, settings=StreamSettings(max_event_bytes=10_000_000)) as log:
            assert notes(await everything(log, who)) == ["kept"]
            assert (await log.usage())["AGENT_EVENTS"].max_bytes == 10_000_000


async def test_the_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.runtime.nats_server import EmbeddedNats

async def main():
    async with EmbeddedNats(Path(sys.argv[1])) as server:
        print(server.address.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(await asyncio.to_thread(parent.stdout.readline))
        parent.kill()
    await until(lambda: not Path(f"/proc/{child}/exe").exists())
    # And its directory can be used again at once.
    async with EmbeddedNats(tmp_path):
        pass


# --- the log ---


async def test_kill_9_under_eight_writers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    count, writers = 60, [writer(f"agent-{number}", execution_id="run") for number in range(8)]
    heard: list[StoredEvent] = []
    async with AsyncExitStack() as stack:
        first = await EmbeddedNats(tmp_path).__aenter__()
        port = int(first.address.url.rsplit(":", 1)[1])
        log = await stack.enter_async_context(connected(first.address))
        await take_batches(log)

        async def write_slowly(who: Writer) -> None:
            async with log.journal(who, fresh=True) as journal:
                for number in range(count):
                    journal.post(note(f"{who.agent_id}:{number}"))
                    if number % 3 == 0:
                        await journal.flush()

        async def follow() -> None:
            async with aclosing(log.read("acme", "run", follow=True)) as events:
                async for one in events:
                    heard.append(one)
                    if len(heard) == count * len(writers):
                        return

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(follow())
            for who in writers:
                group.create_task(write_slowly(who))
            await until(lambda: len(heard) > 100)
            await kill(first)
            await first.__aexit__(None, None, None)
            await stack.enter_async_context(EmbeddedNats(tmp_path, port=port))
        # Who follows goes on as well.
        stored = await everything(log, writers[0])
    assert heard == stored and len(stored) == count * len(writers)
    for who in writers:
        mine = [one for one in stored if one.event.agent_id == who.agent_id]
        assert notes(mine) == [f"{who.agent_id}:{number}" for number in range(count)]


async def test_what_had_its_answer_lost_is_stored_once(nats_server: EmbeddedNats) -> None:
    proxy, result = Proxy(nats_server.address.url), {"tenant": "default", "execution_id": "one", "agent_id": ""}
    async with proxy.running(), connected(nats_server.address, url=proxy.url) as log, asyncio.timeout(40):

        async def unanswered(act: Coroutine[object, object, object]) -> object:
            proxy.swallowing = True
            proxy.swallowed.clear()
            acting = asyncio.ensure_future(act)
            await proxy.swallowed.wait()
            proxy.swallowing = False
            proxy.cut()
            return await acting

        for fresh, batches in itertools.product((True, False), repeat=2):
            await (take_batches(log) if batches else log.ensure_streams())
            who = writer()
            async with log.journal(who, fresh=fresh) as journal:
                journal.post(note("zero"))
                await unanswered(journal.append(note("one")))
                await journal.append(note("two"))
            stored = await everything(log, who)
            assert notes(stored) == ["zero", "one", "two"]
            assert [one.event.id.rsplit("/", 1)[1] for one in stored] == ["1", "2", "3"]
        task = str(uuid.uuid4())
        assert await unanswered(log.publish(**result, task_id=task, payload=b'{"n": 1}')) is True
        assert await log.publish(**result, task_id=task, payload=b'{"n": 1}') is False
        store = await log.bucket("lost-answers")
        claimed = await unanswered(store.put("a", b"mine", revision=await store.put("a", b"free")))
        assert await store.get("a") == KeyValueEntry(key="a", value=b"mine", revision=cast("int", claimed))
        with pytest.raises(InvalidRequest, match="too large"):
            await log.publish(**result, task_id="large", payload=b"x" * 2_000_000)


async def test_batches_that_a_stranger_leaves_open_stop_nobody(nats_server: EmbeddedNats, jetstream: JetStream) -> None:
    """The server holds fifty for ten seconds each."""
    await take_batches(jetstream)
    who, stranger = writer(), await nats.connect(nats_server.address.url)
    try:
        for number in range(60):
            batch = {"Nats-Batch-Id": str(number), "Nats-Batch-Sequence": "1"}
            await stranger.publish(event_subject("other", "e", f"a{number}"), b"{}", headers=batch)
        await stranger.flush()
        async with jetstream.journal(who, fresh=True) as journal:
            for text in ("one", "two", "three"):
                journal.post(note(text))
        assert notes(await everything(jetstream, who)) == ["one", "two", "three"]
        assert jetstream.connection.batches
    finally:
        await stranger.close()


async def test_full_storage_is_said_and_leaves_no_gap(tmp_path: Path) -> None:
    who = writer()
    settings = StreamSettings(max_event_bytes=64 * 1024, max_blob_bytes=256 * 1024, max_result_bytes=64 * 1024)
    async with EmbeddedNats(tmp_path) as server, connected(server.address, settings=settings) as log:
        with pytest.raises(ResourceExhausted):
            async with log.journal(who, fresh=True) as journal:
                for number in range(100):
                    journal.post(note(f"{number}:{'x' * 2000}"))
                await journal.flush()
        stored = [reason.split(":")[0] for reason in notes(await everything(log, who))]
        assert 10 < len(stored) < 100
        assert stored == [str(number) for number in range(len(stored))]
        with pytest.raises(ResourceExhausted):
            await log.put("default", "run", b"x" * 400 * 1024, "text/plain")


async def test_a_large_event_names_its_body(nats_server: EmbeddedNats, jetstream: JetStream) -> None:
    who, text = writer(), "x" * 300 * 1024
    await write(jetstream, who, text, *map(str, range(700)))
    assert notes(await everything(jetstream, who)) == [text, *map(str, range(700))]
    client = await nats.connect(nats_server.address.url)
    try:
        subject = event_subject(who.tenant, who.execution_id, who.agent_id)
        message = await anext(aiter((await client.jetstream().subscribe(subject, ordered_consumer=True)).messages))
        content = json.loads(message.data)
        assert len(message.data) < 1024 and "body" not in content
        # Any NATS client can fetch the body.
        store = await client.jetstream().object_store("agent-blobs")
        blob = await store.get(content["body_ref"]["name"])
        assert json.loads(blob.data or b"") == {"reason": text, "type": "cancel_requested"}
        assert blob.info.options is not None and blob.info.options.max_chunk_size == 128 * 1024
        assert blob.info.mtime and (blob.info.chunks, blob.info.headers, blob.info.mtime[:2]) == (
            3,
            {"Content-Type": ["application/json"]},
            "20",
        )
        bucket = await jetstream.bucket("seen-by-all")
        await bucket.put("kept", await bucket.put("removed", b"x") and b"x")
        await bucket.delete("removed")
        assert await (await client.jetstream().key_value("seen-by-all")).keys() == ["kept"]
    finally:
        await client.close()
