"""The things named in one turn of a conversation by the person, calls and the answer, single ones and lists.

Texts name files, addresses, ids and lists; calls name things in their arguments and in the records of their results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from swe_ai_fleet.agents.references.phrases import (
    ANSWER,
    MAX_LIST,
    MAX_NAME_CHARS,
    MAX_PER_TURN,
    PERSON,
    NamedThing,
    ThingKind,
    singular,
)
from swe_ai_fleet.domain.json_values import is_list, is_mapping, json_object, json_or_none
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.text import one_line
from swe_ai_fleet.domain.tool import ToolResult

MAX_TEXT_CHARS = 20_000
_FILE = re.compile(r"(?:~?\.{0,2}/)?(?:[\w@+-][\w.@+-]{0,80}/){0,16}[\w@+-][\w.@+-]{0,80}\.[A-Za-z][A-Za-z0-9]{0,7}")
_NO_FILES = (".com", ".org", ".net", ".io", ".dev", "e.g", "i.e", "a.m", "p.m")
_URL = re.compile(r"https?://[^\s<>\"'`]{1,500}", re.IGNORECASE)
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WRAPPING = "`'\"()[]{}<>,;:!?*"
_ENTRY = re.compile(r"[ \t]{0,8}(?:(\d{1,3})[.)]|[-*•+])[ \t]+(\S.*)")
_MAX_DEPTH = 3
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOUN = re.compile(r"[a-z]{3,24}")
_VERBS = frozenset(
    ("get", "list", "search", "find", "fetch", "show", "check", "read", "look", "lookup", "query", "top", "trending",
     "new", "latest", "recent", "all", "by", "for", "of", "in", "the", "and", "load", "describe", "call", "run", "ask",
     "sort", "order", "is", "has", "can")
)  # fmt: skip
# Words that do not say what a thing is.
_NO_NOUNS = frozenset(
    ("result", "results", "item", "items", "data", "value", "values", "record", "records", "row", "rows", "entry",
     "entries", "structured", "response", "output", "content", "info", "details", "detail", "meta", "metadata",
     "object", "query", "text", "message", "url", "code", "expression", "prompt", "format", "mode", "type", "language",
     "limit", "offset", "count", "size", "title", "id", "name", "address", "symbol", "key", "status", "error", "note",
     "description", "summary")
)  # fmt: skip
_OF_A_THING = frozenset({"address", "id", "name", "symbol", "slug", "key"})
_FACTS = 3
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
"""The kind of a value by the name of its field; of several fields in one record, the first here counts."""
_PLURALS: Mapping[str, ThingKind] = {
    "files": ThingKind.FILE, "paths": ThingKind.FILE, "files_changed": ThingKind.FILE,
    "executions": ThingKind.EXECUTION, "candidates": ThingKind.CANDIDATE, "stories": ThingKind.STORY,
    "tasks": ThingKind.TASK, "people": ThingKind.PERSON, "users": ThingKind.PERSON, "links": ThingKind.LINK,
    "urls": ThingKind.LINK, "branches": ThingKind.BRANCH, "commits": ThingKind.COMMIT, "rows": ThingKind.ROW,
}  # fmt: skip
_ROW_KEYS = ("symbol", "pair", "name", "id", "title", "key", "address")
_LABELS = ("title", "description", "summary", "label", "text", "name", "status")
_LEAST_LABEL_CHARS = 6
_MAX_CHOSEN = 8


class ThingName(NamedTuple):
    """A named thing: its kind, its name, a label, and the conversation's own nouns for it."""

    kind: ThingKind
    name: str
    label: str = ""
    nouns: tuple[str, ...] = ()

    @classmethod
    def of(cls, thing: NamedThing) -> ThingName:
        return cls(thing.kind, thing.name, thing.label, thing.nouns)


def last_list(text: str) -> tuple[str, ...]:
    """The entries of the last list of a text, numbered or not; a list has at least two entries."""
    lists: list[list[str]] = []
    number = 0
    for line in text[:MAX_TEXT_CHARS].splitlines():
        entry = _ENTRY.match(line[: 2 * MAX_NAME_CHARS])
        if entry is None:
            if line.strip() and not line.startswith((" ", "\t")):
                number = -1  # a line between two lists; what is indented belongs to an entry
            continue
        at = int(entry[1]) if entry[1] else 0
        if not lists or (number == -1 and at in (0, 1)) or (at and at != number + 1):
            lists.append([])
        lists[-1].append(as_name(entry[2].replace("**", "").replace("`", "").replace("__", "")))
        number = at
    long_lists = [names for names in lists if len(names) >= 2]
    return tuple(long_lists[-1][:MAX_LIST]) if long_lists else ()


