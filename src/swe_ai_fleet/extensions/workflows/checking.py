"""Checks whether a workflow can run: its edges, branches, references and names, beyond the shape of its document.

Also: the size of a workflow with all its sub-workflows, and workflows that contain themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.text import nearest
from swe_ai_fleet.domain.workflow import Edge, Node, NodeType, Workflow
from swe_ai_fleet.extensions.workflows.documents import DocumentPath, InvalidWorkflow, Problem, WorkflowFault
from swe_ai_fleet.extensions.workflows.graph import cycle, ordered, upstream
from swe_ai_fleet.extensions.workflows.node_checks import Known, Level, node_problems
from swe_ai_fleet.extensions.workflows.references import BadReference, references_in
from swe_ai_fleet.extensions.workflows.runner import INPUT_TYPES, fits
from swe_ai_fleet.extensions.workflows.schema import ID, ID_HINT, MAX_EDGES, MAX_NODES

MAX_NESTED = 8
"""Levels of sub-workflows."""
MAX_WHOLE = 5_000
"""Nodes of a workflow and of all its sub-workflows."""
_ID = re.compile(ID)


def edge_problems(workflow: Workflow, path: DocumentPath) -> list[Problem]:
    """Edges to unknown nodes, duplicate edges, labels without a case or an edge, cycles, and unreachable nodes."""
    nodes = {node.id: node for node in workflow.nodes}
    problems: list[Problem] = []
    whole: list[Edge] = []
    seen: set[tuple[str, str, str]] = set()
    for at, edge in enumerate(workflow.edges):
        place = (*path, "edges", at)
        missing = [
            Problem(
                path=(*place, end),
                message=f"the edge {edge.source} -> {edge.target} refers to the unknown node {name!r}",
                hint=nearest(name, [*nodes]),
            )
            for end, name in (("source", edge.source), ("target", edge.target))
            if name not in nodes
        ]
        problems.extend(missing)
        if missing:
            continue
        whole.append(edge)
        key = (edge.source, edge.target, edge.label)
        if key in seen:
            problems.append(Problem(path=place, message=f"the edge {edge.source} -> {edge.target} is given twice"))
        seen.add(key)
        problems.extend(_label_problems(nodes[edge.source], edge, (*place, "label")))
    for at, node in enumerate(workflow.nodes):
        if node.type is NodeType.BRANCH:
            labels = {edge.label for edge in whole if edge.source == node.id}
            problems.extend(_case_problems(node, labels, (*path, "nodes", at)))
    pairs = [(edge.source, edge.target) for edge in whole]
    circle = cycle([*nodes], pairs)
    if circle:
        at = next(at for at, edge in enumerate(workflow.edges) if (edge.source, edge.target) == circle[:2])
        message = f"the edges form a cycle: {' -> '.join(circle)}"
        problems.append(Problem(path=(*path, "edges", at), message=message, hint="use a map or retries to repeat work"))
    else:
        problems.extend(_unreachable(workflow, whole, path))
    return problems


def _label_problems(source: Node, edge: Edge, place: DocumentPath) -> list[Problem]:
    if not edge.label:
        return []
    match source.type:
        case NodeType.BRANCH:
            labels = [case.label for case in source.cases]
            message = f"no case of {source.id} has the label {edge.label!r}"
        case NodeType.APPROVAL:
            labels = [decision.value for decision in ApprovalDecision]
            message = f"{edge.label!r} is not a decision"
        case _:
            message = f"{source.id} does not choose, so the edge cannot have the label {edge.label!r}"
            return [Problem(path=place, message=message, hint="only branches and approvals have labelled edges")]
    return [] if edge.label in labels else [Problem(path=place, message=message, hint=nearest(edge.label, labels))]


def _case_problems(node: Node, labels: set[str], place: DocumentPath) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[str] = set()
    always = ""
    for at, case in enumerate(node.cases):
        here = (*place, "cases", at)
        if not case.label:
            problems.append(Problem(path=here, message="a case needs a label"))
            continue
        if case.label in seen:
            problems.append(Problem(path=here, message=f"there are two cases {case.label!r}"))
        elif case.label not in labels:
            message = f"no edge from {node.id} has the label {case.label!r}"
            problems.append(Problem(path=here, message=message, hint="add an edge, or remove the case"))
        if always:
            message = f"the case {case.label!r} is never reached: {always!r} before it always holds"
            problems.append(Problem(path=here, message=message))
        seen.add(case.label)
        if case.when is None:
            always = always or case.label
    return problems


def _unreachable(workflow: Workflow, edges: list[Edge], path: DocumentPath) -> list[Problem]:
    """Nodes that every path reaches only through a case that is never chosen."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`nodes` counts a sub-workflow's nodes once for each use of it; `depth` 1 is a workflow without sub-workflows."""

    nodes: int = 0
    depth: int = 0


