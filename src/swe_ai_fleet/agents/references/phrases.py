"""Phrases of a request that refer to something named before: its kind, and its position in a list.

English only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

MAX_THINGS = 240
"""The most things of a session; beyond that, the oldest are forgotten."""
MAX_PER_TURN = 140
MAX_LIST = 30
MAX_NAME_CHARS = 200
PERSON, ANSWER = "person", "answer"
"""The sources of things that no tool named."""
MAX_CHARS = 4_000
"""The part of a request that is searched for phrases."""
MAX_PHRASES = 8
_WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ORDINALS = {word: number for number, word in enumerate(_WORDS, start=1)}
_COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
MAX_NOUNS = 24
"""How many of a conversation's own nouns are recognised; the newest count."""
_NTH = rf"{'|'.join(_ORDINALS)}|\d{{1,2}}(?:st|nd|rd|th)"
_COUNT = rf"{'|'.join(_COUNTS)}|\d{{1,2}}"
# After an ordinal without a noun, the sentence ends or another part follows ("the second, please"); any other word
# after it is a noun of an unknown kind ("the second time").
_END = r"(?=\s*(?:[.,;:!?)]|$|(?:and|or|please|then|again|instead|too|with|from|to|in|on)\b|of (?:them|these|those)\b))"
_OF_THEM = r"(?: of (?:them|these|those|the list))?"


class ThingKind(StrEnum):
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
    """A named thing, with its turn and its source (`person`, `answer`, a tool).

    `group` numbers the lists of a session from 1, `position` the things of one list of `size` things; 0 for a single
    thing. `label` describes it, `nouns` are the conversation's own for such things ("token"), if they are none of the
    kinds. All of it is untrusted text.
    """

    kind: ThingKind
    name: str
    turn: int
    source: str
    group: int = 0
    position: int = 0
    size: int = 0
    label: str = ""
    nouns: tuple[str, ...] = ()

    @property
    def noun(self) -> str:
        """Its first noun; empty if it has only a kind."""
        return self.nouns[0] if self.nouns else ""

    @property
    def alone(self) -> bool:
        """Whether it is a single thing, not one of a list."""
        return not self.group


def newest(things: Sequence[NamedThing]) -> tuple[NamedThing, ...]:
    """The newest `MAX_THINGS`; lists are dropped whole."""
    if len(things) <= MAX_THINGS:
        return tuple(things)
    recent = things[-MAX_THINGS:]
    cut = things[-MAX_THINGS - 1].group
    return tuple(thing for thing in recent if not cut or thing.group != cut)


def plural(noun: str) -> str:
    """The plural of a noun."""
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


_ANY: frozenset[ThingKind] = frozenset()
_NOUNS: dict[str, frozenset[ThingKind]] = {
    **{kind.value: frozenset({kind}) for kind in ThingKind},
    "task": frozenset({ThingKind.TASK, ThingKind.EXECUTION}),
    "run": frozenset({ThingKind.EXECUTION}),
    **dict.fromkeys(("url", "page", "site"), frozenset({ThingKind.LINK})),
    **dict.fromkeys(("author", "user"), frozenset({ThingKind.PERSON})),
    **dict.fromkeys(("one", "item", "entry", "result", "option", "row", "thing"), _ANY),
}
_PLURALS = {"people": "person"} | {plural(noun): noun for noun in _NOUNS}


