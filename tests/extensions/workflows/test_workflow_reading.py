"""Workflows from YAML and from Python: what is read, and how what is wrong is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.workflow import (
    AgentConfig,
    AgentMode,
    BranchCase,
    Condition,
    Edge,
    Node,
    NodeType,
    Workflow,
    WorkflowInput,
    WorkflowTask,
)
from swe_ai_fleet.extensions.workflows import (
    InvalidWorkflow,
    WorkflowExecutor,
    WorkflowFault,
    mermaid,
    read_catalog,
    read_workflow,
    workflow_schema,
)

TOOLS = ("calculator", "python_executor", "web_search")
OTHER = Workflow(
    name="other",
    inputs=(WorkflowInput(name="x", type="integer"), WorkflowInput(name="why", required=False)),
    nodes=(Node(id="t", type=NodeType.TOOL, tool="calculator"),),
    outputs={"sum": "${nodes.t.output.result}"},
)
LOOP = Workflow(name="loop", nodes=(Node(id="again", type=NodeType.WORKFLOW, workflow="loop"),))
WORKFLOWS = {"other": OTHER, "loop": LOOP}

WHOLE = """
name: everything
description: One of each kind.
inputs:
  query: string
  files: {type: array, description: What to look at, default: []}
nodes:
  - id: ask
    type: agent
    agent_config: {model: small, use_tools: true, tools: [calculator], mode: answer}
    query: "About ${inputs.query}: $${plain}"
    retries: 2
    retry_seconds: 0.5
    timeout_seconds: 60
  - {id: sum, type: tool, tool: calculator, arguments: {expression: 15 * 23 + 17}}
  - id: which
    type: branch
    cases:
      - {label: large, when: {ref: "${nodes.sum.output.result}", op: gt, value: 100}}
      - {label: odd, when: "${nodes.ask.output.data}"}
      - label: small
  - id: each
    type: map
    over: "${inputs.files}"
    max_parallel: 2
    node: {type: tool, tool: web_search, arguments: {query: "${item}"}}
  - {id: sub, type: workflow, workflow: other, inputs: {x: 3}, breakpoint: true}
  - {id: sure, type: approval, prompt: "Go on?", on_error: continue}
edges:
  - {source: ask, target: which}
  - {source: sum, target: which}
  - {source: which, target: each, label: large}
  - {source: which, target: sub, label: small}
  - {source: which, target: sure, label: odd}
outputs:
  total: "${nodes.sub.output.sum}"
