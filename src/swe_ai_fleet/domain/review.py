"""Peers' opinions of candidates: critiques before a revision, votes before the choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage

VERIFIER_PROFILE = "verifier"
"""The model profile that scores candidates, where there is one."""


class ReviewVerdict(StrEnum):
    """Can be applied; needs the named changes; has the wrong approach."""

    ACCEPT = "accept"
    REVISE = "revise"
    REJECT = "reject"


class ProofOutcome(StrEnum):
    """How the command of a proof ended.

    `REPRODUCED`: it fails on the candidate, each time, and passes on the untouched commit or on the reviewer's own
    change. `PASSES`: it passes on the candidate. `FAILS_EVERYWHERE`: no source passes it, so it shows nothing.
    `OWN_INTERFACE`: it uses a name that only the reviewer's own change defines, so it shows nothing either.
    """

    REPRODUCED = "reproduced"
    PASSES = "passes"
    FAILS_EVERYWHERE = "fails_everywhere"
    OWN_INTERFACE = "own_interface"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A reviewer's proof of a fault: a shell command that exits with 0 where the code is right. Untrusted text.

    The fleet runs it. `seen` is the output of its last run on the candidate, or why it was not run; `passes_on_own`
    says whether it passes on the reviewer's own change. A reproduced proof also ran on the other candidates that the
    reviewer saw; it passes on those in `passes_on`, and fails on those in `fails_on`.
    """

    command: str
    expected: str = ""
    outcome: ProofOutcome = ProofOutcome.NOT_RUN
    seen: str = ""
    passes_on_own: bool = False
    passes_on: tuple[str, ...] = ()
    fails_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of a reviewer. `line` counts from 1 in the patched file; 0: the file as a whole.

    `must_fix` is the reviewer's opinion; it caps a score only with a reproduced proof.
    """

    text: str
    file: str = ""
    line: int = 0
    must_fix: bool = False
    proof: Proof | None = None

    @property
    def reproduced(self) -> bool:
        return self.proof is not None and self.proof.outcome is ProofOutcome.REPRODUCED

    @property
    def contradicted(self) -> bool:
        """Whether its own proof passes on the candidate."""
        return self.proof is not None and self.proof.outcome is ProofOutcome.PASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Critique:
    """One peer's review of one candidate: untrusted text. `score` is between 0 and 1.

    A failed review has an `error`, and counts neither for nor against the candidate.
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

    @property
    def key(self) -> tuple[int, str, str]:
        """The identity of a critique: a later one with the same key replaces it."""
        return self.round, self.reviewer_id, self.candidate_id

    @property
    def objects(self) -> bool:
        """Whether it asks for changes."""
        return self.verdict is not ReviewVerdict.ACCEPT or any(finding.must_fix for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One sample of one judge. `order` is the order in which the candidates were shown; `choice` is one of them.

    An unreadable reply is a vote with an `error` and without a `choice`; it is recorded, but decides nothing.
    """

    judge_id: str
    sample: int
    order: tuple[str, ...]
    choice: str = ""
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierScore:
    """A verifier model's probability that a candidate solves its task.

    `raw` is the model's own number, `score` the number calibrated by `outcomes` earlier executions, both from 0 to 1;
    with an `error` both are None.
    """

    candidate_id: str
    raw: float | None = None
    score: float | None = None
    outcomes: int = 0
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One reviewer's critiques of the candidates that it saw side by side.

    The first critique carries the usage of the whole conversation. The `vote` is for the candidate that the reviewer
    would apply; None where it saw only one.
    """

    critiques: tuple[Critique, ...] = ()
    vote: Vote | None = None
