"""What earlier answers named, so that "that file" and "the second one" mean something."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

MAX_CHARS = 20_000
"""Of the earlier texts, the newest last; what lies before is not looked at."""
MAX_ENTITIES = 20
_MAX_NAME_CHARS = 200
_ITEM = re.compile(r"[ \t]{0,8}(?:[-*][ \t])?\(?(\d{1,3})[.)][ \t]+(\S.*)")
_FILE = re.compile(r"(?:~?\.{0,2}/)?(?:[\w@+-][\w.@+-]*/)*[\w@+-][\w.@+-]*\.[A-Za-z][A-Za-z0-9]{0,7}")
_WRAPPING = "`'\"()[]{}<>,;:!?*"
_NO_FILES = (".com", ".org", ".net", ".io", "e.g", "i.e", "a.m", "p.m")
_ORDINALS = {
    word: number
    for number, words in enumerate(
        (
            ("first", "1st"), ("second", "2nd"), ("third", "3rd"), ("fourth", "4th"), ("fifth", "5th"),
            ("sixth", "6th"), ("seventh", "7th"), ("eighth", "8th"), ("ninth", "9th"), ("tenth", "10th"),
        ),
        start=1,
    )
    for word in words
}  # fmt: skip
_NTH = re.compile(
    rf"\bthe ({'|'.join(_ORDINALS)}|last)"
    r"(?: (one|item|file|result|option|entry|point)\b|(?=\s*(?:[.,;:!?)]|and\b|or\b|$)))",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"\b(?:number|item|option|no\.) ?(\d{1,3})\b|(?<!\w)#(\d{1,3})\b", re.IGNORECASE)
_THAT = re.compile(r"\b(?:that|this|the same) (file|item|one|result)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A phrase of a request, as it was written, and what it can only mean."""

    phrase: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The things that earlier texts named: files, oldest first, and the items of the last numbered list."""

    files: tuple[str, ...] = ()
    items: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, texts: Sequence[str]) -> References:
        """What these texts name, the newest last."""
        text = "\n".join(texts)[-MAX_CHARS:]
        files: dict[str, None] = {}
        for word in text.split():
            name = word.strip(_WRAPPING).rstrip(".")
            if len(name) <= _MAX_NAME_CHARS and "://" not in name and _is_file(name):
                files.setdefault(name)
        return cls(files=tuple(files)[-MAX_ENTITIES:], items=_last_list(text))

    def section(self) -> str:
        """The things as a section for the model; empty where there are none."""
        lines = [f"- file: {name}" for name in self.files]
        lines += [f"- item {number}: {label}" for number, label in self.items]
        return "\n".join(["# Named before", *lines]) if lines else ""

    def resolve(self, request: str) -> tuple[Resolved, ...]:
        """The phrases of a request that can mean one thing only, in their order.

        Ordinals count the items of the last numbered list, or the files where there is no such list ("the second
        file" counts the files in any case); "that file" means a file that was the only one named. A phrase that could
        mean several things, or nothing, is left alone.
        """
        found: dict[int, Resolved] = {}
        for match in _NTH.finditer(request[:MAX_CHARS]):
            of_files = (match[2] or "").lower() == "file" or not self.items
            self._add(found, match, self._nth(match[1].lower(), of_files=of_files))
        for match in _NUMBERED.finditer(request[:MAX_CHARS]):
            self._add(found, match, dict(self.items).get(int(match[1] or match[2]), ""))
        for match in _THAT.finditer(request[:MAX_CHARS]):
            self._add(found, match, self._only(match[1].lower()))
        return tuple(found[start] for start in sorted(found))

    def _nth(self, word: str, *, of_files: bool) -> str:
        named = dict(enumerate(self.files, start=1)) if of_files else dict(self.items)
        if not named:
            return ""
        return named.get(max(named) if word == "last" else _ORDINALS[word], "")

    def _only(self, kind: str) -> str:
        items = tuple(label for _, label in self.items)
        named = self.files if kind == "file" else items if kind == "item" else self.files + items
        return named[0] if len(named) == 1 else ""

    @staticmethod
    def _add(found: dict[int, Resolved], match: re.Match[str], meaning: str) -> None:
        if meaning:
            found.setdefault(match.start(), Resolved(phrase=match[0], meaning=meaning))


def _is_file(name: str) -> bool:
    return _FILE.fullmatch(name) is not None and not name.lower().endswith(_NO_FILES)


def _last_list(text: str) -> tuple[tuple[int, str], ...]:
    """The items of the last list that counts up from its first number; lines between them belong to an item."""
    items: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _ITEM.match(line[: 2 * _MAX_NAME_CHARS])
        if match is None:
            continue
        number = int(match[1])
        if not items or number != items[-1][0] + 1:
            items = []
        items.append((number, match[2].strip()[:_MAX_NAME_CHARS]))
    return tuple(items[:MAX_ENTITIES])
