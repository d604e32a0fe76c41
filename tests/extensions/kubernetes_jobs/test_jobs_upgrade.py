"""docs/upgrading.md on Jobs: orchestrators, runners and containers of two versions side by side."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing.repositories import make_repository
from tests.e2e.test_upgrade import LONG, Site, begun_once, claims, later_version, opened
from tests.extensions.kubernetes_jobs.kubernetes_api import KubernetesApiServer, kubernetes_api
from tests.fleet_client import to_orchestrate
from tests.scripts import HELLO_FILES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]


async def runner(site: Site, cluster: KubernetesApiServer, version: Mapping[str, str]) -> asyncio.subprocess.Process:
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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers.workspace_runner"),
        env={
            **os.environ, **site.variables, **version, "FLEET_HOME": str(home), "FLEET_MODEL_URL": site.model,
            **{f"FLEET_RUNNER_{name.upper()}": value for name, value in chosen.items()},
        },
        cwd=home,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    site.stack.push_async_callback(_ended, process)
    return process


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
        runners = [await runner(site, cluster, version) for version in ({}, later)]
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


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.wait()
