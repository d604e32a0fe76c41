"""The faults of a server of ours, as what they were before they went over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from swe_ai_fleet.domain.errors import (
    AlreadyExists,
    Fenced,
    FleetError,
    InternalFault,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)

_DETAILS = "grpc-status-details-bin"
_CHARS = 800
_REASONS: Mapping[str, type[FleetError]] = {
    "INVALID_REQUEST": InvalidRequest,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": AlreadyExists,
    "PRECONDITION_FAILED": PreconditionFailed,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "UNAVAILABLE": Unavailable,
    "FENCED": Fenced,
    "INTERNAL": InternalFault,
    "INTERNAL_FAULT": InternalFault,
}
_CODES: Mapping[grpc.StatusCode, type[FleetError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.UNAUTHENTICATED: PreconditionFailed,
    grpc.StatusCode.PERMISSION_DENIED: PreconditionFailed,
    grpc.StatusCode.UNIMPLEMENTED: PreconditionFailed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.INTERNAL: InternalFault,
}


def fault_of(error: grpc.aio.AioRpcError, address: str) -> FleetError:
    """What a call ended with, as the server raised it; what it never got to is Unavailable."""
    code = error.code()
    reason, field = _told(error)
    kind = _REASONS.get(reason) or _CODES.get(code, Unavailable)
    words = (error.details() or code.name.lower().replace("_", " "))[:_CHARS]
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return kind(f"the context service at {address} takes another token", field="context_token")
    if reason:
        return kind(words, field=field)
    if kind is Unavailable:
        return kind(f"the context service at {address} does not answer: {words}", hint="is it running there?")
    return kind(f"the context service at {address}: {words}")


def _told(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """The reason and the field that a server of ours names; both empty where it was not one that answered."""
    trailer = cast("Sequence[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    rich = [value for key, value in trailer if key == _DETAILS and isinstance(value, bytes)]
    reason = field = ""
    try:
        details = status_pb2.Status.FromString(rich[0]).details if rich else ()
    except DecodeError:
        # Whoever answers there is none of ours.
        return "", ""
    for detail in details:
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            reason = info.reason
        elif detail.Unpack(request):
            field = next((violation.field for violation in request.field_violations), "")
    return reason, field
