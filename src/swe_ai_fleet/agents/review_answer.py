"""A reviewer's answer, read leniently and turned into critiques and a vote.

Critiques are bounded, masked, and only name files that exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.prompting import LETTERS
from swe_ai_fleet.agents.structured_output import NonEmptyText, Shape, Text, keyed_by, read
from swe_ai_fleet.domain.assignment import ReviewAssignment, Subject
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.json_values import is_list, is_mapping
from swe_ai_fleet.domain.review import Critique, Finding, Proof, Review, ReviewVerdict, Vote
from swe_ai_fleet.domain.text import now, shortened, well_formed
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree

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
MAX_FINDINGS = 30
MAX_FINDING_CHARS = 2_000
MAX_CONTENT_CHARS = 8_000
MAX_FILE_CHARS = 500
MAX_COMMAND_CHARS = 4_000
MAX_ERROR_CHARS = 2_000


def _as_verdict(value: object) -> object:
    word = " ".join(re.split(r"[\s_-]+", value.strip().strip(".!*`").lower())) if isinstance(value, str) else value
    return _VERDICTS.get(word, value) if isinstance(word, str) else value


def _as_score(value: object) -> object:
    """A score as a number from 0 to 1: of `0.8`, `80%`, `8/10`."""
    if isinstance(value, str) and (match := _SCORE.fullmatch(value[:100])):
        number = float(match[1])
        whole = 100.0 if match[2] else float(match[3] or 1)
        value = number / whole if whole else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        # NaN is left as it is: the field refuses it.
        return value if value != value else min(1.0, max(0.0, value))
    return value


def _as_line(value: object) -> int:
    """A line number; of a range its first line, 0 for anything else."""
    if isinstance(value, str) and (match := re.match(r"\D{0,20}(\d{1,7})", value)):
        value = int(match[1])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**7:
        return 0
    return value


def _as_flag(value: object) -> bool:
    return value.strip().lower() not in _NO if isinstance(value, str) else bool(value)


def _as_findings(value: object) -> object:
    """Findings as objects; a plain text is a finding without a place."""
    if value is None:
        return []
    if isinstance(value, str) or is_mapping(value):
        value = [value]
    if not is_list(value):
        return value
    return [part if is_mapping(part) else {"text": part} for part in value[:_MOST_READ] if part]


class FindingShape(Shape):
    text: NonEmptyText = Field(description="What is wrong and what would fix it.")
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


def _letters(value: object) -> list[str]:
    """The letters of candidates in a text or a list of texts: `B > A`, `["Candidate B", "A"]`; no letter twice.

    A text with other words in it names none: `a` may be one of them.
    """
    texts = value[:_MOST_READ] if is_list(value) else [value]
    short = [_TITLE.sub(" ", text) for text in texts if isinstance(text, str) and len(text) <= _MOST_READ]
    letters = (letter.upper() for text in short if not _WORD.search(text) for letter in _LETTER.findall(text))
    return list(dict.fromkeys(letters))


class LetteredCritiqueShape(CritiqueShape):
    candidate: Annotated[str, BeforeValidator(lambda value: "".join(_letters(value)[:1]))] = Field(
        description="The candidate's letter."
    )


class ComparisonShape(Shape):
    reviews: Annotated[list[LetteredCritiqueShape], keyed_by("candidate"), Field(min_length=1)] = Field(
        description="One for each candidate to be reviewed."
    )
    reason: Text = Field(default="", description="What decides between them.")
    order: Annotated[list[str], BeforeValidator(_letters)] = Field(
        default=[], description="The letters of all, the best first."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewAnswer:
    """A reviewer's critiques, by the letters of the candidates, and its order of them."""

    critiques: Mapping[str, CritiqueShape]
    order: Sequence[str] = ()
    reason: str = ""


def answer_shape(shown: Sequence[Subject]) -> type[CritiqueShape | ComparisonShape]:
    return ComparisonShape if len(shown) > 1 else CritiqueShape


def read_answer(shown: Sequence[Subject], *texts: object) -> ReviewAnswer:
    """A reviewer's answer about the candidates it was shown. Raises ValueError saying why none can be used.

    With one candidate to review, its letter may be left out; with one candidate alone, it may be given.
    """
    letters = [letter for letter, subject in zip(LETTERS, shown, strict=False) if not subject.settled]
    problems: list[str] = []
    for shape in sorted((ComparisonShape, CritiqueShape), key=lambda shape: shape is not answer_shape(shown)):
        try:
            answer = read(shape, *texts)
        except ValueError as error:
            problems.append(str(error))
            continue
        if isinstance(answer, CritiqueShape):
            if len(letters) == 1:
                return ReviewAnswer(critiques={letters[0]: answer})
            continue
        critiques = {review.candidate: review for review in answer.reviews if review.candidate in letters}
        if critiques:
            return ReviewAnswer(critiques=critiques, order=answer.order, reason=answer.reason)
        problems.insert(0, f"it reviews none of the candidates {', '.join(letters)}")
    raise ValueError(problems[0])


