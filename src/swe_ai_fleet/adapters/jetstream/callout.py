"""Answering NATS when it asks who logs in (auth callout): with a user's JWT, or why there is none.

The server asks on a subject that no client may send to, and takes what is signed with the key that its configuration
names as `issuer`. https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_callout
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import structlog

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.messages import Message
from swe_ai_fleet.adapters.jetstream.responding import respond
from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed

_SUBJECT = "$SYS.REQ.USER.AUTH"
_GROUP = "orchestrators"
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLogin:
    """Who somebody is let in as: an account, what is sent and heard there (None: everything), and for how long.

    After `seconds` the server ends the connection, and asks anew for the next one; 0: never.
    """

    account: str
    sends: tuple[str, ...] | None = None
    never_sends: tuple[str, ...] = ()
    hears: tuple[str, ...] | None = None
    seconds: float = 0.0


class Issuer:
    """The key that NATS trusts to say who somebody is.

    Args:
        seed: An account's nkey, as `nk -gen account` makes one. Raises PreconditionFailed for what is none.
    """

    def __init__(self, seed: str) -> None:
        import nkeys

        try:
            self._pair: Any = cast("Any", nkeys).from_seed(bytearray(seed.strip().encode()))
            self.public = bytes(self._pair.public_key).decode().rstrip("=")
        except (nkeys.NkeysError, ValueError) as error:
            raise PreconditionFailed("this is no nkey seed", field="nats_issuer_file") from error
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
        if login.sends is not None:
            nats["pub"] = {"allow": list(login.sends), "deny": list(login.never_sends)}
        if login.hears is not None:
            nats["sub"] = {"allow": list(login.hears)}
        claims: dict[str, object] = {"sub": subject, "aud": login.account, "nats": nats}
        if login.seconds:
            claims["exp"] = int(time.time() + login.seconds)
        return self.signed(claims)


async def answer_logins(
    connection: Connection,
    issuer: Issuer,
    who: Callable[[str], Awaitable[NatsLogin]],
    *,
    heard: asyncio.Event,
) -> None:
    """Answer for everybody whom the server does not know itself, in turns with others, until cancelled.

    Args:
        connection: In the account that the server asks in.
        issuer: Signs the answers.
        who: Tells who shows a token. Raises FleetError for what lets nobody in.
        heard: Set once the server can ask.
    """

    async def answered(message: Message) -> bytes:
        claims = cast("dict[str, Any]", json.loads(_decoded(message.data.split(b".")[1])))
        asked = cast("dict[str, Any]", claims["nats"])
        user = str(asked["user_nkey"])
        told: dict[str, object] = {"type": "authorization_response", "version": 2}
        try:
            login = await who(str(asked["connect_opts"].get("auth_token", "")))
            told["jwt"] = issuer.user(user, login)
        except Exception as fault:  # noqa: BLE001 - the edge of the process
            told["error"] = fault.message if isinstance(fault, FleetError) else "a fault of ours; see the log"
            if not isinstance(fault, FleetError):
                _log.exception("nats.login_fault")
            _log.warning("nats.login_refused", reason=str(told["error"]), host=asked["client_info"].get("host", ""))
        return issuer.signed({"sub": user, "aud": asked["server_id"]["id"], "nats": told}).encode()

    await respond(connection, _SUBJECT, answered, queue=_GROUP, heard=heard)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(data: bytes) -> bytes:
    return base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))
