"""The graph of a workflow on the wire, for those who draw it themselves."""

from __future__ import annotations

from services.orchestrator.workflow_replies import graph
from swe_ai_fleet.workflows.reading import read_workflow

_FLOW = """\
name: flow
inputs:
  numbers: array
nodes:
  - {id: each, type: map, over: "${inputs.numbers}", node: {type: tool, tool: calculator, arguments: {expression: "1"}}}
  - {id: agree, type: approval, prompt: "<b>ok?</b>", breakpoint: true}
  - {id: last, type: tool, tool: calculator, arguments: {expression: "2"}}
edges:
  - {source: each, target: agree}
  - {source: agree, target: last, label: approved}
outputs:
  answer: ${nodes.last.output}
"""


def test_nodes_and_edges_are_those_of_the_file() -> None:
    told = graph(read_workflow(_FLOW))
    assert [(one.id, one.type, one.label, one.breakpoint, one.line) for one in told.nodes] == [
        ("each", "map", "map of tool", False, 5),
        ("agree", "approval", "approval", True, 6),
        ("last", "tool", "calculator", False, 7),
    ]
    assert [(one.source, one.target, one.label) for one in told.edges] == [
        ("each", "agree", ""),
        ("agree", "last", "approved"),
    ]
