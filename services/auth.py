"""Authentication of calls: a call's credentials and principal, and the end of streams whose access has ended."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

import grpc
from structlog.contextvars import bind_contextvars, bound_contextvars

from services.errors import Context, Continuation, Handler, Interceptor, Unauthenticated, abort, reshaped, status
from services.roles import check_role
from swe_ai_fleet.domain.access import SOLE, AccessRole, Principal
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, PermissionDenied, Unavailable

CHECK_SECONDS = 20.0
"""The interval between checks of a caller's access."""

T = TypeVar("T")


class Stay:
    """Checks the caller's access periodically, and interrupts the waiting stream once it has ended.

    Attributes:
        refusal: Why access has ended; None while it lasts.
    """

    def __init__(self, refused: Callable[[], Awaitable[FleetError | None]], seconds: float) -> None:
        self.refusal: FleetError | None = None
        self._refused = refused
        self._seconds = seconds
        self._waiting: asyncio.Timeout | None = None
        self._checking: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_check)

    async def next(self, replies: AsyncGenerator[T, None]) -> T | None:
        """The next reply; None after the last one, or once the caller's access has ended.

        A reply that is being sent is completed.
        """
        if self.refusal is None:
            try:
                async with asyncio.timeout(None) as self._waiting:
                    return await anext(replies, None)
            except TimeoutError:
                # Another timeout, unrelated to access.
                if self.refusal is None:
                    raise
            finally:
                self._waiting = None  # pyrefly: ignore[attribute-assign-on-never]
        return None

    def close(self) -> None:
        self._timer.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def _start_check(self) -> None:
        self._checking = asyncio.create_task(self._check(), name="a call's stay")

    async def _check(self) -> None:
        self.refusal = await self._refused()
        loop = asyncio.get_running_loop()
        if self.refusal is None:
            self._timer = loop.call_later(self._seconds, self._start_check)
        elif self._waiting is not None:
            self._waiting.reschedule(loop.time())


OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Services without a token: they reveal only whether the server is ready, and the public contract."""
CALLER = "fleet-caller"
"""The metadata with the caller's name, from callers that share one token, and from services that act for a caller."""
TENANT = "fleet-tenant"
"""The metadata with the tenant that a service acts for."""
_HEADER = "authorization"
_NAME = re.compile(r"[A-Za-z0-9._@:-]{1,64}")
_TENANT = re.compile(r"[a-z][a-z0-9-]{0,62}")
ID_CHARS = 128
"""The length of an id in log lines."""
_principal: ContextVar[Principal] = ContextVar("principal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """The credentials of a call: the values of its metadata, and the client's certificate in PEM.

    The certificate is empty if the client has none, or it was not read yet.
    """

    authorization: Sequence[str | bytes] = field(default=(), repr=False)
    tenants: Sequence[str | bytes] = ()
    callers: Sequence[str | bytes] = ()
    certificate: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """An authenticated principal, and when its credentials expire: seconds since 1970, 0 = unknown."""

    principal: Principal
    expires: float = 0.0


class Authenticator(Protocol):
    """Authenticates callers by their credentials."""

    @property
    def takes_certificates(self) -> bool:
        """Whether a client certificate is sufficient."""
        ...

    async def authenticate(self, presented: Presented) -> Admission:
        """The caller. Raises Unauthenticated, PermissionDenied, InvalidRequest, Unavailable."""
        ...


class OneToken:
    """One token with all rights; without a token (None) all callers have all rights."""

    takes_certificates = False

    def __init__(self, token: str | None) -> None:
        if token == "":
            raise ValueError("the token must not be empty")
        self._token = token

    async def authenticate(self, presented: Presented) -> Admission:
        """The caller. Raises Unauthenticated, InvalidRequest."""
        if self._token is not None and not shows(presented.authorization, self._token):
            raise unknown()
        return Admission(principal=on_behalf(SOLE, presented))


def unknown() -> Unauthenticated:
    """The error for an unknown caller, the same for all problems with credentials."""
    return Unauthenticated("invalid or missing token", hint="send the metadata 'authorization: Bearer <token>'")


def bearer(headers: Sequence[str | bytes]) -> str | None:
    """The token in the `authorization` headers of a call; None if they are not exactly one `Bearer <token>`."""
    if len(headers) != 1:
        return None
    header = headers[0].encode("utf-8", "replace") if isinstance(headers[0], str) else headers[0]
    scheme, _, credential = header.partition(b" ")
    credential = credential.strip()
    if scheme.lower() != b"bearer" or not credential or not credential.isascii():
        return None
    return credential.decode("ascii")


def on_behalf(who: Principal, presented: Presented) -> Principal:
    """The principal of a call; a service's call is on behalf of the tenant and caller that its metadata name.

    Raises:
        PermissionDenied: A caller that is not a service names another tenant.
        InvalidRequest: A name is invalid.
    """
    named = _named(presented.tenants, TENANT, _TENANT, "tenant", "1 to 63 of a-z, 0-9 and '-'") or who.tenant
    if not who.may(AccessRole.SERVICE):
        if named != who.tenant:
            raise PermissionDenied(
                "only services of the fleet may act for other tenants",
                field=TENANT,
                hint="leave it out, or name your own tenant",
            )
        return who
    # With one token for all, callers choose their own name: `caller_of`.
    name = "" if who.sole else caller_name(presented.callers) or who.name
    return replace(who, tenant=named, name=name)


class AccessInterceptor(Interceptor):
    """Refuses unauthenticated calls before their request is read, and provides the caller to handlers (`principal`).

    The caller of a stream is authenticated again every `check_seconds`, and must still be the same principal.
    """

    def __init__(self, authenticator: Authenticator, *, check_seconds: float = CHECK_SECONDS) -> None:
        self._authenticator = authenticator
        self._check_seconds = check_seconds

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        method = str(handler_call_details.method)
        if method.startswith(OPEN_SERVICES):
            return await continuation(handler_call_details)
        presented = _presented(handler_call_details)
        caller: Principal | None = None
        # Only the handler can read a certificate; a token takes precedence over it.
        if presented.authorization or not self._authenticator.takes_certificates:
            try:
                caller = await self._admitted(presented, method)
            except FleetError as error:
                # On the wire every kind of call is a stream, so this handler works without reading a request.
                return cast("Any", grpc).stream_stream_rpc_method_handler(_refusing(error))

        async def again(context: Context) -> Principal:
            credentials = presented if caller is not None else replace(presented, certificate=_certificate(context))
            return await self._admitted(credentials, method)

        async def enter(request: Any, context: Context) -> Principal:
            """The caller, set for the rest of the call's task, with ids for its log lines."""
            try:
                admitted = caller or await again(context)
            except FleetError as error:
                await abort(context, status(error))
            _principal.set(admitted)
            bind_contextvars(tenant=admitted.tenant)
            _bind_ids(request)
            return admitted

        def call(behaviour: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
            async def called(request: Any, context: Context) -> Any:
                await enter(request, context)
                reply = await behaviour(request, context)
                _bind_ids(reply)
                return reply

            return called

        def stream(
            behaviour: Callable[[Any, Context], AsyncGenerator[Any, None]],
        ) -> Callable[[Any, Context], AsyncGenerator[Any, None]]:
            async def streamed(request: Any, context: Context) -> AsyncGenerator[Any, None]:
                admitted = await enter(request, context)

                async def refused() -> FleetError | None:
                    try:
                        return None if await again(context) == admitted else unknown()
                    except Unavailable:
                        return None
                    except FleetError as error:
                        return error

                with closing(Stay(refused, self._check_seconds)) as stay:
                    async with aclosing(behaviour(request, context)) as replies:
                        while (reply := await stay.next(replies)) is not None:
                            yield reply
                if stay.refusal is not None:
                    await abort(context, status(stay.refusal))

            return streamed

        return reshaped(cast("Handler | None", await continuation(handler_call_details)), call, stream)

    async def _admitted(self, presented: Presented, method: str) -> Principal:
        caller_principal = (await self._authenticator.authenticate(presented)).principal
        check_role(caller_principal, method)
        return caller_principal


def principal() -> Principal:
    """The caller of the current call. Raises LookupError outside calls."""
    return _principal.get()


def tenant() -> str:
    """The tenant of the current call. Raises LookupError outside calls."""
    return _principal.get().tenant


@contextmanager
def acting_for(who: Principal) -> Generator[None]:
    """A context in which code runs as in a call of a principal."""
    before = _principal.set(who)
    try:
        with bound_contextvars(tenant=who.tenant):
            yield
    finally:
        _principal.reset(before)


def shows(headers: Sequence[str | bytes], token: str) -> bool:
    """Whether the `authorization` headers of a call are exactly `Bearer <token>`; in constant time."""
    credential = bearer(headers)
    return credential is not None and hmac.compare_digest(credential.encode(), token.encode())


def caller_of(context: Context) -> str:
    """The caller's name; with one token for all, the name in the metadata `fleet-caller`, or empty.

    A self-chosen name affects the order of queues, but never rights. Raises InvalidRequest.
    """
    metadata = cast("Sequence[tuple[str, str | bytes]]", context.invocation_metadata() or ())
    named = caller_name([value for key, value in metadata if key == CALLER])
    caller_principal = _principal.get()
    return named if caller_principal.sole else caller_principal.name


def caller_name(names: Sequence[str | bytes]) -> str:
    """The name in the values of `fleet-caller`; empty if there is none. Raises InvalidRequest."""
    return _named(names, CALLER, _NAME, "name", "1 to 64 of letters, digits and ._@:-")


def is_name(text: str) -> bool:
    """Whether a text is a valid name of a caller."""
    return _NAME.fullmatch(text) is not None


def _named(names: Sequence[str | bytes], key: str, form: re.Pattern[str], kind: str, hint: str) -> str:
    """The only value of a metadata key; empty if there is none. Raises InvalidRequest."""
    if not names:
        return ""
    if len(names) > 1 or not isinstance(names[0], str) or not form.fullmatch(names[0]):
        raise InvalidRequest(f"the metadata {key!r} is not a valid {kind}", field=key, hint=f"once, {hint}")
    return names[0]


def _presented(details: grpc.HandlerCallDetails) -> Presented:
    metadata = cast("Sequence[tuple[str, str | bytes]]", details.invocation_metadata or ())
    return Presented(
        authorization=[value for key, value in metadata if key == _HEADER],
        tenants=[value for key, value in metadata if key == TENANT],
        callers=[value for key, value in metadata if key == CALLER],
    )


def _certificate(context: Context) -> bytes:
    certificates = list(cast("Any", context).auth_context().get("x509_pem_cert", ()))
    return certificates[0] if len(certificates) == 1 else b""


def _bind_ids(message: Any) -> None:
    """Add the ids of a message's execution and agent to later log lines."""
    named = {key: str(getattr(message, key, ""))[:ID_CHARS] for key in ("execution_id", "agent_id")}
    bind_contextvars(**{key: value for key, value in named.items() if value})


def _refusing(error: FleetError) -> Callable[[Any, Any], Awaitable[None]]:
    async def refuse(_: Any, context: Any) -> None:
        await abort(context, status(error))

    return refuse
