"""What calls name: their arguments, and the records and lists in what they gave."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swe_ai_fleet.agents.references.phrases import MAX_LIST, MAX_NAME_CHARS, NamedThing, ThingKind, singular
from swe_ai_fleet.agents.references.wording import as_name, in_words, kind_of, last_list
from swe_ai_fleet.domain.json_values import is_list, is_mapping, json_object, json_or_none
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import ToolResult

_MAX_DEPTH = 3
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NOUN = re.compile(r"[a-z]{3,24}")
_VERBS = frozenset(
    ("get", "list", "search", "find", "fetch", "show", "check", "read", "look", "lookup", "query", "top", "trending",
     "new", "latest", "recent", "all", "by", "for", "of", "in", "the", "and", "load", "describe", "call", "run", "ask",
     "sort", "order", "is", "has", "can")
)  # fmt: skip
# What says nothing of what a thing is.
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
"""By which name of a field its value is known; of several in one record the first here."""
_PLURALS: Mapping[str, ThingKind] = {
    "files": ThingKind.FILE, "paths": ThingKind.FILE, "files_changed": ThingKind.FILE,
    "executions": ThingKind.EXECUTION, "candidates": ThingKind.CANDIDATE, "stories": ThingKind.STORY,
    "tasks": ThingKind.TASK, "people": ThingKind.PERSON, "users": ThingKind.PERSON, "links": ThingKind.LINK,
    "urls": ThingKind.LINK, "branches": ThingKind.BRANCH, "commits": ThingKind.COMMIT, "rows": ThingKind.ROW,
}  # fmt: skip
_ROW_KEYS = ("symbol", "pair", "name", "id", "title", "key", "address")
_LABELS = ("title", "description", "summary", "label", "text", "name", "status")


class Member(NamedTuple):
    """What something names: its kind, its name, what it is about, and the conversation's own nouns for it."""

    kind: ThingKind
    name: str
    label: str = ""
    nouns: tuple[str, ...] = ()

    @classmethod
    def of(cls, thing: NamedThing) -> Member:
        return cls(thing.kind, thing.name, thing.label, thing.nouns)


@dataclass(slots=True)
class Found:
    """What a value names, by itself and in lists."""

    single: list[Member]
    lists: list[list[Member]]

    def __init__(self) -> None:
        self.single, self.lists = [], []


def fields_of(result: ToolResult) -> Mapping[str, object]:
    """What a result gave, in JSON's types: the answer of an MCP server, in a text too, else its metadata."""
    fields = result.metadata
    if "server" not in fields:
        return fields
    value = fields.get("structured")
    if value is None:
        value = json_or_none(result.content)
        if value is None:
            return {}
    return value if is_mapping(value) else {"value": value}


def words_of(name: str) -> list[str]:
    """The words of a name in snake or camel case, small."""
    return [word.lower() for word in _PART.findall(name[:MAX_NAME_CHARS])]


def _words(operation: str, server: str) -> list[str]:
    """The words of an operation's name that say what it is about: those behind its verb, its server left out."""
    words = words_of(operation.removeprefix(f"{server}_"))
    verbs = [number for number, word in enumerate(words) if word in _VERBS]
    return words[verbs[0] + 1 :] if verbs else []


def _noun(words: Sequence[str], *, last: bool) -> str:
    """What words call a thing: in "pool tokens" the last of them, in "token price" the first; empty for nothing."""
    known = [word for word in words if word not in _VERBS | _NO_NOUNS and _NOUN.fullmatch(word)]
    return singular(known[-1 if last else 0]) if known else ""


def title_of(key: str, operation: str, server: str) -> str:
    """What a list is called: by the key it stands under, else by what its operation is about."""
    words = words_of(key) if set(words_of(key)) - _NO_NOUNS else _words(operation, server) or words_of(operation)
    return " ".join(words).capitalize()


def named_by(call: ToolCall, result: ToolResult) -> Found:
    """What a call that succeeded was about, and what it gave."""
    words, things = _words(call.name, str(result.metadata.get("server", ""))), Found()
    fields = fields_of(result)
    if fields:
        _walk(fields, things, 0, words)
    else:
        _walk_text(result.content, things)
    # A record says what it is about better than the argument by which it was asked for.
    nouns = {noun for member in things.single for noun in member.nouns}
    asked = [member for member in _arguments(call) if not nouns & set(member.nouns)]
    things.single = [*asked, *things.single[:MAX_LIST]]
    return things


