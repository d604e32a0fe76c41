"""The routes of the table: read the request, call the RPC, write the reply.

A reply is JSON, or a stream of messages as server-sent events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from services.gateway import event_stream
from services.gateway.event_stream import NextItem
from services.gateway.problems import CLIENT_GONE, Refusal, refusal_of
from services.gateway.rest.artifacts import artifact_answer, upload_answer
from services.gateway.rest.binding import message_json, read_message
from services.gateway.rest.openapi import document_bytes
from services.gateway.rest.table import MAX_WAIT_SECONDS, OPERATIONS, PLACEHOLDERS, SUBMIT, WAIT, Operation
from services.gateway.upstream import Caller, Upstream, caller_of, method
from services.roles import check_role
from swe_ai_fleet.domain.errors import InternalFault, InvalidRequest

REFUSAL_SECONDS = 5.0
"""The longest wait for the first message before the response starts; a failure before that gets an HTTP status."""
_DIGITS = 6
_PAGE_TOKEN = "page_token"  # noqa: S105  (the name of a field)
Result = TypeVar("Result")


async def event_answer(
    request: Request, operation: Operation, upstream: Upstream, message: Message, caller: Caller
) -> Response:
    """The messages of `operation.events` as server-sent events: the data is the JSON, the name what it carries.

    An error after the first message becomes an event `problem` with the problem document.

    Raises:
        grpc.aio.AioRpcError: The service refused before its first message.
    """
    item = NextItem(upstream.stream(method(operation.events), message, caller))
    try:
        await item.is_ready(REFUSAL_SECONDS)
    except BaseException:
        await item.close()
        raise
    return _EventAnswer(item, request.url.path)


class _EventAnswer(StreamingResponse):
    def __init__(self, item: NextItem[Message], instance: str) -> None:
        super().__init__(_body(item, instance), headers=event_stream.HEADERS, media_type=event_stream.MEDIA_TYPE)
        self._item = item

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not in `_body`: when the client disconnects, that generator is cancelled repeatedly.
            await self._item.close()


async def _body(item: NextItem[Message], instance: str) -> AsyncIterator[bytes]:
    try:
        while True:
            if not await item.is_ready(event_stream.KEEPALIVE_SECONDS):
                yield event_stream.KEEPALIVE
            elif (message := item.take()) is None:
                return
            else:
                number = int(getattr(message, "sequence", 0))
                yield event_stream.event(_name(message), await message_json(message), number=number)
    except grpc.aio.AioRpcError as error:
        document = json.dumps(refusal_of(error).document(instance), ensure_ascii=False)
        yield event_stream.event("problem", document.encode())


def _name(message: Message) -> str:
    kind = message.DESCRIPTOR
    if "final" in kind.fields_by_name:
        return "final" if message.HasField(cast("Any", "final")) else "update"
    return next((message.WhichOneof(oneof.name) or "update" for oneof in kind.oneofs), "update")


async def answer(request: Request, operation: Operation, upstream: Upstream) -> Response:
    """Carry out an operation.

    Raises:
        grpc.aio.AioRpcError: The service refused or failed.
        InvalidRequest: The request does not fit the operation's message.
        PermissionDenied: The caller's role is not enough.
        Refusal: With the HTTP status for what is wrong with the request.
    """
    caller = caller_of(request)
    check_role(caller.principal, operation.rpc)
    match operation.kind:
        case "upload":
            return await upload_answer(request, operation, upstream, caller)
        case "bytes":
            return await artifact_answer(request, operation, upstream, caller)
        case "waiting":
            return await _waiting(request, operation, upstream, caller)
        case "last":
            message = await read_message(request, operation)
            if event_stream.wants_events(request):
                return await event_answer(request, operation, upstream, message, caller)
            return await _unless_gone(request, _last(operation, upstream, message, caller))
        case "unary":
            message = await read_message(request, operation)
            reply = await upstream.call(operation.method, message, caller, seconds=operation.seconds)
            return await reply_answer(request, operation, reply)


async def reply_answer(request: Request, operation: Operation, reply: Message) -> Response:
    """A reply as JSON, with `Location` for what was made and `Link` for the next page."""
    headers = {"cache-control": "no-store"}
    if operation.location and (location := _location(operation.location, reply)):
        headers["location"] = location
    next_token = str(getattr(reply, "next_page_token", ""))
    if operation.verb == "GET" and next_token:
        query = [(name, text) for name, text in request.query_params.multi_items() if name != _PAGE_TOKEN]
        headers["link"] = f'<{request.url.path}?{urlencode([*query, (_PAGE_TOKEN, next_token)])}>; rel="next"'
    return Response(await message_json(reply), operation.status, headers=headers, media_type="application/json")


async def _unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    if (result := await event_stream.unless_gone(work, event_stream.client_gone(request.receive))) is None:
        raise Refusal(CLIENT_GONE, "the client left")
    return result


async def _last(operation: Operation, upstream: Upstream, message: Message, caller: Caller) -> Response:
    last: Message | None = None
    async for update in upstream.stream(operation.method, message, caller, seconds=operation.seconds):
        last = update
    if last is None or not last.HasField(cast("Any", operation.answer)):
        raise InternalFault("the service ended without an answer")
    final = cast("Message", getattr(last, operation.answer))
    return Response(await message_json(final), headers={"cache-control": "no-store"}, media_type="application/json")


async def _waiting(request: Request, operation: Operation, upstream: Upstream, caller: Caller) -> Response:
    """Wait for a task to end, for as long as the query allows; after that answer 202 with the execution's location."""
    seconds = _wait_seconds(request)
    message = await read_message(request, operation, own=frozenset({WAIT}))
    if event_stream.wants_events(request):
        return await event_answer(request, operation, upstream, message, caller)
    if seconds:
        call = upstream.call(operation.method, message, caller, seconds=float(seconds))
        try:
            return await reply_answer(request, operation, await _unless_gone(request, call))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
    # Submitting the same task again returns the running execution's id at once.
    submit = method(SUBMIT)
    kind = next(field.name for field in submit.input_type.fields if field.message_type == operation.method.input_type)
    task = GetMessageClass(submit.input_type)()
    getattr(task, kind).CopyFrom(message)
    try:
        reply = await upstream.call(submit, task, caller)
    except grpc.aio.AioRpcError as error:
        return refusal_of(error, within=f"{kind}.").answer(request.url.path)
    headers = {"cache-control": "no-store", "location": _location(operation.location, reply)}
    return Response(await message_json(reply), 202, headers=headers, media_type="application/json")


