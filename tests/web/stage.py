"""A fleet with something to look at: executions in every state, a workflow, memories, a story.

`python -m tests.web.stage` runs one until Ctrl-C and prints the page's address. Everything but the model is real.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from fleet.context.v1 import context_pb2 as context
from fleet.context.v1 import context_pb2_grpc as context_grpc
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1 import orchestrator_pb2_grpc as pb_grpc
from fleet.workflow.v1 import workflow_pb2 as workflow
from fleet.workflow.v1 import workflow_pb2_grpc as workflow_grpc
from services.orchestrator.main import RunningFleet, open_fleet
from swe_ai_fleet.extensions import extensions
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.scripts import FAILING, GREETINGS, HELLO_FILES, PROPOSING, REVIEWED, RISKY, SCRIPT
from tests.web_script import BUSY, HOSTILE_TASK
from tests.workflow_script import CART_FILES, FIX


@dataclass(kw_only=True)
class Stage:
    """Calls that fill a fleet. `executions` has the id of each sample by a word of its own."""

    running: RunningFleet
    channel: grpc.aio.Channel
    context: grpc.aio.Channel
    directory: Path
    executions: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def call(self) -> dict[str, Any]:
        return {"metadata": (("authorization", f"Bearer {self.running.token}"),), "timeout": 120}

    @property
    def url(self) -> str:
        """The page, with the token that lets one in."""
        return f"{self.running.http}/#token={self.running.token}"

    def repository(self, name: str, files: dict[str, str]) -> Path:
        """One of its own for each sample."""
        return make_repository(self.directory / f"{name}-{uuid.uuid4().hex[:6]}", files)

    async def submit(self, word: str, text: str, repository: Path, **fields: Any) -> str:
        """Hand in a deliberation; its execution id."""
        request = pb.DeliberateRequest(
            task_id=f"{word}-{uuid.uuid4().hex[:6]}",
            task_description=text,
            repo=pb.RepoRef(path=str(repository)),
            **({"num_agents": 1, "enable_peer_review": False} | fields),
        )
        stub: Any = pb_grpc.OrchestratorServiceStub(self.channel)
        answer = await stub.SubmitTask(pb.SubmitTaskRequest(deliberate=request), **self.call)
        self.executions[word] = answer.execution_id
        return answer.execution_id

    async def run_workflow(self, word: str, name: str, inputs: dict[str, Any], repository: Path) -> str:
        """Begin a run; its execution id."""
        request = workflow.RunWorkflowRequest(
            task_id=f"{word}-{uuid.uuid4().hex[:6]}", name=name, repo=pb.RepoRef(path=str(repository))
        )
        request.inputs.update(inputs)
        stub: Any = workflow_grpc.WorkflowServiceStub(self.channel)
        answer = await stub.RunWorkflow(request, **self.call)
        self.executions[word] = answer.execution_id
        return answer.execution_id

    async def until(self, execution_id: str, *kinds: str) -> None:
        """Wait for an event of one of these kinds, or for the end."""
        stub: Any = pb_grpc.OrchestratorServiceStub(self.channel)
        async for event in stub.StreamExecution(pb.StreamExecutionRequest(execution_id=execution_id), **self.call):
            if event.type in kinds:
                return

    async def busy(self, agents: int = 3) -> str:
        """An execution that is at work for some seconds."""
        return await self.submit("busy", f"{BUSY} Add hello_world()", self.repository("busy", HELLO_FILES),
                                 num_agents=agents)  # fmt: skip

    async def asking(self) -> str:
        """An execution that waits for its plan to be approved."""
        found = await self.submit(
            "asking", f"{PROPOSING} Add hello_world()", self.repository("asking", HELLO_FILES),
            approval=pb.APPROVAL_POLICY_PLAN,
        )  # fmt: skip
        await self.until(found, "approval_awaited")
        return found

    async def reviewed(self) -> str:
        """An execution that has ended, with candidates that peers reviewed."""
        found = await self.submit(
            "reviewed", f"{REVIEWED} Add hello_world()", self.repository("reviewed", HELLO_FILES),
            num_agents=2, rounds=1, enable_peer_review=True,
        )  # fmt: skip
        await self.until(found, "execution_finished")
        return found

    async def delivered(self) -> str:
        """An execution that has ended: of three candidates one is refuted, and the best stands on a branch."""
        request = pb.OrchestrateRequest(
            task_id=f"delivered-{uuid.uuid4().hex[:6]}",
            task_description=f"{GREETINGS} Add hello_world()",
            repo=pb.RepoRef(path=str(self.repository("delivered", HELLO_FILES))),
            options=pb.OrchestratorOptions(num_agents=3, enable_peer_review=False, deliberation_rounds=0),
        )
        stub: Any = pb_grpc.OrchestratorServiceStub(self.channel)
        answer = await stub.SubmitTask(pb.SubmitTaskRequest(orchestrate=request), **self.call)
        self.executions["delivered"] = answer.execution_id
        await self.until(answer.execution_id, "execution_finished")
        return answer.execution_id

    async def risky(self) -> str:
        """An execution that waits for a risky call to be approved."""
        found = await self.submit(
            "risky", f"{RISKY} Tidy up", self.repository("risky", HELLO_FILES), approval=pb.APPROVAL_POLICY_RISKY
        )
        await self.until(found, "approval_awaited")
        return found

    async def know(self) -> None:
        """A story with a task and a decision, and some memories."""
        stub: Any = context_grpc.ContextServiceStub(self.context)
        story = f"greetings-{uuid.uuid4().hex[:6]}"
        await stub.CreateStory(
            context.CreateStoryRequest(
                story=context.Story(story_id=story, title="Greet everybody", description="People like to be greeted.")
            ),
            **self.call,
        )
        await stub.CreateTask(
            context.CreateTaskRequest(
                task=context.Task(task_id=f"{story}-1", story_id=story, title="Greet the world", role=context.ROLE_DEV)
            ),
            **self.call,
        )
        for text in ("utils.py is where greetings live.", "Tests run with pytest.", "hello_world is called at start."):
            await stub.AddFact(context.AddFactRequest(namespace="fleet", text=text), **self.call)

    async def fill(self) -> None:
        """Everything at once: what a page has to show."""
        await self.know()
        await self.reviewed()
        await self.delivered()
        ended = [
            await self.submit("failing", f"{FAILING} Add hello_world()", self.repository("failing", HELLO_FILES)),
            await self.submit("hostile", HOSTILE_TASK, self.repository("hostile", HELLO_FILES)),
        ]
        if "workflows" in extensions():
            await self.run_workflow(
                "workflow", "fix-issue", {"issue": f"{FIX} total() of an empty list raises IndexError"},
                self.repository("cart", CART_FILES),
            )  # fmt: skip
        for execution_id in ended:
            await self.until(execution_id, "execution_finished")
        await self.asking()
        await self.risky()
        await self.busy()


@asynccontextmanager
async def stage_of(running: RunningFleet, directory: Path) -> AsyncGenerator[Stage]:
    """A stage on a fleet that runs; its repositories go below the directory."""
    async with (
        grpc.aio.insecure_channel(running.address) as channel,
        grpc.aio.insecure_channel(running.context) as context_channel,
    ):
        yield Stage(running=running, channel=channel, context=context_channel, directory=directory)


async def main() -> None:
    """Run one until it is interrupted."""
    with tempfile.TemporaryDirectory(prefix="fleet-stage-") as directory:
        root = Path(directory)
        async with ScriptedModelServer(SCRIPT, latency_seconds=0.05) as model:
            settings = Settings(home=root / "home", model_url=model.url, model="scripted", listen="127.0.0.1:0")
            async with open_fleet(settings) as running, stage_of(running, root) as stage:
                print(f"gRPC    {running.address}\ntoken   {running.token}\npage    {stage.url}", flush=True)
                await stage.fill()
                for word, execution_id in stage.executions.items():
                    print(f"{word:10} {running.http}/executions/{execution_id}", flush=True)
                await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
