"""Repositories that clients send as a bundle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc.aio
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.caller import Caller
from services.gateway.problems import Refusal, problem_of
from services.gateway.rest.operation import Operation
from services.gateway.rest.reading import fill_text
from services.gateway.rest.writing import written_aside
from services.gateway.upstream import Upstream
from swe_ai_fleet.domain.errors import InvalidRequest

CHUNK_BYTES = 256 * 1024
_DIGITS = 18
MEDIA_TYPES = ("application/octet-stream", "application/x-git-bundle")


async def upload_answer(request: Request, operation: Operation, upstream: Upstream, caller: Caller) -> Response:
    """What the service calls the bundle that is the body; the query describes it.

    Raises:
        InvalidRequest: The query names what is no field, or the sizes differ.
        Refusal: 413 or 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        raise Refusal(415, "the body has to be a git bundle", field="content-type", hint=" or ".join(MEDIA_TYPES))
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
