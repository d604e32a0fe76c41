"""A workflow as a picture in Mermaid text. The same workflow gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.text import shortened
from swe_ai_fleet.domain.workflow import Node, NodeStatus, NodeType, Workflow

_MAX_LABEL = 40
_PLAIN = re.compile(r"[^A-Za-z0-9_]")
_STRANGE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029]")
_SHAPES: Mapping[NodeType, tuple[str, str]] = {
    NodeType.AGENT: ("(", ")"),
    NodeType.TOOL: ("[", "]"),
    NodeType.APPROVAL: ("[/", "/]"),
    NodeType.BRANCH: ("{", "}"),
    NodeType.MAP: ("[[", "]]"),
    NodeType.WORKFLOW: ("[[", "]]"),
}
_COLOURS: Mapping[NodeStatus, tuple[str, str]] = {
    NodeStatus.PENDING: ("#fff8e1", "#b28704"),
    NodeStatus.RUNNING: ("#e3f2fd", "#1565c0"),
    NodeStatus.WAITING: ("#fff3e0", "#e65100"),
    NodeStatus.PAUSED: ("#f3e5f5", "#6a1b9a"),
    NodeStatus.COMPLETED: ("#e8f5e9", "#2e7d32"),
    NodeStatus.FAILED: ("#ffebee", "#c62828"),
    NodeStatus.SKIPPED: ("#f5f5f5", "#9e9e9e"),
}


def mermaid(workflow: Workflow, nodes: Mapping[str, NodeUpdated] | None = None) -> str:
    """A workflow as a Mermaid flowchart; sub-workflows and maps are one node each.

    Args:
        workflow: A checked one.
        nodes: Where the nodes of a run stand; they are coloured by it.
    """
    names = {node.id: f"n{number}_{_PLAIN.sub('_', node.id)[:40]}" for number, node in enumerate(workflow.nodes)}
    lines = ["flowchart TD"]
    for node in workflow.nodes:
        opening, closing = _SHAPES[node.type]
        label = "<br/>".join(_mermaid_text(line) for line in [_short(node.id), _short(said_of(node))])
        lines.append(f'    {names[node.id]}{opening}"{label}"{closing}')
    for edge in workflow.edges:
        arrow = f'-- "{_mermaid_text(edge.label)}" -->' if edge.label else "-->"
        lines.append(f"    {names[edge.source]} {arrow} {names[edge.target]}")
    shown = {node.id: nodes[node.id].status for node in workflow.nodes if nodes and node.id in nodes}
    for status in sorted(set(shown.values())):
        fill, stroke = _COLOURS[status]
        having = ",".join(names[name] for name, each in shown.items() if each == status)
        lines.extend((f"    classDef {status.value} fill:{fill},stroke:{stroke}", f"    class {having} {status.value}"))
    return "\n".join(lines) + "\n"


def said_of(node: Node) -> str:
    """What a node does, in a word or two."""
    match node.type:
        case NodeType.TOOL:
            return node.tool
        case NodeType.MAP if node.node is not None:
            return f"map of {node.node.type.value}"
        case NodeType.WORKFLOW:
            return node.workflow if isinstance(node.workflow, str) else node.workflow.name
        case _:
            return node.type.value


def _short(text: str) -> str:
    return shortened(_STRANGE.sub(" ", text), _MAX_LABEL)


def _mermaid_text(text: str) -> str:
    # Numeric entities are all that Mermaid reads within quotes; `#` begins them.
    return "".join(each if each.isalnum() or each in " _-." else f"#{ord(each)};" for each in _short(text))
