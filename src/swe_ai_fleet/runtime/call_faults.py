"""What a gRPC status of the orchestrator says beyond its code and message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import grpc.aio
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"


def named_field(error: grpc.aio.AioRpcError) -> str | None:
    """The field of the request that a fault names, empty where it names none.

    None where the status has no rich details: then it is gRPC's own, and the orchestrator did not answer.
    """
    trailer = cast("Sequence[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    rich = [value for key, value in trailer if key == _DETAILS and isinstance(value, bytes)]
    if not rich:
        return None
    for detail in status_pb2.Status.FromString(rich[0]).details:
        request = error_details_pb2.BadRequest()
        if detail.Unpack(request):
            for violation in request.field_violations:
                return violation.field
    return ""