def things_in(text: str) -> list[ThingName]:
    """The links, executions and files that a text names."""
    things: dict[ThingName, None] = {}
    for word in text[:MAX_TEXT_CHARS].split():
        bare = word.strip(_WRAPPING).rstrip(".")
        if address := _URL.match(bare):
            things.setdefault(ThingName(ThingKind.LINK, address[0].rstrip(".,;:)")))
        elif _ID.fullmatch(bare):
            things.setdefault(ThingName(ThingKind.EXECUTION, bare))
        elif _is_file(bare):
            things.setdefault(ThingName(ThingKind.FILE, bare))
    return list(things)[:MAX_LIST]


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
    """The name on one line; empty if it would be cut, except for rows and items, which no tool takes by name."""
    line = as_name(name)
    return "" if line.endswith("…") and kind not in (ThingKind.ROW, ThingKind.ITEM) else line


def as_name(text: str) -> str:
    return one_line(text, MAX_NAME_CHARS)


def fields_of(result: ToolResult) -> Mapping[str, object]:
    """The fields of a result: of the answer of an MCP server, which may be JSON in a text, else its metadata."""
    fields = result.metadata
    if "server" not in fields:
        return fields
    value = fields["structured"] if fields.get("structured") is not None else json_or_none(result.content)
    return value if is_mapping(value) else {} if value is None else {"value": value}


def words_of(name: str) -> list[str]:
    return [word.lower() for word in _PART.findall(name[:MAX_NAME_CHARS])]


def _words(operation: str, server: str) -> list[str]:
    """The words of an operation's name that say what it is about: those after its verb, without its server."""
    words = words_of(operation.removeprefix(f"{server}_"))
    verbs = [number for number, word in enumerate(words) if word in _VERBS]
    return words[verbs[0] + 1 :] if verbs else []


def _noun(words: Sequence[str], *, last: bool) -> str:
    """The noun for a thing: of "pool tokens" the last word, of "token price" the first; empty if there is none."""
    candidates = [word for word in words if word not in _VERBS | _NO_NOUNS and _NOUN.fullmatch(word)]
    return singular(candidates[-1 if last else 0]) if candidates else ""


def title_of(key: str, operation: str, server: str) -> str:
    """The title of a list: from its key, else from the name of its operation."""
    words = words_of(key) if set(words_of(key)) - _NO_NOUNS else _words(operation, server) or words_of(operation)
    return " ".join(words).capitalize()


def named_by(call: ToolCall, result: ToolResult) -> tuple[list[ThingName], list[list[ThingName]]]:
    """The things named by a successful call, in its arguments and its result: single ones, and lists."""
    words = _words(call.name, str(result.metadata.get("server", "")))
    single, lists = list[ThingName](), list[list[ThingName]]()
    fields = fields_of(result)
    if fields:
        _walk(fields, single, lists, 0, words)
    elif entries := last_list(result.content):
        lists.append([entry(text) for text in entries])
    else:
        single += things_in(result.content)
    # A record describes a thing better than the argument of the call.
    nouns = {noun for member in single for noun in member.nouns}
    arguments = [member for member in _arguments(call) if not nouns & set(member.nouns)]
    return [*arguments, *single[:MAX_LIST]], lists


def _walk(
    value: Mapping[str, object], single: list[ThingName], lists: list[list[ThingName]], depth: int, words: Sequence[str]
) -> None:
    own = _identity(value, _noun(words, last=False))
    if own is not None and (own.kind is not ThingKind.ROW or own.nouns):
        single.append(own)
    for key, part in value.items():
        # If the key says nothing, the name of the operation may.
        named = words_of(key) if set(words_of(key)) - _NO_NOUNS else words
        if is_list(part) and (members := _members(key, part, _noun(named, last=True))):
            lists.append(members)
        elif is_mapping(part) and depth < _MAX_DEPTH:
            _walk(part, single, lists, depth + 1, named)