def inner_nodes(workflow: Workflow) -> Iterator[Node]:
    """The sub-workflow nodes of a workflow, those within maps included."""
    for node in workflow.nodes:
        while node.node is not None:
            node = node.node
        if node.type is NodeType.WORKFLOW:
            yield node


def containment_cycle(name: str, within: tuple[str, ...], workflows: Mapping[str, Workflow]) -> tuple[str, ...]:
    """The cycle by which the workflow `name` contains itself or one of `within`; empty without a cycle."""
    return _containment_cycle(name, within, workflows, set())


def _containment_cycle(
    name: str, within: tuple[str, ...], workflows: Mapping[str, Workflow], seen: set[str]
) -> tuple[str, ...]:
    if name in within:
        return (*within[within.index(name) :], name)
    if name in seen or name not in workflows:
        return ()
    seen.add(name)
    waiting = [(workflows[name], (*within, name))]
    while waiting:
        workflow, names = waiting.pop()
        for node in inner_nodes(workflow):
            if isinstance(node.workflow, Workflow):
                waiting.append((node.workflow, (*names, node.workflow.name)))
            elif found := _containment_cycle(node.workflow, names, workflows, seen):
                return found
    return ()


def size(workflow: Workflow, workflows: Mapping[str, Workflow]) -> Size:
    """The size of a workflow that does not contain itself; an unknown sub-workflow counts as empty."""
    return _size(workflow, workflows, {})


def _size(workflow: Workflow, workflows: Mapping[str, Workflow], sizes: dict[str, Size]) -> Size:
    nodes, depth = len(workflow.nodes), 0
    for node in inner_nodes(workflow):
        inner = node.workflow
        if isinstance(inner, Workflow):
            inner_size = _size(inner, workflows, sizes)
        elif inner in sizes:
            inner_size = sizes[inner]
        else:
            inner_size = _size(workflows[inner], workflows, sizes) if inner in workflows else Size()
            sizes[inner] = inner_size
        nodes, depth = nodes + inner_size.nodes, max(depth, inner_size.depth)
    return Size(nodes=nodes, depth=depth + 1)


def checked(
    workflow: Workflow, *, tools: Collection[str] | None = None, workflows: Mapping[str, Workflow] | None = None
) -> Workflow:
    """The workflow, with the sub-workflows that it names resolved.

    Args:
        workflow: Made in Python, or read.
        tools: The names of the available tools; None: tools are not checked.
        workflows: The workflows that nodes may name; None: names are neither checked nor resolved.

    Raises:
        InvalidWorkflow: With every fault.
    """
    faults = faults_of(workflow, tools=tools, workflows=workflows)
    if faults:
        raise InvalidWorkflow(faults)
    return resolved_workflows(workflow, workflows) if workflows is not None else workflow


