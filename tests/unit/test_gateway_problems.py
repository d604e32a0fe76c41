"""Faults of every kind as problem documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import grpc
import grpc.aio
import pytest
import structlog
from google.rpc import status_pb2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Scope

from services.errors import status as status_of
from services.gateway.bugs import BugMiddleware
from services.gateway.problems import HANDLERS, MEDIA_TYPE, STATUSES, Refusal, problem, problem_of, told_of
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PreconditionFailed, ResourceExhausted

SECRET = "ipv4:10.0.0.7:50055"


def answered(ending: status_pb2.Status) -> grpc.aio.AioRpcError:
    """What a client raises where one of our services ended a call like this."""
    details = (("grpc-status-details-bin", ending.SerializeToString()),)
    code = next(one for one in grpc.StatusCode if one.value[0] == ending.code)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*details), ending.message)


def bare(code: grpc.StatusCode, words: str = SECRET) -> grpc.aio.AioRpcError:
    """What gRPC raises itself."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), words)


def test_every_code_has_a_status() -> None:
    assert STATUSES.keys() == {code.name for code in grpc.StatusCode} - {"OK"}
    assert (STATUSES["FAILED_PRECONDITION"], STATUSES["RESOURCE_EXHAUSTED"], STATUSES["UNIMPLEMENTED"]) == (
        409,
        429,
        501,
    )


@pytest.mark.parametrize(
    "fault",
    [
        InvalidRequest("rounds is -1", field="rounds", hint="0 for the default"),
        NotFound("no such thing", field="execution_id"),
        PreconditionFailed("it has ended", hint="take another"),
        ResourceExhausted("the queue is full"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_fault_is_the_same_from_here_and_from_a_service(fault: FleetError) -> None:
    here, there = told_of(fault, instance="/api/x"), told_of(answered(status_of(fault)), instance="/api/x")
    assert here == there
    assert (here.detail, here.field, here.hint) == (fault.message, fault.field, fault.hint)


def test_fields_lose_what_they_stand_in() -> None:
    fault = InvalidRequest("no", field="deliberate.task_id")
    assert told_of(fault, within="deliberate.").field == "task_id"
    assert told_of(answered(status_of(fault)), within="deliberate.").field == "task_id"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_the_words_of_grpc_itself_stay_inside(code: grpc.StatusCode) -> None:
    stranger = status_pb2.Status(code=code.value[0], message=SECRET)
    for error in (bare(code), answered(stranger)):
        answer = problem_of(error)
        told = json.loads(bytes(answer.body))
        assert SECRET not in json.dumps(told)
        # Who left hears nothing any more: what is heard of as cancelled was let go by a server that ends.
        name = "UNAVAILABLE" if code is grpc.StatusCode.CANCELLED else code.name
        assert told["code"] == name
        assert told["status"] == answer.status_code == STATUSES[name]


def test_headers() -> None:
    busy = problem_of(bare(grpc.StatusCode.UNAVAILABLE))
    assert (busy.headers["retry-after"], busy.headers["content-type"]) == ("1", MEDIA_TYPE)
    assert problem_of(bare(grpc.StatusCode.UNAUTHENTICATED)).headers["www-authenticate"].startswith("Bearer")
    assert problem(416, "no", headers={"content-range": "bytes */3"}).headers["content-range"] == "bytes */3"
    assert "retry-after" not in problem(400, "no").headers


def raising(fault: Exception) -> Callable[[Request], object]:
    async def endpoint(_: Request) -> Response:
        raise fault

    return endpoint


async def asked(app: Starlette, path: str, method: str = "GET") -> tuple[list[Message], dict[str, object]]:
    """The messages of an answer, and its JSON."""
    scope: Scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [], "scheme": "http", "server": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    sent: list[Message] = []

    async def receive() -> Message:
        # The client stays.
        await asyncio.Event().wait()
        raise AssertionError("it never leaves")

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent, json.loads(body) if body.startswith(b"{") else {}


def app_of(endpoint: Callable[[Request], object]) -> Starlette:
    return Starlette(
        routes=[Route("/there", endpoint, methods=["GET"])],
        middleware=[Middleware(BugMiddleware)],
        exception_handlers=dict(HANDLERS),
    )


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (InvalidRequest("no", field="x"), 400),
        (bare(grpc.StatusCode.DEADLINE_EXCEEDED), 504),
        (Refusal(415, "no", field="content-type"), 415),
    ],
)
async def test_what_an_endpoint_raises_is_told(fault: Exception, status: int) -> None:
    _, told = await asked(app_of(raising(fault)), "/there")
    assert (told["status"], told["instance"]) == (status, "/there")


async def test_a_bug_is_logged_once_and_told_without_a_word_of_it() -> None:
    with structlog.testing.capture_logs() as lines:
        sent, told = await asked(app_of(raising(KeyError(SECRET))), "/there")
    assert sent[0]["status"] == told["status"] == 500
    assert SECRET not in json.dumps(told)
    assert [line["fault"] for line in lines] == ["KeyError"]


async def test_a_bug_in_the_middle_of_an_answer_ends_it() -> None:
    async def broken(_: Request) -> Response:
        async def body():  # type: ignore[no-untyped-def]
            yield b"half"
            raise KeyError(SECRET)

        return StreamingResponse(body())

    with structlog.testing.capture_logs() as lines:
        sent, _ = await asked(app_of(broken), "/there")
    assert [message.get("more_body") for message in sent[1:]] == [True]
    assert len(lines) == 1


async def test_what_starlette_says_itself() -> None:
    async def there(_: Request) -> Response:
        return PlainTextResponse("here")

    sent, told = await asked(app_of(there), "/nowhere")
    assert (sent[0]["status"], told["code"]) == (404, "NOT_FOUND")
    sent, told = await asked(app_of(there), "/there", "DELETE")
    assert (sent[0]["status"], told["code"]) == (405, "UNIMPLEMENTED")
    assert sorted(dict(sent[0]["headers"])[b"allow"].split(b", ")) == [b"GET", b"HEAD"]
