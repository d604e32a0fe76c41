"""Assignments: the kinds of work that a process of the fleet does, each with the type of its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Candidate, CheckReport, Perspective, Revision
from swe_ai_fleet.domain.checklist import Requirement
from swe_ai_fleet.domain.examination import Examination
from swe_ai_fleet.domain.review import Critique, Review, VerifierScore, Vote
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.domain.task import PinnedRepository, Role, Task
from swe_ai_fleet.domain.test_run import Baseline
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.workflow import AgentConfig

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An agent's answer: untrusted text. `error` says why it cannot be used.

    `tools` are the names of the tools that it called, in order.
    """

    text: str
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    audit_head: str = ""
    error: str = ""
    tools: tuple[str, ...] = ()


class AssignmentKind(StrEnum):
    """Names an assignment in messages, spans and the names of containers."""

    RUN = "run"
    BASELINE = "baseline"
    CHECK = "check"
    EXAMINE = "examine"
    REVIEW = "review"
    JUDGE = "judge"
    SCORE = "score"
    DERIVE = "derive"
    ANSWER = "answer"
    OPERATE = "operate"
    OPENING = "opening"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Generic[R_co]):
    """Work that a process of the fleet does for an execution. Its result has the type `gives`."""

    kind: ClassVar[AssignmentKind]
    gives: ClassVar[Any]

    execution_id: str
    task: Task
    repository: PinnedRepository | None

    @property
    def ids(self) -> dict[str, str]:
        """The fields of log lines about it."""
        agent_id = {"agent_id": self.agent_id} if isinstance(self, RecordedAssignment) else {}
        return {"tenant": self.task.tenant, "execution_id": self.execution_id} | agent_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAssignment(Assignment[R_co]):
    """An assignment with its own run in the log, under `agent_id`; each takeover of the run increases `generation`."""

    agent_id: str
    generation: int = 1

    @property
    def resumes(self) -> bool:
        """Whether the run continues from its log, or starts from the beginning."""
        return self.generation > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAssignment(RecordedAssignment[Candidate]):
    """One agent run that solves the task.

    With `resume` it continues where its events in the log end. `author_id` is the council's agent that does it
    (empty: `agent_id` itself); with a `revision` it starts from its own earlier candidate and the peers' critiques.
    `background` is the context that was gathered for the task: untrusted text, the same for all candidates. No
    checkpoint of more than `checkpoint_bytes` is stored (None: the host's limit).
    """

    kind = AssignmentKind.RUN
    gives = Candidate

    repository: PinnedRepository
    perspective: Perspective = field(default_factory=Perspective)
    resume: bool = False
    author_id: str = ""
    revision: Revision | None = None
    background: str = ""
    checkpoint_bytes: int | None = None

    @property
    def resumes(self) -> bool:
        """Whether the run continues from its log, or starts from the beginning."""
        return self.resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The start of an agent's conversation: its first two messages, a line for each operation, and its model."""

    system: str
    task: str
    tools: tuple[str, ...] = ()
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningAssignment(Assignment[Opening]):
    """Shows how an agent's conversation about a task would start, without calling a model or recording anything."""

    kind = AssignmentKind.OPENING
    gives = Opening

    repository: PinnedRepository
    agent_id: str = "context"
    background: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAssignment(Assignment[CheckReport]):
    """Checks to run. Without a patch the repository's own commit is checked (a delivered branch).

    Failures that the `baseline` commit already has do not count; with a patch the baseline is the repository's commit.
    """

    kind = AssignmentKind.CHECK
    gives = CheckReport

    repository: PinnedRepository
    candidate_id: str
    patch: BlobRef | None = None
    baseline: PinnedRepository | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineAssignment(Assignment[Baseline]):
    """Tests and checks to run on the untouched commit, before there is a candidate."""

    kind = AssignmentKind.BASELINE
    gives = Baseline

    repository: PinnedRepository


