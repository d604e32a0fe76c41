"""A7 and A8: N agents as Ray actors, each result returned and published on NATS."""

import asyncio
import json
import os
import sys

import nats
import ray

from swe_ai_fleet.agents import VLLMAgentJob


class Council:
    def __init__(self, role, vllm_url, nats_url):
        self.role, self.vllm_url, self.nats_url = role, vllm_url, nats_url

    async def execute(self, task_id, task, context, constraints, num_agents, workspaces):
        job_refs = []
        for i in range(num_agents):
            workspace_path = workspaces[i]
            # A7
            agent = VLLMAgentJob.remote(agent_id=f"agent-{self.role}-{i}", role=self.role, vllm_url=self.vllm_url,
                                        workspace_path=workspace_path, nats_url=self.nats_url)
            job_ref = agent.run.remote(task_id=task_id, task=task, context=context, constraints=constraints)
            job_refs.append(job_ref)
        return [await job_ref for job_ref in job_refs]


async def main(nats_url, workspaces):
    connection = await nats.connect(nats_url)
    subscription = await connection.subscribe("agent.results.examples-a7")
    council = Council("DEV", os.environ["FLEET_MODEL_URL"], nats_url)
    results = await council.execute("examples-a7", "Add hello_world() to utils.py", "", {"max_iterations": 20}, len(workspaces), workspaces)
    for result in results:
        print([type(result[name]).__name__ for name in ("task_id", "success", "operations", "artifacts", "audit_trail")])
        print(result["success"], result["artifacts"]["files_changed"])
        # A8
        told = json.loads((await subscription.next_msg(timeout=20)).data)
        print(told["task_id"], told["success"], len(told["operations"]) > 3, len(told["audit_trail"]) > 3)
    await connection.close()


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
asyncio.run(main(sys.argv[1], sys.argv[2:]))
ray.shutdown()