def _walk(value: Mapping[str, object], things: Found, depth: int, words: Sequence[str]) -> None:
    own = _identity(value, _noun(words, last=False))
    if own is not None and (own.kind is not ThingKind.ROW or own.nouns):
        things.single.append(own)
    for key, part in value.items():
        # What a key does not say, the name of the operation may.
        named = words_of(key) if set(words_of(key)) - _NO_NOUNS else words
        if is_list(part) and part:
            members = _members(key, part, _noun(named, last=True))
            if members:
                things.lists.append(members)
        elif is_mapping(part) and depth < _MAX_DEPTH:
            _walk(part, things, depth + 1, named)


def _members(key: str, parts: list[object], noun: str) -> list[Member]:
    members: list[Member] = []
    kind = _PLURALS.get(key)
    for part in parts[: MAX_LIST + 1]:
        if isinstance(part, str) and part.strip():
            members.append(Member(kind or kind_of(part), part))
        elif is_mapping(part):
            own = _identity(part, noun)
            if own is not None:
                members.append(own._replace(kind=kind) if kind and own.kind is ThingKind.ROW else own)
            else:
                shown = ", ".join(f"{name} {_string(cell)}" for name, cell in list(part.items())[:4] if _string(cell))
                members.append(Member(ThingKind.ROW, shown or "(empty)", nouns=(noun,) if noun else ()))
    return members


def _walk_text(text: str, things: Found) -> None:
    entries = last_list(text)
    if entries:
        things.lists.append([entry(entry_text) for entry_text in entries])
        return
    things.single += [Member(kind, name) for kind, name in in_words(text)]


def entry(text: str) -> Member:
    """What an entry of a list names: the one thing in it, else itself."""
    words = in_words(text)
    return Member(*words[0], text) if len(words) == 1 else Member(ThingKind.ITEM, text)


def _identity(record: Mapping[str, object], noun: str) -> Member | None:
    """What a record is about; a symbol, or what stands under the noun itself, names it better than its address does."""
    own = next((name for key in (noun, "symbol") if key and (name := _string(record.get(key)))), "")
    if own and noun:
        return Member(ThingKind.ROW, own, _facts(record, own), (noun,))
    for key, kind in _KEYS.items():
        name = _string(record.get(key))
        if name:
            shown = (_string(record.get("name")) or name) if kind is ThingKind.PERSON else name
            return Member(kind, shown, _label_of(record, shown))
    for key in _ROW_KEYS:
        if name := _string(record.get(key)):
            # "That pair" is a row that goes by its pair, whatever its list is of.
            nouns = [word for word in dict.fromkeys((noun, key)) if word and word not in _NO_NOUNS]
            return Member(ThingKind.ROW, name, _label_of(record, name) or _facts(record, name), tuple(nouns))
    return None


def _label_of(record: Mapping[str, object], name: str) -> str:
    return next((text for key in _LABELS if (text := _string(record.get(key))) and text != name), "")


def _facts(record: Mapping[str, object], name: str) -> str:
    """What else a record says of a thing, what tells it from others first."""
    keys = sorted(record, key=lambda key: not set(words_of(key)) & {"address", "id", "chain", "network"})
    facts = [f"{key} {text}" for key in keys if (text := _string(record.get(key))) and text != name]
    return ", ".join(facts[:_FACTS])


def _arguments(call: ToolCall) -> list[Member]:
    fields = json_object(call.arguments)
    members = [Member(kind, name) for key, kind in _KEYS.items() if (name := _string(fields.get(key)))]
    for key, value in fields.items():
        words = words_of(key)
        about = words[:-1] if len(words) > 1 and words[-1] in _OF_A_THING else words
        noun = _noun(about, last=True) if len(about) == 1 and key not in _KEYS else ""
        if noun and isinstance(value, str) and 1 < len(value) <= MAX_NAME_CHARS and len(value.split()) == 1:
            members.append(Member(ThingKind.ROW, value, nouns=(noun,)))
    return members


def _string(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return as_name(str(value))
