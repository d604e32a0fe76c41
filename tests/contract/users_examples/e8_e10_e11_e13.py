"""E8, E10, E11 and E13: agents of a workflow with memory, with tools, with both."""

import asyncio

from swe_ai_fleet.workflows import AgentConfig, LLMAgent, Node


async def main():
    # E8
    node = Node(id="agent1", type="agent", agent_config=AgentConfig(model="gpt-4o"))
    memory_agent = LLMAgent(node, use_memory=True)
    await memory_agent.execute({"query": "My favorite color is blue"})
    result = await memory_agent.execute({"query": "What's my favorite color?"})
    print(result)
    # E10
    node = Node(id="agent1", type="agent", agent_config=AgentConfig(model="gpt-4o", tools=["calculator", "python_executor"]))
    agent = LLMAgent(node, use_tools=True)
    result = await agent.execute({"query": "What is 15 * 23 + 17?"})
    print(result)
    # E11
    tool_agent = agent
    print(await tool_agent.execute({"query": "Calculate the sum of squares of numbers from 1 to 10"}))
    # E13
    agent = LLMAgent(node, use_memory=True, use_tools=True)
    print(agent.use_memory, agent.use_tools, LLMAgent(node).use_memory, LLMAgent(node).use_tools)


asyncio.run(main())
