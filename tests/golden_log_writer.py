"""Records what this version of the fleet writes, once a version: `python -m tests.golden_log_writer`.

Three executions of a real fleet with the scripted model, each a file of messages as they stand on NATS, and what they
fold to. Files of earlier versions are never changed: tests/unit/test_golden_logs.py reads them for ever.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import aclosing
from importlib.metadata import version
from pathlib import Path

import grpc.aio

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from services.orchestrator.main import RunningFleet, open_fleet
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.adapters.jetstream.protocol import EVENTS
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import make_repository
from tests.scripts import GREETINGS, HELLO_FILES, PROPOSING, SCRIPT
from tests.unit.test_golden_logs import LOGS, folded


async def record(directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="fg-", dir="/tmp") as name:
        repository = make_repository(Path(name) / "repository", HELLO_FILES)
        async with ScriptedModelServer(SCRIPT) as model:
            settings = Settings(
                home=Path(name) / "home", model_url=model.url, model="scripted", listen="127.0.0.1:0", embeddings="none"
            )
            async with open_fleet(settings) as running:
                executions = await _run(running, repository)
                lines = await _lines(running, name)
    directory.mkdir(parents=True)
    expected: dict[str, object] = {}
    for what, execution_id in executions.items():
        own = [line for line in lines if json.loads(line)["execution_id"] == execution_id]
        (directory / f"{what}.jsonl").write_text("".join(f"{line}\n" for line in own))
        expected[what] = folded(own)
    (directory / "folded.json").write_text(json.dumps(expected, indent=2) + "\n")


async def _run(running: RunningFleet, repository: Path) -> dict[str, str]:
    call = {"metadata": (("authorization", f"Bearer {running.token}"),), "timeout": 120}
    repo = pb.RepoRef(path=str(repository))
    async with grpc.aio.insecure_channel(running.address) as channel:
        stub = OrchestratorServiceStub(channel)
        options = pb.OrchestratorOptions(num_agents=3, enable_peer_review=True)
        whole = pb.OrchestrateRequest(task_id="whole", task_description=GREETINGS, repo=repo, options=options)
        orchestrated = await stub.Orchestrate(whole, **call)
        asking = pb.DeliberateRequest(
            task_id="asked", task_description=PROPOSING, repo=repo, num_agents=1, approval=pb.APPROVAL_POLICY_PLAN
        )
        asked = await stub.SubmitTask(pb.SubmitTaskRequest(deliberate=asking), **call)
        watched = stub.StreamExecution(pb.StreamExecutionRequest(execution_id=asked.execution_id), **call)
        async for event in watched:
            if event.type == "approval_requested":
                decision = pb.ResolveApprovalRequest(
                    execution_id=asked.execution_id, decision="APPROVAL_DECISION_APPROVED"
                )
                await stub.ResolveApproval(decision, **call)
        failing = pb.DeliberateRequest(task_id="failing", task_description="[failing]", repo=repo, num_agents=1)
        failed = await stub.Deliberate(failing, **call)
    return {"orchestrated": orchestrated.execution_id, "asked": asked.execution_id, "no_winner": failed.execution_id}


async def _lines(running: RunningFleet, place: str) -> list[str]:
    """All events as they stand, the temporary directory's name aside."""
    async with JetStream.connect(running.nats_url, credentials=Credentials(token=running.nats_token)) as log:
        stored = messages(log.connection, EVENTS, "agent.events.>", follow=False, timeout=30)
        async with aclosing(stored) as events:
            return [one.data.decode().replace(place, "/srv/golden") async for one in events if one is not None]


if __name__ == "__main__":
    asyncio.run(record(LOGS / f"v{version('swe-ai-fleet')}"))
