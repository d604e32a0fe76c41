"""Workflows by name: what comes with the fleet is sound, what operators add takes its place or is named as broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.orchestrator.workflows import tool_names
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.task import RepoRef, Task, TaskKind
from swe_ai_fleet.domain.workflow import AgentMode, NodeType, WorkflowTask
from swe_ai_fleet.orchestrator.node_tasks import nodes_of
from swe_ai_fleet.orchestrator.workflow_tasks import check_workflow, normalised
from swe_ai_fleet.tools.access import ToolAccess
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.workflows.shelf import Shelf, read_shelf

TEMPLATES = ("fix-issue", "research-report", "review-pull-request", "upgrade-dependency")
TOOLS = tool_names(ToolAccess())


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return read_shelf(tools=TOOLS)


def test_what_comes_with_the_fleet(shelf: Shelf):
    assert tuple(shelf.workflows) == TEMPLATES
    assert shelf.broken == ()
    assert all(one.built_in for one in shelf.workflows.values())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_described_and_its_calls_fit_their_tools(shelf: Shelf, name: str):
    workflow = shelf.get(name).workflow
    assert workflow.description
    assert workflow.outputs
    assert all(one.description for one in workflow.inputs)
    for node in nodes_of(workflow):
        if node.type is NodeType.TOOL:
            spec = operations()[node.tool].spec
            assert set(node.arguments) <= set(spec.parameters["properties"]), node.id
            assert set(spec.parameters.get("required", ())) <= set(node.arguments), node.id


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_can_be_handed_in_and_stored(shelf: Shelf, name: str):
    workflow = shelf.get(name).workflow
    given = ", ".join(f'"{one.name}": "x"' for one in workflow.inputs if one.required and one.default is None)
    task = Task(
        task_id="t",
        kind=TaskKind.WORKFLOW,
        description=workflow.description,
        repo=RepoRef(location="/srv/app"),
        workflow=WorkflowTask(workflow=workflow, inputs=f"{{{given}}}"),
    )
    check_workflow(task, profiles=(), max_agents=8)
    task = normalised(task)
    assert from_json(Task, to_json(task)) == task
    # Whoever drives it later must come to the same tasks for its nodes.
    assert from_json(Task, to_json(task)).fingerprint() == task.fingerprint()


def test_a_report_delivers_nothing_and_the_others_one_branch_at_most(shelf: Shelf):
    delivers = {
        name: sum(node.agent_config.mode is AgentMode.ORCHESTRATE for node in nodes_of(one.workflow))
        for name, one in shelf.workflows.items()
    }
    assert delivers == {"fix-issue": 1, "research-report": 0, "review-pull-request": 0, "upgrade-dependency": 1}


def test_an_operator_s_directory_adds_and_replaces(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nnodes:\n  - {id: inner, type: workflow, workflow: fix-issue, inputs: {issue: x}}\n"
    )
    (tmp_path / "fix.yml").write_text(
        "name: fix-issue\ninputs: {issue: string}\nnodes:\n  - {id: one, type: agent, query: mend}\n"
    )
    (tmp_path / "bad.yaml").write_text("name: bad\nnodes: []\n")
    (tmp_path / "lost.yaml").write_text("name: lost\nnodes:\n  - {id: one, type: workflow, workflow: nowhere}\n")
    (tmp_path / "notes.txt").write_text("no workflow")
    shelf = read_shelf((tmp_path, tmp_path / "gone"), tools=TOOLS)
    assert set(shelf.workflows) == {*TEMPLATES, "mine"}
    assert not shelf.get("fix-issue").built_in
    inner = shelf.get("mine").workflow.nodes[0].workflow
    assert inner == shelf.get("fix-issue").workflow
    assert [fault.file for fault in shelf.broken] == [str(tmp_path / "bad.yaml"), str(tmp_path / "lost.yaml")]
    with pytest.raises(NotFound):
        shelf.get("lost")
