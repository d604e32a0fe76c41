"""Names in one turn of a conversation: files, addresses, ids, and the entries of lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from swe_ai_fleet.conversations.phrases import (
    ANSWER,
    MAX_LIST,
    MAX_NAME_CHARS,
    MAX_PER_TURN,
    PERSON,
    NamedThing,
    ThingKind,
)
from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.text import one_line
from swe_ai_fleet.domain.tool import ToolResult

_MAX_TEXT_CHARS = 20_000
_FILE = re.compile(r"(?:~?\.{0,2}/)?(?:[\w@+-][\w.@+-]{0,80}/){0,16}[\w@+-][\w.@+-]{0,80}\.[A-Za-z][A-Za-z0-9]{0,7}")
_NO_FILES = (".com", ".org", ".net", ".io", ".dev", "e.g", "i.e", "a.m", "p.m")
_URL = re.compile(r"https?://[^\s<>\"'`]{1,500}", re.IGNORECASE)
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WRAPPING = "`'\"()[]{}<>,;:!?*"
_ENTRY = re.compile(r"[ \t]{0,8}(?:(\d{1,3})[.)]|[-*•+])[ \t]+(\S.*)")


def last_list(text: str) -> tuple[str, ...]:
    """The entries of the last list of a text, numbered or not; of fewer than two entries there is none."""
    lists: list[list[str]] = []
    number = 0
    for line in text[:_MAX_TEXT_CHARS].splitlines():
        entry = _ENTRY.match(line[: 2 * MAX_NAME_CHARS])
        if entry is None:
            if line.strip() and not line.startswith((" ", "\t")):
                number = -1  # a line between two lists; what is indented belongs to an entry
            continue
        at = int(entry[1]) if entry[1] else 0
        if not lists or (number == -1 and at in (0, 1)) or (at and at != number + 1):
            lists.append([])
        lists[-1].append(_bare(entry[2]))
        number = at
    found = [one for one in lists if len(one) >= 2]
    return tuple(found[-1][:MAX_LIST]) if found else ()


def in_words(text: str) -> list[tuple[ThingKind, str]]:
    """Files, addresses and ids among words, each once, in order."""
    text = text[:_MAX_TEXT_CHARS]
    found: dict[tuple[ThingKind, str], None] = {}
    for word in text.split():
        bare = word.strip(_WRAPPING).rstrip(".")
        if address := _URL.match(bare):
            found.setdefault((ThingKind.LINK, address[0].rstrip(".,;:)")))
        elif _ID.fullmatch(bare):
            found.setdefault((ThingKind.EXECUTION, bare))
        elif _is_file(bare):
            found.setdefault((ThingKind.FILE, bare))
    return list(found)[:MAX_LIST]


def kind_of(text: str) -> ThingKind:
    if _URL.fullmatch(text):
        return ThingKind.LINK
    if _ID.fullmatch(text):
        return ThingKind.EXECUTION
    return ThingKind.FILE if _is_file(text) else ThingKind.ITEM


def _is_file(name: str) -> bool:
    if len(name) > MAX_NAME_CHARS or _FILE.fullmatch(name) is None:
        return False
    return "/" in name or not name.lower().endswith(_NO_FILES)


def exact(kind: ThingKind, name: str) -> str:
    """The name on one line; of what tools are given by name nothing may be cut, so it is left out."""
    line = as_name(name)
    return "" if line.endswith("…") and kind not in (ThingKind.ROW, ThingKind.ITEM) else line


def as_name(text: str) -> str:
    """A text as long as a name may be."""
    return one_line(text, MAX_NAME_CHARS)


def _bare(text: str) -> str:
    """An entry without the marks around its words."""
    return as_name(text.replace("**", "").replace("`", "").replace("__", ""))


_MAX_DEPTH = 3
_LEAST_LABEL_CHARS = 6
_KEYS: Mapping[str, ThingKind] = {
    "execution_id": ThingKind.EXECUTION, "execution": ThingKind.EXECUTION,
    "candidate_id": ThingKind.CANDIDATE, "candidate": ThingKind.CANDIDATE,
    "story_id": ThingKind.STORY, "story": ThingKind.STORY,
    "path": ThingKind.FILE, "file": ThingKind.FILE, "file_path": ThingKind.FILE, "filename": ThingKind.FILE,
    "email": ThingKind.PERSON, "person": ThingKind.PERSON, "author": ThingKind.PERSON, "assignee": ThingKind.PERSON,
    "url": ThingKind.LINK, "link": ThingKind.LINK, "href": ThingKind.LINK,
    "task_id": ThingKind.TASK,
    "commit": ThingKind.COMMIT, "commit_sha": ThingKind.COMMIT, "sha": ThingKind.COMMIT,
    "branch": ThingKind.BRANCH,
}  # fmt: skip
"""By which name of a field its value is known; of several in one record the first here."""
_PLURALS: Mapping[str, ThingKind] = {
    "files": ThingKind.FILE, "paths": ThingKind.FILE, "files_changed": ThingKind.FILE,
    "executions": ThingKind.EXECUTION, "candidates": ThingKind.CANDIDATE, "stories": ThingKind.STORY,
    "tasks": ThingKind.TASK, "people": ThingKind.PERSON, "users": ThingKind.PERSON, "links": ThingKind.LINK,
    "urls": ThingKind.LINK, "branches": ThingKind.BRANCH, "commits": ThingKind.COMMIT, "rows": ThingKind.ROW,
}  # fmt: skip
_ROW_KEYS = ("name", "id", "title", "key")
_LABELS = ("title", "description", "summary", "label", "text", "name", "status")


class Naming:
    """Collects what one turn names.

    Args:
        turn: Its number.
        first_group: The number of the first list that comes up in it.
    """

    def __init__(self, turn: int, *, first_group: int = 1) -> None:
        self._turn = turn
        self._group = first_group
        self.things: list[NamedThing] = []

    def person(self, text: str) -> None:
        """What the person's own words name: files, addresses, ids."""
        for kind, name in in_words(text):
            self._alone(kind, name, PERSON)

    def chosen(self, things: Sequence[NamedThing]) -> None:
        """What the person singled out of what was named before."""
        if len(things) == 1:
            self._alone(things[0].kind, things[0].name, PERSON, things[0].label)
        elif things:
            self._list([(one.kind, one.name, one.label) for one in things], PERSON)

    def started(self, execution_id: str, description: str) -> None:
        """An execution that was started for the person."""
        self._alone(ThingKind.EXECUTION, execution_id, ANSWER, description)

    def call(self, call: ToolCall, result: ToolResult) -> None:
        """What a call that succeeded was about, and what it gave."""
        if not result.success:
            return
        for kind, name in _arguments(call):
            self._alone(kind, name, call.name)
        found = _Found()
        fields = result.metadata
        if fields:
            _walk(fields, found, 0)
        else:
            _walk_text(result.content, found)
        for kind, name in found.single[:MAX_LIST]:
            self._alone(kind, name, call.name)
        for members in found.lists:
            self._list(members, call.name)

    def answer(self, text: str) -> None:
        """The list that an answer shows, if it shows one; what it lists of this turn's things is known for them."""
        entries = last_list(text)
        members: list[tuple[ThingKind, str, str]] = []
        for entry in entries:
            meant = self._meant(entry)
            if meant is not None:
                members.append((meant.kind, meant.name, entry))
            else:
                members.append(_entry(entry))
        self._list(members, ANSWER)
        if not entries:
            for kind, name in in_words(text):
                if not any(thing.name == name for thing in self.things):
                    self._alone(kind, name, ANSWER)

    def _meant(self, entry: str) -> NamedThing | None:
        """The one thing of this turn that an entry is about: by its name, the beginning of its id, its label."""
        known = {thing.name: thing for thing in self.things if thing.kind is not ThingKind.ITEM}
        for alias in (_name, _beginning, _label):
            meant = [thing for thing in known.values() if _mentions(entry, alias(thing))]
            # The longest one is meant where one is a part of another.
            longest = max((len(alias(thing)) for thing in meant), default=0)
            meant = [thing for thing in meant if len(alias(thing)) == longest]
            if len(meant) == 1:
                return meant[0]
        return None

    def _alone(self, kind: ThingKind, name: str, source: str, label: str = "") -> None:
        name = exact(kind, name)
        same = any((one.kind, one.name, one.source, one.group) == (kind, name, source, 0) for one in self.things)
        if name and not same and len(self.things) < MAX_PER_TURN - 2 * MAX_LIST:
            self.things.append(NamedThing(kind=kind, name=name, turn=self._turn, source=source, label=as_name(label)))

    def _list(self, members: Sequence[tuple[ThingKind, str, str]], source: str) -> None:
        named = [
            (kind, shown, as_name(label)) for kind, name, label in members[:MAX_LIST] if (shown := exact(kind, name))
        ]
        # What the person sees or chooses has its room whatever tools said.
        room = MAX_PER_TURN if source in (ANSWER, PERSON) else MAX_PER_TURN - 2 * MAX_LIST
        if not named or len(self.things) + len(named) > room:
            return
        for position, (kind, name, label) in enumerate(named, start=1):
            self.things.append(
                NamedThing(
                    kind=kind, name=name, turn=self._turn, source=source, group=self._group, position=position,
                    size=max(len(named), len(members)), label=label if label != name else "",
                )
            )  # fmt: skip
        self._group += 1


