"""Examples E1 and E15: Query -> Researcher -> Analyzer -> Reporter -> Final Report, and what is broadcast of it."""

import asyncio

from swe_ai_fleet.workflows import AgentConfig, Edge, Node, Workflow, WorkflowExecutor, WorkflowInput


def agent(id, tools=()):
    return Node(id=id, type="agent", agent_config=AgentConfig(tools=list(tools), use_tools=bool(tools)))


workflow = Workflow(
    name="research",
    inputs=[WorkflowInput(name="query")],
    nodes=[agent("researcher", ["web_search"]), agent("analyzer", ["python_executor"]), agent("reporter")],
    edges=[Edge(source="researcher", target="analyzer"), Edge(source="analyzer", target="reporter")],
)


async def main():
    inputs = {"query": "How many people live in Rome?"}
    executor = WorkflowExecutor(workflow, stream_updates=True)

    async def watch():
        async for update in executor.updates():
            if update["type"] == "node_update":
                print(f"Node {update['node_id']}: {update['node_state']['status']}")
            elif update["type"] == "log":
                print(f"LOG: {update['log']['message']}")
            else:
                print(update["type"], update.get("status", ""))

    watching = asyncio.create_task(watch())
    execution_state = await executor.execute(inputs)
    await watching
    print(execution_state.outputs["reporter"]["answer"])

    # Without watching, as before.
    executor = WorkflowExecutor(workflow)
    execution_state = await executor.execute(inputs)
    print(execution_state.status)


asyncio.run(main())
