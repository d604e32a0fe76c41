"""What reviewers answer with, and how loosely it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.sub_agents.shapes import Said, Shape, Text
from swe_ai_fleet.domain.review import ReviewVerdict

_VERDICTS: Mapping[str, ReviewVerdict] = {
    **{str(verdict): verdict for verdict in ReviewVerdict},
    **dict.fromkeys(("accepted", "approve", "approved", "lgtm", "pass"), ReviewVerdict.ACCEPT),
    **dict.fromkeys(
        ("revised", "revision", "request changes", "changes requested", "needs work", "needs changes"),
        ReviewVerdict.REVISE,
    ),
    **dict.fromkeys(("rejected", "decline", "declined", "fail"), ReviewVerdict.REJECT),
}
_SCORE = re.compile(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*(?:(%)|(?:/|out of)\s*(\d{1,6}))?\s*", re.IGNORECASE)
_MOST_READ = 200
_LETTER = re.compile(r"\b[A-Za-z]\b")
_TITLE = re.compile(r"\bcandidates?\b", re.IGNORECASE)
_WORD = re.compile(r"\w{2,}")
_NO = frozenset({"", "false", "no", "n", "0", "optional", "none", "null"})


def _as_verdict(value: object) -> object:
    word = " ".join(re.split(r"[\s_-]+", value.strip().strip(".!*`").lower())) if isinstance(value, str) else value
    return _VERDICTS.get(word, value) if isinstance(word, str) else value


def _as_score(value: object) -> object:
    """A share as a number: `0.8`, `80%`, `8/10`."""
    if isinstance(value, str) and (found := _SCORE.fullmatch(value[:100])):
        number = float(found[1])
        whole = 100.0 if found[2] else float(found[3] or 1)
        value = number / whole if whole else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Not a number is left as it is: it compares with nothing, and is refused behind this.
        return value if value != value else min(1.0, max(0.0, value))
    return value


def _as_line(value: object) -> int:
    """A line number; of a range its first line, 0 for anything else."""
    if isinstance(value, str) and (found := re.match(r"\D{0,20}(\d{1,7})", value)):
        value = int(found[1])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**7:
        return 0
    return value


def _as_flag(value: object) -> bool:
    return value.strip().lower() not in _NO if isinstance(value, str) else bool(value)


def _as_findings(value: object) -> object:
    """Findings as objects; a mere text is one without a place."""
    if value is None:
        return []
    if isinstance(value, str | Mapping):
        value = [cast("object", value)] if value else []
    if not isinstance(value, list):
        return value
    parts = [part for part in cast("list[object]", value)[:_MOST_READ] if part]
    return [cast("object", part) if isinstance(part, Mapping) else {"text": part} for part in parts]


class FindingShape(Shape):
    text: Said = Field(description="What is wrong and what would mend it.")
    file: Text = Field(default="", description="Empty for the candidate as a whole.")
    line: Annotated[int, BeforeValidator(_as_line)] = Field(default=0, description="From 1; 0: the whole file.")
    must_fix: Annotated[bool, BeforeValidator(_as_flag)] = Field(
        default=False, description="Not to be applied without it."
    )
    command: Text = Field(default="", description="Proof of a must_fix: exits with 0 where the code is right.")
    expected: Text = Field(default="", description="What it shows there.")


class CritiqueShape(Shape):
    verdict: Annotated[ReviewVerdict, BeforeValidator(_as_verdict)] = Field(
        description="revise: needs the changes you name; reject: the wrong approach."
    )
    score: Annotated[float, BeforeValidator(_as_score), Field(ge=0.0, le=1.0, allow_inf_nan=False)] = Field(
        description="How good the candidate is, from 0 to 1."
    )
    content: Text = Field(default="", description="The review in a few sentences.")
    findings: Annotated[list[FindingShape], BeforeValidator(_as_findings)] = Field(
        default=[], description="What has to change; none if nothing has."
    )


def _as_reviews(value: object) -> object:
    """Reviews as a list; an object has them under the candidates' letters."""
    if isinstance(value, Mapping):
        named = cast("Mapping[str, object]", value).items()
        return [
            {"candidate": key, **cast("Mapping[str, object]", part)} for key, part in named if isinstance(part, Mapping)
        ]
    return value


def _letters(value: object) -> list[str]:
    """The letters of candidates in a text or a list of texts: `B > A`, `["Candidate B", "A"]`; no letter twice.

    A text with other words in it names none: `a` may be one of them.
    """
    texts = cast("list[object]", value)[:_MOST_READ] if isinstance(value, list) else [value]
    short = [_TITLE.sub(" ", text) for text in texts if isinstance(text, str) and len(text) <= _MOST_READ]
    found = (letter.upper() for text in short if not _WORD.search(text) for letter in _LETTER.findall(text))
    return list(dict.fromkeys(found))


def _as_letter(value: object) -> str:
    return "".join(_letters(value)[:1])


class LetteredCritiqueShape(CritiqueShape):
    candidate: Annotated[str, BeforeValidator(_as_letter)] = Field(description="The candidate's letter.")


class ComparisonShape(Shape):
    reviews: Annotated[list[LetteredCritiqueShape], BeforeValidator(_as_reviews), Field(min_length=1)] = Field(
        description="One for each candidate to be reviewed."
    )
    reason: Text = Field(default="", description="What decides between them.")
    order: Annotated[list[str], BeforeValidator(_letters)] = Field(
        default=[], description="The letters of all, the best first."
    )
