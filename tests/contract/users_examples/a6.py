"""A6: the model's plan is parsed, its steps are carried out one after the other, each is logged.

The text's loop is a sketch; the library's own carries a plan out, so the program hands in the task and prints the steps.
"""

import asyncio
import os
import sys

from swe_ai_fleet.agents import ToolEnabledAgent


async def main(workspace_path):
    agent = ToolEnabledAgent("agent-dev-2", "DEV", workspace_path, vllm_url=os.environ["FLEET_MODEL_URL"], model="scripted")
    result = await agent.execute_task("Read utils.py by plan", "", {"max_iterations": 10})
    for operation in result.operations:
        print(operation["tool"], operation["operation"], operation["success"])
    print(result.stop_reason, [entry.operation for entry in result.audit_trail])


asyncio.run(main(sys.argv[1]))
