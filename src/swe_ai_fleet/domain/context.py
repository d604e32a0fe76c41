"""Project knowledge: stories, their tasks, decisions and phases, and the work of executions.

Every change is a value of its own in an append-only stream; the current knowledge is a fold over them and nothing else.
Wire types: they only ever gain optional fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.memory import Recollection
from swe_ai_fleet.domain.task import DEFAULT_TENANT, Role

NO_STORY = "_"
"""The `story_id` of work that belongs to no story."""


class Phase(StrEnum):
    """The phase of a story. It advances one phase at a time, and may go back to any earlier one."""

    PLAN = "plan"
    DESIGN = "design"
    BUILD = "build"
    TEST = "test"
    REVIEW = "review"
    DONE = "done"


class TaskState(StrEnum):
    OPEN = "open"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    DROPPED = "dropped"


class DecisionState(StrEnum):
    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    SUPERSEDED = "superseded"


class RelationKind(StrEnum):
    """The verb of an edge of the graph: source verb target."""

    CONTAINS = "contains"
    DEPENDS_ON = "depends_on"
    AFFECTS = "affects"
    SUPERSEDES = "supersedes"
    WORKED_ON = "worked_on"
    CHANGED = "changed"
    PART_OF = "part_of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A user story. `case_id` names the larger undertaking that it belongs to."""

    story_id: str
    title: str
    description: str = ""
    acceptance_criteria: tuple[str, ...] = ()
    case_id: str = ""
    phase: Phase = Phase.PLAN
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    created_at: str = ""
    updated_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryTask:
    """A task of a story. Tasks of executions need not be recorded here; those that are get their history."""

    task_id: str
    story_id: str
    title: str
    description: str = ""
    role: Role | None = None
    state: TaskState = TaskState.OPEN
    depends_on: tuple[str, ...] = ()
    created_at: str = ""
    updated_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision and its reasons. `roles` are those that it concerns (empty: all), `task_ids` the tasks it affects."""

    decision_id: str
    story_id: str
    title: str
    rationale: str = ""
    alternatives: tuple[str, ...] = ()
    state: DecisionState = DecisionState.ACCEPTED
    decided_by: str = ""
    supersedes: str = ""
    roles: tuple[Role, ...] = ()
    task_ids: tuple[str, ...] = ()
    created_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecord:
    """The work of one execution. `operations` counts tool calls by name; `commits` are full object ids.

    `verdict` is that of the delivered commit, else of the best candidate; empty where it is not known.
    """

    execution_id: str
    task_id: str
    story_id: str = NO_STORY
    case_id: str = ""
    plan_id: str = ""
    kind: str = ""
    role: str = ""
    repository: str = ""
    instruction: str = ""
    status: str = ""
    summary: str = ""
    commits: tuple[str, ...] = ()
    branch: str = ""
    files_changed: tuple[str, ...] = ()
    operations: Mapping[str, int] = field(default_factory=dict[str, int])
    tests: TestSummary | None = None
    checks: Mapping[str, str] = field(default_factory=dict[str, str])
    parent_execution_id: str = ""
    usage: Usage = field(default_factory=Usage)
    duration_ms: int = 0
    ended_at: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """An edge. Nodes are `<kind>:<id>`, the kind one of case, story, task, decision, execution, commit, file."""

    source: str
    kind: RelationKind
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryCreated:
    story: Story
    type: Literal["story_created"] = "story_created"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCreated:
    task: StoryTask
    type: Literal["task_created"] = "task_created"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAdded:
    decision: Decision
    type: Literal["decision_added"] = "decision_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    phase: Phase
    reason: str = ""
    by: str = ""
    type: Literal["phase_changed"] = "phase_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryUpdated:
    """New values for fields of a story, one of its tasks or a decision; None leaves a field as it is.

    An empty note is removed, an empty role is anybody's. Of a decision only `decision_state` can change.
    """

    task_id: str = ""
    title: str | None = None
    description: str | None = None
    acceptance_criteria: tuple[str, ...] | None = None
    state: TaskState | None = None
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    role: Role | Literal[""] | None = None
    depends_on: tuple[str, ...] | None = None
    decision_id: str = ""
    decision_state: DecisionState | None = None
    type: Literal["story_updated"] = "story_updated"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecorded:
    record: WorkRecord
    type: Literal["work_recorded"] = "work_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnowledgeErased:
    """The record of an execution is erased, and no new one is accepted; without an id: all knowledge of the tenant."""

    execution_id: str = ""
    type: Literal["knowledge_erased"] = "knowledge_erased"


ChangeBody = StoryCreated | TaskCreated | DecisionAdded | PhaseChanged | StoryUpdated | WorkRecorded | KnowledgeErased


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of project knowledge. `at` is UTC, ISO 8601; `version` counts the changes of its story from 1.

    A record of work has version 0: it does not conflict with edits of the story.
    """

    tenant: str
    story_id: str
    version: int
    at: str
    body: ChangeBody


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange:
    """A change in its stream; `sequence` grows over all stories and starts at 1."""

    sequence: int
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest:
    """A request for the context of a task, a story or a case.

    `token_budget` 0 is the service's default. `query` is the task's text; blocks nearest to it go first. `namespaces`
    are searched for memories (none: no memory is recalled); memories that name one of the `entities` go first.
    """

    tenant: str = DEFAULT_TENANT
    case_id: str = ""
    story_id: str = ""
    task_id: str = ""
    role: Role | None = None
    phase: Phase | None = None
    query: str = ""
    token_budget: int = 0
    include_decisions: bool = True
    include_history: bool = True
    namespaces: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBlock:
    """A part of a context: `kind` is story, task, decision, history, note or memory. `relevance` is 0 to 1."""

    kind: str
    title: str
    text: str
    tokens: int
    relevance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredContext:
    """The context that agents get. The version is a SHA-256 of the text: it changes when the content does, only then.

    `omitted` names the blocks that did not fit. `tokens` is an estimate.
    """

    text: str = ""
    blocks: tuple[ContextBlock, ...] = ()
    tokens: int = 0
    version: str = ""
    omitted: tuple[str, ...] = ()
    recalled: tuple[Recollection, ...] = ()
