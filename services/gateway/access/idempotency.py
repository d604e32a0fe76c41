"""Idempotency keys: a repeated POST gets the first response again and is not executed again."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.access.origins import Headers, adding, values
from services.gateway.problems import Refusal
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.access import AccessRole, Principal
from swe_ai_fleet.domain.errors import Fenced, FleetError
from swe_ai_fleet.following import in_background
from swe_ai_fleet.ports import KeyValue

HEADER = b"idempotency-key"
MAX_ANSWER_BYTES = 256 * 1024
LEASE_SECONDS = 60.0
"""After a gateway has died, its keys count as running for this long."""
_KEY = re.compile(rb"[!-~]{1,200}")
_log = structlog.get_logger()


def key_of(headers: Headers) -> bytes | None:
    """The idempotency key of a request; None without one. Raises Refusal."""
    keys = values(headers, HEADER)
    if not keys:
        return None
    if len(keys) > 1 or not _KEY.fullmatch(keys[0]):
        raise Refusal(
            400,
            "the idempotency key is not valid",
            field="idempotency-key",
            hint="send it once: 1 to 200 visible ASCII characters",
        )
    return keys[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The record of a key: a request that counts as running until `until`, or its response (status not 0)."""

    fingerprint: str
    until: float = 0.0
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    """In base64."""
    roles: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Buffered:
    """A response that is held back until it is stored; without a `start` it is passed on as it arrives."""

    status: int = 0
    start: Message = field(default_factory=dict[str, Any])
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False


class AnswerStore:
    """Stores the first response to each key of each caller.

    Event streams, responses without a length or above `MAX_ANSWER_BYTES`, secrets and refusals (nothing was executed)
    are not stored; they have the header `Idempotency-Kept: false`, and the key can be used again, with another body
    too.
    """

    def __init__(self, keys: KeyValue) -> None:
        self._keys = keys

    async def once(
        self, key: bytes, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, body: bytes, secret: bool
    ) -> None:
        """Execute an admitted request, or send its first response again. Raises Refusal, FleetError.

        Args:
            secret: Whether the response must not be stored.
        """
        who: Principal = scope["state"]["authenticated"].principal
        owner = (part.encode() for part in _owner(scope, who))
        target = scope["raw_path"] + b"?" + scope["query_string"]
        name = f"{who.tenant}." + _hash(*owner, scope["method"].encode(), target, key)
        fingerprint = _hash(b",".join(values(scope["headers"], b"content-type")), body)
        revision = 0
        entry = await self._keys.get(name)
        if entry is not None:
            record = from_json(_Record, entry.value)
            if record.fingerprint != fingerprint:
                raise Refusal(
                    422,
                    "this idempotency key was used with a different body",
                    field="idempotency-key",
                    hint="use a new key for a new request",
                )
            if record.status:
                # The caller may no longer read the response, and executing the request again would do it twice.
                if not all(who.may(AccessRole(role)) for role in record.roles):
                    raise Refusal(
                        403,
                        "the answer to this idempotency key needs a role that you no longer have",
                        field="idempotency-key",
                        hint="the request was done; use a new key for a new request",
                    )
                answer = Response(b64decode(record.body), record.status)
                answer.raw_headers = [(key.encode("latin-1"), text.encode("latin-1")) for key, text in record.headers]
                await answer(scope, receive, adding(send, [("Idempotency-Replayed", "true")]))
                return
            if record.until > time.time():
                raise _under_way()
            revision = entry.revision
        try:
            revision = await self._keys.put(name, _marker(fingerprint), revision=revision)
        except Fenced:
            raise _under_way() from None
        buffered = _Buffered()
        send_unstored = adding(send, [("Idempotency-Kept", "false")])

        async def buffer(message: Message) -> None:
            if message["type"] == "http.response.start":
                buffered.status = message["status"]
                if not secret and _is_kept(message):
                    buffered.start = message
                    return
                await send_unstored(message)
            elif not buffered.start:
                if not message.get("more_body", False):
                    # Before the client gets the end and may send the request again.
                    await self._free(name)
                await send(message)
            elif message["type"] == "http.response.body":
                buffered.body += message.get("body", b"")
                buffered.complete = not message.get("more_body", False)

        try:
            async with self._renewing(name, fingerprint, revision):
                await app(scope, receive, buffer)
        except Exception:
            await self._free(name)
            raise
        if not buffered.start or not buffered.complete:
            await self._free(name)
            return
        record = _Record(
            fingerprint=fingerprint,
            status=buffered.status,
            headers=tuple((key.decode("latin-1"), value.decode("latin-1")) for key, value in buffered.start["headers"]),
            body=b64encode(buffered.body).decode(),
            roles=tuple(sorted(who.roles)),
        )
        try:
            await self._keys.put(name, to_json(record))
        except FleetError as error:
            # The request was executed, so the client must get the response.
            _log.warning("the answer to an idempotency key could not be stored", error=str(error))
            await send_unstored(buffered.start)
        else:
            await send(buffered.start)
        await send({"type": "http.response.body", "body": bytes(buffered.body)})

    @asynccontextmanager
    async def _renewing(self, name: str, fingerprint: str, revision: int) -> AsyncGenerator[None]:
        """Renew the marker of a running request for as long as the context lasts."""

        async def renew() -> None:
            last = revision
            while True:
                await asyncio.sleep(LEASE_SECONDS / 3)
                try:
                    last = await self._keys.put(name, _marker(fingerprint), revision=last)
                except FleetError as error:
                    _log.warning("an idempotency key could not be reserved", error=str(error))
                    return

        async with in_background(renew(), name="idempotency key"):
            yield

    async def _free(self, name: str) -> None:
        try:
            await self._keys.delete(name)
        except FleetError as error:
            _log.warning("an idempotency key could not be released; it expires in a minute", error=str(error))


def _owner(scope: Scope, who: Principal) -> tuple[str, ...]:
    """The namespace of a caller's keys, which does not depend on its current token."""
    state = scope["state"]
    if who.sole:
        return state["token"], state["caller"]
    return "caller", who.tenant, who.name, state["caller"]


def _marker(fingerprint: str) -> bytes:
    return to_json(_Record(fingerprint=fingerprint, until=time.time() + LEASE_SECONDS))


def _is_kept(start: Message) -> bool:
    status, headers = start["status"], start.get("headers", ())
    lengths = values(headers, b"content-length")
    return (
        status < 400
        and len(lengths) == 1
        and int(lengths[0]) <= MAX_ANSWER_BYTES
        and not any(value.startswith(b"text/event-stream") for value in values(headers, b"content-type"))
    )


def _under_way() -> Refusal:
    return Refusal(
        409,
        "a request with this idempotency key is still running",
        code="ABORTED",
        field="idempotency-key",
        hint="send it again later for its answer",
        retry_after_seconds=2,
    )


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
