"""A workflow as a picture: Mermaid text, or SVG. The same workflow gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil
from unicodedata import east_asian_width

from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.text import shortened
from swe_ai_fleet.domain.workflow import Node, NodeStatus, NodeType, Workflow
from swe_ai_fleet.workflows.layout import Box, laid_out

_MAX_LABEL = 40
_LABEL_ABOVE = 16
_PLAIN = re.compile(r"[^A-Za-z0-9_]")
# No control characters: XML has none of most.
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
_PLAIN_COLOURS = ("#ffffff", "#546e7a")


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
        label = "<br/>".join(_mermaid_text(line) for line in _labels(node))
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


def svg(workflow: Workflow, nodes: Mapping[str, NodeUpdated] | None = None) -> str:
    """A workflow as an SVG document, without scripts and without anything from elsewhere.

    Args:
        workflow: A checked one.
        nodes: Where the nodes of a run stand; they are coloured by it, and their title says it.
    """
    labels = {node.id: _labels(node) for node in workflow.nodes}
    layout = laid_out(workflow, {name: max(_room(line) for line in lines) for name, lines in labels.items()})
    width, height = _number(layout.width), _number(layout.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{_xml(workflow.name)}</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#546e7a"/></marker></defs>',
    ]
    boxes, shown = layout.boxes, nodes or {}
    parts.extend(
        _line(boxes[edge.source], boxes[edge.target], layout.bends.get((edge.source, edge.target), ()), edge.label)
        for edge in workflow.edges
    )
    parts.extend(_drawn(node, boxes[node.id], labels[node.id], shown.get(node.id)) for node in workflow.nodes)
    return "\n".join([*parts, "</svg>\n"])


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


def _labels(node: Node) -> list[str]:
    return [_short(node.id), _short(said_of(node))]


def _room(text: str) -> int:
    """How many usual characters take as much room, in a bold font."""
    wide = sum(each in "WM@%" or east_asian_width(each) in "WF" for each in text)
    return ceil(len(text) + 0.8 * wide + 0.3 * sum(each.isupper() for each in text))


def _short(text: str) -> str:
    return shortened(_STRANGE.sub(" ", text), _MAX_LABEL)


def _mermaid_text(text: str) -> str:
    # Numeric entities are all that Mermaid reads within quotes; `#` begins them.
    return "".join(each if each.isalnum() or each in " _-." else f"#{ord(each)};" for each in _short(text))


def _xml(text: str) -> str:
    return escape(_STRANGE.sub(" ", text), quote=True)


def _line(source: Box, target: Box, bends: Sequence[Box], label: str) -> str:
    """An arrow; in the layers between it goes straight down, beside the boxes."""
    path = f"M{_number(source.centre)} {_number(source.y + source.height)}"
    way = (source, *bends, target)
    for above, below in pairwise(way):
        x, y, to_x, to_y = above.centre, above.y + above.height, below.centre, below.y
        middle = (to_y - y) / 2
        curve = (x, y + middle, to_x, to_y - middle, to_x, to_y)
        path += f" C{' '.join(_number(each) for each in curve)}"
        if below is not target:
            path += f" V{_number(below.y + below.height)}"
    drawn = f'<path d="{path}" fill="none" stroke="#546e7a" marker-end="url(#end)"/>'
    if not label:
        return drawn
    # At the end that it has for itself: the ways that a branch chooses all begin at one place.
    at_x, at_y = 0.25 * source.centre + 0.75 * way[1].centre + 6, way[1].y - _LABEL_ABOVE
    return f'{drawn}\n<text x="{_number(at_x)}" y="{_number(at_y)}" fill="#37474f">{_xml(_short(label))}</text>'


def _drawn(node: Node, box: Box, lines: list[str], update: NodeUpdated | None) -> str:
    fill, stroke = _COLOURS[update.status] if update else _PLAIN_COLOURS
    radius = {NodeType.AGENT: 12, NodeType.BRANCH: 22}.get(node.type, 3)
    title = f"{node.id}: {update.status.value}" if update else node.description or node.id
    inner = box.height / 2 - 6
    rows = [
        f'<text x="{_number(box.centre)}" y="{_number(box.y + inner + 16 * at)}" text-anchor="middle"'
        f"{' font-weight=' + chr(34) + 'bold' + chr(34) if at == 0 else ''}>{_xml(line)}</text>"
        for at, line in enumerate(lines)
    ]
    dashed = ' stroke-dasharray="5 3"' if node.breakpoint else ""
    return "\n".join(
        (
            f"<g><title>{_xml(title[:200])}</title>",
            f'<rect x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.width)}" '
            f'height="{_number(box.height)}" rx="{radius}" fill="{fill}" stroke="{stroke}"{dashed}/>',
            *rows,
            "</g>",
        )
    )


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
