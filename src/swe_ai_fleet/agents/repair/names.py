"""What a model means by a tool's name."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from swe_ai_fleet.agents.repair.aliases import ALIASES, Alias
from swe_ai_fleet.domain.tool import OperationSpec

MAX_NAME_CHARS = 200
_NAMESPACES = frozenset({"functions", "function", "defaultapi", "tools", "tool", "mcp", "api", "toolcall"})
_OPENING = re.compile(r"\A(?:<\|[^|<>]{0,40}\|>|<[a-z_]{1,20}[=>]|[\s\"'`*:])+", re.IGNORECASE)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff]")
_TARGET = re.compile(r"\bto=([A-Za-z0-9_.:-]+)")
_WORD = re.compile(r"[\w.:/-](?:[\w.:/ -]*[\w])?")
_NUMBERED = re.compile(r":\d{1,4}\Z")
_NEAR = 0.9
_CLEARLY_NEARER = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a name was read as.

    `name` is ours, empty where it means nothing or several things; `repair` says how it was found, empty for a name
    that stood there as it is; `near` are names that a model may have meant.
    """

    name: str = ""
    repair: str = ""
    alias: Alias | None = None
    near: tuple[str, ...] = field(default=())


Fits = Callable[[str, Alias | None], bool]
"""Whether the arguments at hand can be mapped to an operation's, under an alias or as they are."""


class Names:
    """The names of one run's operations.

    Args:
        specs: Every operation that can be called.
    """

    def __init__(self, specs: Iterable[OperationSpec]) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._folded = _index((_own_folded(name), name) for name in self._specs)
        self._operations = _index((_own_folded(spec.operation), name) for name, spec in self._specs.items())

    def read(self, written: str, fits: Fits) -> Reading:
        """The operation that a model means. Only what is exact, or means one thing, is taken.

        The ladder: as it stands; without tags, quotes and argument text around it; case, dashes, dots and spaces
        folded; without a namespace or a doubled prefix; with the toolkit's prefix; by the names of other harnesses;
        nearly the same letters, for operations that only read.

        Args:
            written: The name as the model wrote it.
            fits: Asked before a name that could mean several things is taken for one of them.
        """
        if written in self._specs:
            return Reading(name=written)
        bare = split_name(written)[0]
        if bare in self._specs:
            return Reading(name=bare, repair=f"name_cleaned: {bare}")
        for folded in _spellings(bare):
            found = self._folded.get(folded, ())
            if len(found) == 1:
                return Reading(name=found[0], repair=f"name_folded: {found[0]}")
        for folded in _spellings(bare):
            reading = self._by_operation(folded, fits) or self._by_alias(folded, fits)
            if reading is not None:
                return reading
        return self._nearest(bare, fits)

    def _by_operation(self, folded: str, fits: Fits) -> Reading | None:
        """An operation without its toolkit's name. One word alone says too little: the arguments must fit as well."""
        found = self._operations.get(folded, ())
        if len(found) != 1:
            return Reading(near=found) if found else None
        only = found[0]
        plain = (only,) if "_" in self._specs[only].operation else ()
        if folded in _ALIASES or not plain:
            plain = (only,) if fits(only, None) else ()
            meant = {alias.target for alias in _ALIASES.get(folded, ()) if fits(alias.target, alias)}
            if len({*plain, *meant}) > 1:
                return Reading(near=tuple(sorted({*plain, *meant})))
        if len(plain) == 1:
            return Reading(name=plain[0], repair=f"name_prefixed: {plain[0]}")
        return None if folded in _ALIASES else Reading(near=found)

    def _by_alias(self, folded: str, fits: Fits) -> Reading | None:
        meanings = [alias for alias in _ALIASES.get(folded, ()) if alias.target in self._specs]
        fitting = [alias for alias in meanings if fits(alias.target, alias)]
        if len(fitting) == 1:
            alias = fitting[0]
            return Reading(name=alias.target, repair=f"name_alias: {alias.target}", alias=alias)
        return Reading(near=tuple(dict.fromkeys(alias.target for alias in meanings))) if meanings else None

    def _nearest(self, bare: str, fits: Fits) -> Reading:
        near = difflib.get_close_matches(bare, self._specs, n=3, cutoff=0.6)
        scores = [difflib.SequenceMatcher(None, name, bare).ratio() for name in near]
        if near and scores[0] >= _NEAR and (len(near) == 1 or scores[0] - scores[1] >= _CLEARLY_NEARER):
            spec = self._specs[near[0]]
            # Taking a name for another is a guess, and a guess must not have effects.
            if spec.read_only and not spec.executes and not spec.network and fits(spec.name, None):
                return Reading(name=spec.name, repair=f"name_nearest: {spec.name}")
        return Reading(near=tuple(near))


def split_name(written: str) -> tuple[str, str]:
    """The name without tags, quotes and tokens around it, and the text behind it that looks like arguments."""
    written = _INVISIBLE.sub("", written)
    target = _TARGET.search(written[: 2 * MAX_NAME_CHARS])
    if target is not None:
        return target[1][:MAX_NAME_CHARS], ""
    opening = _OPENING.match(written[:MAX_NAME_CHARS])
    start = opening.end() if opening else 0
    word = _WORD.match(written[start : start + MAX_NAME_CHARS])
    if word is None:
        return written[:MAX_NAME_CHARS].strip(), ""
    rest = written[start + word.end() :].lstrip(" \t\r\n\"'`*>")
    return _NUMBERED.sub("", word[0]), rest if rest[:1] in ("{", "(") else ""


def _spellings(bare: str) -> list[str]:
    """The folded name; then without the namespaces before it, and with a doubled first word once."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", bare) if word]
    spellings = [_folded(bare)]
    while len(words) > 1 and (_folded(words[0]) in _NAMESPACES or _folded("".join(words[:2])) in _NAMESPACES):
        words = words[1 if _folded(words[0]) in _NAMESPACES else 2 :]
        spellings.append(_folded("".join(words)))
    if len(words) > 1 and words[0].casefold() == words[1].casefold():
        spellings.append(_folded("".join(words[1:])))
    return [folded for folded in dict.fromkeys(spellings) if folded]


def _folded(name: str) -> str:
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum())


@lru_cache(maxsize=4_096)
def _own_folded(name: str) -> str:
    """As `_folded`, once for a process: every run has much the same operations."""
    return _folded(name)


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    index: dict[str, tuple[str, ...]] = {}
    for key, name in pairs:
        index[key] = (*index.get(key, ()), name)
    return index


_ALIASES: Mapping[str, tuple[Alias, ...]] = {_folded(name): meanings for name, meanings in ALIASES.items()}
