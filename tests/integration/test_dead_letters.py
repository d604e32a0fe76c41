"""Messages that could not be handled, as `fleet dlq` handles them: once more, or no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import Hopeless, JetStream, Work, WorkQueue
from swe_ai_fleet.adapters.jetstream.snapshots import stream_heads
from swe_ai_fleet.cli.dead_letters import settle
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.integration.test_backup import connected


async def _letters(log: JetStream) -> int:
    return next(one.messages for one in await stream_heads(log.connection, patience=10) if one.name == "AGENT_DLQ")


async def test_a_dead_letter_is_handed_in_again_once(tmp_path: Path) -> None:
    queue = WorkQueue(stream="AGENT_COMMANDS", subjects=("agent.cmd.execute",), consumer="commands")
    handled: list[bytes] = []
    heard = asyncio.Condition()

    async def handle(work: Work) -> None:
        async with heard:
            handled.append(work.data)
            heard.notify_all()
        if len(handled) < 3:
            raise Hopeless("not today")

    async with EmbeddedNats(tmp_path / "nats") as server, connected(server.address) as log:
        await log.ensure_streams()
        consuming = asyncio.create_task(log.consume(queue, handle))
        try:
            for data in (b"one", b"two"):
                await log.connection.publish("agent.cmd.execute", data, headers={}, patience=10)
            async with asyncio.timeout(20):
                while await _letters(log) < 2:
                    await asyncio.sleep(0.02)
                assert await settle(log.connection, 1, again=True) == "agent.cmd.execute"
                async with heard:
                    await heard.wait_for(lambda: len(handled) == 3)
            assert handled == [b"one", b"two", b"one"]
            assert await _letters(log) == 1
            await settle(log.connection, 2, again=False)
            assert await _letters(log) == 0
            with pytest.raises(NotFound, match="no dead letter 1"):
                await settle(log.connection, 1, again=True)
        finally:
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
