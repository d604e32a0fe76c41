"""The cookie that stands for a token in a browser."""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field

from services.gateway.access.places import Authority, Headers, values

SECONDS = 7 * 86_400
"""How long a session lasts at most: never longer than the token that it stands for."""
MAX_TOKEN_CHARS = 2_600
"""Browsers drop cookies of more than 4,096 bytes."""
_PURPOSE = b"fleet http session"
_NONCE_BYTES = 12
_MOST_TRIED = 4
_MOST_CHARS = 3_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a cookie stands for: a token, and until when, in seconds since 1970."""

    token: str = field(repr=False)
    expires: int


class Sessions:
    """Seals and opens sessions: nothing is kept, whoever knows the gateway's own token can open them.

    A browser sends a cookie to every port of a host, so that it must not hold a token that can be read: it holds one
    that only this gateway can read (AES-256-GCM, bound to the cookie's name). What another server on this machine could
    learn from it is good for this gateway only, and for a time.

    Args:
        secret: The gateway's own token; gateways that share it know each other's sessions.
        clock: Seconds since 1970.
    """

    def __init__(self, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret.encode(), _PURPOSE, "sha256")
        self._clock = clock

    def new(self, name: str, token: str, *, until: float = 0.0) -> str:
        """The value of a cookie of that name. `until`: when the token ends, in seconds since 1970; 0 = it does not."""
        expires = int(self._clock()) + SECONDS
        text = f"{min(expires, int(until)) if until else expires}.{token}"
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return urlsafe_b64encode(nonce + _cipher(self._key).encrypt(nonce, text.encode(), name.encode())).decode()

    def open(self, name: str, value: str) -> Session | None:
        """What a cookie stands for; None where it is none of ours or is over."""
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
        return Session(token=token, expires=int(expires)) if int(expires) > self._clock() else None


def _cipher(key: bytes):
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


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
