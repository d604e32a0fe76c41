"""The check whether a caller keeps to the context that a role may see in a phase."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from swe_ai_fleet.context.drafts import Section, drafts, needed, weight
from swe_ai_fleet.context.graph import ContextGraph
from swe_ai_fleet.context.relations import check_node
from swe_ai_fleet.domain.context import DecisionState, Phase
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.task import Role

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
    """Whether a prompt made of these scopes gives a role what it needs in a phase, and nothing that it may not see.

    Args:
        graph: The project knowledge.
        role: The reader of the prompt.
        phase: The phase of the work.
        scopes: Names of sections (see `Section`) and of nodes (`decision:D-1`, `task:T-1`).
        story_id: If given, only sections that this story has can be missing.

    Raises:
        InvalidRequest: One of them is neither a section nor a node; `field` is `scopes`.
        NotFound: No such story.
    """
    if len(scopes) > MAX_SCOPES:
        raise InvalidRequest(f"{len(scopes)} scopes; too many", field="scopes", hint=f"at most {MAX_SCOPES}")
    asked: dict[str, Section] = {name: _section(graph, name) for name in scopes}
    extra = [
        name for name, section in asked.items() if not weight(section, role, phase) or not _visible(graph, name, role)
    ]
    wanted = needed(role, phase)
    if story_id:
        filled = {draft.section for draft in drafts(graph, graph.story(story_id), role=role)}
        wanted = tuple(section for section in wanted if section in filled)
    missing = [section.value for section in wanted if section not in asked.values()]
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