def _wait_seconds(request: Request) -> int:
    values = request.query_params.getlist(WAIT)
    if not values:
        return MAX_WAIT_SECONDS
    if len(values) > 1:
        raise InvalidRequest(f"{WAIT} is given twice", field=WAIT)
    text = values[0]
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) <= MAX_WAIT_SECONDS):
        raise InvalidRequest(f"{WAIT} must be a number of seconds", field=WAIT, hint=f"0 to {MAX_WAIT_SECONDS}")
    return int(text)


def _location(template: str, reply: Message) -> str:
    """A path template filled in with the reply's fields; empty if one of them is empty."""
    names = PLACEHOLDERS.findall(template)
    values = {name: quote(str(getattr(reply, name)), safe="") for name in names}
    return template.format(**values) if all(values.values()) else ""


DOCUMENT_PATH = "/api/openapi.json"


def rest_routes(upstream: Upstream) -> list[BaseRoute]:
    """A route for each path of the table, and one for the OpenAPI document."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.verb] = operation
    cached: list[bytes] = []

    async def document(_: Request) -> Response:
        if not cached:
            cached.append(await asyncio.to_thread(document_bytes))
        return Response(cached[0], media_type="application/json")

    document_route = Route(DOCUMENT_PATH, document, methods=["GET"])
    return [document_route, *(_route(path, verbs, upstream) for path, verbs in by_path.items())]


def _route(path: str, verbs: Mapping[str, Operation], upstream: Upstream) -> Route:
    # One route for all verbs of a path, so that a 405 lists all of them.
    async def endpoint(request: Request) -> Response:
        verb = "GET" if request.method == "HEAD" else request.method
        return await answer(request, verbs[verb], upstream)

    return Route(path, endpoint, methods=list(verbs), name=path)
