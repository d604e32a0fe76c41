"""B12 and B13: what a run refuses, and a plan first."""

import asyncio

from swe_ai_fleet.agents import FunctionCallingAgent


async def refused(agent, *given, **options):
    try:
        async for _ in agent.run(*given, **options):
            pass
    except ValueError as error:
        print("ValueError", error)


async def main():
    agent = FunctionCallingAgent(model_name='ollama/qwen3:4b-instruct-2507-fp16')
    await refused(agent, "  ")
    await refused(agent, "What is 5 times 7?", "notes.txt")
    history = [{"role": "user", "content": "Hello [b12]"}, {"role": "assistant", "content": "Hello."}]
    await refused(agent, "What is 5 times 7?", recurrent_mode=True, chat_history=history)
    async for response in agent.run("What is 5 times 7?", use_planning=True, chat_history=history):
        print(response["type"], response["value"])
    print(history)


asyncio.run(main())
