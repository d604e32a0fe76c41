"""Pages of executions."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator import responses
from services.orchestrator.replies import MAX_REPLY_BYTES
from swe_ai_fleet.contract import from_enum
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.orchestrator.projection import Projection

DEFAULT_PAGE_SIZE = 50

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def page(projection: Projection, request: pb.ListExecutionsRequest, tenant: str) -> pb.ListExecutionsResponse:
    """The page of a tenant that is asked for, newest first; shorter where it would be too large.

    Raises InvalidRequest.
    """
    found = _select(projection, request, tenant)
    start = _after(found, _last_seen(request, tenant)) if request.page_token else 0
    reply, size = pb.ListExecutionsResponse(), 0
    for state in found[start : start + (request.page_size or DEFAULT_PAGE_SIZE)]:
        told = responses.execution_message(state)
        size += told.ByteSize() + 16
        if size > MAX_REPLY_BYTES and reply.executions:
            break
        reply.executions.append(told)
    end = start + len(reply.executions)
    if end < len(found):
        reply.next_page_token = _token(request, tenant, found[end - 1])
    return reply


def _select(projection: Projection, request: pb.ListExecutionsRequest, tenant: str) -> list[ExecutionState]:
    statuses: set[ExecutionStatus] = set()
    for number, asked in enumerate(request.statuses):
        status = from_enum(ExecutionStatus, pb.DeliberationStatus, asked)
        if status is None:
            raise InvalidRequest("no execution has this status", field=f"statuses[{number}]")
        statuses.add(status)
    return projection.select(
        tenant,
        task_id=request.task_id,
        role=from_enum(Role, pb.Role, request.role),
        statuses=frozenset(statuses),
        created_after=_time(request.created_after_ms, "created_after_ms"),
        created_before=_time(request.created_before_ms, "created_before_ms"),
    )


def _time(at_ms: int, field: str) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat() if at_ms else ""
    except OverflowError:
        raise InvalidRequest(f"{field} is {at_ms}", field=field, hint="milliseconds since 1970") from None


def _after(found: Sequence[ExecutionState], last: tuple[str, str]) -> int:
    """Where the executions behind `last` begin; it need not be among them any more."""
    return next((i for i, state in enumerate(found) if (state.started_at, state.execution_id) < last), len(found))


def _filters(request: pb.ListExecutionsRequest, tenant: str) -> str:
    """What has to be the same from page to page."""
    asked = [request.task_id, request.role, sorted(request.statuses)]
    times = [request.created_after_ms, request.created_before_ms]
    return hashlib.sha256(json.dumps([tenant, asked, times]).encode()).hexdigest()[:16]


def _token(request: pb.ListExecutionsRequest, tenant: str, last: ExecutionState) -> str:
    seen = json.dumps([_filters(request, tenant), last.started_at, last.execution_id])
    return base64.urlsafe_b64encode(seen.encode()).decode()


def _last_seen(request: pb.ListExecutionsRequest, tenant: str) -> tuple[str, str]:
    try:
        filters, started_at, execution_id = json.loads(base64.urlsafe_b64decode(request.page_token))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidRequest("not a token of this server", field="page_token") from None
    if filters != _filters(request, tenant):
        raise InvalidRequest("the token belongs to a request with other filters", field="page_token")
    return str(started_at), str(execution_id)
