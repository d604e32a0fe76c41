"""Things that a conversation named, each with its kind and its place in a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_THINGS = 240
"""Of a session; beyond them the oldest are forgotten."""
MAX_PER_TURN = 140
MAX_LIST = 30
MAX_NAME_CHARS = 200
PERSON, ANSWER = "person", "answer"
"""Who named something, where it was no tool."""


class ThingKind(StrEnum):
    """What something is."""

    FILE = "file"
    EXECUTION = "execution"
    CANDIDATE = "candidate"
    TASK = "task"
    STORY = "story"
    LINK = "link"
    PERSON = "person"
    COMMIT = "commit"
    BRANCH = "branch"
    ROW = "row"
    ITEM = "item"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedThing:
    """Something that was named, in which turn and by whom (`person`, `answer`, a tool).

    `group` numbers the lists of a session from 1, `position` the things of one list, which had `size` of them; 0 for
    what was named by itself. `label` says what it is about. All of it is untrusted text.
    """

    kind: ThingKind
    name: str
    turn: int
    source: str
    group: int = 0
    position: int = 0
    size: int = 0
    label: str = ""

    @property
    def alone(self) -> bool:
        """Whether it was named by itself, not as one of a list."""
        return not self.group


def kept(things: Sequence[NamedThing]) -> tuple[NamedThing, ...]:
    """The newest of them, as many as are kept; no list loses a part."""
    if len(things) <= MAX_THINGS:
        return tuple(things)
    recent = things[-MAX_THINGS:]
    cut = things[-MAX_THINGS - 1].group
    return tuple(thing for thing in recent if not cut or thing.group != cut)
