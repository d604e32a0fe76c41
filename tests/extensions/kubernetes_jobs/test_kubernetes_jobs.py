"""A task the whole way through Kubernetes Jobs: the API server is a double, its containers are real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.domain.event import RunClaimed, WorkspaceCheckpointed
from swe_ai_fleet.domain.task import TaskKind, execution_id
from swe_ai_fleet.extensions.kubernetes_jobs.settings import RunnerSettings
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import commit_files, git, make_repository
from tests.e2e.test_upgrade import LONG, Site, begun_once, claims, later_version, opened
from tests.extensions.kubernetes_jobs.kubernetes_api import KubernetesApiServer, kubernetes_api
from tests.fleet_client import to_orchestrate
from tests.fleet_command import program
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


# --- docs/upgrading.md on Jobs: orchestrators, runners and containers of two versions side by side ---


async def runner_of(site: Site, cluster: KubernetesApiServer, version: Mapping[str, str]) -> asyncio.subprocess.Process:
    """One more workspace runner of a version, whose containers are of that version, too."""
    (kubeconfig := site.directory / "kubeconfig").write_text(json.dumps(cluster.kubeconfig()))
    chosen = {
        "image": "registry.example/fleet-agent:1",
        "kubeconfig": str(kubeconfig),
        "namespace": "fleet",
        # With the variables of both containers: they take them as they are, where `agent_env` has paths of the Pod.
        "nats_secret": f"nats-{len(version)}",
        "protocols": "file",
        "ack_wait_seconds": "2",
        "drain_seconds": "0",
        "agent_env": json.dumps({"FLEET_MODEL": "scripted", "FLEET_CHECKPOINT_SECONDS": "0"}),
    }
    (home := site.directory / f"runner-{len(version)}").mkdir()
    variables = {"FLEET_HOME": str(home), "FLEET_MODEL_URL": site.model} | {
        f"FLEET_RUNNER_{name.upper()}": value for name, value in chosen.items()
    }
    command, log = (sys.executable, "-m", "workers.workspace_runner"), home.with_suffix(".log")
    running = program(*command, log=log, cwd=home, **{**site.variables, **version, **variables})
    return await site.stack.enter_async_context(running)


@pytest.mark.slow
@pytest.mark.timeout(800)
async def test_jobs_of_two_versions_run_side_by_side_while_the_fleet_rolls(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        repository = make_repository(tmp_path / "repository", HELLO_FILES)
        short = site.stack.enter_context(tempfile.TemporaryDirectory(prefix="k-"))
        cluster = await site.stack.enter_async_context(kubernetes_api(Path(short)))
        later = later_version(tmp_path / "later")
        for version in ({}, later):
            cluster.secrets[f"nats-{len(version)}"] = {"FLEET_NATS_URL": site.nats.address.url, **version}

        # All of both versions are there at the same time, as they are while Deployments roll.
        old, new = await site.orchestrator("old", {}), await site.orchestrator("new", later)
        runners = [await runner_of(site, cluster, version) for version in ({}, later)]
        under_way = await old.submit(to_orchestrate(LONG, repository))
        await old.until(under_way, "tool_started")
        runners[0].send_signal(signal.SIGTERM)
        assert await runners[0].wait() == 0
        await old.end()

        events = await new.events(under_way)
        assert begun_once(events) and claims(events) == [1, 2]
        assert (await new.execution(under_way)).status == pb.DELIBERATION_STATUS_COMPLETED
        # Agents of each version ran in containers of that version alone; in the end all is cleared up.
        places = [
            told.get("PYTHONPATH", "") for (_, container), told in cluster.variables.items() if container == "agent"
        ]
        assert places[0] != later["PYTHONPATH"] and places[-1] == later["PYTHONPATH"]
        await cluster.until(lambda: cluster.all("jobs") == [], 60)
        async with site.stored() as stored:
            assert (await stored.stream_info("AGENT_DLQ")).state.messages == 0
