"""How large a workflow is with all the workflows in it, and whether one contains itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from swe_ai_fleet.domain.workflow import Node, NodeType, Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """`nodes` are counted once for each place where they stand; `depth` 1 is a workflow without others in it."""

    nodes: int = 0
    depth: int = 0


def inner_nodes(workflow: Workflow) -> Iterator[Node]:
    """The nodes of a workflow that hold a workflow each, those within maps included."""
    for node in workflow.nodes:
        while node.node is not None:
            node = node.node
        if node.type is NodeType.WORKFLOW:
            yield node


def way_back(name: str, within: tuple[str, ...], workflows: Mapping[str, Workflow]) -> tuple[str, ...]:
    """The way on which the workflow `name` comes to contain itself or one that it is in; empty where it does not."""
    return _way_back(name, within, workflows, set())


def _way_back(name: str, within: tuple[str, ...], workflows: Mapping[str, Workflow], seen: set[str]) -> tuple[str, ...]:
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
            elif found := _way_back(node.workflow, names, workflows, seen):
                return found
    return ()


def size(workflow: Workflow, workflows: Mapping[str, Workflow]) -> Size:
    """The size of a workflow that does not contain itself; what is not known counts as nothing."""
    return _size(workflow, workflows, {})


def _size(workflow: Workflow, workflows: Mapping[str, Workflow], known: dict[str, Size]) -> Size:
    nodes, depth = len(workflow.nodes), 0
    for node in inner_nodes(workflow):
        inner = node.workflow
        if isinstance(inner, Workflow):
            found = _size(inner, workflows, known)
        elif inner in known:
            found = known[inner]
        else:
            found = _size(workflows[inner], workflows, known) if inner in workflows else Size()
            known[inner] = found
        nodes, depth = nodes + found.nodes, max(depth, found.depth)
    return Size(nodes=nodes, depth=depth + 1)
