"""How much of an agent's prompts a real vLLM server has in its prefix cache, over a run of twenty steps.

Each prompt goes to the server as it is; what the tiny random model says to it is thrown away, and the scripted call
stands in its place, so that the run is one that agents really make.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from labs.vllm.server import VLLMServer, interpreter, make_model, serve
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.run_deps import RunContext, RunDeps
from swe_ai_fleet.agents.solving import Solver
from swe_ai_fleet.agents.spec import run_agent
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.message import AssistantMessage, ModelCapabilities, ModelReply, ModelRequest, ToolCall
from swe_ai_fleet.domain.task import DEFAULT_TENANT, RepoRef, Task, TaskKind
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.runtime.tool_services import with_isolation_level
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.audit import AuditTrail

STEPS = 20
TARGET_SHARE = 0.95
_COMMANDS = (
    "ls -la && wc -l *.py",
    "cat module_{step}.py",
    "grep -n 'def ' *.py | head -20",
    "echo '# step {step}' >> notes.md && cat notes.md",
)


@dataclass
class Prompted:
    """A model that asks the server with every prompt, and says what the script says."""

    server: VLLMServer
    model: OpenAIChatModel
    counts: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    async def probe(self) -> ModelCapabilities:
        return await self.model.probe()

    async def ping(self) -> None:
        await self.model.ping()

    async def reply(self, request: ModelRequest) -> ModelReply:
        answer = await self.model.reply(replace(request, sampling=replace(request.sampling, max_tokens=1)))
        metrics = await self.server.metrics()
        self.counts.append((metrics["vllm:prefix_cache_hits_total"], metrics["vllm:prefix_cache_queries_total"]))
        step = len(self.counts)
        name, arguments = "shell_run_command", {"command": _COMMANDS[step % len(_COMMANDS)].format(step=step)}
        if step > STEPS:
            name, arguments = "final_answer", {"result": "Twenty steps taken."}
        call = ToolCall(call_id=f"c{step}", model_call_id=f"c{step}", name=name, arguments=json.dumps(arguments))
        message = AssistantMessage(content=f"Step {step}: I look at the next part.", tool_calls=(call,))
        return replace(answer, message=message, finish_reason="tool_calls")


async def prefix_cache_figures(directory: Path) -> dict[str, float]:
    """The share of prompt tokens, behind the first step, that the server had cached; nothing without a server."""
    if not interpreter().exists():
        return {}
    repository = make_repository(
        directory / "repository",
        {
            **{f"module_{n}.py": f"def function_{n}(x):\n    return x + {n}\n" * 8 for n in range(1, STEPS + 1)},
            "AGENTS.md": "Keep functions small.\n",
        },
    )
    model = await make_model(directory / "model")
    options = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    async with (
        serve(model, directory / "vllm.log", *options, "--max-model-len", "32768") as server,
        OpenAIChatModel(base_url=server.url) as client,
    ):
        prompted = Prompted(server, client)
        settings = await with_isolation_level(Settings(home=directory / "home", model_url=server.url))
        workspaces = workspace_provider(settings)
        repo = RepoRef(location=str(repository))
        pinned = await workspaces.pin(DEFAULT_TENANT, repo)
        task = Task(task_id="prefix", kind=TaskKind.DELIBERATE, description="Look at every module.", repo=repo)
        environment = await workspaces.environment(pinned, task.environment)
        async with workspaces.open(task.execution_id, "agent-1", pinned, environment) as clone:
            assignment = CodingAssignment(
                execution_id=task.execution_id, agent_id="agent-1", task=task, repository=pinned
            )
            run = RunContext(deps=RunDeps(models={"": prompted}), trail=AuditTrail())
            solution = await run_agent(Solver(assignment, clone, run), run)
        if len(solution.trajectory.steps) != STEPS + 1:
            raise RuntimeError(f"the run took {len(solution.trajectory.steps)} steps: {solution.trajectory.error}")
    (first_hits, first_queries), (hits, queries) = prompted.counts[0], prompted.counts[-1]
    last = solution.trajectory.steps[-1].usage.prompt_tokens
    return {
        "prefix_cache_hit_share": round((hits - first_hits) / (queries - first_queries), 3),
        "prefix_cache_last_prompt_tokens": last,
    }
