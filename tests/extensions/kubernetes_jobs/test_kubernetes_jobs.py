"""A task the whole way through Kubernetes Jobs: the API server is a double, its containers are real processes."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.event import RunClaimed, WorkspaceCheckpointed
from swe_ai_fleet.domain.task import TaskKind, execution_id
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from tests.extensions.kubernetes_jobs.kubernetes_api import KubernetesApiServer, kubernetes_api
from tests.git_server import PASSWORD, USER, GitServer, git_server
from tests.scripts import HELLO_FILES
from workers.workspace_runner.main import RunningRunner, open_runner

SECONDS = 240
WAITING = "[waiting]"
WAIT = Conversation(
    match=WAITING,
    turns=(
        Turn(tool_calls=(("shell_run_command", {"command": "echo 1 >> count.txt"}),)),
        Turn(tool_calls=(("shell_run_command", {"command": "while test ! -e /tmp/go; do sleep 0.05; done"}),)),
        Turn(tool_calls=(("shell_run_command", {"command": "echo 2 >> count.txt"}),)),
        Turn(tool_calls=(("final_answer", {"result": "counted"}),)),
    ),
)


class World:
    """NATS, a git server with a password, a cluster, and a runner in it."""

    def __init__(self, server: EmbeddedNats, repositories: GitServer, cluster: KubernetesApiServer, log: JetStream):
        self.address = server.address
        self.repositories = repositories
        self.cluster = cluster
        self.log = log

    async def submit(self, name: str, text: str, subject: str = "agent.cmd.execute", **more: object) -> None:
        repo = {"url": f"{self.repositories.url}/origin.git"}
        body = {"deliberate": {"taskId": name, "taskDescription": text, "repo": repo, **more}}
        async with await nats.connect(self.address.url) as client:
            await client.jetstream().publish(subject, json.dumps(body).encode())

    async def result(self, name: str) -> dict[str, Any]:
        async with await nats.connect(self.address.url) as client:
            subscription = await client.jetstream().subscribe(f"agent.results.{name}", ordered_consumer=True)
            return json.loads((await subscription.next_msg(timeout=SECONDS)).data)

    def runs(self) -> bool:
        """Whether an agent's container does."""
        statuses = [one for pod in self.cluster.all("pods") for one in pod["status"]["containerStatuses"]]
        return any("running" in one["state"] for one in statuses)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="k-") as name:
        yield Path(name)


@pytest.fixture
async def world(tmp_path: Path, short: Path) -> AsyncIterator[World]:
    plain = make_repository(tmp_path / "plain", HELLO_FILES)
    served = tmp_path / "served"
    served.mkdir()
    git(served, "clone", "--quiet", "--bare", str(plain), "origin.git")
    async with (
        EmbeddedNats(tmp_path / "nats") as server,
        git_server(served) as repositories,
        kubernetes_api(short) as cluster,
        connect_log(
            Settings(home=tmp_path, nats_url=server.address.url, nats_token=server.address.token), name="test"
        ) as log,
    ):
        cluster.secrets["nats"] = {"FLEET_NATS_URL": server.address.url}
        cluster.secrets["model"] = {"FLEET_MODEL_API_KEY": "hush"}
        cluster.secrets["git"] = {"username": USER, "password": PASSWORD}
        yield World(server, repositories, cluster, log)


@asynccontextmanager
async def runner(world: World, tmp_path: Path) -> AsyncGenerator[RunningRunner]:
    (tmp_path / "kubeconfig").write_text(json.dumps(world.cluster.kubeconfig()))
    chosen = RunnerSettings(
        takes="commands", image="registry.example/fleet-agent:1", kubeconfig=tmp_path / "kubeconfig",
        namespace="fleet", git_secrets={"*": "git"}, nats_secret="nats", agent_secrets=("model",), protocols="http",
        hosts="127.0.0.1", image_secrets={"*": "pull"},
        agent_env={"FLEET_MODEL": "scripted", "FLEET_CHECKPOINT_SECONDS": "0"},
        ack_wait_seconds=2.0,
    )  # fmt: skip
    script = Script(conversations=(WAIT,))
    async with ScriptedModelServer(script) as model:
        settings = Settings(
            home=tmp_path / "runner", model_url=model.url, nats_url=world.address.url, nats_token=world.address.token,
        )  # fmt: skip
        async with open_runner(settings, chosen) as running:
            yield running


@pytest.mark.slow
async def test_an_evicted_pod_goes_on_from_its_log_in_another_job(world: World, tmp_path: Path) -> None:
    execution = execution_id(tenant="default", kind=TaskKind.DELIBERATE, task_id="t-wait", attempt=1)
    async with runner(world, tmp_path) as running:
        await world.submit("t-wait", WAITING)
        async with asyncio.timeout(SECONDS):
            async for stored in world.log.read("default", execution, agent_id="agent-1", follow=True):
                if isinstance(stored.event.body, WorkspaceCheckpointed):
                    break
        (pod,), (job,) = world.cluster.all("pods"), world.cluster.all("jobs")
        first = pod["metadata"]["name"]
        agent, clone = world.cluster.variables[first, "agent"], world.cluster.variables[first, "clone"]
        # What comes later in the repository is nothing to a run that has begun.
        git(tmp_path, "clone", "--quiet", str(world.repositories.root / "origin.git"), "later")
        commit_files(tmp_path / "later", {"later.txt": "later\n"})
        git(tmp_path / "later", "push", "--quiet")
        await world.cluster.evict(first)
        await world.cluster.until(world.runs, SECONDS)
        # The interrupted call is told, not run again: the next turn writes.
        result = await world.result("t-wait")
        figures = running.runner.figures()
    # The credential was the first container's alone, the model's key the second one's.
    assert PASSWORD not in str(agent) and "FLEET_GIT_CREDENTIALS" not in agent
    assert (agent["FLEET_MODEL_API_KEY"], "FLEET_MODEL_API_KEY" in clone) == ("hush", False)
    # A job is one try.
    assert (job["spec"]["backoffLimit"], pod["spec"]["restartPolicy"]) == (0, "Never")
    claims = [
        stored.event.body.generation
        async for stored in world.log.read("default", execution, agent_id="agent-1")
        if isinstance(stored.event.body, RunClaimed)
    ]
    assert result["success"], result
    assert "+1\n+2\n" in result["artifacts"]["patch"]
    assert "later.txt" not in result["artifacts"]["patch"]
    assert claims == [1, 2]
    assert figures["failed"] == {"Evicted": 1}
