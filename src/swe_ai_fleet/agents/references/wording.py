"""Names in texts: files, addresses, ids, and the entries of lists."""

from __future__ import annotations

import re

from swe_ai_fleet.agents.references.phrases import MAX_LIST, MAX_NAME_CHARS, ThingKind
from swe_ai_fleet.domain.text import one_line

MAX_TEXT_CHARS = 20_000
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


def in_words(text: str) -> list[tuple[ThingKind, str]]:
    """Files, addresses and ids among words, each once, in order."""
    text = text[:MAX_TEXT_CHARS]
    things: dict[tuple[ThingKind, str], None] = {}
    for word in text.split():
        bare = word.strip(_WRAPPING).rstrip(".")
        if address := _URL.match(bare):
            things.setdefault((ThingKind.LINK, address[0].rstrip(".,;:)")))
        elif _ID.fullmatch(bare):
            things.setdefault((ThingKind.EXECUTION, bare))
        elif _is_file(bare):
            things.setdefault((ThingKind.FILE, bare))
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
    """The name on one line; of what tools are given by name nothing may be cut, so it is left out."""
    line = as_name(name)
    return "" if line.endswith("…") and kind not in (ThingKind.ROW, ThingKind.ITEM) else line


def as_name(text: str) -> str:
    """A text as long as a name may be."""
    return one_line(text, MAX_NAME_CHARS)
