"""Workflows from YAML."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_list, is_mapping, mapping
from swe_ai_fleet.domain.workflow import (
    AgentConfig,
    BranchCase,
    Edge,
    JsonValue,
    Node,
    Workflow,
    WorkflowInput,
)
from swe_ai_fleet.extensions.workflows.checking import problems_of, resolved_workflows
from swe_ai_fleet.extensions.workflows.conditions import condition_of
from swe_ai_fleet.extensions.workflows.documents import (
    Document,
    InvalidWorkflow,
    Path,
    Problem,
    WorkflowFault,
    read_document,
)
from swe_ai_fleet.extensions.workflows.schema import ID, shape_problems

_UNKNOWN_TOOL = "?"


def read_workflow(
    text: str | bytes,
    *,
    file: str = "",
    tools: Collection[str] | None = None,
    workflows: Mapping[str, Workflow] | None = None,
) -> Workflow:
    """The workflow that a YAML file holds, checked, the sub-workflows that it names put in.

    The largest file that is read (256 KiB) takes about half a second: on an event loop, call it in a thread.

    Args:
        text: The file; UTF-8.
        file: Its name, for the faults.
        tools: The names of tools that there are; None: they are not checked.
        workflows: The workflows that may be named; None: names are neither checked nor resolved.

    Raises:
        InvalidWorkflow: With all that is wrong, each fault with its line and its node.
    """
    document = read_document(text)
    problems = document.problems or shape_problems(document.value)
    if not problems:
        workflow = _Building(document, problems).workflow(document.value, ())
        problems.extend(problems_of(workflow, tools=tools, workflows=workflows))
        if not problems:
            return resolved_workflows(workflow, workflows) if workflows is not None else workflow
    elif all(len(each.path) > 1 and each.path[0] == "nodes" for each in problems) and not document.problems:
        problems.extend(_of_the_others(document, problems, tools, workflows))
    raise InvalidWorkflow(_faults(document, problems, file))


def _of_the_others(
    document: Document,
    problems: Sequence[Problem],
    tools: Collection[str] | None,
    workflows: Mapping[str, Workflow] | None,
) -> list[Problem]:
    """Further faults where only some nodes are malformed; placeholders stand in for those."""
    whole: Mapping[str, Any] = document.value
    broken = {each.path[1] for each in problems}
    nodes = [_stand_in(at, node) if at in broken else node for at, node in enumerate(whole["nodes"])]
    names = {node["id"] for at, node in enumerate(nodes) if at in broken}
    value = {**whole, "nodes": nodes}
    if shape_problems(value):
        return []
    others: list[Problem] = []
    workflow = _Building(document, others).workflow(value, ())
    tool_names = None if tools is None else {*tools, _UNKNOWN_TOOL}
    others.extend(problems_of(workflow, tools=tool_names, workflows=workflows))
    edges = [edge.source for edge in workflow.edges]
    return [
        each
        for each in others
        if not (each.path[0] == "nodes" and each.path[1] in broken)
        and not (each.path[0] == "edges" and each.path[2:] == ("label",) and edges[int(each.path[1])] in names)
    ]


def _stand_in(at: int, node: object) -> Mapping[str, str]:
    name = mapping(node).get("id")
    usable = isinstance(name, str) and re.fullmatch(ID, name)
    return {"id": str(name) if usable else f"number-{at + 1}", "type": "tool", "tool": _UNKNOWN_TOOL}


class _Building:
    """Makes values of a document that has the shape of a workflow."""

    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self._document = document
        self._problems = problems

    def workflow(self, value: Mapping[str, Any], path: Path) -> Workflow:
        fields: dict[str, Any] = {
            **value,
            "nodes": [self.node(each, (*path, "nodes", at), "") for at, each in enumerate(value["nodes"])],
            "edges": [
                Edge(line=self._document.line((*path, "edges", at)), **each)
                for at, each in enumerate(value.get("edges", ()))
            ],
            "inputs": [_input(name, each) for name, each in value.get("inputs", {}).items()],
        }
        return Workflow(**fields)

    def node(self, value: Mapping[str, Any], path: Path, default_id: str) -> Node:
        fields: dict[str, Any] = {"id": default_id, **value}
        if "agent_config" in value:
            fields["agent_config"] = AgentConfig(**value["agent_config"])
        if "cases" in value:
            fields["cases"] = tuple(self.case(each, (*path, "cases", at)) for at, each in enumerate(value["cases"]))
        if "node" in value:
            fields["node"] = self.node(value["node"], (*path, "node"), fields["id"])
        if isinstance(value.get("workflow"), Mapping):
            fields["workflow"] = self.workflow(value["workflow"], (*path, "workflow"))
        return Node(line=self._document.line(path), **fields)

    def case(self, value: Mapping[str, Any], path: Path) -> BranchCase:
        if value.get("when") is None:
            return BranchCase(label=value["label"])
        try:
            return BranchCase(label=value["label"], when=condition_of(value["when"]))
        except InvalidRequest as error:
            self._problems.append(Problem(path=(*path, "when"), message=error.message, hint=error.hint))
            return BranchCase(label=value["label"])


def _input(name: str, value: str | Mapping[str, Any]) -> WorkflowInput:
    if isinstance(value, str):
        return WorkflowInput(name=name, type=value)
    return WorkflowInput(name=name, **value)


def _faults(document: Document, problems: Sequence[Problem], file: str) -> list[WorkflowFault]:
    faults = [
        WorkflowFault(
            message=each.message,
            line=each.line or document.line(each.path),
            node=_node_at(document.value, each.path),
            hint=each.hint,
            file=file,
        )
        for each in problems
    ]
    return sorted(dict.fromkeys(faults), key=lambda fault: fault.line)


def _node_at(value: JsonValue, path: Path) -> str:
    """The id of the node that a place belongs to, within sub-workflows with its path; of an edge its source."""
    match path:
        case (("nodes" | "edges") as part, int(number), *rest):
            node = _field(_field(value, part), number)
            name = _field(node, "id" if part == "nodes" else "source")
            if not isinstance(name, str):
                return f"#{number + 1}" if part == "nodes" else ""
            while rest[:1] == ["node"]:
                node, rest = _field(node, "node"), rest[1:]
            below = _node_at(_field(node, "workflow"), tuple(rest[1:])) if rest[:1] == ["workflow"] else ""
            return f"{name[:64]}/{below}" if below else name[:64]
        case _:
            return ""


def _field(value: object, key: str | int) -> object:
    match value:
        case _ if is_mapping(value) and isinstance(key, str):
            return value.get(key)
        case _ if is_list(value) and isinstance(key, int):
            return value[key] if key < len(value) else None
        case _:
            return None
