"""A planner's answer, read loosely and turned into subtasks.

Subtasks are bounded, masked, under ids of our own making, and a graph that can be carried out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, cast

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.sub_agents.structured_output import Said, Shape, Text, Texts, as_text
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.subtask import MAX_SUBTASK_CHARS, Subtask, check_graph
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.ports import SecretMask

_MOST_READ = 200
_MAX_NAME_CHARS = 200
_HIGHEST = 9


def _as_name(value: object) -> str:
    return " ".join(as_text(value)[:_MAX_NAME_CHARS].split())


def _as_priority(value: object) -> int:
    """A priority between 0 and 9; 0 for what is no number."""
    try:
        number = int(str(value)[:10])
    except ValueError:
        return 0
    return min(_HIGHEST, max(0, number))


def _as_subtasks(value: object) -> object:
    """Subtasks in a list; models also write an object with their ids as keys."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        value = [{"id": name, **cast("Mapping[str, object]", one)} for name, one in pairs if isinstance(one, Mapping)]
    return cast("list[object]", value)[:_MOST_READ] if isinstance(value, list) else value


class SubtaskShape(Shape):
    id: Annotated[str, BeforeValidator(_as_name), Field(min_length=1)] = Field(
        description="A short name of its own, such as `parser` or `parser-tests`."
    )
    role: Text = Field(default="", description="The role that does it.")
    description: Said = Field(
        description="What is to be done, whole: whoever does it reads this, the task, and the code as it is by then."
    )
    depends_on: Texts = Field(default=[], description="The ids of the subtasks whose result it needs.")
    priority: Annotated[int, BeforeValidator(_as_priority)] = Field(
        default=0, description="0 to 9; of those that are ready, the higher goes first."
    )
    paths: Texts = Field(default=[], description="Globs of all files that it may change; none: any.")


class SplitShape(Shape):
    subtasks: Annotated[list[SubtaskShape], BeforeValidator(_as_subtasks), Field(min_length=1)] = Field(
        description="The subtasks, what comes first before what needs it."
    )
    reasoning: Text = Field(default="", description="Why it is split this way, in a sentence or two.")


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