def review_of(
    answer: ReviewAnswer,
    assignment: ReviewAssignment,
    shown: Sequence[Subject],
    *,
    tree: Tree,
    mask: SecretMask,
    usage: Usage,
) -> Review:
    """The review of an answer. Of too many findings, those that must be fixed are kept first.

    A file that is neither in the patch nor in the repository is moved to the finding's text.
    """
    critiques: list[Critique] = []
    for letter, subject in zip(LETTERS, shown, strict=False):
        if subject.settled:
            continue
        empty = _critique(assignment, subject)
        if (critique := answer.critiques.get(letter)) is None:
            critiques.append(replace(empty, error="the reviewer did not review this candidate"))
            continue
        changed = frozenset(subject.candidate.artifacts.files_changed)
        findings = sorted(critique.findings, key=lambda finding: not finding.must_fix)[:MAX_FINDINGS]
        critiques.append(
            replace(
                empty,
                verdict=critique.verdict,
                score=round(critique.score, 4),
                content=_safe_text(critique.content, mask, MAX_CONTENT_CHARS),
                findings=tuple(_finding(finding, changed, tree, mask) for finding in findings),
            )
        )
    vote = _vote(answer, assignment, shown, mask) if len(shown) > 1 else None
    return Review(critiques=_with_usage(critiques, usage), vote=vote)


def no_review(
    assignment: ReviewAssignment, shown: Sequence[Subject], error: str, *, mask: SecretMask, usage: Usage
) -> Review:
    """A failed review, with its error."""
    error = _safe_text(error, mask, MAX_ERROR_CHARS) or "the review came to nothing"
    critiques = [replace(_critique(assignment, subject), error=error) for subject in shown if not subject.settled]
    vote = replace(_ballot(assignment, shown), error=error) if len(shown) > 1 else None
    return Review(critiques=_with_usage(critiques, usage), vote=vote)


def _critique(assignment: ReviewAssignment, subject: Subject) -> Critique:
    return Critique(
        reviewer_id=assignment.reviewer_id,
        candidate_id=subject.candidate.candidate_id,
        round=assignment.round,
        at=now(),
    )


def _with_usage(critiques: Sequence[Critique], usage: Usage) -> tuple[Critique, ...]:
    """The critiques; the first has the usage of the whole review."""
    return (replace(critiques[0], usage=usage), *critiques[1:])


def _ballot(assignment: ReviewAssignment, shown: Sequence[Subject]) -> Vote:
    order = tuple(subject.candidate.candidate_id for subject in shown)
    return Vote(judge_id=assignment.reviewer_id, sample=1, order=order)


def _vote(answer: ReviewAnswer, assignment: ReviewAssignment, shown: Sequence[Subject], mask: SecretMask) -> Vote:
    vote = _ballot(assignment, shown)
    named = [at for letter in answer.order if (at := LETTERS.find(letter)) < len(shown)]
    if not named:
        return replace(vote, error="the reviewer named no order of the candidates")
    return replace(vote, choice=vote.order[named[0]], reason=_safe_text(answer.reason, mask, MAX_ERROR_CHARS))


def _finding(shape: FindingShape, changed: frozenset[str], tree: Tree, mask: SecretMask) -> Finding:
    file, text = _path(shape.file), shape.text
    if file and file not in changed and not _exists(file, tree):
        text, file = f"{shape.file}: {text}", ""
    return Finding(
        text=_safe_text(text, mask, MAX_FINDING_CHARS),
        file=_safe_text(file, mask, MAX_FILE_CHARS),
        line=shape.line if file else 0,
        must_fix=shape.must_fix,
        proof=_proof(shape) if shape.must_fix else None,
    )


def _proof(shape: FindingShape) -> Proof | None:
    command = well_formed(shape.command).strip()
    if not command or "\0" in command or len(command) > MAX_COMMAND_CHARS:
        return None
    return Proof(command=command, expected=shortened(well_formed(shape.expected).strip(), MAX_COMMAND_CHARS))


def _path(text: str) -> str:
    """The path as git writes it; models put the mount, `./` or a diff's `a/` and `b/` in front."""
    path = text.strip().strip("`'\"")
    for prefix in ("/workspace/", "./"):
        path = path.removeprefix(prefix)
    return path if 0 < len(path) <= MAX_FILE_CHARS and "\0" not in path else ""


def _exists(path: str, tree: Tree) -> bool:
    try:
        tree.info(path)
    except (ToolFailure, ValueError):
        return False
    return True


def _safe_text(text: str, mask: SecretMask, limit: int) -> str:
    return shortened(mask(well_formed(text)).strip(), limit)
