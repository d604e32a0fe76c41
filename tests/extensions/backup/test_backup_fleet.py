"""A fleet that is saved while agents are at work, and goes on in another home from what was saved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleet.context.v1 import context_pb2 as context
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.repositories import git
from tests.fleet_client import Client, bodies, connected, serving, to_orchestrate
from tests.fleet_command import Shell
from tests.scripts import GREETINGS, SLOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def councils(of: Client) -> list[pb.CouncilInfo]:
    return list((await of.stub.ListCouncils(pb.ListCouncilsRequest(), **of.call)).councils)


async def recalled(of: Client) -> list[str]:
    request = context.RecallRequest(query="tabs or spaces", namespaces=["fleet"])
    return [one.memory.text for one in (await of.context.Recall(request, **of.call)).recollections]


async def test_a_fleet_goes_on_from_its_backup(
    model_server: ScriptedModelServer, repository: Path, tmp_path: Path
) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()

    going_on = to_orchestrate(SLOW, repository, task_id="going-on")
    shells = [Shell(home=home, model_url=model_server.url) for home in homes]
    directory = tmp_path / "backup"

    async with serving(homes[0], model_server.url) as (process, card), connected(card) as first:
        saved = await first.stub.Orchestrate(to_orchestrate(GREETINGS, repository), **first.call)
        await first.stub.CreateCouncil(pb.CreateCouncilRequest(role="QA", num_agents=2), **first.call)
        await first.context.AddFact(context.AddFactRequest(namespace="fleet", text="Tabs, no spaces."), **first.call)
        accepted = await first.submit(going_on)
        await first.until(accepted, "tool_finished")
        made = await shells[0].fleet("backup", str(directory), "--json")
        assert made.code == 0, made.out + made.err
        before = (await first.events(saved.execution_id), await first.execution(saved.execution_id))
        made_there, known = await councils(first), await recalled(first)
        assert (len(made_there), known) == (1, ["Tabs, no spaces."])
        refused = await shells[0].fleet("restore", str(directory))
        assert (refused.code, "a fleet is running in" in refused.err) == (2, True)
        process.kill()
        await process.wait()

    restored = await shells[1].fleet("restore", str(directory), "--json")
    assert restored.code == 0, restored.out + restored.err
    told = json.loads(restored.out)
    assert (told["faults"], told["executions"]) == ([], 2)
    again = await shells[1].fleet("restore", str(directory))
    assert (again.code, "is not empty" in again.err) == (2, True)

    async with serving(homes[1], model_server.url) as (_, card), connected(card) as second:
        assert (await second.events(saved.execution_id), await second.execution(saved.execution_id)) == before
        assert await councils(second) == made_there
        async with asyncio.timeout(20):
            while await recalled(second) != known:  # the index is made anew from what was saved
                await asyncio.sleep(0.1)
        reply = await second.stub.Orchestrate(going_on, **second.call)
        assert (reply.execution_id, reply.status) == (accepted, pb.DELIBERATION_STATUS_COMPLETED)
        assert git(repository, "rev-parse", "fleet/going-on") == reply.commit_sha
        claims = bodies(await second.events(accepted), "execution_claimed")
        assert [claim["generation"] for claim in claims] == [1, 2]
        verified = await shells[1].fleet("audit", "verify", accepted)
        assert verified.code == 0, verified.out + verified.err
