"""Downloads of artifacts, with byte ranges and ETags, and uploads of repository bundles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import grpc.aio
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.problems import Refusal, refusal_of
from services.gateway.rest.binding import message_json, read_message
from services.gateway.rest.reading import fill_text
from services.gateway.rest.table import Operation
from services.gateway.upstream import Caller, Upstream
from swe_ai_fleet.domain.errors import InternalFault, InvalidRequest

MEDIA_TYPE = "application/octet-stream"
UPLOAD_MEDIA_TYPES = ("application/octet-stream", "application/x-git-bundle")
CHUNK_BYTES = 256 * 1024
_DIGITS = 18
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The bytes from `start` to `end`, without `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


async def artifact_answer(request: Request, operation: Operation, upstream: Upstream, caller: Caller) -> Response:
    """The bytes of a blob, or the range that `Range` asks for; 304 if the client has the blob already.

    Raises:
        grpc.aio.AioRpcError: The service has no such blob.
        Refusal: 416, the range starts after the end of the blob.
    """
    wanted = cast("pb.GetArtifactRequest", await read_message(request, operation))
    if wanted.offset_bytes:
        raise InvalidRequest(
            "offset_bytes works over gRPC only", field="offset_bytes", hint="send Range: bytes=<offset>-"
        )
    stream = _parts(upstream, operation, wanted, caller)
    size = await _size(stream)
    try:
        etag = f'"{wanted.digest}"'
        headers = _headers(wanted.digest, etag)
        if etag in request.headers.get("if-none-match", ""):
            await stream.aclose()
            return Response(status_code=304, headers=headers)
        span = _span(request, size, etag)
        status = 200 if span is None else 206
        span = span or _Span(start=0, end=size)
        if span.start > 0:
            # Ask again from the offset on, instead of reading everything before it.
            await stream.aclose()
            wanted.offset_bytes = span.start
            stream = _parts(upstream, operation, wanted, caller)
            await _size(stream)
        if status == 206:
            headers["content-range"] = f"bytes {span.start}-{span.end - 1}/{size}"
        headers["content-length"] = str(span.length)
        if request.method == "HEAD":
            await stream.aclose()
            return Response(status_code=status, headers=headers, media_type=MEDIA_TYPE)
        return StreamingResponse(_bytes(stream, span.length), status, headers=headers, media_type=MEDIA_TYPE)
    except BaseException:
        await stream.aclose()
        raise


def _headers(digest: str, etag: str) -> dict[str, str]:
    return {
        "etag": etag,
        "accept-ranges": "bytes",
        # The content of a digest never changes, but who may read it can.
        "cache-control": "private, no-cache",
        "content-disposition": f'attachment; filename="{digest}"',
        "x-content-type-options": "nosniff",
    }


async def _parts(
    upstream: Upstream, operation: Operation, message: Message, caller: Caller
) -> AsyncGenerator[pb.GetArtifactResponse, None]:
    stream = upstream.stream(operation.method, message, caller, seconds=operation.seconds)
    async with aclosing(stream):
        async for part in stream:
            yield cast("pb.GetArtifactResponse", part)


async def _size(stream: AsyncGenerator[pb.GetArtifactResponse, None]) -> int:
    first = await anext(stream, None)
    if first is None or first.WhichOneof("part") != "artifact":
        raise InternalFault("the service sent an artifact without its size")
    return first.artifact.size_bytes


async def _bytes(stream: AsyncGenerator[pb.GetArtifactResponse, None], length: int) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        while length > 0:
            part = await anext(stream, None)
            if part is None:
                raise InternalFault("an artifact ended before its size")
            chunk = part.chunk[:length]
            length -= len(chunk)
            yield chunk


def _span(request: Request, size: int, etag: str) -> _Span | None:
    """The range that the client asks for; None to send the whole blob, which is always allowed."""
    match = _RANGE.fullmatch(request.headers.get("range", "").strip().replace(" ", ""))
    if match is None or request.headers.get("if-range", etag) != etag:
        return None
    start, end = match.groups()
    if not start and not end:
        return None
    if not start:
        span = _Span(start=max(size - int(end), 0), end=size)
    else:
        span = _Span(start=int(start), end=min(int(end) + 1, size) if end else size)
        if end and int(end) < int(start):
            return None
    if span.start >= size or span.length <= 0:
        raise Refusal(
            416,
            "the range is beyond the end of the artifact",
            field="range",
            hint=f"it has {size} bytes",
            headers={"content-range": f"bytes */{size}"},
        )
    return span


async def upload_answer(request: Request, operation: Operation, upstream: Upstream, caller: Caller) -> Response:
    """Upload the bundle in the body, which the query describes; the answer is the RepoRef that names it.

    Raises:
        InvalidRequest: The query has an unknown field, or its size differs from the body's.
        Refusal: 413 or 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in UPLOAD_MEDIA_TYPES:
        raise Refusal(415, "the body must be a git bundle", field="content-type", hint=" or ".join(UPLOAD_MEDIA_TYPES))
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
            operation.method, _pieces(request, header, left), caller, seconds=operation.seconds
        )
    except grpc.aio.AioRpcError as error:
        # The fields of the RPC's header message are query parameters here.
        return refusal_of(error, within="header.").answer(request.url.path)
    except asyncio.CancelledError:
        if left.is_set():
            # gRPC cancels a call when its request iterator fails; this task itself was not cancelled.
            raise ClientDisconnect from None
        raise
    return Response(
        await message_json(reply),
        operation.status,
        headers={"cache-control": "no-store"},
        media_type="application/json",
    )


async def _pieces(request: Request, header: pb.UploadRepositoryHeader, left: asyncio.Event) -> AsyncIterator[Message]:
    yield pb.UploadRepositoryRequest(header=header)
    buffer = bytearray()
    try:
        async for data in request.stream():
            buffer += data
            while len(buffer) >= CHUNK_BYTES:
                yield pb.UploadRepositoryRequest(chunk=bytes(buffer[:CHUNK_BYTES]))
                del buffer[:CHUNK_BYTES]
    except ClientDisconnect:
        left.set()
        raise
    if buffer:
        yield cast("Message", pb.UploadRepositoryRequest(chunk=bytes(buffer)))
