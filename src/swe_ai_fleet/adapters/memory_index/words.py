"""Words of a text as an index knows them: folded, split, without those that say nothing."""

from __future__ import annotations

import re
import unicodedata

from swe_ai_fleet.memory.wording import SAY_NOTHING, stem

MAX_INDEXED_CHARS = 100_000
MAX_QUERY_CHARS = 8_000
MAX_QUERY_WORDS = 32

_WORD = re.compile(r"[^\W_]+")
_IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
# Scripts that are written without spaces: their words are found by pairs of letters.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")


def indexed(text: str) -> str:
    """What an index takes in: the text and the parts of its words, without case and diacritics (`Déjà`: `deja`)."""
    text = text[:MAX_INDEXED_CHARS]
    return _folded(f"{text} {parts(text)}")


def parts(text: str) -> str:
    """What a tokenizer does not see: the parts of names in camel case, pairs of letters of unspaced scripts."""
    found: list[str] = []
    for word in _WORD.findall(text):
        if word.isascii():
            pieces = _IDENTIFIER_PART.findall(word)
            found.extend(pieces if len(pieces) > 1 else ())
        for run in _UNSPACED.findall(word):
            found.extend(run[start : start + 2] for start in range(len(run) - 1))
    return " ".join(found)


def terms(text: str) -> list[str]:
    """The words of `indexed` in order, stemmed."""
    return [stem(word) for word in _WORD.findall(indexed(text))]


def indexed_words(text: str) -> str:
    """`indexed`, letters and digits only."""
    return " ".join(_WORD.findall(indexed(text)))


def query_words(text: str) -> tuple[str, ...]:
    """The words to search for, letters and digits only, distinct, at most 32.

    Words that say nothing are among them only where there are no others.
    """
    words = dict.fromkeys(_WORD.findall(indexed(text[:MAX_QUERY_CHARS])))
    telling = [word for word in words if word not in SAY_NOTHING]
    return tuple(telling or words)[:MAX_QUERY_WORDS]


def query_terms(text: str) -> tuple[str, ...]:
    """`query_words` as `terms` has them."""
    return tuple(dict.fromkeys(stem(word) for word in query_words(text)))


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))
