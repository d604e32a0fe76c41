"""Signatures of webhooks, as the Standard Webhooks specification (1.0.0) has them, in its symmetric form.

What is signed is `<id>.<timestamp>.<body>`, with HMAC-SHA256; the secret is `whsec_` and its bytes in base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping

from swe_ai_fleet.domain.errors import InvalidRequest

PREFIX = "whsec_"
ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
LEAST_KEY_BYTES = 24
MOST_KEY_BYTES = 64
_NEW_KEY_BYTES = 32
_MAX_SIGNATURES = 16


class InvalidSignature(Exception):
    """A message is not from whoever has the secret, or it is too old; the text says which."""


def new_secret() -> str:
    """A random secret of 32 bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_NEW_KEY_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """The bytes of a secret. Raises InvalidRequest for what is none."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not LEAST_KEY_BYTES <= len(key) <= MOST_KEY_BYTES:
        raise InvalidRequest(
            "this is no secret of a webhook",
            field="secret",
            hint=f"{PREFIX} and {LEAST_KEY_BYTES} to {MOST_KEY_BYTES} bytes in base64; leave it out for a random one",
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of the signature; `timestamp` is in seconds since the epoch."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def signed_headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a message. Raises InvalidRequest for what is no secret."""
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: signature(key_of(secret), message_id, timestamp, body),
    }


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    tolerance_seconds: float = 300,
    *,
    now: float | None = None,
) -> str:
    """The id of a message that is genuine; the same event has the same id, however often it comes.

    Args:
        secret: What the webhook was created with, `whsec_…`.
        headers: Those of the request, in any case of letters.
        body: The request's body as it came, byte for byte.
        tolerance_seconds: How far the message's time may be from now, either way.
        now: Seconds since the epoch; None: this machine's clock.

    Raises:
        InvalidSignature: It is not genuine.
        InvalidRequest: The secret is none.
    """
    key = key_of(secret)
    found = {name.lower(): value for name, value in headers.items()}
    message_id, told, given = (found.get(name, "") for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    if not (message_id and told and given):
        raise InvalidSignature("a header is missing: webhook-id, webhook-timestamp or webhook-signature")
    if not (told.isascii() and told.isdecimal() and len(told) <= 12):
        raise InvalidSignature("webhook-timestamp is no number of seconds")
    timestamp = int(told)
    if abs((time.time() if now is None else now) - timestamp) > tolerance_seconds:
        raise InvalidSignature("the message is too old, or the clocks differ")
    expected = signature(key, message_id, timestamp, body).encode()
    # One for each secret while secrets change; other versions than ours may stand among them.
    signatures = given.encode("utf-8", "replace").split(b" ", _MAX_SIGNATURES)[:_MAX_SIGNATURES]
    if not any(hmac.compare_digest(one, expected) for one in signatures):
        raise InvalidSignature("no signature fits the body and the secret")
    return message_id
