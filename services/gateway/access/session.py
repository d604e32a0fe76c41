"""The cookie that stands for the token in a browser."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable

from services.gateway.access.places import Authority, Headers, values

SECONDS = 7 * 86_400
"""How long a session lasts."""
_PURPOSE = b"fleet http session"
_MOST_TRIED = 4
_MOST_CHARS = 200


class Sessions:
    """Signs and reads sessions: nothing is kept, whoever knows the token can check them.

    A browser sends a cookie to every port of a host, so that it must not hold the token itself: what another server
    on this machine could learn from it is good for this gateway only, and for a time.
    """

    def __init__(self, token: str, *, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(token.encode(), _PURPOSE, "sha256")
        self._clock = clock

    def new(self, name: str) -> str:
        """The value of a cookie of that name."""
        expires = int(self._clock()) + SECONDS
        text = f"{expires}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._mac(name, text)}"

    def expires(self, name: str, value: str) -> int:
        """When a session ends, in seconds since 1970; 0 where it is none of ours or is over."""
        text, _, mac = value.rpartition(".")
        if len(value) > _MOST_CHARS or not hmac.compare_digest(mac.encode(), self._mac(name, text).encode()):
            return 0
        expires = int(text.partition(".")[0])
        return expires if expires > self._clock() else 0

    def _mac(self, name: str, text: str) -> str:
        return hmac.digest(self._key, f"{name}={text}".encode(), "sha256").hex()


def cookie_name(host: Authority, *, secure: bool) -> str:
    """The cookie's name: with the port, since fleets on other ports of the host get each other's cookies."""
    port = f"-{host.port}" if host.port is not None else ""
    return f"{'__Host-' if secure else ''}fleet-session{port}"


def shown_sessions(headers: Headers, name: str) -> list[str]:
    """The values of the cookies of a name, a few at most: another server on the host may have added its own."""
    wanted = name.encode()
    found: list[str] = []
    for line in values(headers, b"cookie"):
        for part in line.split(b";"):
            key, _, value = part.strip().partition(b"=")
            if key == wanted and len(found) < _MOST_TRIED:
                found.append(value.decode("latin-1"))
    return found


def set_cookie(name: str, value: str, *, seconds: int, secure: bool) -> str:
    """A `Set-Cookie` header; 0 seconds remove the cookie."""
    parts = [f"{name}={value}", "Path=/", f"Max-Age={seconds}", "HttpOnly", "SameSite=Strict"]
    return "; ".join([*parts, "Secure"] if secure else parts)
