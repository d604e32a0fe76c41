"""Requests that orchestrators answer over plain NATS: logins, and operations that agent hosts have no permission for.

A request goes to one of the processes that share its queue; subscriptions are renewed after a lost connection.

Logins (auth callout): the server asks on a subject that no client may publish to. The answer is a user's JWT, or the
reason for the refusal, signed with the key that the server's configuration names as `issuer`.
https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_callout

Hosts: each logs in to an account for its tenant's hosts, which sees the tenant's subjects alone. There it writes
events, chunks of blobs and values of buckets itself, and reads the last message of a subject. No NATS permission could
limit other operations to its tenant, so it requests them on `agent.ask.<operation>.<tenant>.<execution>`: reading a
log, reading a blob (objects are found by a hash of their names), describing a new blob, publishing a result. A host
never makes consumers: their creator chooses the subject of delivery, and the server does not check its permission
there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, Protocol, cast
from urllib.parse import unquote

import structlog

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import ASKED, Backoff, NatsMessage, StoredMessage, Unanswered, ask_subject
from swe_ai_fleet.domain import errors
from swe_ai_fleet.domain.errors import FleetError, InternalFault, InvalidRequest, PreconditionFailed, Unavailable

_AT_ONCE = 64
_LOGIN_SUBJECT = "$SYS.REQ.USER.AUTH"
_GROUP = "orchestrators"
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
_log = structlog.get_logger(__name__)
TIMEOUT_SECONDS = 600.0
"""How long a host waits for an orchestrator: long enough to start a new one on another node."""
_PAGE_BYTES = 512 * 1024


async def listen(
    connection: Connection,
    subject: str,
    on_message: Callable[[NatsMessage], None],
    *,
    queue: str = "",
    listening: asyncio.Event | None = None,
) -> NoReturn:
    """Receive a subject until cancelled, across reconnections; `listening` is set once it is subscribed."""
    backoff = Backoff.lasting(None)
    while True:
        lost = asyncio.Event()

        def deliver(message: NatsMessage | None, lost: asyncio.Event = lost) -> None:
            if message is None:
                lost.set()
            else:
                on_message(message)

        try:
            subscription = await connection.subscribe(subject, deliver, queue=queue)
        except Unanswered as reason:
            await backoff.wait(reason)
            continue
        backoff = Backoff.lasting(None)
        if listening is not None:
            listening.set()
        try:
            await lost.wait()
        finally:
            await connection.unsubscribe(subscription)


async def respond(
    connection: Connection,
    subject: str,
    answer: Callable[[NatsMessage], Awaitable[bytes]],
    *,
    queue: str,
    listening: asyncio.Event | None = None,
) -> None:
    """Answer every request on a subject until cancelled; `answer` must not raise."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def answered(message: NatsMessage) -> None:
        async with room:
            payload = await answer(message)
        with suppress(Unanswered):  # the requester repeats its request
            await connection.send(message.reply, payload)

    async with asyncio.TaskGroup() as group:

        def on_message(message: NatsMessage) -> None:
            if message.reply:
                group.create_task(answered(message))

        await listen(connection, subject, on_message, queue=queue, listening=listening)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLogin:
    """An accepted login: the account, the subjects for publishing and subscribing there (None: all), and its lifetime.

    After `seconds` the server ends the connection and asks again at the next one; 0: never.
    """

    account: str
    publishes: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    subscribes: tuple[str, ...] | None = None
    seconds: float = 0.0


