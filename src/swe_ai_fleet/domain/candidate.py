"""What agents leave and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.review import Critique
from swe_ai_fleet.domain.task import PinnedRepository, Role, Task
from swe_ai_fleet.domain.trajectory import StopReason


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
class Assignment:
    """One agent run to carry out. `generation` grows with every take-over of the run.

    With `resume` it goes on where its events in the log leave off. `author_id` is the council's agent that does it
    (empty: `agent_id` itself); with a `revision` it starts from its own earlier candidate and what peers said of it.
    `background` is the context that was gathered for the task: untrusted text, the same for all candidates.
    """

    execution_id: str
    agent_id: str
    task: Task
    repository: PinnedRepository
    perspective: Perspective = field(default_factory=Perspective)
    generation: int = 1
    resume: bool = False
    author_id: str = ""
    revision: Revision | None = None
    background: str = ""


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
    `usage` is what a model spent on it, where one was asked.
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
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    duration_ms: int = 0
    skipped_reason: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All evidence about one candidate, gathered on a clean clone with its patch applied."""

    candidate_id: str
    results: tuple[CheckResult, ...] = ()

    @property
    def usage(self) -> Usage:
        """What models spent on it."""
        return sum((result.usage for result in self.results), Usage())

    @property
    def accepted(self) -> bool:
        """Whether every required check passed or was skipped, and at least one of them really ran."""
        required = [result for result in self.results if result.required and not result.skipped_reason]
        return bool(required) and all(result.passed for result in required)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAssignment:
    """Checks to run. Without a patch the repository's own commit is checked (a delivered branch).

    What failed on the `baseline` commit already does not count; with a patch that is the repository's own.
    """

    execution_id: str
    candidate_id: str
    task: Task
    repository: PinnedRepository
    patch: BlobRef | None = None
    baseline: PinnedRepository | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """An author's second go: the candidate it starts from, the evidence about it, and what peers said of it."""

    round: int
    candidate: Candidate
    report: CheckReport
    critiques: tuple[Critique, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewAssignment:
    """One peer's review of one candidate. `agent_id` names the review's own run in the log."""

    execution_id: str
    agent_id: str
    reviewer_id: str
    round: int
    task: Task
    repository: PinnedRepository
    candidate: Candidate
    report: CheckReport
    perspective: Perspective = field(default_factory=Perspective)
    generation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAssignment:
    """One judge's votes over some candidates, `samples` of them, each with the candidates in another order.

    `agent_id` names the judging's own run in the log; `seed` decides the orders. `critiques` are those of the
    candidates to be judged.
    """

    execution_id: str
    agent_id: str
    judge_id: str
    task: Task
    repository: PinnedRepository
    candidates: tuple[Candidate, ...]
    reports: tuple[CheckReport, ...]
    critiques: tuple[Critique, ...] = ()
    samples: int = 1
    seed: int = 0
    perspective: Perspective = field(default_factory=Perspective)
    generation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveAssignment:
    """A task to be split. `strategy` is sequential, parallel or auto; `roles` are those allowed, empty: all.

    `agent_id` names the planner's own run in the log. Without a `repository` the planner sees the words only.
    """

    execution_id: str
    agent_id: str
    task: Task
    repository: PinnedRepository | None = None
    roles: tuple[Role, ...] = ()
    strategy: str = "auto"
    generation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedCandidate:
    """A candidate's place. `duplicates` are the candidates of equal behaviour that it stands for.

    `score` is made of `evidence`, `review` (None: nobody reviewed it) and `votes` (the share of valid votes it got;
    None: nobody voted), each between 0 and 1; `reason` says in words why it stands where it does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Where a winner stands in the target repository.

    `patch` is the whole change, `bundle` a git bundle with the branch; both are for those who can't reach it there.
    """

    commit_sha: str
    branch: str
    pushed: bool = False
    patch: BlobRef | None = None
    bundle: BlobRef | None = None
