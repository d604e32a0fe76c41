"""D2 to D4, D7 to D10: `planner.run(message, context)` is `ChatSession.send(message)`, and its session the context."""

import asyncio
import sys

from swe_ai_fleet import ChatSession


async def main(messages):
    async with ChatSession() as planner:
        for message in messages:
            result = await planner.send(message)
            print(result.text, [reference.things[0].name for reference in result.references if reference.things])


asyncio.run(main(sys.argv[1:]))
