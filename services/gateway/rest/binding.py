"""An HTTP request as the message that its RPC takes."""

from __future__ import annotations

import asyncio

from google.protobuf.message import Message
from starlette.requests import Request

from services.gateway.problems import Refusal
from services.gateway.rest.operation import Operation
from services.gateway.rest.reading import fill, fill_path, fill_text, new_message, parsed
from services.gateway.rest.writing import LARGE_BYTES
from services.grpc_server import MAX_REQUEST_BYTES
from swe_ai_fleet.domain.errors import InvalidRequest

_JSON = "application/json"


async def bound(request: Request, operation: Operation, *, own: frozenset[str] = frozenset()) -> Message:
    """The message that a request stands for.

    Args:
        request: Its body is read here.
        operation: What was asked for.
        own: Names in the query that are not for the message.

    Raises:
        InvalidRequest: Naming the field.
        Refusal: 413 or 415.
    """
    message = new_message(operation.method.input_type)
    query = [(name, text) for name, text in request.query_params.multi_items() if name not in own]
    named = {field: request.path_params[name] for name, field in operation.parameters.items()}
    if operation.has_body:
        # The door has bounded it.
        data = await request.body()
        if data:
            _check_media_type(request)
        if len(data) < LARGE_BYTES:
            _fill(message, data, named)
        else:
            await asyncio.to_thread(_fill, message, data, named)
        if query:
            name = query[0][0][:64]
            raise InvalidRequest(f"{name} is nothing that the query has here", field=name, hint="put it into the body")
    else:
        fill_path(message, named, {})
        fill_text(message, query, given=named)
    if message.ByteSize() > MAX_REQUEST_BYTES:
        raise _too_large()
    return message


def _fill(message: Message, data: bytes, named: dict[str, str]) -> None:
    values = parsed(data)
    fill(message, values)
    fill_path(message, named, values)


def _check_media_type(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != _JSON or charset not in ("", "utf-8"):
        raise Refusal(415, "the body has to be JSON", field="content-type", hint=f"send Content-Type: {_JSON}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "the body must not be compressed", field="content-encoding", hint="send it as it is")


def _too_large() -> Refusal:
    return Refusal(413, "the request is too large", field="body", hint=f"at most {MAX_REQUEST_BYTES} bytes")
