"""Idempotency keys: a POST that is sent again is answered again, not carried out again."""

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
"""For so long after its gateway died a key is still taken as being under way."""
_KEY = re.compile(rb"[!-~]{1,200}")
_log = structlog.get_logger()


def key_of(headers: Headers) -> bytes | None:
    """The key that a request carries, None without one. Raises Refusal."""
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
    """What stands under a key: a request under way (until then it is taken to be), or its answer (status not 0)."""

    fingerprint: str
    until: float = 0.0
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    """In base64."""
    roles: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Held:
    """An answer on its way to the client: held back until it is stored, or passed on as it comes."""

    status: int = 0
    start: Message = field(default_factory=dict[str, Any])
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False


class AnswerStore:
    """Keeps the first answer to each key of each caller.

    Event streams, answers without a length or above `MAX_ANSWER_BYTES`, secrets and refusals (nothing was done) are not
    kept; the client is told so by `Idempotency-Kept: false`, and the key is free again, for another body too.
    """

    def __init__(self, keys: KeyValue) -> None:
        self._keys = keys

    async def once(
        self, key: bytes, app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, body: bytes, secret: bool
    ) -> None:
        """Have an admitted request carried out, or its first answer sent again. Raises Refusal, FleetError.

        Args:
            secret: Whether what is answered must not be kept anywhere.
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
                # It may hold what they may not see any more; carried out again it would be done twice.
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
        held = _Held()
        passing = adding(send, [("Idempotency-Kept", "false")])

        async def holding(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.status = message["status"]
                if not secret and _is_kept(message):
                    held.start = message
                    return
                await passing(message)
            elif not held.start:
                if not message.get("more_body", False):
                    # Before the client can have heard the end and send it again.
                    await self._free(name)
                await send(message)
            elif message["type"] == "http.response.body":
                held.body += message.get("body", b"")
                held.whole = not message.get("more_body", False)

        try:
            async with self._renewing(name, fingerprint, revision):
                await app(scope, receive, holding)
        except Exception:
            await self._free(name)
            raise
        if not held.start or not held.whole:
            await self._free(name)
            return
        record = _Record(
            fingerprint=fingerprint,
            status=held.status,
            headers=tuple((key.decode("latin-1"), value.decode("latin-1")) for key, value in held.start["headers"]),
            body=b64encode(held.body).decode(),
            roles=tuple(sorted(who.roles)),
        )
        try:
            await self._keys.put(name, to_json(record))
        except FleetError as error:
            # It has been carried out: the client must hear what came of it.
            _log.warning("the answer to an idempotency key could not be stored", error=str(error))
            await passing(held.start)
        else:
            await send(held.start)
        await send({"type": "http.response.body", "body": bytes(held.body)})

    @asynccontextmanager
    async def _renewing(self, name: str, fingerprint: str, revision: int) -> AsyncGenerator[None]:
        """The marker stays fresh for as long as the request takes."""

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
    """Whose keys are one space: a tenant's caller, whichever token they show now."""
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
