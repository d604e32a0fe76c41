"""Planning events on the wire, and subtasks as callers get them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from google.protobuf import json_format

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import caller_of, tenant
from services.errors import Context
from services.orchestrator.requests import repo_ref
from services.orchestrator.subtasks import atomic_task
from swe_ai_fleet.contract import from_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.orchestrator.child_tasks import child_task_id
from swe_ai_fleet.orchestrator.planning_events import PlanningEvent, PlanningEvents, PlanningOutcome

MAX_EVENT_BYTES = 256 * 1024
PATIENCE_SECONDS = 120.0
"""How long a caller without a deadline of its own waits for the subtasks of a dispatched event."""
_MARGIN_SECONDS = 0.5
"""What an answer needs to reach a caller before its deadline."""


def planning_event(request: pb.ProcessPlanningEventRequest) -> PlanningEvent:
    """The event of a request. Raises InvalidRequest naming the field."""
    if request.ByteSize() > MAX_EVENT_BYTES:
        raise InvalidRequest(
            f"the event has {request.ByteSize()} bytes",
            field="payload",
            hint=f"at most {MAX_EVENT_BYTES}; put long material into a file of the repository",
        )
    try:
        payload = cast("dict[str, object]", json_format.MessageToDict(request.payload))
    except (json_format.SerializeToJsonError, ValueError, RecursionError) as fault:
        raise InvalidRequest(f"the payload is no JSON: {fault}"[:500], field="payload") from None
    repo = repo_ref(request.repo) if request.HasField("repo") else None
    return from_message(PlanningEvent, request, repo=repo, payload=payload)


def planning_response(event: PlanningEvent, outcome: PlanningOutcome) -> pb.ProcessPlanningEventResponse:
    """What an event led to, as its sender is told."""
    derivation = outcome.derivation
    subtasks = derivation.subtasks if derivation else ()
    # Of a dispatched event the ids that the subtasks' own executions have.
    names = {
        one.subtask_id: child_task_id(event.task().task_id, one.subtask_id)
        if outcome.execution_id
        else f"{derivation.derivation_id}.{one.subtask_id}"
        for one in subtasks
        if derivation
    }
    return pb.ProcessPlanningEventResponse(
        event_id=event.event_id,
        accepted=outcome.accepted,
        message=outcome.message,
        derivation_id=derivation.derivation_id if derivation else "",
        tasks=[atomic_task(one, names, case_id=event.case_id, plan_id=event.plan_id) for one in subtasks],
        execution_id=outcome.execution_id,
    )


async def answer_planning_event(
    events: PlanningEvents, request: pb.ProcessPlanningEventRequest, context: Context
) -> pb.ProcessPlanningEventResponse:
    """Take a caller's event. The subtasks of a dispatched one are waited for as long as the caller does."""
    event = replace(planning_event(request), tenant=tenant(), caller=caller_of(context))
    remaining = cast("float | None", context.time_remaining())
    patience = PATIENCE_SECONDS if remaining is None else max(0.0, remaining - _MARGIN_SECONDS)
    return planning_response(event, await events.process(event, patience=patience))
