"""The graph on the wire: stories, tasks, decisions, records of work and their relations, in both directions."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.context.v1 import context_pb2 as pb
from services.context.bounds import few, moment
from swe_ai_fleet.adapters.context_service.messages import (
    PHASES,
    ROLES,
    named,
    usage,
    usage_message,
)
from swe_ai_fleet.context.story import PhaseStep
from swe_ai_fleet.domain.candidate import TestSummary
from swe_ai_fleet.domain.context import (
    NO_STORY,
    Decision,
    DecisionState,
    Phase,
    Relation,
    RelationKind,
    Story,
    StoryTask,
    StoryUpdated,
    TaskState,
    WorkRecord,
)
from swe_ai_fleet.domain.moment import iso_time, milliseconds, now
from swe_ai_fleet.domain.text import check_length

TASK_STATES: Mapping[TaskState, pb.TaskState] = {
    TaskState.OPEN: pb.TASK_STATE_OPEN,
    TaskState.IN_PROGRESS: pb.TASK_STATE_IN_PROGRESS,
    TaskState.DONE: pb.TASK_STATE_DONE,
    TaskState.DROPPED: pb.TASK_STATE_DROPPED,
}
DECISION_STATES: Mapping[DecisionState, pb.DecisionState] = {
    DecisionState.PROPOSED: pb.DECISION_STATE_PROPOSED,
    DecisionState.ACCEPTED: pb.DECISION_STATE_ACCEPTED,
    DecisionState.SUPERSEDED: pb.DECISION_STATE_SUPERSEDED,
}
RELATION_KINDS: Mapping[RelationKind, pb.RelationKind] = {
    RelationKind.CONTAINS: pb.RELATION_KIND_CONTAINS,
    RelationKind.DEPENDS_ON: pb.RELATION_KIND_DEPENDS_ON,
    RelationKind.AFFECTS: pb.RELATION_KIND_AFFECTS,
    RelationKind.SUPERSEDES: pb.RELATION_KIND_SUPERSEDES,
    RelationKind.WORKED_ON: pb.RELATION_KIND_WORKED_ON,
    RelationKind.CHANGED: pb.RELATION_KIND_CHANGED,
    RelationKind.PART_OF: pb.RELATION_KIND_PART_OF,
}
_MANY = 1_000
_PATH_CHARS = 4_096


def story(message: pb.Story) -> Story:
    return Story(
        story_id=message.story_id,
        title=message.title,
        description=message.description,
        acceptance_criteria=tuple(message.acceptance_criteria),
        case_id=message.case_id,
        phase=named(PHASES, message.phase) or Phase.PLAN,
        notes=dict(message.notes),
    )


def story_message(story: Story) -> pb.Story:
    return pb.Story(
        story_id=story.story_id,
        title=story.title,
        description=story.description,
        acceptance_criteria=story.acceptance_criteria,
        case_id=story.case_id,
        phase=PHASES[story.phase],
        notes=story.notes,
        created_at_ms=milliseconds(story.created_at),
        updated_at_ms=milliseconds(story.updated_at),
    )


def task(message: pb.Task) -> StoryTask:
    return StoryTask(
        task_id=message.task_id,
        story_id=message.story_id,
        title=message.title,
        description=message.description,
        role=named(ROLES, message.role),
        state=named(TASK_STATES, message.state) or TaskState.OPEN,
        depends_on=tuple(message.depends_on),
    )


def task_message(task: StoryTask) -> pb.Task:
    return pb.Task(
        task_id=task.task_id,
        story_id=task.story_id,
        title=task.title,
        description=task.description,
        role=ROLES[task.role] if task.role else pb.ROLE_UNSPECIFIED,
        state=TASK_STATES[task.state],
        depends_on=task.depends_on,
        created_at_ms=milliseconds(task.created_at),
        updated_at_ms=milliseconds(task.updated_at),
    )


def decision(message: pb.Decision, *, caller: str) -> Decision:
    return Decision(
        decision_id=message.decision_id,
        story_id=message.story_id,
        title=message.title,
        rationale=message.rationale,
        alternatives=tuple(message.alternatives),
        state=named(DECISION_STATES, message.state) or DecisionState.ACCEPTED,
        decided_by=message.decided_by or caller,
        supersedes=message.supersedes,
        roles=tuple(dict.fromkeys(role for one in message.roles if (role := named(ROLES, one)) is not None)),
        task_ids=tuple(message.task_ids),
    )


def decision_message(decision: Decision) -> pb.Decision:
    return pb.Decision(
        decision_id=decision.decision_id,
        story_id="" if decision.story_id == NO_STORY else decision.story_id,
        title=decision.title,
        rationale=decision.rationale,
        alternatives=decision.alternatives,
        state=DECISION_STATES[decision.state],
        decided_by=decision.decided_by,
        supersedes=decision.supersedes,
        roles=[ROLES[role] for role in decision.roles],
        task_ids=decision.task_ids,
        created_at_ms=milliseconds(decision.created_at),
    )


def update(request: pb.UpdateContextRequest) -> StoryUpdated:
    return StoryUpdated(
        task_id=request.task_id,
        title=request.title if request.HasField("title") else None,
        description=request.description if request.HasField("description") else None,
        acceptance_criteria=(
            tuple(request.acceptance_criteria.values) if request.HasField("acceptance_criteria") else None
        ),
        state=named(TASK_STATES, request.state),
        notes=dict(request.notes),
        role=(named(ROLES, request.role) or "") if request.HasField("role") else None,
        depends_on=tuple(request.depends_on.values) if request.HasField("depends_on") else None,
        decision_id=request.decision_id,
        decision_state=named(DECISION_STATES, request.decision_state),
    )


def work_record(message: pb.WorkRecord) -> WorkRecord:
    """A record as a caller tells it. Raises InvalidRequest, naming the field inside of it."""
    tests = message.tests
    return WorkRecord(
        execution_id=message.execution_id,
        task_id=message.task_id,
        story_id=message.story_id or NO_STORY,
        case_id=message.case_id,
        plan_id=message.plan_id,
        kind=check_length(message.kind, 64, field="kind"),
        role=check_length(message.role, 64, field="role"),
        repository=check_length(message.repository, _PATH_CHARS, field="repository"),
        instruction=message.instruction,
        status=check_length(message.status, 64, field="status"),
        summary=message.summary,
        commits=few(message.commits, field="commits", most=_MANY, chars=64),
        branch=check_length(message.branch, _PATH_CHARS, field="branch"),
        files_changed=few(message.files_changed, field="files_changed", most=_MANY, chars=_PATH_CHARS),
        operations=dict(
            zip(
                few(message.operations.keys(), field="operations", most=200, chars=200),
                message.operations.values(),
                strict=True,
            )
        ),
        tests=TestSummary(
            passed=tests.passed,
            failed=tests.failed,
            errors=tests.errors,
            skipped=tests.skipped,
            duration_ms=tests.duration_ms,
            failing=few(tests.failing, field="tests.failing", most=100),
        )
        if message.HasField("tests")
        else None,
        checks=dict(
            zip(
                few(message.checks.keys(), field="checks", most=100),
                few(message.checks.values(), field="checks", most=100),
                strict=True,
            )
        ),
        parent_execution_id=check_length(message.parent_execution_id, 128, field="parent_execution_id"),
        usage=usage(message.usage),
        duration_ms=message.duration_ms,
        ended_at=iso_time(moment(message.ended_at_ms, field="ended_at_ms")) or now(),
        verdict=message.verdict,
    )


def work_message(record: WorkRecord) -> pb.WorkRecord:
    return pb.WorkRecord(
        execution_id=record.execution_id,
        task_id=record.task_id,
        story_id="" if record.story_id == NO_STORY else record.story_id,
        case_id=record.case_id,
        plan_id=record.plan_id,
        kind=record.kind,
        role=record.role,
        repository=record.repository,
        instruction=record.instruction,
        status=record.status,
        summary=record.summary,
        commits=record.commits,
        branch=record.branch,
        files_changed=record.files_changed,
        operations=record.operations,
        tests=_tests_message(record.tests) if record.tests is not None else None,
        checks=record.checks,
        parent_execution_id=record.parent_execution_id,
        usage=usage_message(record.usage),
        duration_ms=record.duration_ms,
        ended_at_ms=milliseconds(record.ended_at),
        verdict=record.verdict,
    )


def relation_message(relation: Relation) -> pb.Relation:
    return pb.Relation(source=relation.source, kind=RELATION_KINDS[relation.kind], target=relation.target)


def phase_message(step: PhaseStep) -> pb.PhaseStep:
    return pb.PhaseStep(
        phase=PHASES[step.phase], at_ms=milliseconds(step.at), version=step.version, reason=step.reason, by=step.by
    )


def _tests_message(tests: TestSummary) -> pb.TestSummary:
    return pb.TestSummary(
        passed=tests.passed,
        failed=tests.failed,
        errors=tests.errors,
        skipped=tests.skipped,
        duration_ms=tests.duration_ms,
        failing=tests.failing,
    )
