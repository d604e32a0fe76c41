"""Messages as the JetStream API tells them."""

from __future__ import annotations

import base64
from typing import Any

from swe_ai_fleet.adapters.jetstream.messages import StoredMessage


def from_api(answer: dict[str, Any]) -> StoredMessage:
    """The message in an answer of `STREAM.MSG.GET`."""
    message: dict[str, Any] = answer["message"]
    return StoredMessage(
        sequence=message["seq"],
        subject=message["subject"],
        data=base64.b64decode(message.get("data", "")),
        headers=_headers(base64.b64decode(message.get("hdrs", ""))),
    )


def _headers(raw: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers
