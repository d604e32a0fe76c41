"""Examples C1, C2 and C4: the model searches memory before it answers; what comes of it is fed back as JSON."""

import asyncio
import json

from swe_ai_fleet.agents import FunctionCallingClient


def search_memory(entities: list[str], queries: list[str]) -> dict:
    """Search the memory of the user."""
    print("search_memory", entities, queries)
    return {"coverage": 0, "content": "", "gaps": [], "sources": []}


async def main():
    client = FunctionCallingClient()
    messages = [{"role": "user", "content": "What is our current ARR?"}]
    system_prompt = "You plan with the user."
    tools = [search_memory]
    result = await client.call_with_tools(messages, system_prompt, tools, max_turns=5)
    print(json.dumps(result, default=str))


asyncio.run(main())
