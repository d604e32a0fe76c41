"""What of the graph on the wire is more than names: stories that are none, who decided, and when."""

from __future__ import annotations

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.contract import from_enum, from_message, to_message
from swe_ai_fleet.domain.context import NO_STORY, Decision, StoryUpdated, WorkRecord
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.task import Role


def decision(message: pb.Decision, *, caller: str) -> Decision:
    return from_message(Decision, message, decided_by=message.decided_by or caller)


def decision_message(decision: Decision) -> pb.Decision:
    return to_message(pb.Decision, decision, story_id="" if decision.story_id == NO_STORY else decision.story_id)


def update(request: pb.UpdateContextRequest) -> StoryUpdated:
    # Set to no role, the task belongs to none any more.
    role = (from_enum(Role, pb.Role, request.role) or "") if request.HasField("role") else None
    return from_message(StoryUpdated, request, role=role)


def work_record(message: pb.WorkRecord) -> WorkRecord:
    return from_message(WorkRecord, message, **({} if message.ended_at_ms else {"ended_at": now()}))


def work_message(record: WorkRecord) -> pb.WorkRecord:
    return to_message(pb.WorkRecord, record, story_id="" if record.story_id == NO_STORY else record.story_id)