def faults_of(
    workflow: Workflow, *, tools: Collection[str] | None = None, workflows: Mapping[str, Workflow] | None = None
) -> tuple[WorkflowFault, ...]:
    """Every fault of a workflow; its lines are those of its nodes and edges, where they have any."""
    faults = [
        WorkflowFault(message=each.message, hint=each.hint, node=_node_and_line(workflow, each.path)[0], line=line)
        for each in problems_of(workflow, tools=tools, workflows=workflows)
        for line in (_node_and_line(workflow, each.path)[1],)
    ]
    return tuple(sorted(dict.fromkeys(faults), key=lambda fault: fault.line))


def problems_of(
    workflow: Workflow, *, tools: Collection[str] | None, workflows: Mapping[str, Workflow] | None
) -> list[Problem]:
    """The faults in a workflow's meaning, each with its path in the document."""
    if len(workflow.nodes) > MAX_NODES or len(workflow.edges) > MAX_EDGES:
        message = f"a workflow has at most {MAX_NODES} nodes and {MAX_EDGES} edges"
        return [Problem(path=("nodes",), message=message, hint="a map repeats a node for each item of a list")]
    problems = _problems(workflow, (), Known(tools=tools, workflows=workflows), (workflow.name,))
    if not problems:
        whole = size(workflow, workflows or {})
        if whole.depth > MAX_NESTED:
            problems.append(Problem(path=("nodes",), message=f"workflows are nested more than {MAX_NESTED} deep"))
        if whole.nodes > MAX_WHOLE:
            message = f"with the workflows in it there are {whole.nodes} nodes, at most {MAX_WHOLE} are run"
            problems.append(Problem(path=("nodes",), message=message))
    return problems


def resolved_workflows(workflow: Workflow, workflows: Mapping[str, Workflow]) -> Workflow:
    """A checked workflow, with the sub-workflows that it names resolved."""
    return _resolved_workflow(workflow, workflows, {})


def _resolved_workflow(workflow: Workflow, workflows: Mapping[str, Workflow], done: dict[str, Workflow]) -> Workflow:
    return replace(workflow, nodes=tuple(_resolved(node, workflows, done) for node in workflow.nodes))


def _resolved(node: Node, workflows: Mapping[str, Workflow], done: dict[str, Workflow]) -> Node:
    if node.node is not None:
        return replace(node, node=_resolved(node.node, workflows, done))
    inner = node.workflow
    if node.type is not NodeType.WORKFLOW:
        return node
    if isinstance(inner, Workflow):
        return replace(node, workflow=_resolved_workflow(inner, workflows, done))
    if inner not in done:
        done[inner] = _resolved_workflow(workflows[inner], workflows, done)
    return replace(node, workflow=done[inner])


def _problems(workflow: Workflow, path: DocumentPath, outside: Known, within: tuple[str, ...]) -> list[Problem]:
    problems = [*_name_problems(workflow, path), *edge_problems(workflow, path)]
    ids = [node.id for node in workflow.nodes]
    pairs = [(edge.source, edge.target) for edge in workflow.edges if {edge.source, edge.target} <= set(ids)]
    # Nodes in or behind a cycle have no order, so their references cannot be checked.
    before = upstream(ids, pairs)
    inputs = {declared.name: declared for declared in workflow.inputs}
    nodes = {node.id: node for node in workflow.nodes}
    for at, node in enumerate(workflow.nodes):
        place = (*path, "nodes", at)
        level = Level(inputs=inputs, nodes=nodes, before=before.get(node.id), known=outside)
        problems.extend(node_problems(node, place, level))
        problems.extend(_inner_problems(node, place, outside, within))
    level = Level(inputs=inputs, nodes=nodes, before=frozenset(ordered(ids, pairs)), known=outside)
    for name, text in workflow.outputs.items():
        place = (*path, "outputs", name)
        try:
            references = [*references_in(text)]
        except BadReference as error:
            problems.append(Problem(path=place, message=error.message, hint=error.hint))
            continue
        problems.extend(level.problems(references, place))
        if not references:
            message = f"the output {name!r} refers to nothing"
            problems.append(Problem(path=place, message=message, hint="such as ${nodes.ID.output}"))
    return problems


