"""What of the graph on the wire is more than names: stories that are none, who decided, and what a record may hold."""

from __future__ import annotations

from fleet.context.v1 import context_pb2 as pb
from services.context.bounds import few, moment
from swe_ai_fleet.adapters.contract import from_enum, from_message, to_message
from swe_ai_fleet.domain.context import NO_STORY, Decision, StoryUpdated, WorkRecord
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import check_length

_MANY = 1_000
_PATH_CHARS = 4_096


def decision(message: pb.Decision, *, caller: str) -> Decision:
    return from_message(Decision, message, decided_by=message.decided_by or caller)


def decision_message(decision: Decision) -> pb.Decision:
    return to_message(pb.Decision, decision, story_id="" if decision.story_id == NO_STORY else decision.story_id)


def update(request: pb.UpdateContextRequest) -> StoryUpdated:
    # Set to no role, the task belongs to none any more.
    role = (from_enum(Role, pb.Role, request.role) or "") if request.HasField("role") else None
    return from_message(StoryUpdated, request, role=role)


def work_record(message: pb.WorkRecord) -> WorkRecord:
    """A record as a caller tells it. Raises InvalidRequest, naming the field inside of it."""
    for name, chars in (
        ("kind", 64),
        ("role", 64),
        ("status", 64),
        ("repository", _PATH_CHARS),
        ("branch", _PATH_CHARS),
    ):
        check_length(getattr(message, name), chars, field=name)
    check_length(message.parent_execution_id, 128, field="parent_execution_id")
    few(message.commits, field="commits", most=_MANY, chars=64)
    few(message.files_changed, field="files_changed", most=_MANY, chars=_PATH_CHARS)
    few(message.operations.keys(), field="operations", most=200, chars=200)
    few(message.tests.failing, field="tests.failing", most=100)
    for part in (message.checks.keys(), message.checks.values()):
        few(part, field="checks", most=100)
    moment(message.ended_at_ms, field="ended_at_ms")
    return from_message(WorkRecord, message, **({} if message.ended_at_ms else {"ended_at": now()}))


def work_message(record: WorkRecord) -> pb.WorkRecord:
    return to_message(pb.WorkRecord, record, story_id="" if record.story_id == NO_STORY else record.story_id)
