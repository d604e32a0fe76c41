"""Who sent a request: whoever shows the token, as a bearer or by the cookie that stands for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from services.auth import caller_name, shows
from services.gateway.access.places import Authority, Headers, Origin, values
from services.gateway.access.refusal import Refused
from services.gateway.access.session import Sessions, cookie_name, shown_sessions
from swe_ai_fleet.domain.errors import InvalidRequest


class Shown(StrEnum):
    """What a request shows."""

    BEARER = "bearer"
    COOKIE = "cookie"
    NOTHING = "nothing"
    """And nothing is asked for: the gateway has no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who may come in.

    Attributes:
        by: What let it in.
        token: For the services behind.
        expires: When that ends, in seconds since 1970; 0 = it does not.
    """

    by: Shown
    token: str
    expires: int = 0


class Credentials:
    """Checks what requests show. With the token None everybody may come in."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._sessions = Sessions(token) if token else None

    def visitor(self, headers: Headers, host: Authority, origin: Origin) -> Visitor | None:
        """Who sent it; None where it shows nothing that holds. Pages of named origins must send the bearer."""
        if not self._token or self._sessions is None:
            return Visitor(by=Shown.NOTHING, token="")
        shown = values(headers, b"authorization")
        if shown:
            return Visitor(by=Shown.BEARER, token=self._token) if shows(shown, self._token) else None
        if origin is Origin.NAMED:
            return None
        for secure in (True, False):
            name = cookie_name(host, secure=secure)
            for value in shown_sessions(headers, name):
                if expires := self._sessions.expires(name, value):
                    return Visitor(by=Shown.COOKIE, token=self._token, expires=expires)
        return None

    def new_session(self, token: str, name: str) -> str | None:
        """The value of a cookie of that name for who shows the token; None where it is another one."""
        if self._sessions is None:
            return ""
        return self._sessions.new(name) if shows([f"Bearer {token}"], self._token or "") else None


def caller(headers: Headers) -> str:
    """How the caller names itself in `Fleet-Caller`; empty where it does not. Raises Refused."""
    try:
        return caller_name([value.decode("latin-1") for value in values(headers, b"fleet-caller")])
    except InvalidRequest as error:
        raise Refused(
            status=400, code="INVALID_ARGUMENT", detail=error.message, field=error.field, hint=error.hint
        ) from None


def unauthenticated() -> Refused:
    """What somebody without a token is told."""
    return Refused(
        status=401,
        code="UNAUTHENTICATED",
        detail="no valid token",
        field="authorization",
        hint="send 'Authorization: Bearer <token>', or open the page by the address that `fleet open` prints",
        headers={"WWW-Authenticate": 'Bearer realm="fleet"'},
    )


_SAFE = ("GET", "HEAD", "OPTIONS")
_OWN_SITE = (b"same-origin", b"none")
BODY_TYPES = (b"application/json", b"application/octet-stream", b"application/x-git-bundle")
"""Types that no form of another page can send."""


def check_site(headers: Headers, visitor: Visitor | None, origin: Origin) -> None:
    """That no other site's page had a browser send it, as far as the browser says so. Raises Refused.

    A page of another origin, named or not, says so in `Origin`: this is about those requests that carry none.
    """
    by_bearer = visitor is not None and visitor.by is Shown.BEARER
    if not by_bearer and origin is Origin.NONE and _is_of_another_site(headers):
        raise _not_ours("sec-fetch-site")


def check_intent(method: str, headers: Headers, visitor: Visitor, origin: Origin) -> None:
    """That it was our own page, not a stranger's, that has a browser change something. Raises Refused."""
    if visitor.by is Shown.BEARER or method in _SAFE:
        return
    if visitor.by is Shown.COOKIE and origin is not Origin.OURS:
        raise _not_ours("origin")
    if has_body(headers) and media_type(headers) not in BODY_TYPES:
        raise Refused(
            status=415,
            code="INVALID_ARGUMENT",
            detail="with a session a body must be JSON, or a bundle",
            field="content-type",
            hint=f"one of {', '.join(one.decode() for one in BODY_TYPES)}",
        )


def check_embedding(headers: Headers) -> None:
    """That the page is not a part of somebody else's; links to it may be followed. Raises Refused."""
    if values(headers, b"sec-fetch-dest") != [b"document"] and _is_of_another_site(headers):
        raise _not_ours("sec-fetch-site")


def _is_of_another_site(headers: Headers) -> bool:
    return any(site not in _OWN_SITE for site in values(headers, b"sec-fetch-site"))


def has_body(headers: Headers) -> bool:
    """Whether a request says that it has a body."""
    return any(
        key == b"transfer-encoding" or (key == b"content-length" and value.strip(b" 0") != b"")
        for key, value in headers
    )


def media_type(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The type of a body, without parameters, in lower case; empty where there is not one."""
    shown = values(headers, b"content-type")
    return shown[0].partition(b";")[0].strip().lower() if len(shown) == 1 else b""


def _not_ours(field: str) -> Refused:
    return Refused(
        status=403,
        code="PERMISSION_DENIED",
        detail="only the gateway's own page may do this from a browser",
        field=field,
        hint="programs send 'Authorization: Bearer <token>' instead of the cookie",
    )
