"""Planning events: read from requests, and answered with the subtasks that they led to."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from google.protobuf import json_format

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator_pb
from services.auth import caller_of, tenant
from services.errors import Context
from services.orchestrator.requests import atomic_task, repo_ref
from swe_ai_fleet.contract import from_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.orchestrator.derivations import PlanningEvent, PlanningEvents, PlanningOutcome
from swe_ai_fleet.orchestrator.subtasks import child_task_id

MAX_EVENT_BYTES = 256 * 1024
TIMEOUT_SECONDS = 120.0
"""How long a caller without a deadline waits for the subtasks of a dispatched event."""
_MARGIN_SECONDS = 0.5
"""The time that an answer needs to reach a caller before its deadline."""


def planning_event(request: orchestrator_pb.ProcessPlanningEventRequest) -> PlanningEvent:
    """The event in a request. Raises InvalidRequest naming the field."""
    if request.ByteSize() > MAX_EVENT_BYTES:
        raise InvalidRequest(
            f"the event has {request.ByteSize()} bytes",
            field="payload",
            hint=f"at most {MAX_EVENT_BYTES}; put long material into a file of the repository",
        )
    try:
        payload = parsed(json_format.MessageToDict, request.payload)
    except (json_format.SerializeToJsonError, ValueError) as fault:
        raise InvalidRequest(f"the payload is not valid JSON: {fault}"[:500], field="payload") from None
    repo = repo_ref(request.repo) if request.HasField("repo") else None
    return from_message(PlanningEvent, request, repo=repo, payload=payload)


def planning_response(event: PlanningEvent, outcome: PlanningOutcome) -> orchestrator_pb.ProcessPlanningEventResponse:
    """The answer to an event's sender."""
    derivation = outcome.derivation
    subtasks = derivation.subtasks if derivation else ()
    # The subtasks of a dispatched event have the ids of their own executions' tasks.
    names = {
        subtask.subtask_id: child_task_id(event.task().task_id, subtask.subtask_id, derivation.joint)
        if outcome.execution_id
        else f"{derivation.derivation_id}{derivation.joint}{subtask.subtask_id}"
        for subtask in subtasks
        if derivation
    }
    return orchestrator_pb.ProcessPlanningEventResponse(
        event_id=event.event_id,
        accepted=outcome.accepted,
        message=outcome.message,
        derivation_id=derivation.derivation_id if derivation else "",
        tasks=[atomic_task(subtask, names, case_id=event.case_id, plan_id=event.plan_id) for subtask in subtasks],
        execution_id=outcome.execution_id,
    )


async def answer_planning_event(
    events: PlanningEvents, request: orchestrator_pb.ProcessPlanningEventRequest, context: Context
) -> orchestrator_pb.ProcessPlanningEventResponse:
    """Process a caller's event. For the subtasks of a dispatched one it waits until the caller's deadline."""
    event = replace(planning_event(request), tenant=tenant(), caller=caller_of(context))
    remaining = cast("float | None", context.time_remaining())
    timeout = TIMEOUT_SECONDS if remaining is None else max(0.0, remaining - _MARGIN_SECONDS)
    return planning_response(event, await events.process(event, timeout=timeout))
