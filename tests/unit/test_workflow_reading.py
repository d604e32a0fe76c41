"""Workflows from YAML and from Python: what is read, and how what is wrong is told."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import InvalidRequest
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
from swe_ai_fleet.workflows.checking import checked, faults_of
from swe_ai_fleet.workflows.documents import read_document
from swe_ai_fleet.workflows.faults import InvalidWorkflow, WorkflowFault
from swe_ai_fleet.workflows.reading import read_workflow
from swe_ai_fleet.workflows.schema import workflow_schema

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
    agent_config: {model: small, use_tools: yes-no, tools: [calculator], mode: answer}
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
  - {id: each, type: map, over: "${inputs.files}", max_parallel: 2, node: {type: tool, tool: web_search, arguments: {query: "${item}"}}}
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
        workflow = read(WHOLE.replace("yes-no", "true"))
        nodes = {node.id: node for node in workflow.nodes}
        assert [node.type for node in workflow.nodes] == ["agent", "tool", "branch", "map", "workflow", "approval"]
        assert nodes["ask"].agent_config == AgentConfig(
            model="small", use_tools=True, tools=("calculator",), mode=AgentMode.ANSWER
        )
        assert (nodes["ask"].line, nodes["sum"].line) == (8, 15)
        assert nodes["which"].cases[1] == BranchCase(
            label="odd", when=Condition(ref="${nodes.ask.output.data}", op="truthy")
        )
        assert nodes["each"].node is not None
        assert nodes["each"].node.arguments == {"query": "${item}"}
        assert nodes["sub"].workflow == OTHER
        assert workflow.inputs[0] == WorkflowInput(name="query")
        assert workflow.edges[2] == Edge(source="which", target="each", label="large", line=27)

    def test_it_survives_the_wire(self) -> None:
        workflow = read(WHOLE.replace("yes-no", "true"))
        task = WorkflowTask(workflow=workflow)
        assert from_json(WorkflowTask, to_json(task)) == task

    def test_yes_and_no_are_texts(self) -> None:
        document = read_document("{a: yes, b: off, c: 010, d: 1_000, e: 2024-01-01, f: 0x10, g: ~, h: 1e3, i: .5}")
        assert document.problems == []
        assert document.value == {
            "a": "yes", "b": "off", "c": 10, "d": "1_000", "e": "2024-01-01", "f": 16, "g": None, "h": 1000.0, "i": 0.5,
        }  # fmt: skip

    def test_the_schema_is_one_and_takes_what_is_read(self) -> None:
        schema: Any = workflow_schema()
        Draft202012Validator.check_schema(schema)
        value = read_document(WHOLE.replace("yes-no", "true")).value
        Draft202012Validator(schema).validate(value)
        assert json.loads(json.dumps(schema)) == schema

    def test_names_are_left_alone_where_there_are_no_workflows_to_look_in(self) -> None:
        workflow = read(WHOLE.replace("yes-no", "true").replace("workflow: other", "workflow: unheard"), workflows=None)
        assert workflow.nodes[4].workflow == "unheard"


HEAD = "name: flow\nnodes:\n"
A = "  - {id: a, type: tool, tool: calculator}\n"
B = "  - {id: b, type: tool, tool: calculator}\n"
BRANCH = "  - {id: if, type: branch, cases: [{label: x, when: '${inputs.q}'}, {label: y}]}\n"
Q = "inputs: {q: string}\n"

# (id, file, node, words of the message); the line of the fault is the one that ends with `# <-`.
INVALID: list[tuple[str, str, str, str]] = [
    ("not-yaml", "name: flow\nnodes: [\n", "", "it is no YAML"),
    ("tab", "name: flow\nnodes:\n\t- x # <-\n", "", "it is no YAML"),
    ("twice-a-key", f"name: flow\nname: flow # <-\nnodes:\n{A}", "", "the key 'name' is given twice"),
    ("alias", f"{HEAD}  - &a {{id: a, type: tool, tool: calculator}}\n  - *a # <-\n", "", "the alias *a is not read"),
    ("tag", f"name: !!python/name:os.system flow # <-\nnodes:\n{A}", "", "is not read"),
    ("two-documents", f"{HEAD}{A}--- # <-\nname: x\n", "", "more than one document"),
    ("no-mapping", "- a # <-\n", "", "must be of type object, not array"),
    ("empty", "# <-\n", "", "must be of type object, not null"),
    ("no-nodes", "name: flow # <-\n", "", "the workflow needs 'nodes'"),
    ("nodes-empty", "name: flow\nnodes: [] # <-\n", "", "nodes is empty"),
    ("unsafe-name", f"name: ../flow # <-\nnodes:\n{A}", "", "'../flow' is no name"),
    ("unknown-key", f"{HEAD}{A}edgs: [] # <-\n", "", "the workflow has no 'edgs' (did you mean 'edges'?)"),
    ("unknown-node-key", f"{HEAD}  - id: a\n    type: tool\n    tool: calculator\n    argumens: {{}} # <-\n", "a",
     "a node of type tool has no 'argumens' (did you mean 'arguments'?)"),
    ("key-of-another-type", f"{HEAD}  - id: a\n    type: agent\n    tool: calculator # <-\n    query: x\n", "a", "has no 'tool'"),
    ("no-type", f"{HEAD}  - id: a # <-\n    typ: tool\n", "a", "a node needs 'type' (is 'typ' meant to be it?)"),
    ("no-id", f"{HEAD}{A}  - type: tool # <-\n    tool: calculator\n", "#2", "needs 'id'"),
    ("unknown-type", f"{HEAD}  - id: a\n    type: agnt # <-\n", "a", "type cannot be 'agnt' (did you mean 'agent'?)"),
    ("wrong-type", f"{HEAD}  - id: a\n    type: tool\n    tool: [calculator] # <-\n", "a", "tool must be of type string, not array"),
    ("too-many-retries", f"{HEAD}  - id: a\n    type: tool\n    tool: calculator\n    retries: 99 # <-\n", "a", "retries is at most 20"),
    ("retries-of-a-branch", f"{HEAD}  - id: a\n    type: branch\n    cases: [{{label: x}}]\n    retries: 1 # <-\n", "a", "has no 'retries'"),
    ("unsafe-id", f"{HEAD}  - id: a/b # <-\n    type: tool\n    tool: calculator\n", "a/b", "'a/b' is no id"),
    ("twice-an-id", f"{HEAD}{A}  - id: a # <-\n    type: tool\n    tool: calculator\n", "a", "there is another node 'a'"),
    ("edge-to-nowhere", f"{HEAD}{A}  - {{id: review, type: tool, tool: calculator}}\nedges:\n  - source: a\n    target: reviw # <-\n", "a",
     "the edge a -> reviw names no node 'reviw' (did you mean 'review'?)"),
    ("edge-without-target", f"{HEAD}{A}edges:\n  - source: a # <-\n", "a", "an edge needs 'target'"),
    ("edge-twice", f"{HEAD}{A}{B}edges:\n  - {{source: a, target: b}}\n  - {{source: a, target: b}} # <-\n", "a", "is given twice"),
    ("cycle", f"{HEAD}{A}{B}  - {{id: c, type: tool, tool: calculator}}\nedges:\n  - {{source: c, target: a}}\n"
     "  - {source: a, target: b} # <-\n  - {source: b, target: c}\n", "a", "the edges go in a circle: a -> b -> c -> a"),
    ("edge-to-itself", f"{HEAD}{A}edges:\n  - {{source: a, target: a}} # <-\n", "a", "in a circle: a -> a"),
    ("label-of-no-case", f"{Q}{HEAD}{BRANCH}{A}{B}edges:\n  - {{source: if, target: a, label: x}}\n  - {{source: if, target: b, label: y}}\n"
     "  - source: if\n    target: b\n    label: z # <-\n", "if", "no case of if has the label 'z'"),
    ("case-without-edge", f"{Q}{HEAD}  - id: if\n    type: branch\n    cases:\n      - {{label: x, when: '${{inputs.q}}'}}\n"
     f"      - label: y # <-\n{A}edges:\n  - {{source: if, target: a, label: x}}\n", "if", "no edge from if has the label 'y'"),
    ("label-of-a-tool", f"{HEAD}{A}{B}edges:\n  - {{source: a, target: b, label: x}} # <-\n", "a", "a chooses nothing"),
    ("label-of-no-decision", f"{HEAD}  - {{id: ok, type: approval, prompt: Well}}\n{A}edges:\n  - {{source: ok, target: a, label: aproved}} # <-\n",
     "ok", "'aproved' is no decision (did you mean 'approved'?)"),
    ("never-reached-case", f"{HEAD}  - id: if\n    type: branch\n    cases:\n      - label: x\n      - label: x # <-\n{A}"
     "edges:\n  - {source: if, target: a, label: x}\n", "if", "there is another case 'x'"),
    ("unreachable", f"{HEAD}  - {{id: if, type: branch, cases: [{{label: x}}, {{label: y}}]}}\n{A}  - id: b # <-\n    type: tool\n    tool: calculator\n"
     "edges:\n  - {source: if, target: a, label: x}\n  - {source: if, target: b, label: y}\n", "b", "the node b is never reached"),
    ("no-comparison", f"{Q}{HEAD}  - id: if\n    type: branch\n    cases:\n      - label: x\n        when: {{ref: '${{inputs.q}}', op: like}} # <-\n{A}"
     "edges:\n  - {source: if, target: a, label: x}\n", "if", "op cannot be 'like'"),
    ("condition-of-nothing", f"{HEAD}  - id: if\n    type: branch\n    cases:\n      - label: x\n        when: inputs.q # <-\n{A}"
     "edges:\n  - {source: if, target: a, label: x}\n", "if", "ref is no reference: 'inputs.q'"),
    ("condition-within", f"{Q}{HEAD}  - id: if\n    type: branch\n    cases:\n      - label: x\n        when: {{op: all, value: ['${{inputs.qq}}']}} # <-\n"
     f"{A}edges:\n  - {{source: if, target: a, label: x}}\n", "if", "${inputs.qq}: there is no input 'qq' (did you mean 'q'?)"),
    ("unknown-input", f"{Q}{HEAD}  - id: a\n    type: agent\n    query: About ${{inputs.qury}} # <-\n", "a", "there is no input 'qury'"),
    ("no-query", f"{Q}{HEAD}  - id: a # <-\n    type: agent\n", "a", "${inputs.query}: there is no input 'query'"),
    ("unknown-node", f"{HEAD}  - id: a\n    type: tool\n    tool: calculator\n    arguments:\n      deep:\n        - x: ${{nodes.z.output}}\n", "a",
     "${nodes.z.output}: there is no node 'z'"),
    ("not-upstream", f"{HEAD}{A}  - id: b\n    type: tool\n    tool: calculator\n    arguments:\n      x: ${{nodes.a.output.y}} # <-\n", "b",
     "${nodes.a.output.y}: a need not have ended by then (an edge from it must lead here)"),
    ("downstream", f"{HEAD}  - id: a\n    type: agent\n    query: ${{nodes.b.output}} # <-\n{B}edges: [{{source: a, target: b}}]\n", "a", "b need not have ended"),
    ("no-reference", f"{HEAD}  - id: a\n    type: agent\n    query: ${{output of b}} # <-\n", "a", "${output of b} is no reference"),
    ("unclosed", f"{HEAD}  - id: a\n    type: agent\n    query: Mind ${{inputs.q # <-\n", "a", "has no closing brace"),
    ("item-outside", f"{HEAD}  - id: a\n    type: agent\n    query: ${{item}} # <-\n", "a", "only within a map"),
    ("no-such-field", f"{HEAD}  - {{id: ok, type: approval, prompt: Well}}\n  - id: a\n    type: agent\n    query: ${{nodes.ok.output.txt}} # <-\n"
     "edges: [{source: ok, target: a}]\n", "a", "ok has no output 'txt' (did you mean 'text'?)"),
    ("unknown-tool", f"{HEAD}  - id: a\n    type: tool\n    tool: calculater # <-\n", "a", "there is no tool 'calculater' (did you mean 'calculator'?)"),
    ("unknown-tool-of-an-agent", f"{HEAD}  - id: a\n    type: agent\n    query: x\n    agent_config:\n      tools:\n        - calculator\n        - abacus # <-\n",
     "a", "there is no tool 'abacus'"),
    ("map-without-list", f"{HEAD}  - id: m # <-\n    type: map\n    node: {{type: tool, tool: calculator}}\n", "m", "needs 'over'"),
    ("map-over-a-text", f"{Q}{HEAD}  - id: m\n    type: map\n    over: ${{inputs.q}} # <-\n    node: {{type: tool, tool: calculator}}\n", "m", "is of type string"),
    ("map-over-plain-text", f"{HEAD}  - id: m\n    type: map\n    over: files # <-\n    node: {{type: tool, tool: calculator}}\n", "m", "must be one reference"),
    ("map-of-branches", f"inputs: {{l: array}}\n{HEAD}  - id: m\n    type: map\n    over: ${{inputs.l}}\n    node: # <-\n      type: branch\n      cases: [{{label: x}}]\n",
     "m", "cannot be a branch"),
    ("within-a-map", f"inputs: {{l: array}}\n{HEAD}  - id: m\n    type: map\n    over: ${{inputs.l}}\n    node:\n      type: tool\n      tool: abacus # <-\n",
     "m", "there is no tool 'abacus'"),
    ("unknown-workflow", f"{HEAD}  - id: s\n    type: workflow\n    workflow: othr # <-\n", "s", "there is no workflow 'othr' (did you mean 'other'?)"),
    ("recursive", f"{HEAD}  - id: s\n    type: workflow\n    workflow: flow # <-\n", "s", "contains itself (flow -> flow)"),
    ("recursive-further-down", f"{HEAD}  - id: s\n    type: workflow\n    workflow: loop # <-\n", "s", "contains itself (loop -> loop)"),
    ("sub-input-missing", f"{HEAD}  - id: s\n    type: workflow\n    workflow: other\n    inputs: {{why: because}} # <-\n", "s",
     "the input 'x' of the workflow 'other' is missing"),
    ("sub-input-of-a-wrong-type", f"{Q}{HEAD}  - id: s\n    type: workflow\n    workflow: other\n    inputs:\n      x: ${{inputs.q}} # <-\n", "s",
     "the input 'x' of 'other' must be of type integer, not string"),
    ("sub-input-unknown", f"{HEAD}  - id: s\n    type: workflow\n    workflow: other\n    inputs:\n      x: 1\n      y: 2 # <-\n", "s", "has no input 'y'"),
    ("sub-output-unknown", f"{HEAD}  - {{id: s, type: workflow, workflow: other, inputs: {{x: 1}}}}\noutputs:\n  o: ${{nodes.s.output.sun}} # <-\n", "",
     "s has no output 'sun' (did you mean 'sum'?)"),
    ("within-a-sub-workflow", f"{HEAD}  - id: s\n    type: workflow\n    workflow:\n      name: inner\n      nodes:\n        - id: t\n          type: tool\n"
     "          tool: abacus # <-\n", "s/t", "there is no tool 'abacus'"),
    ("shape-within-a-sub-workflow", f"{HEAD}  - id: s\n    type: workflow\n    workflow:\n      name: inner\n      nodes:\n        - id: t\n          type: tool\n"
     "          tool: calculator\n          quiet: true # <-\n", "s/t", "has no 'quiet'"),
    ("output-of-nothing", f"{HEAD}{A}outputs:\n  o: nothing # <-\n", "", "the output 'o' names nothing"),
    ("output-of-no-node", f"{HEAD}{A}outputs:\n  o: ${{nodes.z.output}} # <-\n", "", "there is no node 'z'"),
    ("input-of-no-type", f"inputs:\n  q: strin # <-\n{HEAD}{A}", "", "q cannot be 'strin' (did you mean 'string'?)"),
    ("default-of-a-wrong-type", f"inputs:\n  q: {{type: integer, default: x}} # <-\n{HEAD}{A}", "", "the default of 'q' is not of type integer"),
    ("nan", f"{HEAD}  - id: a\n    type: tool\n    tool: calculator\n    arguments: {{x: .nan}} # <-\n", "a", ".nan is no number of JSON"),
]  # fmt: skip


class TestFaults:
    @pytest.mark.parametrize(("text", "node", "said"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
    def test_each_names_its_line_and_node(self, text: str, node: str, said: str) -> None:
        found = faults(text)
        marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# <-")]
        line = marked[0] if marked else found[0].line
        matching = [fault for fault in found if said in str(fault)]
        assert matching, [str(fault) for fault in found]
        assert (matching[0].line, matching[0].node, matching[0].file) == (line, node, "flow.yaml")
        assert len(found) == 1 or "never" in said or "another case" in said, [str(fault) for fault in found]

    def test_all_are_told(self) -> None:
        found = faults(
            f"""{HEAD}  - {{id: a, type: tool, tool: abacus}}
  - {{id: b, type: agent, query: "${{inputs.q}}"}}
  - {{id: c, type: tool, tool: calculator, colour: red}}
