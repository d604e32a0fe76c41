"""Candidates: the results of agents, the checks that judge them, and the verdict of the evidence."""

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
"""The detail of a check with the tests that pass only under the candidate's own test configuration."""


class Verdict(StrEnum):
    """What the checks that ran show about a change.

    `verified`: a test or check fails without the change, repeatedly, passes with it, and nothing that worked broke.
    `unverified`: nothing was shown, neither for nor against it. `refuted`: a test or check shows that it does not work,
    it cannot be applied, or it breaks a rule.
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
    """The results of a run in its workspace. `commit_sha` and `branch` are those of the workspace's HEAD."""

    commit_sha: str = ""
    branch: str = ""
    patch: BlobRef | None = None
    files_changed: tuple[str, ...] = ()
    insertions: int = 0
    deletions: int = 0
    tests: TestSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Perspective:
    """The differences between the runs of sibling candidates; `instructions` follow the prompt that they share."""

    temperature: float | None = None
    seed: int | None = None
    instructions: str = ""
    model_profile: str = ""
    endpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The result of one agent run. `summary` is the agent's own final answer: untrusted text.

    A revision names its `round`, its author (`author_id`), and the candidate that it `revises`.
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
        """The council's agent that wrote it, whatever the name of its run."""
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

    `score` is between 0 and 1; `problems` count against the candidate (new findings, violations, failing tests).
    `shown` are tests and commands that fail without the change, repeatedly, and pass with it; `own` are those of them
    in files that the candidate changes. `usage` is that of a model, where the check asked one.
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
    """An existing test that a candidate changed: its text before and after, cut to size, untrusted."""

    path: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTests:
    """The results of other authors' new tests on a source.

    The tests of `asked` authors ran to a result; those of `passed` of these authors all pass. `failing` counts the
    failing tests by author, `failures` are the first of them in words. `value` rates the source by the tests of all
    authors, between 0 and 1. The probes of the statement count as one more author's: `probes_asked` of them ran to a
    result, and `probes_passed` passed.
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
        """`passed` and `asked` without the probes of the statement."""
        probed = bool(self.probes_asked)
        return self.passed - (probed and self.probes_passed == self.probes_asked), self.asked - probed


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All evidence about one candidate, gathered on a clean clone with its patch applied.

    `verdict` and its `reasons` are the conclusion; reports of early versions have none. `tree` is the git tree that was
    checked. `changed_tests` are existing tests that the candidate changed, for people and reviewers. `foreign` is set
    once the candidate was cross-examined.
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
        """What models spent on its checks."""
        return sum((result.usage for result in self.results), Usage())

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that ran and did not pass, required or not."""
        return tuple(result for result in self.results if not result.passed and not result.skipped_reason)

    @property
    def tests(self) -> TestSummary | None:
        """The test summary of the first check that has one; None where none has."""
        return next((result.tests for result in self.results if result.tests is not None), None)

    @property
    def shown_by_itself(self) -> bool:
        """Whether only the candidate's own tests show that it works."""
        shown_tests = [(test, result) for result in self.results for test in result.shown]
        return bool(shown_tests) and all(test in result.own for test, result in shown_tests)

    def objection(self, *, needs_proof: bool) -> str:
        """Why the candidate is not acceptable: refuted, or unverified where proof is needed; empty: it is."""
        if self.verdict is Verdict.REFUTED or (needs_proof and self.verdict is not Verdict.VERIFIED):
            return f"{self.verdict_word}: {'; '.join(self.reasons)}"
        return ""

    @property
    def by_own_rules(self) -> bool:
        """Whether a test passes only under the candidate's own test configuration."""
        return any(BY_OWN_RULES in result.details for result in self.results)

    @property
    def verdict_word(self) -> str:
        """The verdict; `accepted` or `not accepted` for a report of an early version, which has none."""
        if self.verdict is None:
            return "accepted" if self.accepted else "not accepted"
        return self.verdict.value

    @property
    def accepted(self) -> bool:
        """Whether every required check that ran passed, and at least one of them ran."""
        required = [result for result in self.results if result.required and not result.skipped_reason]
        return bool(required) and all(result.passed for result in required)


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """The start of an author's revision: its earlier candidate, the evidence about it, and the critiques of peers."""

    round: int
    candidate: Candidate
    report: CheckReport
    critiques: tuple[Critique, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """A candidate's place in the ranking. `duplicates` are the candidates of equal behaviour that it represents.

    `score` combines `evidence`, `tests` (its rating by the new tests of all candidates; None: no result), `review`
    (None: nobody reviewed it), `votes` (its share of the valid votes; None: nobody voted) and `verifier` (the
    calibrated score of a verifier model; None: there is none), each between 0 and 1; `reason` explains the place.
    `accepted`: it may win. `verdict` and `verdict_reasons` are those in comparison with the other candidates; without
    reasons the verdict is that of the checks alone.
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
    """A winner in the target repository. `tree` is the commit's git tree.

    `patch` is the whole change, `bundle` a git bundle with the branch, for callers who cannot reach the repository.
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

    `success`: the agent answered, and its change is not refuted. `verdict` is that of the checks, None where there was
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