def _members(key: str, parts: list[object], noun: str) -> list[ThingName]:
    members: list[ThingName] = []
    kind = _PLURALS.get(key)
    for part in parts[: MAX_LIST + 1]:
        if isinstance(part, str) and part.strip():
            members.append(ThingName(kind or kind_of(part), part))
        elif is_mapping(part):
            own = _identity(part, noun)
            if own is None:
                cells = ", ".join(f"{name} {_string(cell)}" for name, cell in list(part.items())[:4] if _string(cell))
                members.append(ThingName(ThingKind.ROW, cells or "(empty)", nouns=(noun,) if noun else ()))
            else:
                members.append(own._replace(kind=kind) if kind and own.kind is ThingKind.ROW else own)
    return members


def entry(text: str) -> ThingName:
    """The thing that an entry of a list names: the only thing in it, else the entry itself."""
    things = things_in(text)
    return things[0]._replace(label=text) if len(things) == 1 else ThingName(ThingKind.ITEM, text)


def _identity(record: Mapping[str, object], noun: str) -> ThingName | None:
    """The thing that a record describes, named by its symbol or the field of that noun rather than by its address."""
    own = next((name for key in (noun, "symbol") if key and (name := _string(record.get(key)))), "")
    if own and noun:
        return ThingName(ThingKind.ROW, own, _facts(record, own), (noun,))
    for key, kind in _KEYS.items():
        if name := _string(record.get(key)):
            label = (_string(record.get("name")) or name) if kind is ThingKind.PERSON else name
            return ThingName(kind, label, _label_of(record, label))
    for key in _ROW_KEYS:
        if name := _string(record.get(key)):
            # "That pair" means a row named by its pair, whatever the noun of its list is.
            nouns = [word for word in dict.fromkeys((noun, key)) if word and word not in _NO_NOUNS]
            return ThingName(ThingKind.ROW, name, _label_of(record, name) or _facts(record, name), tuple(nouns))
    return None


def _label_of(record: Mapping[str, object], name: str) -> str:
    return next((text for key in _LABELS if (text := _string(record.get(key))) and text != name), "")


def _facts(record: Mapping[str, object], name: str) -> str:
    keys = sorted(record, key=lambda key: not set(words_of(key)) & {"address", "id", "chain", "network"})
    facts = [f"{key} {text}" for key in keys if (text := _string(record.get(key))) and text != name]
    return ", ".join(facts[:_FACTS])


def _arguments(call: ToolCall) -> list[ThingName]:
    fields = json_object(call.arguments)
    members = [ThingName(kind, name) for key, kind in _KEYS.items() if (name := _string(fields.get(key)))]
    for key, value in fields.items():
        words = words_of(key)
        about = words[:-1] if len(words) > 1 and words[-1] in _OF_A_THING else words
        noun = _noun(about, last=True) if len(about) == 1 and key not in _KEYS else ""
        if noun and isinstance(value, str) and 1 < len(value) <= MAX_NAME_CHARS and len(value.split()) == 1:
            members.append(ThingName(ThingKind.ROW, value, nouns=(noun,)))
    return members


def _string(value: object) -> str:
    return "" if isinstance(value, bool) or not isinstance(value, str | int | float) else as_name(str(value))


