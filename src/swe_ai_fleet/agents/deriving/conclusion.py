"""A planner's answer as subtasks: bounded, masked, under ids of our own making, and a graph that can be carried out."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from swe_ai_fleet.agents.deriving.shape import SplitShape, SubtaskShape
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.subtask import MAX_SUBTASK_CHARS, Subtask, check_graph
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.ports import SecretMask

MAX_ID_CHARS = 32
MAX_ALL_CHARS = 64_000
"""Of all descriptions together."""
MAX_NAMES = 50
MAX_PATHS = 20
MAX_PATH_CHARS = 300
_NOT_IN_AN_ID = re.compile(r"[^a-z0-9]+")


def subtasks_of(
    answer: SplitShape, *, role: Role, roles: Collection[Role], strategy: str, mask: SecretMask
) -> tuple[Subtask, ...]:
    """The subtasks in topological order. Raises ValueError saying everything that is wrong with them.

    Args:
        answer: What the planner said.
        role: Of subtasks that name none.
        roles: Those allowed; empty: all.
        strategy: `sequential` puts each behind the one before it, `parallel` takes no dependencies.
        mask: Hides secrets.
    """
    ids = _ids(answer.subtasks)
    limit = min(MAX_SUBTASK_CHARS, MAX_ALL_CHARS // len(answer.subtasks))
    problems: list[str] = []
    found: list[Subtask] = []
    for name, said in zip(ids, answer.subtasks, strict=True):
        try:
            given = Role.parse(said.role or (role if not roles or role in roles else min(roles)))
        except InvalidRequest as error:
            problems.append(f"{name!r}: {error}")
            given = role
        found.append(
            Subtask(
                subtask_id=name,
                description=_shown(said.description, mask, limit),
                role=given,
                dependencies=_dependencies(said, ids, answer.subtasks),
                priority=said.priority,
                allowed_paths=_paths(said),
            )
        )
    if strategy == "parallel" and any(one.dependencies for one in found):
        problems.append("none may depend on another: all are carried out at the same time")
    try:
        ordered = check_graph(found, roles)
    except InvalidRequest as error:
        problems.append(error.message)
        ordered = ()
    if problems:
        raise ValueError("; ".join(problems))
    return _chained(ordered) if strategy == "sequential" else ordered


def _ids(subtasks: Sequence[SubtaskShape]) -> list[str]:
    """Safe ids, different for different names; the same name twice is the same id, to be found fault with."""
    by_name: dict[str, str] = {}
    for number, one in enumerate(subtasks, start=1):
        name = _name(one.id)
        if name in by_name:
            continue
        slug = _NOT_IN_AN_ID.sub("-", name).strip("-")[:MAX_ID_CHARS].strip("-") or f"subtask-{number}"
        taken, again = set(by_name.values()), 2
        unique = slug
        while unique in taken:
            unique, again = f"{slug}-{again}", again + 1
        by_name[name] = unique
    return [by_name[_name(one.id)] for one in subtasks]


def _dependencies(said: SubtaskShape, ids: Sequence[str], subtasks: Sequence[SubtaskShape]) -> tuple[str, ...]:
    """The ids of what is named; a name that nobody has stays as it is, to be found fault with."""
    known = {_name(one.id): name for name, one in zip(ids, subtasks, strict=True)}
    known |= {name: name for name in ids if name not in known}
    named: list[str] = []
    for name in said.depends_on:
        named += [name] if _name(name) in known else name.split(",")[:MAX_NAMES]
    names = (name.strip() for name in named)
    return tuple(dict.fromkeys(known.get(_name(name), name[:MAX_ID_CHARS]) for name in names if name))


def _name(text: str) -> str:
    return " ".join(text.strip("`'\" ").lower().split())


def _paths(said: SubtaskShape) -> tuple[str, ...]:
    """The globs that can be ones of the repository; a directory means all in it."""
    found: list[str] = []
    for path in said.paths:
        one = path.strip().strip("`'\"").removeprefix("/workspace/").removeprefix("./")
        if (
            not one
            or len(one) > MAX_PATH_CHARS
            or one.startswith("/")
            or ".." in one.split("/")
            or not one.isprintable()
        ):
            continue
        found.append(f"{one}**" if one.endswith("/") else one)
    return tuple(dict.fromkeys(found))[:MAX_PATHS]


def _chained(ordered: Sequence[Subtask]) -> tuple[Subtask, ...]:
    before = ("", *(one.subtask_id for one in ordered))
    return tuple(
        replace(one, dependencies=(*one.dependencies, earlier) if earlier not in one.dependencies else one.dependencies)
        if earlier
        else one
        for earlier, one in zip(before, ordered, strict=False)
    )


def _shown(text: str, mask: SecretMask, limit: int) -> str:
    return shortened(mask(well_formed(text)).replace("\0", "").strip(), limit)
