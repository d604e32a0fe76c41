"""What peers think of candidates: critiques before a revision, votes before the choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.budget import Usage

VERIFIER_PROFILE = "verifier"
"""The model profile that scores candidates, where there is one."""


class ReviewVerdict(StrEnum):
    """Fit to be applied; needs the changes that are named; the wrong approach."""

    ACCEPT = "accept"
    REVISE = "revise"
    REJECT = "reject"


class ProofOutcome(StrEnum):
    """How the command of a proof ended.

    `REPRODUCED`: it fails on the candidate, each time, and passes on the untouched commit or on the reviewer's own
    change. `PASSES`: it passes on the candidate. `FAILS_EVERYWHERE`: nothing passes it, so it shows nothing.
    `OWN_INTERFACE`: it asks for a name that only the reviewer's own change has, so it shows nothing either.
    """

    REPRODUCED = "reproduced"
    PASSES = "passes"
    FAILS_EVERYWHERE = "fails_everywhere"
    OWN_INTERFACE = "own_interface"
    NOT_RUN = "not_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a reviewer shows a fault by: a shell command that exits with 0 where the code is right. Untrusted text.

    The fleet runs it. `seen` is what it printed on the candidate at last, or why it was not run; `passes_on_own` says
    whether it passes on the reviewer's own change. One that was reproduced ran on the other candidates that the
    reviewer saw as well; it passes on those that `passes_on` names, and fails on those of `fails_on`.
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
    """One thing that a reviewer found. `line` counts from 1 in the patched file; 0: the file as a whole.

    What `must_fix` says is the reviewer's word; it caps a score only with a proof that was reproduced.
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

    @property
    def key(self) -> tuple[int, str, str]:
        """What it is the word on: a later one with the same key takes its place."""
        return self.round, self.reviewer_id, self.candidate_id

    @property
    def objects(self) -> bool:
        """Whether it asks for changes."""
        return self.verdict is not ReviewVerdict.ACCEPT or any(finding.must_fix for finding in self.findings)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierScore:
    """How probable a verifier model finds it that a candidate solves its task.

    `raw` is its own word and `score` that word calibrated by so many `outcomes` of earlier executions, both from 0 to
    1; with an `error` there are none.
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
    """What one reviewer says of the candidates that it saw side by side.

    The first critique carries what the whole conversation spent. The `vote` is for the one that the reviewer would
    apply; there is none where it saw one candidate alone.
    """

    critiques: tuple[Critique, ...] = ()
    vote: Vote | None = None
