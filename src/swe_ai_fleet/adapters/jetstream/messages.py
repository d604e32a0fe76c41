"""Messages as NATS brings them and keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it came in; `status` is the server's own code (`408`), empty for content."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def status(self) -> str:
        return self.headers.get("Status", "") if self.headers else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """What the server said to a stored message; `unanswered` is how often it had been sent without an answer before."""

    sequence: int
    duplicate: bool
    unanswered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message of a stream; `at` is when it was stored, in seconds since 1970 (0: not told)."""

    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    at: float = 0.0
