"""The edges of the knowledge graph, derived from its items."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from swe_ai_fleet.domain.context import NO_STORY, DecisionState, Phase, Relation, RelationKind
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.extensions.knowledge.drafts import Section, drafts, needed, weight
from swe_ai_fleet.extensions.knowledge.graph import ContextGraph, LoggedWork, file_node
from swe_ai_fleet.extensions.knowledge.story import StoryState

MAX_DEPTH = 5
MAX_NODES = 500
MAX_RELATIONS = 2_000
MAX_EDGES = 200
"""The most edges of one node; the newest of its work."""
KINDS = ("case", "story", "task", "decision", "execution", "commit", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """The neighbourhood of a node. `nodes` are `<kind>:<id>`, nearest first, starting with the node itself.

    `truncated` says that some nodes or relations are left out.
    """

    node: str
    nodes: tuple[str, ...]
    relations: tuple[Relation, ...]
    truncated: bool = False


def neighbourhood(
    graph: ContextGraph, node: str, *, depth: int = 1, kinds: Collection[RelationKind] = ()
) -> Neighbourhood:
    """The nodes within so many edges (1 to 5) of a node, over edges of these kinds (none named: all), both ways.

    Raises InvalidRequest (no such depth, kind of node), NotFound.
    """
    if not 1 <= depth <= MAX_DEPTH:
        raise InvalidRequest(f"depth is {depth}", field="depth", hint=f"between 1 and {MAX_DEPTH}")
    check_node(graph, node)
    distances = {node: 0}
    relations: dict[Relation, None] = {}
    waiting = deque([node])
    truncated = False
    edges_of, chosen = _Edges(graph), frozenset(kinds)
    while waiting:
        current = waiting.popleft()
        if distances[current] == depth:
            continue
        if len(relations) >= MAX_RELATIONS:
            truncated = True
            break
        edges = list(islice((edge for edge in edges_of(current) if not chosen or edge.kind in chosen), MAX_EDGES + 1))
        truncated |= len(edges) > MAX_EDGES
        for edge in edges[:MAX_EDGES]:
            other = edge.target if edge.source == current else edge.source
            if other not in distances:
                if len(distances) >= MAX_NODES:
                    truncated = True
                    continue
                distances[other] = distances[current] + 1
                waiting.append(other)
            relations[edge] = None
    truncated |= len(relations) > MAX_RELATIONS
    return Neighbourhood(
        node=node, nodes=tuple(distances), relations=tuple(relations)[:MAX_RELATIONS], truncated=truncated
    )


def check_node(graph: ContextGraph, node: str, *, field: str = "node") -> None:
    """Check that a node exists. Raises InvalidRequest (not a node), NotFound."""
    kind, colon, name = node.partition(":")
    if kind not in KINDS or not colon or not name:
        raise InvalidRequest(f"{node[:64]!r} is not a node", field=field, hint=f"<kind>:<id>, of {', '.join(KINDS)}")
    match kind:
        case "story":
            state = graph.stories.get(name)
            exists = state is not None and state.story is not None
        case "task":
            exists = bool(graph.tasks(name))
        case "decision":
            exists = bool(graph.decisions(name))
        case "case":
            exists = bool(graph.case(name, limit=1))
        case _:
            exists = graph.execution(name) is not None
    if not exists and not graph.work(node, limit=1):
        raise NotFound(f"unknown node {node[:80]!r}", field=field, hint="list a story's relationships to find it")


class _Edges:
    """The edges of nodes. References to tasks and decisions are collected once for each story, not for each node."""

    def __init__(self, graph: ContextGraph) -> None:
        self._graph = graph
        self._named: dict[str, _Names] = {}

    def __call__(self, node: str) -> Iterator[Relation]:
        graph, (kind, _, name) = self._graph, node.partition(":")
        match kind:
            case "case":
                return _of_case(graph, name)
            case "story":
                return _of_story(graph, name)
            case "task":
                return self._of_task(name)
            case "decision":
                return self._of_decision(name)
            case "execution":
                return _of_execution(graph, name)
            case "commit":
                works = graph.work(node, limit=MAX_EDGES + 1)
                return (_edge(node, RelationKind.PART_OF, _execution(work)) for work in works)
            case _:
                works = graph.work(node, limit=MAX_EDGES + 1)
                return (_edge(_execution(work), RelationKind.CHANGED, node) for work in works)

    def _of_task(self, task_id: str) -> Iterator[Relation]:
        node = f"task:{task_id}"
        for task in self._graph.tasks(task_id):
            names = self._names(task.story_id)
            yield _edge(f"story:{task.story_id}", RelationKind.CONTAINS, node)
            for other in task.depends_on:
                yield _edge(node, RelationKind.DEPENDS_ON, f"task:{other}")
            for other in names.waiting.get(task_id, ()):
                yield _edge(f"task:{other}", RelationKind.DEPENDS_ON, node)
            for other in names.affecting.get(task_id, ()):
                yield _edge(f"decision:{other}", RelationKind.AFFECTS, node)
        for work in self._graph.work(node, limit=MAX_EDGES + 1):
            yield _edge(_execution(work), RelationKind.WORKED_ON, node)

    def _of_decision(self, decision_id: str) -> Iterator[Relation]:
        node = f"decision:{decision_id}"
        for decision in self._graph.decisions(decision_id):
            if decision.story_id != NO_STORY:
                yield _edge(f"story:{decision.story_id}", RelationKind.CONTAINS, node)
            for task_id in decision.task_ids:
                yield _edge(node, RelationKind.AFFECTS, f"task:{task_id}")
            if decision.supersedes:
                yield _edge(node, RelationKind.SUPERSEDES, f"decision:{decision.supersedes}")
            for other in self._names(decision.story_id).superseding.get(decision_id, ()):
                yield _edge(f"decision:{other}", RelationKind.SUPERSEDES, node)

    def _names(self, story_id: str) -> _Names:
        if story_id not in self._named:
            self._named[story_id] = _Names.of(self._graph.stories[story_id])
        return self._named[story_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """References within a story: tasks that wait for a task, decisions that affect a task or supersede a decision."""

    waiting: Mapping[str, list[str]]
    affecting: Mapping[str, list[str]]
    superseding: Mapping[str, list[str]]

    @classmethod
    def of(cls, state: StoryState) -> _Names:
        decisions = state.decisions.values()
        return cls(
            waiting=_inverted((task.task_id, task.depends_on) for task in state.tasks.values()),
            affecting=_inverted((decision.decision_id, decision.task_ids) for decision in decisions),
            superseding=_inverted((decision.decision_id, (decision.supersedes,)) for decision in decisions),
        )


def _inverted(references: Iterable[tuple[str, Iterable[str]]]) -> Mapping[str, list[str]]:
    """The sources of references, by target."""
    inverted: dict[str, list[str]] = {}
    for source, targets in references:
        for target in targets:
            inverted.setdefault(target, []).append(source)
    return inverted


def _of_case(graph: ContextGraph, case_id: str) -> Iterator[Relation]:
    for state in graph.case(case_id, limit=MAX_EDGES + 1):
        yield _edge(f"case:{case_id}", RelationKind.CONTAINS, f"story:{state.story_id}")


def _of_story(graph: ContextGraph, story_id: str) -> Iterator[Relation]:
    node, state = f"story:{story_id}", graph.stories.get(story_id)
    if state is not None and state.story is not None:
        if state.story.case_id:
            yield _edge(f"case:{state.story.case_id}", RelationKind.CONTAINS, node)
        for task_id in state.tasks:
            yield _edge(node, RelationKind.CONTAINS, f"task:{task_id}")
        for decision_id in state.decisions:
            yield _edge(node, RelationKind.CONTAINS, f"decision:{decision_id}")
    for work in graph.work(node, limit=MAX_EDGES + 1):
        yield _edge(_execution(work), RelationKind.WORKED_ON, node)


def _of_execution(graph: ContextGraph, execution_id: str) -> Iterator[Relation]:
    work = graph.execution(execution_id)
    node = f"execution:{execution_id}"
    if work is not None:
        record = work.record
        if record.story_id != NO_STORY:
            yield _edge(node, RelationKind.WORKED_ON, f"story:{record.story_id}")
        if record.task_id:
            yield _edge(node, RelationKind.WORKED_ON, f"task:{record.task_id}")
        for commit in record.commits:
            yield _edge(f"commit:{commit}", RelationKind.PART_OF, node)
        for path in record.files_changed:
            yield _edge(node, RelationKind.CHANGED, file_node(record.repository, path))
        if record.parent_execution_id:
            yield _edge(node, RelationKind.PART_OF, f"execution:{record.parent_execution_id}")
    for part in graph.work(node, limit=MAX_EDGES + 1):
        yield _edge(_execution(part), RelationKind.PART_OF, node)


def _execution(work: LoggedWork) -> str:
    return f"execution:{work.record.execution_id}"


def _edge(source: str, kind: RelationKind, target: str) -> Relation:
    return Relation(source=source, kind=kind, target=target)


MAX_SCOPES = 200
_SECTION_OF = {
    "case": Section.CASE,
    "story": Section.STORY,
    "task": Section.TASKS,
    "decision": Section.DECISIONS,
    "execution": Section.HISTORY,
    "commit": Section.HISTORY,
    "file": Section.FILES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeVerdict:
    """Whether the requested scopes are those of a role in a phase. `extra` are requested, but not allowed.

    `missing` are sections that the role needs and that were not requested. `allowed`: nothing is extra or missing.
    """

    allowed: bool
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def validate_scope(
    graph: ContextGraph, role: Role, phase: Phase, scopes: Collection[str], *, story_id: str = ""
) -> ScopeVerdict:
    """Whether a prompt with these scopes has all that a role needs in a phase, and nothing that it may not see.

    Args:
        graph: The project knowledge.
        role: The reader of the prompt.
        phase: The phase of the work.
        scopes: Names of sections (see `Section`) and of nodes (`decision:D-1`, `task:T-1`).
        story_id: If given, only sections that this story has can be missing.

    Raises:
        InvalidRequest: A scope is neither a section nor a node; `field` is `scopes`.
        NotFound: No such story.
    """
    if len(scopes) > MAX_SCOPES:
        raise InvalidRequest(f"{len(scopes)} scopes; too many", field="scopes", hint=f"at most {MAX_SCOPES}")
    requested: dict[str, Section] = {name: _section(graph, name) for name in scopes}
    extra = [
        name
        for name, section in requested.items()
        if not weight(section, role, phase) or not _visible(graph, name, role)
    ]
    required = needed(role, phase)
    if story_id:
        filled = {draft.section for draft in drafts(graph, graph.story(story_id), role=role)}
        required = tuple(section for section in required if section in filled)
    missing = [section.value for section in required if section not in requested.values()]
    return ScopeVerdict(allowed=not missing and not extra, missing=tuple(missing), extra=tuple(extra))


def _section(graph: ContextGraph, name: str) -> Section:
    """The section that a scope belongs to. Raises InvalidRequest."""
    if name in list(Section):
        return Section(name)
    kind, colon, key = name.partition(":")
    if not colon or not key or kind not in _SECTION_OF:
        raise InvalidRequest(
            f"{name[:64]!r} is neither a section nor a node",
            field="scopes",
            hint=f"one of {', '.join(Section)}, or <kind>:<id> of {', '.join(_SECTION_OF)}",
        )
    decisions = graph.decisions(key) if kind == "decision" else ()
    if decisions and all(decision.state is DecisionState.SUPERSEDED for decision in decisions):
        return Section.ALTERNATIVES
    return _SECTION_OF[kind]


def _visible(graph: ContextGraph, name: str, role: Role) -> bool:
    """Whether a scope exists, and is not a decision for other roles only."""
    if name in list(Section):
        return True
    try:
        check_node(graph, name, field="scopes")
    except NotFound:
        return False
    kind, _, key = name.partition(":")
    if kind != "decision":
        return True
    return any(not decision.roles or role in decision.roles for decision in graph.decisions(key))
