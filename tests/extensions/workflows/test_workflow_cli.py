"""`fleet workflow` as its users run it: a process of its own, files on disk, a real fleet."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.fleet_client import bodies
from tests.fleet_command import Shell, ended
from tests.recorded_store import FLOW, STORES, serving_store
from tests.workflow_script import HELD

pytestmark = pytest.mark.slow

HELD_FILE = f"""
name: held
inputs:
  times: {{type: integer, default: 1}}
nodes:
  - {{id: one, type: agent, query: "{HELD} one"}}
  - {{id: ask, type: approval, prompt: "Go on after ${{nodes.one.output.answer}} ${{inputs.times}}"}}
  - {{id: two, type: agent, query: "{HELD} two", breakpoint: true}}
edges:
  - {{source: one, target: ask}}
  - {{source: ask, target: two}}
"""


async def test_a_run_waits_for_people_and_is_stepped(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "held.yaml"
    file.write_text(HELD_FILE)
    task_id = f"held-{uuid.uuid4().hex[:8]}"
    command = ("workflow", "run", str(file), "--input", "times=2", "--task-id", task_id)
    handed_in = await shell.fleet(*command, "--detach")
    assert handed_in.code == 0, handed_in.err
    watching = await shell.start(*command, "--json")
    while (await shell.fleet("approve", task_id, "--as", "ada")).code != 0:
        pass
    while (stepped := await shell.fleet("workflow", "steer", task_id, "step")).code != 0:
        assert "no node is paused" in stepped.err
    ran = await ended(watching)
    assert ran.code == 0, ran.out + ran.err
    told = {one["node_id"]: one for one in ran.document["nodes"]}
    assert told["ask"]["inputs"] == {"prompt": "Go on after At once. 2"}
    assert (told["ask"]["label"], told["two"]["output"]["answer"]) == ("approved", "At once.")
    late = await shell.fleet("workflow", "steer", task_id, "pause")
    assert (late.code, "has ended" in late.err) == (2, True)
    assert "question: string" in (await shell.fleet("workflow", "list")).out
    shown = await shell.fleet("show", task_id)
    assert (shown.code, "At once." in shown.out) == (0, True)


async def test_files_are_checked_and_drawn_without_a_fleet(tmp_path: Path) -> None:
    shell = Shell(home=tmp_path / "nobody", model_url="")
    bad, picture = tmp_path / "bad.yaml", tmp_path / "picture.mmd"
    bad.write_text('name: bad\nnodes:\n  - {id: one, type: agent}\n  - {id: two, type: agent, query: "${nodes.x.y}"}\n')
    ran = await shell.fleet("workflow", "validate", str(bad))
    assert (ran.code, f"{bad}:4: node two: " in ran.out) == (2, True)
    faults = (await shell.fleet("workflow", "validate", str(bad), "--json")).document["faults"]
    assert 4 in [one["line"] for one in faults]
    # What only a fleet knows is no fault here, and named.
    fine = tmp_path / "fine.yaml"
    fine.write_text(
        "name: fine\nnodes:\n  - {id: own, type: tool, tool: weather}\n"
        "  - {id: known, type: tool, tool: calculator, arguments: {expression: '1'}}\n"
        "  - {id: fix, type: agent, query: x, agent_config: {mode: orchestrate, model: large, use_memory: true}}\n"
    )
    ran = await shell.fleet("workflow", "validate", str(fine))
    assert (ran.code, "valid" in ran.err) == (0, True)
    document = (await shell.fleet("workflow", "validate", str(fine), "--json")).document
    assert [(one["line"], one["node"], one["message"]) for one in document["unchecked"]] == [
        (3, "own", "whether there is a tool 'weather'"),
        (5, "fix", "whether there is a model profile 'large'"),
        (5, "fix", "whether there is a context service, for use_memory"),
        (5, "fix", "whether there is a repository of the run, to deliver on"),
    ]
    assert all(
        f"{fine}:{one['line']}: node {one['node']}: {one['message']}" in ran.err for one in document["unchecked"]
    )
    drawn = await shell.fleet("workflow", "graph", "fix-issue")
    assert (drawn.code, drawn.out.startswith("flowchart")) == (0, True)
    assert (await shell.fleet("workflow", "graph", "fix-issue", "-o", str(picture))).code == 0
    assert picture.read_text() == drawn.out
    assert (await shell.fleet("workflow", "graph", "nowhere")).code == 2


# --- a workflow that waits for people since an earlier version is gone on with by this one ---


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", STORES, ids=lambda path: path.name)
async def test_one_that_waits_since_an_earlier_version_goes_on(store: Path) -> None:
    async with serving_store(store) as site:
        nodes = bodies(await site.resolved(FLOW, "APPROVED"), "node_updated")
        assert [node["node_id"] for node in nodes if node["status"] == "completed"] == ["one", "ask", "two"]
