"""The fleet's limits on calls to models, kept by a real Ray actor for all of its hosts."""

from __future__ import annotations

import asyncio

from swe_ai_fleet.domain.message import ModelRequest, UserMessage
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.script import Conversation, Script, ScriptRequest, Turn
from tests.conftest import FleetUnderTest

AGENTS, CALLS, LIMIT = 20, 4, 6


async def _agents(settings: Settings) -> int:
    """What one host of the fleet does; how many calls were answered."""
    async with open_model(settings) as model:

        async def agent(number: int) -> int:
            session = model.session(f"agent-{number}")
            replies = [await session.reply(ModelRequest((UserMessage(content="go"),))) for _ in range(CALLS)]
            return sum(reply.message.content == "done" for reply in replies)

        return sum(await asyncio.gather(*(agent(number) for number in range(AGENTS))))


async def test_hosts_keep_to_the_limit_together(fleet: FleetUnderTest) -> None:
    most = 0

    def note(asked: ScriptRequest) -> bool:
        nonlocal most
        most = max(most, server.in_flight)
        return True

    script = Script(conversations=(Conversation(turns=(Turn(content="done"),), predicate=note),))
    async with ScriptedModelServer(script, latency_seconds=0.05) as server:
        settings = Settings(model_url=server.url, model_max_in_flight=LIMIT)
        answered = await asyncio.gather(*(_agents(settings) for _ in range(2)))
    assert answered == [AGENTS * CALLS] * 2
    assert LIMIT - 2 <= most <= LIMIT
