"""kodeagent on scripted work: URL DIRECTORY STEPS AGENTS; prints {"seconds": …, "version": …}."""

import asyncio
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from kodeagent.fca import FunctionCallingAgent


def agent(url, place):
    place.mkdir()

    async def shell_run_command(command: str) -> str:
        """Run a shell command."""
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, cwd=place, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode()

    return FunctionCallingAgent(
        model_name="openai/scripted",
        tools=[shell_run_command],
        loop_detection_threshold=1000,
        litellm_params={"api_base": url, "api_key": "none"},
    )


async def run(one, steps):
    async for _ in one.run("Take twenty steps.", max_iterations=steps + 5, use_planning=False):
        pass


async def main():
    url, directory, steps, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    agents = [agent(url, directory / str(number)) for number in range(count)]
    began = time.perf_counter()
    await asyncio.gather(*(run(one, steps) for one in agents))
    print(json.dumps({"seconds": time.perf_counter() - began, "version": version("kodeagent")}))


asyncio.run(main())
