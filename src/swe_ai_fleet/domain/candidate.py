"""Candidates: what agents leave, the checks that judge it, and the verdict of the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.trajectory import StopReason

BY_OWN_RULES = "only by its own rules"
"""The detail of a check that names tests which pass only as the candidate itself has tests run."""


class Verdict(StrEnum):
    """What was shown of a change, by something that ran.

    `verified`: a test or check fails without the change, repeatedly, passes with it, and nothing that worked broke.
    `unverified`: nothing was shown, neither for nor against it. `refuted`: something that ran shows that it does not
    work, it cannot be applied, or it breaks a rule.
    """

    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    REFUTED = "refuted"

    @property
    def rank(self) -> int:
        """2 for verified, 1 for unverified, 0 for refuted."""
        return _RANKS[self]


_RANKS = {Verdict.VERIFIED: 2, Verdict.UNVERIFIED: 1, Verdict.REFUTED: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """A patch against a commit, as `git apply --index` takes it (binary-safe), and its size in lines."""

    patch: bytes
    files: tuple[str, ...] = ()
    insertions: int = 0
    deletions: int = 0

    @property
    def lines(self) -> int:
        return self.insertions + self.deletions


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSummary:
    """A test run in numbers; `failing` names the tests that failed or could not run."""

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    duration_ms: int = 0
    failing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.errors + self.skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """What a run left in its workspace. `commit_sha` and `branch` are those of the workspace's HEAD."""

    commit_sha: str = ""
    branch: str = ""
    patch: BlobRef | None = None
    files_changed: tuple[str, ...] = ()
    insertions: int = 0
    deletions: int = 0
    tests: TestSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Perspective:
    """What makes one candidate's run differ from its siblings'; it comes after the prompt that they share."""

    temperature: float | None = None
    seed: int | None = None
    instructions: str = ""
    model_profile: str = ""
    endpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one agent run hands in. `summary` is the agent's own final answer: untrusted text.

    A revision names its `round`, the `author_id` whose candidate it is, and the candidate that it `revises`.
    """

    candidate_id: str
    agent_id: str
    role: Role
    summary: str
    stop_reason: StopReason
    artifacts: Artifacts
    usage: Usage
    audit_head: str
    submitted_at: str
    model: str = ""
    error: str = ""
    author_id: str = ""
    round: int = 0
    revises: str = ""

    @property
    def author(self) -> str:
        """The council's agent that wrote it, under whichever name its run went."""
        return self.author_id or self.agent_id

    @property
    def diff_digest(self) -> str:
        """Equal for candidates with the same diff, byte for byte; empty without a diff."""
        return self.artifacts.patch.digest if self.artifacts.patch else ""


