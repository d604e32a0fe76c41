"""Which candidate a judge's reply names, read loosely but never guessed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

from pydantic import Field

from swe_ai_fleet.agents.sub_agents.shapes import Said, Shape, Text, as_text, objects_in, schema_of
from swe_ai_fleet.domain.text import well_formed

MAX_READ_CHARS = 50_000
_KEYS = ("choice", "vote", "winner", "best", "answer", "candidate", "decision")
_REASONS = ("reason", "reasoning", "rationale", "why", "explanation", "justification")
_LETTER = re.compile(
    r"[\s\"'`*_.():\[\]]{0,20}(?:candidate[\s_]{0,3})?([A-Za-z])[\s\"'`*_.():\[\]]{0,20}", re.IGNORECASE
)
_SAID = re.compile(
    r"\b(?i:choice|vote|winner|answer|verdict)[\"'`*_]{0,4}\s{0,3}(?:[:=]|\bis\b)[\s\"'`*_]{0,6}(?i:candidate\s{1,3})?"
    r"[\"'`*_(]{0,4}([A-Z])\b"
)


class ChoiceShape(Shape):
    reason: Text = Field(default="", description="What decides between them, in one or two sentences.")
    choice: Said = Field(description="The letter of the candidate that should be applied.")


def choice_schema(letters: str) -> dict[str, object]:
    """The schema of an answer; the reason comes first, so that the choice can follow from it."""
    schema = schema_of(ChoiceShape)
    properties = cast("dict[str, dict[str, object]]", schema["properties"])
    properties["choice"] = {**properties["choice"], "enum": list(letters)}
    return schema


def read_choice(texts: Sequence[str], letters: str) -> tuple[str, str]:
    """The letter that a reply names and its reason. Raises ValueError where it names none, or several.

    Args:
        texts: Where the answer may stand: what the model said, and the arguments of calls that it was not offered.
        letters: The letters on the ballot.
    """
    texts = [well_formed(text.rpartition("</think>")[2])[:MAX_READ_CHARS] for text in texts]
    # Whoever gave an object has said it there; only then is there nothing to look for in the words.
    said = list(_in_objects(texts, letters)) or list(_in_words(texts, letters))
    found = {letter: reason for letter, reason in reversed(said) if letter}
    if len(found) > 1:
        raise ValueError(f"it names several candidates ({', '.join(sorted(found))})")
    if not found:
        raise ValueError(f"it names none of the candidates {', '.join(letters)}")
    return found.popitem()


def _in_objects(texts: Sequence[str], letters: str) -> Iterator[tuple[str, str]]:
    """What JSON objects name (nothing: no letter of these), with their reasons."""
    for text in texts:
        for value in objects_in(text):
            fields = {str(key).strip().lower(): part for key, part in value.items()}
            for chosen in [part for key in _KEYS if isinstance(part := fields.get(key), str)][:1]:
                yield _letter(chosen, letters), next((as_text(fields[key]) for key in _REASONS if key in fields), "")


def _in_words(texts: Sequence[str], letters: str) -> Iterator[tuple[str, str]]:
    """Letters that are the whole reply, or stand behind a word like `choice:`."""
    for text in texts:
        if letter := _letter(text, letters):
            yield letter, ""
        for found in _SAID.finditer(text):
            if found[1] in letters:
                yield found[1], as_text(text)


def _letter(text: str, letters: str) -> str:
    found = _LETTER.fullmatch(text) if len(text) <= 60 else None
    return found[1].upper() if found and found[1].upper() in letters else ""
