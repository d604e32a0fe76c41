"""The endpoints: bind, call, write."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import grpc
import grpc.aio
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from services.access.roles import check_role
from services.gateway.caller import Caller, caller_of
from services.gateway.problems import Refusal, problem_of
from services.gateway.rest.artifacts import artifact_answer
from services.gateway.rest.binding import bound
from services.gateway.rest.events import event_answer, takes_events
from services.gateway.rest.operation import PLACES, Operation
from services.gateway.rest.reading import new_message
from services.gateway.rest.uploads import upload_answer
from services.gateway.rest.writing import written_aside
from services.gateway.upstream import Upstream, method
from swe_ai_fleet.domain.errors import InternalFault, InvalidRequest

WAIT = "wait_seconds"
"""The name in the query that says how long to wait for a task's end."""
MAX_WAIT_SECONDS = 86_400
_DIGITS = 6
_PAGE_TOKEN = "page_token"  # noqa: S105  (the name of a field)
SUBMIT = "fleet.orchestrator.v1.OrchestratorService.SubmitTask"
"""Takes either kind of task without waiting for its end."""

Result = TypeVar("Result")


async def answer(request: Request, operation: Operation, upstream: Upstream) -> Response:
    """What an operation comes to.

    Raises:
        grpc.aio.AioRpcError: What the service answered where it did not do it.
        InvalidRequest: The request is no such message.
        PermissionDenied: It takes another role.
        Refusal: HTTP has a status for what is wrong with it.
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
            message = await bound(request, operation)
            if takes_events(request):
                return await event_answer(request, operation, upstream, message, caller)
            return await until_gone(request, _last(operation, upstream, message, caller))
        case "unary":
            message = await bound(request, operation)
            reply = await upstream.call(
                operation.method,
                message,
                token=caller.token,
                caller=caller.name,
                tenant=caller.tenant,
                seconds=operation.seconds,
            )
            return await reply_answer(request, operation, reply)


async def reply_answer(request: Request, operation: Operation, reply: Message) -> Response:
    """A reply as JSON, with `Location` and `Link` where there is something to point at."""
    headers = {"cache-control": "no-store"}
    if operation.location and (place := _place(operation.location, reply)):
        headers["location"] = place
    following = str(getattr(reply, "next_page_token", ""))
    if operation.verb == "GET" and following:
        headers["link"] = f'<{_next_page(request, following)}>; rel="next"'
    return Response(await written_aside(reply), operation.status, headers=headers, media_type="application/json")


async def until_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The work's result; where the client leaves before that, the work is cancelled.

    Raises:
        Refusal: 499, which nobody reads.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(499, "the client left")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _last(operation: Operation, upstream: Upstream, message: Message, caller: Caller) -> Response:
    last: Message | None = None
    async for update in upstream.stream(
        operation.method, message, token=caller.token, caller=caller.name, seconds=operation.seconds
    ):
        last = update
    if last is None or not last.HasField(cast("Any", operation.answer)):
        raise InternalFault("the service ended without an answer")
    told = cast("Message", getattr(last, operation.answer))
    return Response(await written_aside(told), headers={"cache-control": "no-store"}, media_type="application/json")


async def _waiting(request: Request, operation: Operation, upstream: Upstream, caller: Caller) -> Response:
    """Wait for a task's end, or for as long as the query says; then tell where it runs."""
    seconds = _wait_seconds(request)
    message = await bound(request, operation, own=frozenset({WAIT}))
    if takes_events(request):
        return await event_answer(request, operation, upstream, message, caller)
    if seconds:
        call = upstream.call(operation.method, message, token=caller.token, caller=caller.name, seconds=float(seconds))
        try:
            return await reply_answer(request, operation, await until_gone(request, call))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
    # The same task again is the same execution, which says its id at once.
    submit = method(SUBMIT)
    kind = next(one.name for one in submit.input_type.fields if one.message_type == operation.method.input_type)
    task = new_message(submit.input_type)
    getattr(task, kind).CopyFrom(message)
    try:
        reply = await upstream.call(submit, task, token=caller.token, caller=caller.name)
    except grpc.aio.AioRpcError as error:
        return problem_of(error, instance=request.url.path, within=f"{kind}.")
    headers = {"cache-control": "no-store", "location": _place(operation.location, reply)}
    return Response(await written_aside(reply), 202, headers=headers, media_type="application/json")


def _wait_seconds(request: Request) -> int:
    given = request.query_params.getlist(WAIT)
    if not given:
        return MAX_WAIT_SECONDS
    if len(given) > 1:
        raise InvalidRequest(f"{WAIT} is given twice", field=WAIT)
    text = given[0]
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) <= MAX_WAIT_SECONDS):
        raise InvalidRequest(f"{WAIT} is no number of seconds", field=WAIT, hint=f"0 to {MAX_WAIT_SECONDS}")
    return int(text)


def _place(template: str, reply: Message) -> str:
    """A path of the API with the reply's fields in it; empty where one of them is empty."""
    names = PLACES.findall(template)
    values = {name: quote(str(getattr(reply, name)), safe="") for name in names}
    return template.format(**values) if all(values.values()) else ""


def _next_page(request: Request, token: str) -> str:
    query = [(name, text) for name, text in request.query_params.multi_items() if name != _PAGE_TOKEN]
    return f"{request.url.path}?{urlencode([*query, (_PAGE_TOKEN, token)])}"