class Naming:
    """Collects the things named in one turn; its first list has the number `first_group`."""

    def __init__(self, turn: int, *, first_group: int = 1) -> None:
        self._turn = turn
        self._group = first_group
        self.things: list[NamedThing] = []

    def person(self, text: str, known: Sequence[NamedThing] = ()) -> None:
        """Add the things in a person's text: files, addresses, ids, and `known` things with a noun."""
        for member in (*things_in(text), *map(ThingName.of, _mentioned(text, known)[:_MAX_CHOSEN])):
            self._alone(member, PERSON)

    def chosen(self, things: Sequence[NamedThing]) -> None:
        if len(things) == 1:
            self._alone(ThingName.of(things[0]), PERSON)
        elif things:
            self._list([ThingName.of(thing) for thing in things], PERSON)

    def started(self, execution_id: str, description: str) -> None:
        self._alone(ThingName(ThingKind.EXECUTION, execution_id, description), ANSWER)

    def call(self, call: ToolCall, result: ToolResult) -> None:
        """Add the things named by a successful call."""
        single, lists = named_by(call, result) if result.success else ([], [])
        for member in single:
            self._alone(member, call.name)
        for members in lists:
            self._list(members, call.name)

    def answer(self, text: str) -> None:
        """Add the list in an answer, else the things in its text; entries are matched to things of this turn."""
        entries = last_list(text)
        members: list[ThingName] = []
        for line in entries:
            thing = self._thing_in(line)
            if thing is None:
                members.append(entry(line))
            else:
                label = thing.label if thing.noun and thing.label else line
                members.append(ThingName(thing.kind, thing.name, label, thing.nouns))
        self._list(members, ANSWER)
        if not entries:
            for member in things_in(text):
                if not any(thing.name == member.name for thing in self.things):
                    self._alone(member, ANSWER)
            if len(mentioned := _mentioned(text, self.things)) == 1:
                self._alone(ThingName.of(mentioned[0]), ANSWER)

    def _thing_in(self, entry: str) -> NamedThing | None:
        """The only thing of this turn that an entry mentions: by its name, the start of its id, or its label."""
        things = {thing.name: thing for thing in self.things if thing.kind is not ThingKind.ITEM}.values()
        for aliases in zip(*map(_aliases, things), strict=True):
            mentioned = [(thing, word) for thing, word in zip(things, aliases, strict=True) if _mentions(entry, word)]
            # If one name is a part of another, the longest counts.
            longest = max((len(word) for _, word in mentioned), default=0)
            candidates = [thing for thing, word in mentioned if len(word) == longest]
            if len(candidates) == 1:
                return candidates[0]
        return None

    def _alone(self, member: ThingName, source: str) -> None:
        name = exact(member.kind, member.name)
        label, nouns = as_name(member.label), member.nouns
        thing = NamedThing(kind=member.kind, name=name, turn=self._turn, source=source, label=label, nouns=nouns)
        is_known = any(replace(known, label=known.label if known.noun else label) == thing for known in self.things)
        if name and not is_known and len(self.things) < MAX_PER_TURN - 2 * MAX_LIST:
            self.things.append(thing)

    def _list(self, members: Sequence[ThingName], source: str) -> None:
        named = [
            member._replace(name=display, label=as_name(member.label))
            for member in members[:MAX_LIST]
            if (display := exact(member.kind, member.name))
        ]
        # Lists that the person sees or chooses from must have room, however many things tools named.
        room = MAX_PER_TURN if source in (ANSWER, PERSON) else MAX_PER_TURN - 2 * MAX_LIST
        if not named or len(self.things) + len(named) > room:
            return
        for position, (kind, name, label, nouns) in enumerate(named, start=1):
            thing = NamedThing(
                kind=kind, name=name, turn=self._turn, source=source, group=self._group, position=position,
                size=max(len(named), len(members)), label=label if label != name else "", nouns=nouns,
            )  # fmt: skip
            self.things.append(thing)
        self._group += 1


def _aliases(thing: NamedThing) -> tuple[str, str, str]:
    """A thing's name, the start of its id and its label; empty for those that are too short."""
    beginning = thing.name[:8] if thing.kind is ThingKind.EXECUTION and len(thing.name) > 8 else ""
    return thing.name, beginning, thing.label if len(thing.label) >= _LEAST_LABEL_CHARS else ""


def _mentions(text: str, name: str) -> bool:
    start = text.find(name) if name else -1
    if start < 0:
        return False
    before, after = text[start - 1 : start] if start else "", text[start + len(name) : start + len(name) + 1]
    return not (before.isalnum() and name[0].isalnum()) and not (after.isalnum() and name[-1].isalnum())


def _mentioned(text: str, things: Sequence[NamedThing]) -> list[NamedThing]:
    """The things with a noun that a text mentions by name; names of two different things are ignored."""
    text, mentioned = text[:MAX_TEXT_CHARS].casefold(), dict[tuple[str, str], dict[str, NamedThing]]()
    for thing in things:
        if thing.noun and len(thing.name) > 1 and _mentions(text, thing.name.casefold()):
            mentioned.setdefault((thing.noun, thing.name), {})[thing.label] = thing
    return [thing for same in mentioned.values() if len(same) == 1 for thing in same.values()]