class Issuer:
    """The key whose signed logins NATS trusts.

    Args:
        seed: The nkey seed of an account, as of `nk -gen account`. Raises PreconditionFailed for other text.
    """

    def __init__(self, seed: str) -> None:
        import nkeys

        try:
            self._pair: Any = cast("Any", nkeys).from_seed(bytearray(seed.strip().encode()))
            self.public = bytes(self._pair.public_key).decode().rstrip("=")
        except (nkeys.NkeysError, ValueError) as error:
            raise PreconditionFailed("this is not an nkey seed", field="nats_issuer_file") from error
        if not self.public.startswith("A"):
            raise PreconditionFailed("this is not the nkey of an account", field="nats_issuer_file")

    def signed(self, claims: Mapping[str, object]) -> str:
        """Claims as a JWT of this issuer."""
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        body = {"jti": secrets.token_hex(16), "iat": int(time.time()), "iss": self.public, **claims}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_encoded(self._pair.sign(text.encode()))}"

    def user(self, subject: str, login: NatsLogin) -> str:
        """The JWT of a user whose public nkey is `subject`."""
        nats: dict[str, object] = {"type": "user", "version": 2, **_UNLIMITED}
        if login.publishes is not None:
            nats["pub"] = {"allow": list(login.publishes), "deny": list(login.denied)}
        if login.subscribes is not None:
            nats["sub"] = {"allow": list(login.subscribes)}
        claims: dict[str, object] = {"sub": subject, "aud": login.account, "nats": nats}
        if login.seconds:
            claims["exp"] = int(time.time() + login.seconds)
        return self.signed(claims)


async def answer_logins(
    connection: Connection,
    issuer: Callable[[], Issuer],
    authenticate: Callable[[str], Awaitable[NatsLogin]],
    *,
    listening: asyncio.Event,
) -> None:
    """Answer logins that the server does not know itself, together with other replicas, until cancelled.

    Args:
        issuer: Returns, for each login, the key that signs the answer. It may block.
        authenticate: Returns the login of a token. Raises FleetError for a token that is refused.
    """

    async def answered(message: NatsMessage) -> bytes:
        claims: dict[str, Any] = json.loads(_decoded(message.data.split(b".")[1]))
        request: dict[str, Any] = claims["nats"]
        user = str(request["user_nkey"])
        fields: dict[str, object] = {"type": "authorization_response", "version": 2}
        signer = await asyncio.to_thread(issuer)
        try:
            login = await authenticate(str(request["connect_opts"].get("auth_token", "")))
            fields["jwt"] = signer.user(user, login)
        except Exception as fault:  # noqa: BLE001 - the edge of the process
            fields["error"] = fault.message if isinstance(fault, FleetError) else "internal error; see the log"
            if not isinstance(fault, FleetError):
                _log.exception("nats.login_fault")
            _log.warning("nats.login_refused", reason=str(fields["error"]), host=request["client_info"].get("host", ""))
        return signer.signed({"sub": user, "aud": request["server_id"]["id"], "nats": fields}).encode()

    await respond(connection, _LOGIN_SUBJECT, answered, queue=_GROUP, listening=listening)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(data: bytes) -> bytes:
    return base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))


class Ask(StrEnum):
    """The operations that a host can request; each is a token of the subject."""

    EVENTS = "events"
    RESULT = "result"
    INFO = "info"
    CONTENT = "content"
    DESCRIBE = "describe"


EventsFor = Callable[[str, str, str, int], AsyncGenerator[StoredMessage | None, None]]
"""Reads the events of a tenant's execution, of one agent, from a sequence on."""
ResultFor = Callable[[str, str, Mapping[str, Any]], Awaitable[bool]]
"""Publishes an agent's result in a tenant's execution; returns whether it is new."""


async def ask(
    connection: Connection, operation: Ask, tenant: str, execution_id: str, body: Mapping[str, object]
) -> dict[str, Any]:
    """Send a request to the orchestrators, repeated until one answers.

    Raises:
        FleetError: The orchestrator's fault.
        Unavailable: Nobody answered for ten minutes.
    """
    subject, payload = ask_subject(operation, tenant, execution_id), json.dumps(body).encode()
    backoff = Backoff.lasting(TIMEOUT_SECONDS)
    while True:
        message, _ = await connection.request_until_answered(subject, payload, backoff)
        answer: dict[str, Any] = json.loads(message.data)
        fault = answer.get("fault")
        if fault is None:
            return answer
        kind = getattr(errors, str(fault["kind"]), InternalFault)
        error = cast("FleetError", kind(str(fault["message"]), hint=str(fault["hint"])))
        if not isinstance(error, Unavailable):
            raise error
        await backoff.wait(error)


