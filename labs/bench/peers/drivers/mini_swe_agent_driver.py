"""mini-swe-agent on scripted work: URL DIRECTORY STEPS AGENTS; prints {"seconds": …, "version": …}."""

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel


def agent(url, place):
    place.mkdir()
    arguments = {"api_base": url, "api_key": "none"}
    model = LitellmModel(model_name="openai/scripted", model_kwargs=arguments, cost_tracking="ignore_errors")
    return DefaultAgent(
        model,
        LocalEnvironment(cwd=str(place)),
        system_template="You take steps.",
        instance_template="{{task}}",
        cost_limit=0,
    )


def main():
    url, directory, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[4])
    agents = [agent(url, directory / str(number)) for number in range(count)]
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
    print(json.dumps({"seconds": time.perf_counter() - began, "version": version("mini-swe-agent")}))


main()
