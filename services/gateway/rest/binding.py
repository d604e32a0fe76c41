"""An HTTP request as the message that its RPC takes, and a body that is the bundle of a repository."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.problems import Refusal, problem_of
from services.gateway.rest.operation import Operation
from services.gateway.rest.reading import fill, fill_path, fill_text, parsed
from services.gateway.rest.writing import LARGE_BYTES, written_aside
from services.gateway.upstream import Caller, Upstream
from services.grpc_server import MAX_REQUEST_BYTES
from swe_ai_fleet.domain.errors import InvalidRequest

_JSON = "application/json"
CHUNK_BYTES = 256 * 1024
_DIGITS = 18
MEDIA_TYPES = ("application/octet-stream", "application/x-git-bundle")


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
    message = GetMessageClass(operation.method.input_type)()
    query = [(name, text) for name, text in request.query_params.multi_items() if name not in own]
    named = {field: request.path_params[name] for name, field in operation.parameters.items()}
    if operation.has_body:
        # The auth middleware has bounded its size.
        data = await request.body()
        if data:
            _check_media_type(request)
        if len(data) < LARGE_BYTES:
            _fill(message, data, named)
        else:
            await asyncio.to_thread(_fill, message, data, named)
        if query:
            name = query[0][0][:64]
            raise InvalidRequest(
                f"{name} is not a query parameter of this method", field=name, hint="send it in the body"
            )
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
        raise Refusal(415, "the body must be JSON", field="content-type", hint=f"send Content-Type: {_JSON}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "the body must not be compressed", field="content-encoding", hint="send it uncompressed")


def _too_large() -> Refusal:
    return Refusal(413, "the request is too large", field="body", hint=f"at most {MAX_REQUEST_BYTES} bytes")


async def upload_answer(request: Request, operation: Operation, upstream: Upstream, caller: Caller) -> Response:
    """What the service calls the bundle that is the body; the query describes it.

    Raises:
        InvalidRequest: The query names what is no field, or the sizes differ.
        Refusal: 413 or 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        raise Refusal(415, "the body must be a git bundle", field="content-type", hint=" or ".join(MEDIA_TYPES))
    header = pb.UploadRepositoryHeader()
    fill_text(header, request.query_params.multi_items())
    length = request.headers.get("content-length", "")
    if length.isdecimal():
        if len(length) > _DIGITS:
            raise Refusal(413, "the bundle is too large", field="content-length")
        if header.size_bytes not in (0, int(length)):
            raise InvalidRequest(f"the body has {length} bytes", field="size_bytes")
        header.size_bytes = int(length)
    left = asyncio.Event()
    try:
        reply = await upstream.upload(
            operation.method, _pieces(request, header, left), token=caller.token, seconds=operation.seconds
        )
    except grpc.aio.AioRpcError as error:
        # What is in the contract's header is in our query.
        return problem_of(error, instance=request.url.path, within="header.")
    except asyncio.CancelledError:
        if left.is_set():
            # gRPC cancels a call whose requests break off; nobody cancelled this one.
            raise ClientDisconnect from None
        raise
    return Response(
        await written_aside(reply),
        operation.status,
        headers={"cache-control": "no-store"},
        media_type="application/json",
    )


async def _pieces(request: Request, header: pb.UploadRepositoryHeader, left: asyncio.Event) -> AsyncIterator[Message]:
    yield pb.UploadRepositoryRequest(header=header)
    held = bytearray()
    try:
        async for data in request.stream():
            held += data
            while len(held) >= CHUNK_BYTES:
                yield pb.UploadRepositoryRequest(chunk=bytes(held[:CHUNK_BYTES]))
                del held[:CHUNK_BYTES]
    except ClientDisconnect:
        left.set()
        raise
    if held:
        yield cast("Message", pb.UploadRepositoryRequest(chunk=bytes(held)))
