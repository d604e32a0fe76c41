"""What hosts of agents ask the orchestrators for, because no permission of NATS could hold it to their tenant.

A host logs in to an account of its tenant's hosts, which sees the tenant's subjects alone. There it writes events,
chunks of blobs and values of buckets by itself, and reads the last message of a subject. It asks for the rest on
`agent.ask.<what>.<tenant>.<execution>`: a log, a blob's content (objects are found by a hash of their names), the
description of a new blob, a result. A host never makes consumers: who makes one says where messages are delivered,
and the server does not ask whether they may be sent there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast
from urllib.parse import unquote

import structlog

from swe_ai_fleet.adapters.jetstream.backoff import Backoff
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Unanswered
from swe_ai_fleet.adapters.jetstream.messages import Message, StoredMessage
from swe_ai_fleet.adapters.jetstream.responding import respond
from swe_ai_fleet.adapters.jetstream.subjects import ASKED, ask_subject
from swe_ai_fleet.domain import errors
from swe_ai_fleet.domain.errors import FleetError, InternalFault, InvalidRequest, Unavailable

PATIENCE_SECONDS = 600.0
"""How long a host waits for an orchestrator: as long as it takes to start one anew on another node."""
_PAGE_BYTES = 512 * 1024
_GROUP = "orchestrators"

_log = structlog.get_logger(__name__)


class Ask(StrEnum):
    """What can be asked for; each is a token of the subject."""

    EVENTS = "events"
    RESULT = "result"
    INFO = "info"
    CONTENT = "content"
    DESCRIBE = "describe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Who answers: each gets the tenant and the execution of the subject, which the server vouches for."""

    events: Callable[[str, str, str, int], AsyncGenerator[StoredMessage | None, None]]
    result: Callable[[str, str, Mapping[str, Any]], Awaitable[bool]]
    info: Callable[[str], Awaitable[dict[str, Any] | None]]
    content: Callable[[str, int], AsyncGenerator[StoredMessage | None, None]]
    describe: Callable[[dict[str, Any]], Awaitable[None]]


async def ask(
    connection: Connection, what: Ask, tenant: str, execution_id: str, body: Mapping[str, object]
) -> dict[str, Any]:
    """Ask the orchestrators, again until one answers.

    Raises:
        FleetError: What the orchestrator met.
        Unavailable: Nobody answered for ten minutes.
    """
    subject, payload = ask_subject(what, tenant, execution_id), json.dumps(body).encode()
    backoff = Backoff.lasting(PATIENCE_SECONDS)
    while True:
        try:
            message = await connection.request(subject, payload)
        except Unanswered as reason:
            await backoff.wait(reason)
            continue
        answer = cast("dict[str, Any]", json.loads(message.data))
        fault = answer.get("fault")
        if fault is None:
            return answer
        kind = getattr(errors, str(fault["kind"]), InternalFault)
        error = cast("FleetError", kind(str(fault["message"]), hint=str(fault["hint"])))
        if not isinstance(error, Unavailable):
            raise error
        await backoff.wait(error)


async def asked_messages(
    connection: Connection, what: Ask, tenant: str, execution_id: str, body: Mapping[str, object], *, start: int = 0
) -> AsyncGenerator[StoredMessage, None]:
    """The messages of a log or of a blob, asked for page by page. Raises as `ask` does."""
    while True:
        answer = await ask(connection, what, tenant, execution_id, {**body, "start": start})
        for sequence, subject, data in answer["messages"]:
            yield StoredMessage(sequence=sequence, subject=subject, data=base64.b64decode(data))
            start = sequence + 1
        if not answer["more"]:
            return


async def answer_hosts(connection: Connection, answers: Answers) -> None:
    """Answer what hosts of all tenants ask, in turns with the other orchestrators, until cancelled."""

    async def answered(message: Message) -> bytes:
        try:
            return json.dumps(await _answered(answers, message)).encode()
        except FleetError as fault:
            told = {"kind": type(fault).__name__, "message": fault.message, "hint": fault.hint}
        except (ValueError, KeyError, TypeError, AttributeError) as fault:
            told = {"kind": InvalidRequest.__name__, "message": f"this cannot be asked: {fault!r}"[:500], "hint": ""}
        except Exception as fault:  # noqa: BLE001 - the edge of the process
            _log.exception("a host's request met a fault of ours")
            told = {"kind": InternalFault.__name__, "message": f"a fault of ours ({type(fault).__name__})", "hint": ""}
        return json.dumps({"fault": told}).encode()

    await respond(connection, ASKED, answered, queue=_GROUP)


async def _answered(answers: Answers, message: Message) -> dict[str, object]:
    _, _, what, *rest = message.subject.split(".")
    tenant, execution_id = (unquote(part) for part in rest)
    body = cast("dict[str, Any]", json.loads(message.data))
    match Ask(what):
        case Ask.EVENTS:
            return await _page(answers.events(tenant, execution_id, str(body["agent_id"]), int(body["start"])))
        case Ask.RESULT:
            return {"published": await answers.result(tenant, execution_id, body)}
        case Ask.INFO:
            return {"info": await answers.info(_own(str(body["name"]), tenant, execution_id))}
        case Ask.CONTENT:
            return await _page(answers.content(_own(str(body["name"]), tenant, execution_id), int(body["start"])))
        case Ask.DESCRIBE:
            meta = cast("dict[str, Any]", body["meta"])
            _own(str(meta["name"]), tenant, execution_id)
            if not str(meta["nuid"]).startswith(f"{rest[0]}."):
                raise InvalidRequest("these chunks are not of the tenant")
            await answers.describe(meta)
            return {}


def _own(name: str, tenant: str, execution_id: str) -> str:
    """The name of a blob, which begins as the subject that it is asked for on says."""
    if not name.startswith(f"{tenant}/{execution_id}/"):
        raise InvalidRequest("this blob is not of the tenant and the execution")
    return name


async def _page(stored: AsyncGenerator[StoredMessage | None, None]) -> dict[str, object]:
    found: list[tuple[int, str, str]] = []
    size = 0
    async with aclosing(stored) as messages:
        async for message in messages:
            if message is None:
                continue
            if found and size + len(message.data) > _PAGE_BYTES:
                return {"messages": found, "more": True}
            found.append((message.sequence, message.subject, base64.b64encode(message.data).decode()))
            size += len(message.data)
    return {"messages": found, "more": False}