class CheckKind(StrEnum):
    APPLY = "apply"
    POLICY = "policy"
    LINT = "lint"
    DRY_RUN = "dry_run"
    COMMAND = "command"
    RUBRIC = "rubric"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One piece of evidence. A skipped check (`skipped_reason` set) neither speaks for nor against a candidate.

    `score` lies between 0 and 1; `problems` are what counts against it (new findings, violations, failing tests).
    `shown` are tests and commands that fail without the change, repeatedly, and pass with it; `own` are those of them
    that lie in files which the candidate changes. `usage` is what a model spent on it, where one was asked.
    """

    kind: CheckKind
    name: str
    passed: bool
    required: bool = True
    score: float = 0.0
    message: str = ""
    output: str = ""
    exit_code: int | None = None
    problems: tuple[str, ...] = ()
    warnings: int = 0
    tests: TestSummary | None = None
    shown: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    duration_ms: int = 0
    skipped_reason: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTest:
    """A test that was there before and that a candidate changed: its text on both sides, cut to size, untrusted."""

    path: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTests:
    """What the new tests of other authors say of a source.

    Those of `asked` authors could say something, those of `passed` of them all pass; `failing` counts the failing ones
    by author, `failures` are the first of them in words. `value` is what the tests of all authors come to, between 0
    and 1. Of the probes of the statement, which count as one more author's, `probes_asked` could say something, and
    `probes_passed` passed.
    """

    value: float
    passed: int = 0
    asked: int = 0
    failing: Mapping[str, int] = field(default_factory=dict[str, int])
    failures: tuple[str, ...] = ()
    probes_passed: int = 0
    probes_asked: int = 0

    @property
    def by_authors(self) -> tuple[int, int]:
        """`passed` and `asked` without the statement."""
        probed = bool(self.probes_asked)
        return self.passed - (probed and self.probes_passed == self.probes_asked), self.asked - probed


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All evidence about one candidate, gathered on a clean clone with its patch applied.

    `verdict` and its `reasons` are what it comes to; reports from before there were verdicts have none. `tree` is the
    git tree that was looked at. `changed_tests` are old tests that the candidate changed, for people and reviewers.
    `foreign` is there once the candidate was examined beside the others.
    """

    candidate_id: str
    results: tuple[CheckResult, ...] = ()
    verdict: Verdict | None = None
    reasons: tuple[str, ...] = ()
    tree: str = ""
    changed_tests: tuple[ChangedTest, ...] = ()
    foreign: ForeignTests | None = None

    @property
    def usage(self) -> Usage:
        """What models spent on it."""
        return sum((result.usage for result in self.results), Usage())

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that ran and did not pass, those among them that are not required."""
        return tuple(result for result in self.results if not result.passed and not result.skipped_reason)

    @property
    def tests(self) -> TestSummary | None:
        """The tests that ran on it, of the first check that counts them; None where none does."""
        return next((result.tests for result in self.results if result.tests is not None), None)

    @property
    def shown_by_itself(self) -> bool:
        """Whether nothing but tests of the candidate's own shows that it works."""
        shown_tests = [(test, result) for result in self.results for test in result.shown]
        return bool(shown_tests) and all(test in result.own for test, result in shown_tests)

    def objection(self, *, needs_proof: bool) -> str:
        """Why what it is about does not stand: refuted, or unverified where proof is asked for; empty: it does."""
        if self.verdict is Verdict.REFUTED or (needs_proof and self.verdict is not Verdict.VERIFIED):
            return f"{self.verdict_word}: {'; '.join(self.reasons)}"
        return ""

    @property
    def by_own_rules(self) -> bool:
        """Whether a test passes only as the candidate itself has tests run."""
        return any(BY_OWN_RULES in result.details for result in self.results)

    @property
    def verdict_word(self) -> str:
        """The verdict; of a report from before there were verdicts `accepted` or `not accepted`."""
        if self.verdict is None:
            return "accepted" if self.accepted else "not accepted"
        return self.verdict.value

    @property
    def accepted(self) -> bool:
        """Whether nothing speaks against it: every required check that ran passed, and at least one of them ran."""
        required = [result for result in self.results if result.required and not result.skipped_reason]
        return bool(required) and all(result.passed for result in required)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """An author's second go: the candidate it starts from, the evidence about it, and what peers said of it."""

    round: int
    candidate: Candidate
    report: CheckReport
    critiques: tuple[Critique, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """A candidate's place. `duplicates` are the candidates of equal behaviour that it stands for.

    `score` is made of `evidence`, `tests` (what the new tests of all candidates say of it; None: nothing), `review`
    (None: nobody reviewed it), `votes` (the share of valid votes it got; None: nobody voted) and `verifier` (what a
    verifier model finds it worth, calibrated; None: there is no word of one), each between 0 and 1; `reason` says in
    words why it stands where it does. `accepted`: it may win. `verdict` and `verdict_reasons` are what evidence says of
    it beside the others; no reasons: what the checks alone said.
    """

    candidate_id: str
    rank: int
    score: float
    accepted: bool
    duplicates: tuple[str, ...] = ()
    reason: str = ""
    evidence: float = 0.0
    review: float | None = None
    votes: float | None = None
    verdict: Verdict | None = None
    tests: float | None = None
    verdict_reasons: tuple[str, ...] = ()
    verifier: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Where a winner stands in the target repository. `tree` is the commit's git tree.

    `patch` is the whole change, `bundle` a git bundle with the branch; both are for those who can't reach it there.
    """

    commit_sha: str
    branch: str
    pushed: bool = False
    tree: str = ""
    patch: BlobRef | None = None
    bundle: BlobRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResult:
    """What `execute_task` returns. `artifacts` has commit_sha, branch, patch, files_changed and tests.

    `success`: the agent answered, and its change is not refuted. `verdict` is what checks came to, None where there was
    nothing to check.
    """

    success: bool
    operations: tuple[Mapping[str, object], ...]
    artifacts: Mapping[str, object]
    audit_trail: tuple[AuditEntry, ...]
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    stop_reason: StopReason = StopReason.FINAL_ANSWER
    verdict: Verdict | None = None
    verdict_reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The result as JSON-compatible values."""
        return {
            "success": self.success,
            "operations": [dict(operation) for operation in self.operations],
            "artifacts": dict(self.artifacts),
            "audit_trail": [asdict(entry) for entry in self.audit_trail],
            "audit_head": self.audit_trail[-1].hash if self.audit_trail else "",
            "error": self.error,
            "usage": asdict(self.usage),
            "stop_reason": str(self.stop_reason),
            "verdict": self.verdict,
            "verdict_reasons": list(self.verdict_reasons),
        }