@dataclass(frozen=True, slots=True, kw_only=True)
class Examinee:
    """A candidate to be examined: its patch, and by suite those of its own tests that fail without its change."""

    candidate_id: str
    patch: BlobRef
    tests: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineAssignment(Assignment[Examination]):
    """Runs the tests of each of these candidates on the sources of the others, the best candidates first.

    The probes of `requirements` run on all sources; without candidates on the untouched commit.
    """

    kind = AssignmentKind.EXAMINE
    gives = Examination

    repository: PinnedRepository
    examinees: tuple[Examinee, ...]
    requirements: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A candidate under review, with its evidence.

    With an `earlier` critique by the same reviewer it is the author's revision after that critique, and its summary is
    the author's answer. A `settled` candidate is not reviewed again: the earlier critique remains, and the candidate is
    only shown for the reviewer's order of preference.
    """

    candidate: Candidate
    report: CheckReport
    earlier: Critique | None = None
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewAssignment(RecordedAssignment[Review]):
    """One peer's review of some candidates side by side. A critique that failed has an error.

    `seed` decides the order in which the reviewer sees them. Proofs are tried on the reviewer's `own` change as well.
    `unshown` quotes the requirements of the statement that no probe covers.
    """

    kind = AssignmentKind.REVIEW
    gives = Review

    repository: PinnedRepository
    reviewer_id: str
    round: int
    subjects: tuple[Subject, ...]
    seed: int = 0
    perspective: Perspective = field(default_factory=Perspective)
    own: BlobRef | None = None
    unshown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAssignment(RecordedAssignment[tuple[Vote, ...]]):
    """One judge's votes over some candidates, `samples` of them, each with the candidates in another order.

    `seed` decides the orders; the first `known` of them have been asked for already. `critiques` are those of the
    candidates to be judged, `answers` the authors' replies to them, by candidate. Votes that cannot be read have an
    error.
    """

    kind = AssignmentKind.JUDGE
    gives = tuple[Vote, ...]

    repository: PinnedRepository
    judge_id: str
    candidates: tuple[Candidate, ...]
    reports: tuple[CheckReport, ...]
    critiques: tuple[Critique, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    samples: int = 1
    known: int = 0
    seed: int = 0
    perspective: Perspective = field(default_factory=Perspective)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAssignment(RecordedAssignment[VerifierScore]):
    """A candidate to be scored by the verifier model, with the evidence about it. A failed score has an error."""

    kind = AssignmentKind.SCORE
    gives = VerifierScore

    repository: PinnedRepository
    candidate: Candidate
    report: CheckReport


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveAssignment(RecordedAssignment[Derivation]):
    """A task to be split. `strategy` is sequential, parallel or auto; `roles` are those allowed, empty: all.

    Without a `repository` the planner sees only the task's text.
    """

    kind = AssignmentKind.DERIVE
    gives = Derivation

    repository: PinnedRepository | None = None
    roles: tuple[Role, ...] = ()
    strategy: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAssignment(RecordedAssignment[Answer]):
    """A question for one agent, in a clone that is thrown away afterwards. A failed answer has an error.

    The limits are the task's. `background` has memories and earlier findings: untrusted text. In a
    `workshop` the environment can be changed, with the network that set-up commands have. With a `schema` (JSON schema
    of an object) the answer is requested in that form, but not checked against it.
    """

    kind = AssignmentKind.ANSWER
    gives = Answer

    repository: PinnedRepository
    query: str
    config: AgentConfig = field(default_factory=AgentConfig)
    background: str = ""
    workshop: bool = False
    schema: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperateAssignment(RecordedAssignment[ToolResult]):
    """One call of a tool in a clone that is thrown away afterwards. `arguments` are exact JSON."""

    kind = AssignmentKind.OPERATE
    gives = ToolResult

    repository: PinnedRepository
    tool: str
    arguments: str = "{}"


ASSIGNMENT_TYPES: Mapping[AssignmentKind, type[Assignment[Any]]] = {
    assignment.kind: assignment
    for assignment in (
        CodingAssignment,
        BaselineAssignment,
        CheckAssignment,
        ExamineAssignment,
        ReviewAssignment,
        JudgeAssignment,
        ScoreAssignment,
        DeriveAssignment,
        AnswerAssignment,
        OperateAssignment,
        OpeningAssignment,
    )
}
"""Every assignment by its kind."""
