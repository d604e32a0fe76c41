"""A9: several agents of a running fleet, not waited for."""

import asyncio
import sys

from swe_ai_fleet.agents import DeliberateAsync


async def main(task_id, task, context, constraints):
    deliberate = DeliberateAsync()
    print(await deliberate.execute(task_id, task, context, constraints, num_agents=3))


asyncio.run(main("examples-a9", "Add hello_world() to utils.py", "", {"repo_url": sys.argv[1]}))
