"""A reviewer's answer as critiques and a vote: bounded, masked, and about files that are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.ballot import LETTERS
from swe_ai_fleet.agents.reviewing.shape import ComparisonShape, CritiqueShape, FindingShape
from swe_ai_fleet.agents.sub_agents.shapes import read
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errand import ReviewAssignment, Subject
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.review import Critique, Finding, Proof, Review, Vote
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree

MAX_FINDINGS = 30
MAX_FINDING_CHARS = 2_000
MAX_CONTENT_CHARS = 8_000
MAX_FILE_CHARS = 500
MAX_COMMAND_CHARS = 4_000
MAX_ERROR_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a reviewer says, by the letters of the candidates that it was shown, and the order that it puts them in."""

    critiques: Mapping[str, CritiqueShape]
    order: Sequence[str] = ()
    reason: str = ""


def answer_shape(shown: Sequence[Subject]) -> type[CritiqueShape | ComparisonShape]:
    """What a reviewer who is shown these candidates is asked for."""
    return ComparisonShape if len(shown) > 1 else CritiqueShape


def read_answer(shown: Sequence[Subject], *texts: object) -> Said:
    """What a reviewer says of the candidates that it was shown. Raises ValueError saying why nothing can be used.

    Who has one to review may leave out its letter, and who has one alone may name it.
    """
    asked = [letter for letter, subject in zip(LETTERS, shown, strict=False) if not subject.settled]
    problems: list[str] = []
    for shape in sorted((ComparisonShape, CritiqueShape), key=lambda shape: shape is not answer_shape(shown)):
        try:
            said = read(shape, *texts)
        except ValueError as error:
            problems.append(str(error))
            continue
        if isinstance(said, CritiqueShape):
            if len(asked) == 1:
                return Said(critiques={asked[0]: said})
            continue
        critiques = {one.candidate: one for one in said.reviews if one.candidate in asked}
        if critiques:
            return Said(critiques=critiques, order=said.order, reason=said.reason)
        problems.insert(0, f"it reviews none of the candidates {', '.join(asked)}")
    raise ValueError(problems[0])


def review_of(
    said: Said, assignment: ReviewAssignment, shown: Sequence[Subject], *, tree: Tree, mask: SecretMask, usage: Usage
) -> Review:
    """The review that an answer makes. What must be fixed is kept before what need not, if it is too much.

    A file that is neither in the patch nor in the repository stays in the finding's text alone.

    Args:
        said: What the reviewer said.
        assignment: Who reviews what.
        shown: The candidates in the order of their letters.
        tree: The clone that the reviewer worked in.
        mask: Hides secrets.
        usage: What the review spent.
    """
    critiques: list[Critique] = []
    for letter, subject in zip(LETTERS, shown, strict=False):
        if subject.settled:
            continue
        empty = _critique(assignment, subject)
        if (one := said.critiques.get(letter)) is None:
            critiques.append(replace(empty, error="the reviewer said nothing of this candidate"))
            continue
        changed = frozenset(subject.candidate.artifacts.files_changed)
        findings = sorted(one.findings, key=lambda finding: not finding.must_fix)[:MAX_FINDINGS]
        critiques.append(
            replace(
                empty,
                verdict=one.verdict,
                score=round(one.score, 4),
                content=_shown(one.content, mask, MAX_CONTENT_CHARS),
                findings=tuple(_finding(finding, changed, tree, mask) for finding in findings),
            )
        )
    vote = _vote(said, assignment, shown, mask) if len(shown) > 1 else None
    return Review(critiques=_spent(critiques, usage), vote=vote)


def no_review(
    assignment: ReviewAssignment, shown: Sequence[Subject], error: str, *, mask: SecretMask, usage: Usage
) -> Review:
    """A review that came to nothing, and why."""
    error = _shown(error, mask, MAX_ERROR_CHARS) or "the review came to nothing"
    critiques = [replace(_critique(assignment, one), error=error) for one in shown if not one.settled]
    vote = replace(_ballot(assignment, shown), error=error) if len(shown) > 1 else None
    return Review(critiques=_spent(critiques, usage), vote=vote)


def _critique(assignment: ReviewAssignment, subject: Subject) -> Critique:
    return Critique(
        reviewer_id=assignment.reviewer_id,
        candidate_id=subject.candidate.candidate_id,
        round=assignment.round,
        at=now(),
    )


def _spent(critiques: Sequence[Critique], usage: Usage) -> tuple[Critique, ...]:
    return (replace(critiques[0], usage=usage), *critiques[1:])


def _ballot(assignment: ReviewAssignment, shown: Sequence[Subject]) -> Vote:
    order = tuple(subject.candidate.candidate_id for subject in shown)
    return Vote(judge_id=assignment.reviewer_id, sample=1, order=order)


def _vote(said: Said, assignment: ReviewAssignment, shown: Sequence[Subject], mask: SecretMask) -> Vote:
    """The vote for the first candidate in the reviewer's order."""
    vote = _ballot(assignment, shown)
    named = [at for letter in said.order if (at := LETTERS.find(letter)) < len(shown)]
    if not named:
        return replace(vote, error="the reviewer named no order of the candidates")
    return replace(vote, choice=vote.order[named[0]], reason=_shown(said.reason, mask, MAX_ERROR_CHARS))


def _finding(said: FindingShape, changed: frozenset[str], tree: Tree, mask: SecretMask) -> Finding:
    file, text = _path(said.file), said.text
    if file and file not in changed and not _there(file, tree):
        text, file = f"{said.file}: {text}", ""
    return Finding(
        text=_shown(text, mask, MAX_FINDING_CHARS),
        file=_shown(file, mask, MAX_FILE_CHARS),
        line=said.line if file else 0,
        must_fix=said.must_fix,
        proof=_proof(said) if said.must_fix else None,
    )


def _proof(said: FindingShape) -> Proof | None:
    """The proof that a reviewer offers, not yet tried; a command that is too long, or none, is no proof."""
    command = well_formed(said.command).strip()
    if not command or "\0" in command or len(command) > MAX_COMMAND_CHARS:
        return None
    return Proof(command=command, expected=shortened(well_formed(said.expected).strip(), MAX_COMMAND_CHARS))


def _path(said: str) -> str:
    """The path as git writes it; models put the mount, `./` or a diff's `a/` and `b/` in front."""
    path = said.strip().strip("`'\"")
    for prefix in ("/workspace/", "./"):
        path = path.removeprefix(prefix)
    return path if 0 < len(path) <= MAX_FILE_CHARS and "\0" not in path else ""


def _there(path: str, tree: Tree) -> bool:
    try:
        tree.info(path)
    except (ToolFailure, ValueError):
        return False
    return True


def _shown(text: str, mask: SecretMask, limit: int) -> str:
    return shortened(mask(well_formed(text)).strip(), limit)
