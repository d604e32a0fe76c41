"""smolagents on scripted work: URL DIRECTORY STEPS AGENTS; prints {"seconds": …, "version": …}."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent, tool


def agent(url, place, steps):
    place.mkdir()

    @tool
    def shell_run_command(command: str) -> str:
        """Run a shell command.

        Args:
            command: What to run.
        """
        return subprocess.run(["sh", "-c", command], cwd=place, capture_output=True, text=True, check=False).stdout

    model = OpenAIModel(model_id="scripted", api_base=url, api_key="none")
    return ToolCallingAgent(tools=[shell_run_command], model=model, max_steps=steps + 5, verbosity_level=0)


def main():
    url, directory, steps, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    agents = [agent(url, directory / str(number), steps) for number in range(count)]
    ready = threading.Barrier(count + 1)

    def run(one):
        ready.wait()
        one.run("Take twenty steps.")

    with ThreadPoolExecutor(count) as pool:
        running = [pool.submit(run, one) for one in agents]
        ready.wait()
        began = time.perf_counter()
        for one in running:
            one.result()
    print(json.dumps({"seconds": time.perf_counter() - began, "version": version("smolagents")}))


main()
