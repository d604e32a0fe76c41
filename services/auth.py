"""Who calls: what a call shows, and the principal that it is carried out for."""

from __future__ import annotations

import hmac
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Protocol, cast

import grpc

from services.errors import Context, Handler, Interceptor, Unauthenticated, abort, reshaped, status
from swe_ai_fleet.domain.access import SOLE, Principal
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest

OPEN_SERVICES = ("/grpc.health.v1.Health/",)
"""Probes ask for these without a token; they say no more than whether the server is ready."""
CALLER = "fleet-caller"
"""The metadata in which callers name themselves where one token is everybody's."""
_HEADER = "authorization"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_principal: ContextVar[Principal] = ContextVar("principal")


class Authenticator(Protocol):
    """Knows callers by what they show."""

    async def authenticate(self, headers: Sequence[str | bytes]) -> Principal:
        """Whom the `authorization` headers of a call show. Raises Unauthenticated."""
        ...


class OneToken:
    """Whoever shows the token may do everything; without a token, everybody may."""

    def __init__(self, token: str | None) -> None:
        if token == "":
            raise ValueError("an empty token protects nothing")
        self._token = token

    async def authenticate(self, headers: Sequence[str | bytes]) -> Principal:
        """Whom the headers show. Raises Unauthenticated."""
        if self._token is not None and not shows(headers, self._token):
            raise Unauthenticated("no valid token", hint="send the metadata 'authorization: Bearer <token>'")
        return SOLE


class AccessInterceptor(Interceptor):
    """Refuses calls of strangers before their request is read, and tells handlers who calls: `principal()`."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = str(handler_call_details.method)
        metadata = cast("Sequence[tuple[str, str | bytes]]", handler_call_details.invocation_metadata or ())
        if method.startswith(OPEN_SERVICES):
            return await continuation(handler_call_details)
        try:
            caller = await self._authenticator.authenticate([value for key, value in metadata if key == _HEADER])
        except FleetError as error:
            # On the wire every kind of call is a stream, and this one need not read anything.
            return cast("Any", grpc).stream_stream_rpc_method_handler(_refusing(error))
        found = cast("Handler | None", await continuation(handler_call_details))
        return reshaped(found, lambda one: _called(one, caller), lambda one: _streamed(one, caller))


def principal() -> Principal:
    """Who makes the call that runs now. Raises LookupError outside of calls."""
    return _principal.get()


def tenant() -> str:
    """The tenant of the call that runs now. Raises LookupError outside of calls."""
    return _principal.get().tenant


def shows(headers: Sequence[str | bytes], token: str) -> bool:
    """Whether the `authorization` headers of a call are one, and it is `Bearer <token>`; in constant time."""
    if len(headers) != 1:
        return False
    header = headers[0] if isinstance(headers[0], bytes) else headers[0].encode("utf-8", "replace")
    scheme, _, credential = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(credential.strip(), token.encode())


def caller_of(context: Context) -> str:
    """Who calls; where one token is everybody's, how they name themselves in the metadata `fleet-caller`, or empty.

    A name that somebody gave themselves decides whose turn it is, never what is allowed. Raises InvalidRequest.
    """
    metadata = cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ())
    named = caller_name([value for key, value in metadata if key == CALLER])
    who = _principal.get()
    return named if who.sole else who.name


def caller_name(names: Sequence[str | bytes]) -> str:
    """The name in the values of `fleet-caller`; empty where there is none. Raises InvalidRequest."""
    if not names:
        return ""
    if len(names) > 1 or not isinstance(names[0], str) or not _NAME.fullmatch(names[0]):
        raise InvalidRequest(
            f"the metadata {CALLER!r} is no name", field=CALLER, hint="once, 1 to 64 of letters, digits and ._@-"
        )
    return names[0]


def _called(
    behaviour: Callable[[Any, Context], Awaitable[Any]], caller: Principal
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def call(request: Any, context: Context) -> Any:
        _principal.set(caller)
        return await behaviour(request, context)

    return call


def _streamed(
    behaviour: Callable[[Any, Context], AsyncGenerator[Any, None]], caller: Principal
) -> Callable[[Any, Context], AsyncGenerator[Any, None]]:
    async def call(request: Any, context: Context) -> AsyncGenerator[Any, None]:
        _principal.set(caller)
        async with aclosing(behaviour(request, context)) as replies:
            async for reply in replies:
                yield reply

    return call


def _refusing(error: FleetError) -> Callable[[Any, Any], Awaitable[None]]:
    async def refuse(_: Any, context: Any) -> None:
        await abort(context, status(error))

    return refuse