async def asked_messages(
    connection: Connection,
    operation: Ask,
    tenant: str,
    execution_id: str,
    body: Mapping[str, object],
    *,
    start: int = 0,
) -> AsyncGenerator[StoredMessage, None]:
    """The messages of a log or a blob, requested page by page. Raises as `ask` does."""
    while True:
        answer = await ask(connection, operation, tenant, execution_id, {**body, "start": start})
        for sequence, subject, data in answer["messages"]:
            yield StoredMessage(sequence=sequence, subject=subject, data=base64.b64decode(data))
            start = sequence + 1
        if not answer["more"]:
            return


class BlobMessages(Protocol):
    """The messages that blobs are kept as, by the name of the blob."""

    async def info(self, name: str) -> dict[str, Any] | None:
        """The description of a blob; None for an unknown one. Raises Unavailable."""
        ...

    def content(self, name: str, start: int) -> AsyncGenerator[StoredMessage | None, None]:
        """Its chunks from a sequence on. Raises NotFound, Unavailable."""
        ...

    async def describe(self, meta: dict[str, Any]) -> None:
        """Store a description, behind the chunks that it names. Raises ResourceExhausted, Unavailable."""
        ...


async def answer_hosts(connection: Connection, blobs: BlobMessages, events: EventsFor, result: ResultFor) -> None:
    """Answer the requests of all tenants' hosts, together with the other orchestrators, until cancelled.

    Each answer concerns the tenant and the execution in the subject, which the server has checked.
    """

    async def answered(message: NatsMessage) -> bytes:
        try:
            return json.dumps(await _answer(message, blobs, events, result)).encode()
        except FleetError as error:
            fault = error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = InvalidRequest(f"this request is not valid: {error!r}"[:500])
        except Exception as error:  # noqa: BLE001 - the edge of the process
            _log.exception("a host's request failed with an internal error")
            fault = InternalFault(f"internal error ({type(error).__name__})")
        document = {"kind": type(fault).__name__, "message": fault.message, "hint": fault.hint}
        return json.dumps({"fault": document}).encode()

    await respond(connection, ASKED, answered, queue=_GROUP)


async def _answer(message: NatsMessage, blobs: BlobMessages, events: EventsFor, result: ResultFor) -> dict[str, object]:
    _, _, question, *rest = message.subject.split(".")
    tenant, execution_id = (unquote(part) for part in rest)
    body: dict[str, Any] = json.loads(message.data)
    match Ask(question):
        case Ask.EVENTS:
            return await _page(events(tenant, execution_id, str(body["agent_id"]), int(body["start"])))
        case Ask.RESULT:
            return {"published": await result(tenant, execution_id, body)}
        case Ask.INFO:
            return {"info": await blobs.info(_own(str(body["name"]), tenant, execution_id))}
        case Ask.CONTENT:
            return await _page(blobs.content(_own(str(body["name"]), tenant, execution_id), int(body["start"])))
        case Ask.DESCRIBE:
            meta: dict[str, Any] = body["meta"]
            _own(str(meta["name"]), tenant, execution_id)
            if not str(meta["nuid"]).startswith(f"{rest[0]}."):
                raise InvalidRequest("these chunks belong to another tenant")
            await blobs.describe(meta)
            return {}


def _own(name: str, tenant: str, execution_id: str) -> str:
    """The name of a blob of this tenant's execution. Raises InvalidRequest for another's."""
    if not name.startswith(f"{tenant}/{execution_id}/"):
        raise InvalidRequest("this blob belongs to another tenant or execution")
    return name


async def _page(stored: AsyncGenerator[StoredMessage | None, None]) -> dict[str, object]:
    page: list[tuple[int, str, str]] = []
    size = 0
    async with aclosing(stored) as messages:
        async for message in messages:
            if message is None:
                continue
            if page and size + len(message.data) > _PAGE_BYTES:
                return {"messages": page, "more": True}
            page.append((message.sequence, message.subject, base64.b64encode(message.data).decode()))
            size += len(message.data)
    return {"messages": page, "more": False}
