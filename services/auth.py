"""Who may call: whoever shows the token."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import grpc

from services.errors import Context, Handler, Interceptor, Unauthenticated, abort, status
from swe_ai_fleet.domain.errors import InvalidRequest

OPEN_SERVICES = ("/grpc.health.v1.Health/",)
"""Probes ask for these without a token; they say no more than whether the server is ready."""


class TokenInterceptor(Interceptor):
    """Refuses calls without `authorization: Bearer <token>` in their metadata, before their request is read."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("an empty token protects nothing")
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = str(handler_call_details.method)
        metadata = cast("Sequence[tuple[str, str | bytes]]", handler_call_details.invocation_metadata or ())
        if method.startswith(OPEN_SERVICES) or shows([value for key, value in metadata if key == _HEADER], self._token):
            return await continuation(handler_call_details)
        # On the wire every kind of call is a stream, and this one need not read anything.
        return cast("Any", grpc).stream_stream_rpc_method_handler(_refuse)


def shows(headers: Sequence[str | bytes], token: str) -> bool:
    """Whether the `authorization` headers of a call are one, and it is `Bearer <token>`; in constant time."""
    if len(headers) != 1:
        return False
    header = headers[0] if isinstance(headers[0], bytes) else headers[0].encode("utf-8", "replace")
    scheme, _, credential = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(credential.strip(), token.encode())


_HEADER = "authorization"
CALLER = "fleet-caller"
"""The metadata in which callers name themselves."""
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def caller_of(context: Context) -> str:
    """How a caller names itself, in the metadata `fleet-caller`; empty where it does not.

    Callers that show the same token are told apart by nothing else: the name decides whose turn it is, never what is
    allowed. Raises InvalidRequest.
    """
    metadata = cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ())
    return caller_name([value for key, value in metadata if key == CALLER])


def caller_name(names: Sequence[str | bytes]) -> str:
    """The name in the values of `fleet-caller`; empty where there is none. Raises InvalidRequest."""
    if not names:
        return ""
    if len(names) > 1 or not isinstance(names[0], str) or not _NAME.fullmatch(names[0]):
        raise InvalidRequest(
            f"the metadata {CALLER!r} is no name", field=CALLER, hint="once, 1 to 64 of letters, digits and ._@-"
        )
    return names[0]


async def _refuse(_: Any, context: Context) -> None:
    error = Unauthenticated("no valid token", hint="send the metadata 'authorization: Bearer <token>'")
    await abort(context, status(error))
