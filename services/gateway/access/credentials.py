"""Credentials of a request: a bearer token, or in a browser a cookie that holds the sealed token.

Browsers send cookies with all requests, so a request with a cookie must also come from our own page, as far as the
browser tells.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from services.auth import Admission, Authenticator, OneToken, Presented, bearer, caller_name
from services.errors import Unauthenticated
from services.gateway.access.origins import Authority, Headers, Origin, values
from services.gateway.problems import Refusal
from swe_ai_fleet.domain.access import SOLE, Principal
from swe_ai_fleet.domain.errors import InvalidRequest, PermissionDenied, Unavailable

SECONDS = 7 * 86_400
"""The maximum duration of a session, which also ends with its token."""
MAX_TOKEN_CHARS = 2_600
"""Browsers drop cookies of more than 4,096 bytes."""
_PURPOSE = b"fleet http session"
_NONCE_BYTES = 12
_MOST_TRIED = 4
_MOST_CHARS = 3_800


class SessionSeal:
    """Seals and opens sessions with a key from the gateway's own token; sessions are not stored.

    A browser sends a cookie to every port of a host, so the cookie must not hold a readable token: only the gateway can
    read it (AES-256-GCM, bound to the cookie's name). Another server on this machine that gets the cookie can use it
    with this gateway only, and for a limited time.

    Gateways with the same `secret`, their own token, accept each other's sessions.
    """

    def __init__(self, secret: str) -> None:
        self._key = hmac.digest(secret.encode(), _PURPOSE, "sha256")

    def new(self, name: str, token: str, *, until: float = 0.0) -> str:
        """The value of a cookie of that name. `until`: when the token expires, in seconds since 1970; 0 = never."""
        expires = int(time.time()) + SECONDS
        text = f"{min(expires, int(until)) if until else expires}.{token}"
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return urlsafe_b64encode(nonce + _cipher(self._key).encrypt(nonce, text.encode(), name.encode())).decode()

    def open(self, name: str, value: str) -> tuple[str, int] | None:
        """The token in a cookie and its expiry in seconds since 1970; None for a foreign or expired cookie."""
        from cryptography.exceptions import InvalidTag

        if len(value) > _MOST_CHARS:
            return None
        try:
            sealed = b64decode(value.encode("ascii"), altchars=b"-_", validate=True)
            nonce, data = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            text = _cipher(self._key).decrypt(nonce, data, name.encode()).decode()
        except (ValueError, InvalidTag):
            return None
        expires, _, token = text.partition(".")
        return (token, int(expires)) if int(expires) > time.time() else None


def _cipher(key: bytes):
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def cookie_name(host: Authority, *, secure: bool) -> str:
    """The cookie's name, which includes the port: fleets on other ports of the host get each other's cookies."""
    port = f"-{host.port}" if host.port is not None else ""
    return f"{'__Host-' if secure else ''}fleet-session{port}"


def shown_sessions(headers: Headers, name: str) -> list[str]:
    """The values of cookies of a name, at most a few: another server on the host may have set more."""
    cookie = name.encode()
    tokens: list[str] = []
    for line in values(headers, b"cookie"):
        for part in line.split(b";"):
            key, _, value = part.strip().partition(b"=")
            if key == cookie and len(tokens) < _MOST_TRIED:
                tokens.append(value.decode("latin-1"))
    return tokens


def set_cookie(name: str, value: str, *, seconds: int, secure: bool) -> str:
    """A `Set-Cookie` header; 0 seconds remove the cookie."""
    parts = [f"{name}={value}", "Path=/", f"Max-Age={seconds}", "HttpOnly", "SameSite=Strict"]
    return "; ".join([*parts, "Secure"] if secure else parts)


class Shown(StrEnum):
    """The kind of a request's credentials."""

    BEARER = "bearer"
    COOKIE = "cookie"
    NOTHING = "nothing"
    """None are required: the gateway has no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatedCaller:
    """A caller with valid credentials, until `expires` in seconds since 1970 (0 = unknown).

    `token` is the caller's own, with which the services behind are called.
    """

    by: Shown
    token: str = field(repr=False)
    principal: Principal = SOLE
    expires: int = 0


class CredentialChecker:
    """Checks the credentials of requests.

    Args:
        token: The gateway's own token, which seals sessions, and without `authenticator` is the token of all callers.
            None: there are no sessions, and without `authenticator` no credentials are required.
        authenticator: Authenticates callers by their tokens; None: `token` is the only one.
    """

    def __init__(self, token: str | None, authenticator: Authenticator | None = None) -> None:
        self._open = authenticator is None and not token
        self._sessions = SessionSeal(token) if token else None
        self._authenticator = authenticator or OneToken(token or None)

    async def authenticate(self, headers: Headers, host: Authority, origin: Origin) -> AuthenticatedCaller | None:
        """The caller; None without valid credentials. Pages of named origins need a bearer token.

        Raises:
            Refusal: The request names another tenant than the caller's.
            Unavailable: Credentials cannot be checked now.
        """
        authenticated = await self._authenticate(headers, host, origin)
        tenants = values(headers, b"fleet-tenant")
        if authenticated is not None and any(tenant != authenticated.principal.tenant.encode() for tenant in tenants):
            raise Refusal(
                403,
                "acting for another tenant is not possible over HTTP",
                field="fleet-tenant",
                hint="services of the fleet use gRPC for that",
            )
        return authenticated

    async def _authenticate(self, headers: Headers, host: Authority, origin: Origin) -> AuthenticatedCaller | None:
        if self._open:
            return AuthenticatedCaller(by=Shown.NOTHING, token="")
        authorizations = values(headers, b"authorization")
        if authorizations:
            token = bearer(authorizations)
            return None if token is None else await self._lookup(Shown.BEARER, token)
        if origin is Origin.NAMED or self._sessions is None:
            return None
        for secure in (True, False):
            name = cookie_name(host, secure=secure)
            for value in shown_sessions(headers, name):
                if (session := self._sessions.open(name, value)) is None:
                    continue
                token, until = session
                if authenticated := await self._lookup(Shown.COOKIE, token, until=until):
                    return authenticated
        return None

    async def may_stay(self, authenticated: AuthenticatedCaller) -> bool:
        """Whether an admitted caller would still be admitted as the same principal."""
        if self._open:
            return True
        if 0 < authenticated.expires <= time.time():
            return False
        try:
            current = await self._lookup(authenticated.by, authenticated.token)
        except Unavailable:
            return True
        return current is not None and current.principal == authenticated.principal

    async def new_session(self, token: str, name: str) -> str | None:
        """The value of a cookie of that name for the holder of a token; None if the token is invalid.

        Raises:
            Refusal: The token is too long for a cookie.
            Unavailable: The token cannot be checked now.
        """
        if self._open:
            return ""
        if self._sessions is None:
            return None
        admission = await self._admission(token)
        if admission is None:
            return None
        if len(token) > MAX_TOKEN_CHARS:
            raise Refusal(
                413,
                f"the token has more than {MAX_TOKEN_CHARS} characters, which is too long for a session cookie",
                field="token",
                hint="send it as a bearer token, or let its issuer put fewer claims in it",
            )
        return self._sessions.new(name, token, until=admission.expires)

    async def _lookup(self, by: Shown, token: str, *, until: int = 0) -> AuthenticatedCaller | None:
        admission = await self._admission(token)
        if admission is None:
            return None
        ends = [int(end) for end in (admission.expires, until) if end]
        return AuthenticatedCaller(by=by, token=token, principal=admission.principal, expires=min(ends, default=0))

    async def _admission(self, token: str) -> Admission | None:
        try:
            return await self._authenticator.authenticate(Presented(authorization=[f"Bearer {token}"]))
        except (Unauthenticated, PermissionDenied):
            return None


def caller(headers: Headers) -> str:
    """The caller's name in `Fleet-Caller`; empty if there is none. Raises Refusal."""
    try:
        return caller_name([value.decode("latin-1") for value in values(headers, b"fleet-caller")])
    except InvalidRequest as error:
        raise Refusal(400, error.message, field=error.field, hint=error.hint) from None


def unauthenticated() -> Refusal:
    """The refusal of a request without valid credentials."""
    return Refusal(
        401,
        "invalid or missing token",
        field="authorization",
        hint="send 'Authorization: Bearer <token>', or open the page by the address that `fleet open` prints",
    )


_SAFE = ("GET", "HEAD", "OPTIONS")
_OWN_SITE = (b"same-origin", b"none")
BODY_TYPES = (b"application/json", b"application/octet-stream", b"application/x-git-bundle")
"""Types of bodies that a form in another page cannot send."""


def check_site(headers: Headers, authenticated: AuthenticatedCaller | None, origin: Origin) -> None:
    """Check that a request does not come from another site's page, as far as the browser tells. Raises Refusal.

    This is for requests without `Origin`, which shows another origin by itself.
    """
    by_bearer = authenticated is not None and authenticated.by is Shown.BEARER
    if not by_bearer and origin is Origin.NONE and _is_of_another_site(headers):
        raise _not_ours("sec-fetch-site")


def check_intent(method: str, headers: Headers, authenticated: AuthenticatedCaller, origin: Origin) -> None:
    """Check that a change with a session cookie was requested by our own page. Raises Refusal."""
    if authenticated.by is Shown.BEARER or method in _SAFE:
        return
    if authenticated.by is Shown.COOKIE and origin is not Origin.OURS:
        raise _not_ours("origin")
    if has_body(headers) and media_type(headers) not in BODY_TYPES:
        raise Refusal(
            415,
            "requests with a session cookie must have a JSON body or a git bundle",
            field="content-type",
            hint=f"one of {', '.join(body_type.decode() for body_type in BODY_TYPES)}",
        )


def check_embedding(headers: Headers) -> None:
    """Check that our page is not embedded in another site's page; links to it are allowed. Raises Refusal."""
    if values(headers, b"sec-fetch-dest") != [b"document"] and _is_of_another_site(headers):
        raise _not_ours("sec-fetch-site")


def _is_of_another_site(headers: Headers) -> bool:
    return any(site not in _OWN_SITE for site in values(headers, b"sec-fetch-site"))


def has_body(headers: Headers) -> bool:
    """Whether a request's headers announce a body."""
    return any(
        key == b"transfer-encoding" or (key == b"content-length" and value.strip(b" 0") != b"")
        for key, value in headers
    )


def media_type(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The type of a body, without parameters, in lower case; empty unless there is exactly one."""
    types = values(headers, b"content-type")
    return types[0].partition(b";")[0].strip().lower() if len(types) == 1 else b""


def _not_ours(field: str) -> Refusal:
    return Refusal(
        403,
        "only the gateway's own page may do this in a browser",
        field=field,
        hint="programs send 'Authorization: Bearer <token>' instead of the cookie",
    )