def _inner_problems(node: Node, place: DocumentPath, outside: Known, within: tuple[str, ...]) -> list[Problem]:
    """Faults within a sub-workflow, unknown sub-workflows and cycles of workflows."""
    while node.node is not None:
        node, place = node.node, (*place, "node")
    if node.type is not NodeType.WORKFLOW:
        return []
    place, inner = (*place, "workflow"), node.workflow
    if isinstance(inner, Workflow):
        if len(within) > MAX_NESTED:
            return [Problem(path=place, message=f"workflows are nested more than {MAX_NESTED} deep")]
        return _problems(inner, place, outside, (*within, inner.name))
    if outside.workflows is None or not inner:
        return []
    # A named workflow was checked when it was read; what remains is a cycle back to this one.
    if back := containment_cycle(inner, within, outside.workflows):
        return [Problem(path=place, message=f"the workflow {inner!r} contains itself", hint=" -> ".join(back))]
    if inner not in outside.workflows:
        hint = nearest(inner, sorted(outside.workflows))
        return [Problem(path=place, message=f"there is no workflow {inner!r:.60}", hint=hint)]
    return []


def _name_problems(workflow: Workflow, path: DocumentPath) -> list[Problem]:
    problems: list[Problem] = []
    if not _ID.fullmatch(workflow.name):
        problems.append(
            Problem(path=(*path, "name"), message=f"{workflow.name!r:.60} is not a valid name", hint=ID_HINT)
        )
    if not workflow.nodes:
        problems.append(Problem(path=path, message="a workflow needs nodes"))
    seen: set[str] = set()
    for at, node in enumerate(workflow.nodes):
        place = (*path, "nodes", at, "id")
        if not _ID.fullmatch(node.id):
            problems.append(Problem(path=place, message=f"{node.id!r:.60} is not a valid id", hint=ID_HINT))
        if node.id in seen:
            problems.append(Problem(path=place, message=f"there are two nodes {node.id!r}", hint="ids are unique"))
        seen.add(node.id)
    problems.extend(
        Problem(path=(*path, "outputs", name), message=f"{name!r:.60} is not a valid name", hint=ID_HINT)
        for name in workflow.outputs
        if not _ID.fullmatch(name)
    )
    named: set[str] = set()
    for declared in workflow.inputs:
        place = (*path, "inputs", declared.name)
        if not _ID.fullmatch(declared.name):
            problems.append(Problem(path=place, message=f"{declared.name!r:.60} is not a valid name", hint=ID_HINT))
        if declared.name in named:
            problems.append(Problem(path=place, message=f"there are two inputs {declared.name!r}"))
        named.add(declared.name)
        if declared.type not in INPUT_TYPES:
            message = f"{declared.type!r:.60} is not a type of an input"
            problems.append(Problem(path=(*place, "type"), message=message, hint=", ".join(INPUT_TYPES)))
        elif declared.default is not None and not fits(declared.default, declared.type):
            message = f"the default of {declared.name!r} is not of type {declared.type}"
            problems.append(Problem(path=(*place, "default"), message=message))
    return problems


def _node_and_line(workflow: Workflow, path: DocumentPath) -> tuple[str, int]:
    """(node, line) of a path in the document."""
    match path:
        case ("nodes", int(number), *rest):
            node = inner = workflow.nodes[number]
            while rest[:1] == ["node"] and inner.node is not None:
                inner, rest = inner.node, rest[1:]
            if rest[:1] == ["workflow"] and isinstance(inner.workflow, Workflow):
                below, line = _node_and_line(inner.workflow, tuple(rest[1:]))
                return (f"{node.id}/{below}" if below else node.id), line or node.line
            return node.id, node.line
        case ("edges", int(number), *_):
            return workflow.edges[number].source, workflow.edges[number].line
        case _:
            return "", 0
