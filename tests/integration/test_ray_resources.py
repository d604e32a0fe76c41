"""Hosts that ask for a resource of Ray's, and hosts that end when they have no work."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from swe_ai_fleet.domain.errand import Assignment
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.runtime.factories import workspace_provider
from swe_ai_fleet.runtime.ray_fleet import open_ray_fleet
from swe_ai_fleet.testing.repositories import make_repository
from tests.conftest import FleetUnderTest
from tests.scripts import HELLO, HELLO_FILES

ITS_OWN = "node:__internal_head__"
"""What Ray offers on the first node of a cluster and on no other."""


@pytest.mark.slow
async def test_hosts_run_where_their_resource_is_and_end_without_work(fleet: FleetUnderTest, tmp_path: Path) -> None:
    told = {
        "nats_url": fleet.running.nats_url,
        "nats_token": fleet.running.nats_token,
        "agents_per_actor": 2,
        "ray_resources": {ITS_OWN: 0.01},
        "ray_idle_seconds": 0.5,
    }
    settings = fleet.settings.model_copy(update=told)
    location = str(make_repository(tmp_path / "repository", HELLO_FILES))
    repository = await workspace_provider(settings).pin("default", RepoRef(location=location))

    def assignment() -> Assignment:
        task = Task(
            task_id=f"ray-{uuid.uuid4().hex[:8]}",
            kind=TaskKind.DELIBERATE,
            description=HELLO,
            repo=RepoRef(location=location),
        )
        return Assignment(execution_id=task.execution_id, agent_id="agent-dev-1", task=task, repository=repository)

    async with open_ray_fleet(settings) as hosts:
        running = [asyncio.create_task(hosts.carry_out(assignment())) for _ in range(3)]
        await asyncio.sleep(0)
        done = await asyncio.gather(*running)
        assert {one.artifacts.files_changed for one in done} == {("utils.py",)}
        async with asyncio.timeout(20):
            while len(hosts.hosts) > 1:
                await asyncio.sleep(0.05)
        assert len(hosts.hosts) == 1
        # The one that stayed works.
        assert (await hosts.carry_out(assignment())).artifacts.files_changed == ("utils.py",)