class Pointing(StrEnum):
    """How a phrase refers to things."""

    NTH = "nth"
    FIRST_OF = "first_of"
    LAST_OF = "last_of"
    THAT = "that"
    THOSE = "those"
    BOTH = "both"
    OTHER = "other"
    IT = "it"
    THEM = "them"
    MORE = "more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A phrase as it was written, and how it refers to things.

    `kinds` are the kinds that it can mean, empty for any; `noun` is one of the conversation's own; `number` is a
    position (-1: the last) or a count, `start` its place in the request. A `vague` phrase ("it", "more details") often
    refers to nothing.
    """

    text: str
    pointing: Pointing
    kinds: frozenset[ThingKind] = _ANY
    noun: str = ""
    number: int = 0
    start: int = 0
    vague: bool = False


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


Reader = Callable[[re.Match[str]], tuple[Pointing, str | None, int]]
"""Reads how a match refers to things, its noun, and its position or count."""


@lru_cache(maxsize=64)
def _with_nouns(own: frozenset[str]) -> tuple[tuple[re.Pattern[str], Reader], ...]:
    """The patterns with a noun: the name of a kind, or one of the conversation's own (plain small letters)."""
    nouns = "|".join(sorted({*_NOUNS, *own}, key=len, reverse=True))
    many = "|".join(sorted({*_PLURALS, *map(plural, own)}, key=len, reverse=True))
    ends = {"first": Pointing.FIRST_OF, "top": Pointing.FIRST_OF, "last": Pointing.LAST_OF}
    shapes: tuple[tuple[str, Reader], ...] = (
        (
            rf"\b(?:the )?(first|last|top) ({_COUNT})(?: ({many})\b|{_END})",
            lambda match: (ends[match[1].lower()], match[3], _count(match[2])),
        ),
        (
            rf"\bthe ({_NTH}|last)(?: ({nouns})\b{_OF_THEM}|{_END}{_OF_THEM})",
            lambda match: (Pointing.NTH, match[2], _ordinal(match[1])),
        ),
        (
            rf"\b({nouns}|number|no)\.? ?#?(\d{{1,2}})\b(?![.:/-]?\d)|(?<![\w#&])#(\d{{1,2}})\b",
            lambda match: (Pointing.NTH, match[1], int(match[2] or match[3])),
        ),
        (rf"\bthe other ({nouns})\b|\bthe other{_END}", lambda match: (Pointing.OTHER, match[1], 0)),
        (rf"\b(?:that|this|the same) ({nouns})\b(?! of\b)", lambda match: (Pointing.THAT, match[1], 0)),
        (
            rf"\b(?:those|these|all (?:of )?(?:the|those|these)|all) ({many})\b",
            lambda match: (Pointing.THOSE, match[1], 0),
        ),
        (rf"\bboth(?: of them| (?:the )?({many}))?\b", lambda match: (Pointing.BOTH, match[1], 0)),
    )
    return tuple((_pattern(shape), read) for shape, read in shapes)


def singular(word: str) -> str:
    """The singular of a noun."""
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


_THEM = _pattern(r"\b(?:them|those|these|all of it)\b")
_IT = _pattern(
    r"\b(?:show|open|read|run|delete|start|stop|cancel|explain|describe|summari[sz]e|about|of|in|with|on|fix|check|"
    r"rename|repeat|use|compare|did|does|is|was|has|print|display|send|see|for|from|to|into|and) (it|that)"
    r"(?=\s*(?:[.,;:!?)]|$|again\b|to me\b|please\b|pass|fail|finish|done|work|end\b|now\b|say|contain|with\b|and\b|"
    r"run|mean|cost|take))"
)
_MORE = _pattern(
    r"\b(?:more|further) (?:details?|information|info)\b|\btell me more\b|\bmore about (?:it|that|this)\b|"
    r"^\s*(?:details|more|go on|elaborate)(?: please)?\s*[.!?]*\s*$"
)


def phrases(request: str, nouns: Sequence[str] = ()) -> tuple[Phrase, ...]:
    """The referring phrases of a request in their order; of two that overlap, the more specific one.

    `nouns` are the conversation's own besides the kinds, oldest first.
    """
    text = request[:MAX_CHARS]
    own = {noun: noun for noun in list(dict.fromkeys(nouns))[-MAX_NOUNS:] if noun not in _NOUNS}
    patterns, own = _with_nouns(frozenset(own)), own | {plural(noun): noun for noun in own}
    matches: list[tuple[int, int, Phrase]] = []

    def take(
        match: re.Match[str], pointing: Pointing, noun: str | None, number: int = 0, *, vague: bool = False
    ) -> None:
        start, end = match.span(1) if pointing is Pointing.IT else match.span()
        if any(start < other_end and other_start < end for other_start, other_end, _ in matches):
            return
        word = (noun or "").lower()
        phrase = Phrase(
            text=text[start:end].strip(), pointing=pointing, kinds=_NOUNS.get(_PLURALS.get(word, word), _ANY),
            noun=own.get(word, ""), number=number, start=start, vague=vague,
        )  # fmt: skip
        matches.append((start, end, phrase))

    for pattern, read in patterns:
        for match in pattern.finditer(text):
            take(match, *read(match))
    for match in () if matches else _MORE.finditer(text):
        # "More details on the second" is about the second.
        take(match, Pointing.MORE, None, vague=True)
    for match in _IT.finditer(text):
        take(match, Pointing.IT, None, vague=True)
    for match in _THEM.finditer(text):
        take(match, Pointing.THEM, None, vague=True)
    return tuple(phrase for _, _, phrase in sorted(matches, key=lambda match: match[0])[:MAX_PHRASES])


def _ordinal(word: str) -> int:
    lowered = word.lower()
    if lowered == "last":
        return -1
    return _ORDINALS.get(lowered) or int(lowered[:-2])


def _count(word: str) -> int:
    lowered = word.lower()
    return _COUNTS.get(lowered) or int(lowered)
