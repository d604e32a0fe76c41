"""Reads workflows from YAML, one or a catalog of all in some directories; draws a workflow as Mermaid text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.json_values import is_list, is_mapping, mapping
from swe_ai_fleet.domain.text import shortened
from swe_ai_fleet.domain.workflow import (
    AgentConfig,
    BranchCase,
    Edge,
    JsonValue,
    Node,
    NodeStatus,
    NodeType,
    Workflow,
    WorkflowInput,
)
from swe_ai_fleet.extensions.workflows.checking import problems_of, resolved_workflows
from swe_ai_fleet.extensions.workflows.conditions import condition_of
from swe_ai_fleet.extensions.workflows.documents import (
    MAX_BYTES,
    Document,
    DocumentPath,
    InvalidWorkflow,
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
    """The workflow in a YAML file, checked, with the sub-workflows that it names resolved.

    The largest file that is read (256 KiB) takes about half a second: on an event loop, call it in a thread.

    Args:
        text: The file; UTF-8.
        file: Its name, for the faults.
        tools: The names of the available tools; None: tools are not checked.
        workflows: The workflows that nodes may name; None: names are neither checked nor resolved.

    Raises:
        InvalidWorkflow: With every fault, its line and its node.
    """
    document = read_document(text)
    problems = document.problems or shape_problems(document.value)
    if not problems:
        workflow = _WorkflowBuilder(document, problems).workflow(document.value, ())
        problems.extend(problems_of(workflow, tools=tools, workflows=workflows))
        if not problems:
            return resolved_workflows(workflow, workflows) if workflows is not None else workflow
    elif all(len(each.path) > 1 and each.path[0] == "nodes" for each in problems) and not document.problems:
        problems.extend(_problems_elsewhere(document, problems, tools, workflows))
    raise InvalidWorkflow(_faults(document, problems, file))


def _problems_elsewhere(
    document: Document,
    problems: Sequence[Problem],
    tools: Collection[str] | None,
    workflows: Mapping[str, Workflow] | None,
) -> list[Problem]:
    """Further faults where only some nodes are malformed; placeholders replace those nodes."""
    whole: Mapping[str, Any] = document.value
    broken = {each.path[1] for each in problems}
    nodes = [_placeholder(at, node) if at in broken else node for at, node in enumerate(whole["nodes"])]
    names = {node["id"] for at, node in enumerate(nodes) if at in broken}
    value = {**whole, "nodes": nodes}
    if shape_problems(value):
        return []
    others: list[Problem] = []
    workflow = _WorkflowBuilder(document, others).workflow(value, ())
    tool_names = None if tools is None else {*tools, _UNKNOWN_TOOL}
    others.extend(problems_of(workflow, tools=tool_names, workflows=workflows))
    edges = [edge.source for edge in workflow.edges]
    return [
        each
        for each in others
        if not (each.path[0] == "nodes" and each.path[1] in broken)
        and not (each.path[0] == "edges" and each.path[2:] == ("label",) and edges[int(each.path[1])] in names)
    ]


def _placeholder(at: int, node: object) -> Mapping[str, str]:
    name = mapping(node).get("id")
    usable = isinstance(name, str) and re.fullmatch(ID, name)
    return {"id": str(name) if usable else f"number-{at + 1}", "type": "tool", "tool": _UNKNOWN_TOOL}


class _WorkflowBuilder:
    """Builds a workflow from a document that passed the schema."""

    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self._document = document
        self._problems = problems

    def workflow(self, value: Mapping[str, Any], path: DocumentPath) -> Workflow:
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

    def node(self, value: Mapping[str, Any], path: DocumentPath, default_id: str) -> Node:
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

    def case(self, value: Mapping[str, Any], path: DocumentPath) -> BranchCase:
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


def _node_at(value: JsonValue, path: DocumentPath) -> str:
    """The id of the node at a path, with the ids of the nodes around it; for an edge that of its source."""
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


SUFFIXES = (".yaml", ".yml")
MAX_FILES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A workflow that can run, its sub-workflows resolved, and the text of its file."""

    workflow: Workflow
    text: str
    file: str
    built_in: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCatalog:
    """The workflows by name. `broken` has the first fault of each invalid file."""

    workflows: Mapping[str, CatalogEntry] = field(default_factory=dict[str, CatalogEntry])
    broken: tuple[WorkflowFault, ...] = ()

    @property
    def by_name(self) -> Mapping[str, Workflow]:
        """The workflows that files may name as sub-workflows."""
        return {name: entry.workflow for name, entry in self.workflows.items()}

    def get(self, name: str) -> CatalogEntry:
        """The workflow of that name. Raises NotFound."""
        if name not in self.workflows:
            names = ", ".join(sorted(self.workflows)) or "there are none"
            raise NotFound(f"there is no workflow {name[:64]!r}", field="name", hint=names)
        return self.workflows[name]


def read_catalog(directories: Sequence[Path] = (), *, tools: Collection[str] | None = None) -> WorkflowCatalog:
    """Read all files; a workflow in a later directory replaces an earlier one of the same name.

    Blocking: call it in a thread. `tools` None: tools are not checked.
    """
    sources = [*_built_in(), *(source for directory in directories for source in _files_in(directory))]
    named: dict[str, Workflow] = {}
    broken: list[WorkflowFault] = []
    readable: list[tuple[str, str, bool]] = []
    for file, text, built_in in sources:
        try:
            workflow = read_workflow(text, file=file, tools=tools)
        except InvalidWorkflow as error:
            broken.append(error.faults[0])
        else:
            named[workflow.name] = workflow
            readable.append((file, text, built_in))
    entries: dict[str, CatalogEntry] = {}
    for file, text, built_in in readable:
        try:
            workflow = read_workflow(text, file=file, tools=tools, workflows=named)
        except InvalidWorkflow as error:
            broken.append(error.faults[0])
        else:
            entries[workflow.name] = CatalogEntry(workflow=workflow, text=text, file=file, built_in=built_in)
    return WorkflowCatalog(workflows=dict(sorted(entries.items())), broken=tuple(broken))


def _built_in() -> Iterator[tuple[str, str, bool]]:
    for file in sorted(files(__package__ or "").joinpath("templates").iterdir(), key=lambda file: file.name):
        if file.name.endswith(SUFFIXES):
            yield file.name, file.read_text("utf-8"), True


def _files_in(directory: Path) -> Iterator[tuple[str, str, bool]]:
    """The workflow files of a directory; none where it does not exist."""
    if not directory.is_dir():
        return
    names = sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file())
    for path in names[:MAX_FILES]:
        # One byte more than the reader accepts, so that it reports the size itself.
        with path.open("rb") as file:
            yield str(path), file.read(MAX_BYTES + 1).decode("utf-8", "replace"), False


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
        workflow: A checked workflow.
        nodes: The last updates of a run's nodes, which are coloured by their status.
    """
    names = {node.id: f"n{number}_{_PLAIN.sub('_', node.id)[:40]}" for number, node in enumerate(workflow.nodes)}
    lines = ["flowchart TD"]
    for node in workflow.nodes:
        opening, closing = _SHAPES[node.type]
        label = "<br/>".join(_mermaid_text(line) for line in [_short(node.id), _short(node_caption(node))])
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


def node_caption(node: Node) -> str:
    """A node's action, in a word or two."""
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
    # Within quotes Mermaid reads numeric entities alone; `#` begins them.
    return "".join(each if each.isalnum() or each in " _-." else f"#{ord(each)};" for each in _short(text))