"""


def read(text: str, **options: Any) -> Workflow:
    return read_workflow(text, **{"file": "flow.yaml", "tools": TOOLS, "workflows": WORKFLOWS, **options})


def faults(text: str, **options: Any) -> tuple[WorkflowFault, ...]:
    with pytest.raises(InvalidWorkflow) as caught:
        read(text, **options)
    return caught.value.faults


class TestReading:
    def test_one_of_each_kind(self) -> None:
        workflow = read(WHOLE)
        assert from_json(WorkflowTask, to_json(WorkflowTask(workflow=workflow))) == WorkflowTask(workflow=workflow)
        nodes = {node.id: node for node in workflow.nodes}
        assert [node.type for node in workflow.nodes] == ["agent", "tool", "branch", "map", "workflow", "approval"]
        config = AgentConfig(model="small", use_tools=True, tools=("calculator",), mode=AgentMode.ANSWER)
        assert nodes["ask"].agent_config == config
        assert (nodes["ask"].line, nodes["sum"].line) == (8, 15)
        odd = Condition(ref="${nodes.ask.output.data}", op="truthy")
        assert nodes["which"].cases[1] == BranchCase(label="odd", when=odd)
        assert nodes["each"].node is not None
        assert nodes["each"].node.arguments == {"query": "${item}"}
        assert nodes["sub"].workflow == OTHER
        assert workflow.inputs[0] == WorkflowInput(name="query")
        assert workflow.edges[2] == Edge(source="which", target="each", label="large", line=32)

    @pytest.mark.parametrize(
        ("text", "kind", "value"),
        [
            ("yes", "string", "yes"), ("010", "integer", 10), ("2024-01-01", "string", "2024-01-01"),
            ("1e3", "number", 1000.0), ("[~, yes]", "array", [None, "yes"]),
        ],
    )  # fmt: skip
    def test_yes_no_and_dates_are_texts(self, text: str, kind: str, value: object) -> None:
        head = f"name: flow\ninputs: {{a: {{type: {kind}, default: {text}}}}}\nnodes:\n"
        assert read(head + "  - {id: t, type: tool, tool: calculator}\n").inputs[0].default == value

    def test_the_schema_is_one_and_takes_what_is_read(self) -> None:
        schema: Any = workflow_schema()
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(yaml.safe_load(WHOLE))
        kept = Path(__file__).parents[3] / "docs/schemas/workflow.json"
        assert json.loads(kept.read_text()) == schema, "write workflow_schema() to docs/schemas/workflow.json"


def invalid() -> list[Any]:
    """(file, node, words) from `invalid_workflows.txt`: `=== id | node | words`, then the file.

    The line of the fault is the one that ends with `# <-`; without one it is not looked at.
    """
    found: list[Any] = []
    for block in (Path(__file__).parent / "invalid_workflows.txt").read_text().split("=== ")[1:]:
        head, _, text = block.partition("\n")
        name, node, said = (part.strip() for part in head.split("|"))
        found.append(pytest.param(text.rstrip("\n") + "\n", node, said, id=name))
    return found


class TestFaults:
    @pytest.mark.parametrize(("text", "node", "said"), invalid())
    def test_each_names_its_line_and_node(self, text: str, node: str, said: str) -> None:
        found = faults(text)
        marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# <-")]
        line = marked[0] if marked else found[0].line
        matching = [fault for fault in found if said in str(fault)]
        assert matching, [str(fault) for fault in found]
        assert (matching[0].line, matching[0].node, matching[0].file) == (line, node, "flow.yaml")
        assert len(found) == 1 or "never" in said or "two cases" in said, [str(fault) for fault in found]

    def test_hostile_files(self) -> None:
        for text, said in (
            (b"a: \xff", "it is not UTF-8"),
            ("x" * 300_000, "at most 262144 are read"),
            ("[" * 100_000, "more than 24 levels"),
            ("- " * 50_000, "more than 24 levels"),
            ("[" + "1," * 30_000 + "]", "more than 20000 values"),
            ("a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]", r"the alias \*a is not supported"),
            ("? [a]\n: b", "a key must be a string"),
            ("a: \x00", "invalid YAML"),
            ("a: 1e999", "too large a number"),
            ("name: 'open", "invalid YAML"),
        ):
            with pytest.raises(InvalidWorkflow, match=said):
                read_workflow(text)

    @settings(max_examples=50)
    @given(data=st.data())
    def test_a_broken_file_is_refused_with_faults_that_have_lines(self, data: st.DataObject) -> None:
        lines = WHOLE.splitlines()
        at = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(0, len(lines[at])))
        put = data.draw(st.sampled_from(["", "x", ":", "- ", "{", "]", "'", "${", "\t", " ", "null", "#"]))
        lines[at] = lines[at][:cut] + put + lines[at][data.draw(st.integers(cut, len(lines[at]))) :]
        try:
            read("\n".join(lines))
        except InvalidWorkflow as error:
            assert error.faults
            assert all(1 <= fault.line <= len(lines) + 1 for fault in error.faults)
            assert error.faults == tuple(sorted(error.faults, key=lambda fault: fault.line))


@settings(max_examples=50)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_drawn_safely(tool: str, label: str) -> None:
    nodes = (Node(id="a", type=NodeType.TOOL, tool=tool), Node(id="b", type=NodeType.TOOL, tool="t"))
    lines = mermaid(Workflow(name=label, nodes=nodes, edges=(Edge(source="a", target="b", label=label),))).splitlines()
    assert (len(lines), lines[1].count('"')) == (4, 2)


def checked(made: Workflow, **options: Any) -> Workflow:
    """As whoever brings a runner of their own has it checked: tools may have any names."""
    return WorkflowExecutor(made, runner=options.pop("runner", object()), **options).workflow


def said(made: Workflow, **options: Any) -> list[str]:
    with pytest.raises(InvalidWorkflow) as caught:
        checked(made, **options)
    return [f"{fault.node}: {fault.message}" for fault in caught.value.faults]


def calling(name: str, workflow: str | Workflow, node_id: str = "s") -> Workflow:
    return Workflow(name=name, nodes=(Node(id=node_id, type=NodeType.WORKFLOW, workflow=workflow),))


LEAF = Workflow(name="leaf", nodes=(Node(id="t", type=NodeType.TOOL, tool="t"),))


class TestPython:
    def test_workflows_do_not_grow_without_end(self) -> None:
        odd = Workflow(name="flow", nodes=(Node(id="a", type=NodeType.TOOL, tool="t", arguments={"x": {1}}),))
        assert "x is not valid JSON" in said(odd)[0]
        nodes = tuple(Node(id=f"n{number}", type=NodeType.TOOL, tool="t") for number in range(501))
        assert "at most 500 nodes" in said(Workflow(name="flow", nodes=nodes))[0]
        inner = LEAF
        for _ in range(9):
            inner = calling("inner", inner)
        assert "nested more than 8 deep" in said(inner)[0]


def test_an_operator_s_directory_adds_and_replaces(tmp_path: Path) -> None:
    for name, text in {
        "mine.yaml": "name: mine\nnodes:\n  - {id: a, type: workflow, workflow: fix-issue, inputs: {issue: x}}\n",
        "fix.yml": "name: fix-issue\ninputs: {issue: string}\nnodes:\n  - {id: one, type: agent, query: mend}\n",
        "bad.yaml": "name: bad\nnodes: []\n",
        "lost.yaml": "name: lost\nnodes:\n  - {id: one, type: workflow, workflow: nowhere}\n",
        "notes.txt": "no workflow",
    }.items():
        (tmp_path / name).write_text(text)
    catalog = read_catalog((tmp_path, tmp_path / "gone"))
    built_in = {"fix-issue", "research-report", "review-pull-request", "upgrade-dependency"}
    assert set(catalog.workflows) == {*built_in, "mine"}
    assert not catalog.get("fix-issue").built_in
    assert catalog.get("mine").workflow.nodes[0].workflow == catalog.get("fix-issue").workflow
    assert [fault.file for fault in catalog.broken] == [str(tmp_path / "bad.yaml"), str(tmp_path / "lost.yaml")]
    with pytest.raises(NotFound):
        catalog.get("lost")
