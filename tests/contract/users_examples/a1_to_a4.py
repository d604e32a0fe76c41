"""A1 to A4: an agent with tools, its tools by themselves, a task, its result."""

import asyncio
import os
import sys
from dataclasses import fields
from pathlib import Path

from swe_ai_fleet.agents import AgentResult, ToolEnabledAgent
from swe_ai_fleet.tools import DatabaseTool, DockerTool, FileTool, GitTool, HttpTool, TestTool


class AgentJob:
    def __init__(self, agent_id, role, vllm_url, workspace_path, model):
        # A1
        self.agent = ToolEnabledAgent(agent_id=agent_id, role=role, vllm_url=vllm_url, workspace_path=workspace_path, model=model)
        # A2
        self.tools = {"git": GitTool(workspace_path), "files": FileTool(workspace_path), "tests": TestTool(workspace_path),
                      "docker": DockerTool(workspace_path), "http": HttpTool(), "db": DatabaseTool()}

    async def run(self, task, context, constraints):
        # A3
        result = await self.agent.execute_task(task, context, constraints)
        return result


async def main(workspace_path):
    job = AgentJob("agent-dev-1", "DEV", os.environ["FLEET_MODEL_URL"], workspace_path, "scripted")
    print("path", isinstance(job.agent.workspace_path, Path), sorted(job.tools))
    print("operations", sum(len(tool.definitions) for tool in job.tools.values()))
    for name, call in {
        "git": job.tools["git"].status(),
        "files": job.tools["files"].read_file("utils.py"),
        "tests": job.tools["tests"].unittest(),
        "db": job.tools["db"].sqlite_query(path="none.db", sql="SELECT 1"),
    }.items():
        result = await call
        print(name, result.success, result.observation().splitlines()[0])

    result = await job.run("Add hello_world() to utils.py", "", {"max_iterations": 20})
    # A4
    print("result", isinstance(result, AgentResult), [field.name for field in fields(AgentResult)][:5])
    print("success", result.success, result.error)
    print("tools", sorted({operation["tool"] for operation in result.operations}))
    print("artifacts", result.artifacts["files_changed"], len(result.artifacts["commit_sha"]), len(result.audit_trail) > 5)


asyncio.run(main(sys.argv[1]))
