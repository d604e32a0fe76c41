"""What peers think of candidates: critiques before a revision, votes before the choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage


class ReviewVerdict(StrEnum):
    """Fit to be applied; needs the changes that are named; the wrong approach."""

    ACCEPT = "accept"
    REVISE = "revise"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a reviewer found. `line` counts from 1 in the patched file; 0: the file as a whole."""

    text: str
    file: str = ""
    line: int = 0
    must_fix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Critique:
    """One peer's review of one candidate: untrusted text. `score` lies between 0 and 1.

    A review that came to nothing has an `error`, and counts neither for nor against the candidate.
    """

    reviewer_id: str
    candidate_id: str
    round: int
    verdict: ReviewVerdict = ReviewVerdict.REVISE
    score: float = 0.0
    content: str = ""
    findings: tuple[Finding, ...] = ()
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One sample of one judge. `order` is how the candidates were shown; `choice` one of them.

    A reply that could not be read is a vote without a `choice` and with an `error`; it is counted, and decides nothing.
    """

    judge_id: str
    sample: int
    order: tuple[str, ...]
    choice: str = ""
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    error: str = ""
