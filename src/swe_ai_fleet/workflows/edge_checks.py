"""What is wrong with the edges of a workflow, and with the ways that branches choose."""

from __future__ import annotations

from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.workflow import Edge, Node, NodeType, Workflow
from swe_ai_fleet.workflows.documents import Path, Problem
from swe_ai_fleet.workflows.graph import cycle, ordered
from swe_ai_fleet.workflows.shape import nearest


def edge_problems(workflow: Workflow, path: Path) -> list[Problem]:
    """Edges to nowhere, edges given twice, labels that nothing chooses or leads from, cycles, nodes out of reach."""
    nodes = {node.id: node for node in workflow.nodes}
    found: list[Problem] = []
    whole: list[Edge] = []
    seen: set[tuple[str, str, str]] = set()
    for at, edge in enumerate(workflow.edges):
        place = (*path, "edges", at)
        missing = [
            Problem(
                path=(*place, end),
                message=f"the edge {edge.source} -> {edge.target} names no node {name!r}",
                hint=nearest(name, [*nodes]),
            )
            for end, name in (("source", edge.source), ("target", edge.target))
            if name not in nodes
        ]
        found.extend(missing)
        if missing:
            continue
        whole.append(edge)
        key = (edge.source, edge.target, edge.label)
        if key in seen:
            found.append(Problem(path=place, message=f"the edge {edge.source} -> {edge.target} is given twice"))
        seen.add(key)
        found.extend(_label_problems(nodes[edge.source], edge, (*place, "label")))
    for at, node in enumerate(workflow.nodes):
        if node.type is NodeType.BRANCH:
            labels = {edge.label for edge in whole if edge.source == node.id}
            found.extend(_case_problems(node, labels, (*path, "nodes", at)))
    pairs = [(edge.source, edge.target) for edge in whole]
    circle = cycle([*nodes], pairs)
    if circle:
        at = next(at for at, edge in enumerate(workflow.edges) if (edge.source, edge.target) == circle[:2])
        message = f"the edges go in a circle: {' -> '.join(circle)}"
        found.append(Problem(path=(*path, "edges", at), message=message, hint="a map or retries repeat work"))
    else:
        found.extend(_unreachable(workflow, whole, path))
    return found


def _label_problems(source: Node, edge: Edge, place: Path) -> list[Problem]:
    if not edge.label:
        return []
    match source.type:
        case NodeType.BRANCH:
            known = [case.label for case in source.cases]
            said = f"no case of {source.id} has the label {edge.label!r}"
        case NodeType.APPROVAL:
            known = [decision.value for decision in ApprovalDecision]
            said = f"{edge.label!r} is no decision"
        case _:
            message = f"{source.id} chooses nothing, so the edge cannot have the label {edge.label!r}"
            return [Problem(path=place, message=message, hint="branches and approvals choose")]
    return [] if edge.label in known else [Problem(path=place, message=said, hint=nearest(edge.label, known))]


def _case_problems(node: Node, labels: set[str], place: Path) -> list[Problem]:
    found: list[Problem] = []
    seen: set[str] = set()
    always = ""
    for at, case in enumerate(node.cases):
        here = (*place, "cases", at)
        if not case.label:
            found.append(Problem(path=here, message="a case needs a label"))
            continue
        if case.label in seen:
            found.append(Problem(path=here, message=f"there is another case {case.label!r}"))
        elif case.label not in labels:
            message = f"no edge from {node.id} has the label {case.label!r}"
            found.append(Problem(path=here, message=message, hint="add one, or leave the case out"))
        if always:
            message = f"the case {case.label!r} is never reached: {always!r} before it always holds"
            found.append(Problem(path=here, message=message))
        seen.add(case.label)
        if case.when is None:
            always = always or case.label
    return found


def _unreachable(workflow: Workflow, edges: list[Edge], path: Path) -> list[Problem]:
    """Nodes to which only ways lead that are never taken: behind cases that can never be chosen."""
    nodes = {node.id: node for node in workflow.nodes}
    dead = {(node.id, label) for node in workflow.nodes for label in _never_chosen(node)}
    into: dict[str, list[Edge]] = {name: [] for name in nodes}
    for edge in edges:
        into[edge.target].append(edge)
    reached: set[str] = set()
    for name in ordered([*nodes], [(edge.source, edge.target) for edge in edges]):
        ways = into[name]
        if not ways or any(edge.source in reached and (edge.source, edge.label) not in dead for edge in ways):
            reached.add(name)
    return [
        Problem(path=(*path, "nodes", at), message=f"the node {node.id} is never reached")
        for at, node in enumerate(workflow.nodes)
        if node.id not in reached
    ]


def _never_chosen(node: Node) -> list[str]:
    first = next((at for at, case in enumerate(node.cases) if case.when is None), len(node.cases))
    taken = {case.label for case in node.cases[: first + 1]}
    return [case.label for case in node.cases[first + 1 :] if case.label not in taken]