edges:
  - {{source: a, target: d}}
  - {{source: c, target: a}}
outputs: {{x: "${{nodes.c.output.y}}"}}
"""
        )
        assert [(fault.line, fault.node) for fault in found] == [(3, "a"), (4, "b"), (5, "c"), (7, "a")]

    def test_what_is_told(self) -> None:
        text = f"{HEAD}  - id: a\n    type: tool\n    tool: calculater\n"
        with pytest.raises(InvalidRequest) as caught:
            read(text)
        assert str(caught.value) == ("flow.yaml:5: node a: there is no tool 'calculater' (did you mean 'calculator'?)")
        again = pickle.loads(pickle.dumps(caught.value))
        assert again.faults == caught.value.faults  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"a: \xff", "it is not UTF-8"),
            ("x" * 300_000, "at most 262144 are read"),
            ("[" * 100_000, "more than 24 levels"),
            ("- " * 50_000, "more than 24 levels"),
            ("[" + "1," * 30_000 + "]", "more than 20000 values"),
            ("a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]", "the alias *a is not read"),
            ("? [a]\n: b", "a key is a text"),
            ("a: \x00", "it is no YAML"),
            ("a: 1e999", "too large a number"),
            ("name: 'open", "it is no YAML"),
        ],
        ids=lambda each: str(each)[:20],
    )
    def test_hostile_files(self, text: str | bytes, said: str) -> None:
        with pytest.raises(InvalidWorkflow, match=said):
            read_workflow(text)

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=200) | st.binary(max_size=100))
    def test_anything_is_read_or_refused(self, text: str | bytes) -> None:
        with pytest.raises(InvalidWorkflow):
            read_workflow(text)

    @settings(max_examples=150, deadline=None)
    @given(data=st.data())
    def test_a_broken_file_is_refused_with_faults_that_have_lines(self, data: st.DataObject) -> None:
        lines = WHOLE.replace("yes-no", "true").splitlines()
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


class TestPython:
    def test_the_same_checks(self) -> None:
        made = Workflow(
            name="flow",
            nodes=(
                Node(id="a", type=NodeType.TOOL, tool="abacus", arguments={"x": "${nodes.b.output}"}),
                Node(id="b c", type=NodeType.AGENT, query="x", retries=-1, on_error="ignore"),
                Node(id="m", type=NodeType.MAP, retries=1),
            ),
            edges=(Edge(source="a", target="z"),),
        )
        said = [f"{fault.node}: {fault.message}" for fault in faults_of(made, tools=TOOLS)]
        assert said == [
            "b c: 'b c' is no id",
            "a: the edge a -> z names no node 'z'",
            "a: there is no tool 'abacus'",
            "a: ${nodes.b.output}: there is no node 'b'",
            "b c: retries is from 0 to 20, not -1",
            "b c: on_error cannot be 'ignore'",
            "m: a node of type map is not tried again",
            "m: over must name a list" if False else "m: a map needs a list: over is empty",
            "m: a map needs a node for its items",
        ]
        with pytest.raises(InvalidWorkflow):
            checked(made)

    def test_names_are_resolved_all_the_way_down(self) -> None:
        outer = Workflow(name="outer", nodes=(Node(id="s", type=NodeType.WORKFLOW, workflow="middle"),))
        item = Node(id="s", type=NodeType.WORKFLOW, workflow="other", inputs={"x": "${item}"})
        middle = Workflow(
            name="middle",
            inputs=(WorkflowInput(name="l", type="array", default=[1]),),
            nodes=(Node(id="m", type=NodeType.MAP, over="${inputs.l}", node=item),),
        )
        found = checked(outer, workflows={"middle": middle, "other": OTHER})
        inner = found.nodes[0].workflow
        assert isinstance(inner, Workflow)
        assert inner.nodes[0].node is not None
        assert inner.nodes[0].node.workflow == OTHER

    def test_values_that_are_no_json(self) -> None:
        made = Workflow(name="flow", nodes=(Node(id="a", type=NodeType.TOOL, tool="t", arguments={"x": {1}}),))
        assert "x is no JSON" in faults_of(made)[0].message

    def test_too_deep(self) -> None:
        inner = Workflow(name="inner", nodes=(Node(id="t", type=NodeType.TOOL, tool="t"),))
        for _ in range(9):
            inner = Workflow(name="inner", nodes=(Node(id="s", type=NodeType.WORKFLOW, workflow=inner),))
        assert "nested more than 8 deep" in faults_of(inner)[0].message