def _name(thing: NamedThing) -> str:
    return thing.name


def _beginning(thing: NamedThing) -> str:
    return thing.name[:8] if thing.kind is ThingKind.EXECUTION and len(thing.name) > 8 else ""


def _label(thing: NamedThing) -> str:
    return thing.label if len(thing.label) >= _LEAST_LABEL_CHARS else ""


def _mentions(text: str, name: str) -> bool:
    """Whether a name stands in a text as a whole."""
    start = text.find(name) if name else -1
    if start < 0:
        return False
    before, after = text[start - 1 : start] if start else "", text[start + len(name) : start + len(name) + 1]
    return not (before.isalnum() and name[0].isalnum()) and not (after.isalnum() and name[-1].isalnum())


@dataclass(slots=True)
class _Found:
    """What a value names, by itself and in lists."""

    single: list[tuple[ThingKind, str]]
    lists: list[list[tuple[ThingKind, str, str]]]

    def __init__(self) -> None:
        self.single, self.lists = [], []


def _walk(value: Mapping[str, object], found: _Found, depth: int) -> None:
    own = _identity(value)
    if own is not None and own[0] is not ThingKind.ROW:
        found.single.append(own)
    for key, part in value.items():
        if isinstance(part, list) and part:
            members = _members(key, cast("list[object]", part))
            if members:
                found.lists.append(members)
        elif isinstance(part, Mapping) and depth < _MAX_DEPTH:
            _walk(cast("Mapping[str, object]", part), found, depth + 1)


def _members(key: str, parts: list[object]) -> list[tuple[ThingKind, str, str]]:
    members: list[tuple[ThingKind, str, str]] = []
    kind = _PLURALS.get(key)
    for part in parts[: MAX_LIST + 1]:
        if isinstance(part, str) and part.strip():
            members.append((kind or kind_of(part), part, ""))
        elif isinstance(part, Mapping):
            record = cast("Mapping[str, object]", part)
            own = _identity(record)
            if own is not None:
                label = next((text for name in _LABELS if (text := _string(record.get(name))) and text != own[1]), "")
                members.append((kind if kind and own[0] is ThingKind.ROW else own[0], own[1], label))
            else:
                shown = ", ".join(f"{name} {_string(cell)}" for name, cell in list(record.items())[:4] if _string(cell))
                members.append((ThingKind.ROW, shown or "(empty)", ""))
    return members


def _walk_text(text: str, found: _Found) -> None:
    entries = last_list(text)
    if entries:
        found.lists.append([_entry(entry) for entry in entries])
        return
    found.single += in_words(text)


def _entry(text: str) -> tuple[ThingKind, str, str]:
    """What an entry of a list names: the one thing in it, else itself."""
    words = in_words(text)
    return (*words[0], text) if len(words) == 1 else (ThingKind.ITEM, text, "")


def _identity(record: Mapping[str, object]) -> tuple[ThingKind, str] | None:
    """What a record is about."""
    for key, kind in _KEYS.items():
        name = _string(record.get(key))
        if name:
            return kind, (_string(record.get("name")) or name) if kind is ThingKind.PERSON else name
    for key in _ROW_KEYS:
        if name := _string(record.get(key)):
            return ThingKind.ROW, name
    return None


def _arguments(call: ToolCall) -> list[tuple[ThingKind, str]]:
    fields = json_object(call.arguments)
    return [(kind, name) for key, kind in _KEYS.items() if (name := _string(fields.get(key)))]


def _string(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return as_name(str(value))
