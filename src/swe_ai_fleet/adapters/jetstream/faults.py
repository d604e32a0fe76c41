"""Faults on the way to JetStream, each as one of the fleet's own, and the waits between tries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from swe_ai_fleet.domain.errors import FleetError, NotFound, PreconditionFailed, ResourceExhausted, Unavailable

FIRST_SECONDS = 0.05
LAST_SECONDS = 2.0
_WRONG_LAST_SEQUENCE = (10071, 10164)
_NO_BATCHES = (10174, 10177)
_STORE_FAILED = 10077
_EXHAUSTED = (10002, 10023, 10028, 10047)
_NOT_ENABLED = (10039, 10076)


class Backoff:
    """Waits that double up to a cap, with jitter, until a deadline (None = for ever)."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._delay = FIRST_SECONDS

    @classmethod
    def lasting(cls, seconds: float | None) -> Backoff:
        return cls(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    @property
    def remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def wait(self, reason: object) -> None:
        """Wait before another try. Raises Unavailable with the reason once the time is up."""
        remaining = self.remaining
        if remaining is not None and remaining <= 0:
            raise Unavailable(f"NATS does not answer: {reason}", hint="is the server running and reachable?")
        delay = random.uniform(0.5, 1.0) * self._delay  # noqa: S311 (jitter, not a secret)
        self._delay = min(2 * self._delay, LAST_SECONDS)
        await asyncio.sleep(delay if remaining is None else min(delay, remaining))


class Unanswered(Exception):
    """A request got no answer; whether it was carried out is unknown."""


class Forbidden(PreconditionFailed):
    """The server does not let this user send to a subject; no repetition changes that."""

    @classmethod
    def to(cls, subject: str) -> Forbidden:
        """The fault of whoever sends to a subject."""
        return cls(
            f"NATS does not allow this process to publish to {subject}",
            field="nats",
            hint="check the permissions of its NATS user",
        )


class ApiFault(Exception):
    """JetStream's own error: `code` is HTTP-like, `error_code` says which."""

    def __init__(self, code: int, error_code: int, description: str) -> None:
        super().__init__(f"{description} [{error_code}]")
        self.code = code
        self.error_code = error_code
        self.description = description

    @classmethod
    def from_json(cls, error: Mapping[str, object]) -> ApiFault:
        code, error_code = error.get("code"), error.get("err_code")
        return cls(
            code if isinstance(code, int) else 500,
            error_code if isinstance(error_code, int) else 0,
            str(error.get("description", "")),
        )

    @property
    def conflict(self) -> bool:
        """The subject's last sequence is not the expected one."""
        return self.error_code in _WRONG_LAST_SEQUENCE

    @property
    def no_batches(self) -> bool:
        """The stream takes no atomic batches, or none with what ours need."""
        return self.error_code in _NO_BATCHES

    @property
    def full(self) -> bool:
        """A stream, an account or the disk has no room."""
        return self.error_code in _EXHAUSTED or (self.error_code == _STORE_FAILED and "maximum" in self.description)

    @property
    def passing(self) -> bool:
        """It may be over on the next try (no leader at the moment, a server that starts or stops)."""
        return self.code == 503 and not self.full and not self.conflict and self.error_code not in _NOT_ENABLED

    def as_fleet_error(self) -> FleetError:
        if self.full:
            return ResourceExhausted(
                f"NATS storage is full: {self.description}", hint="raise the limit or shorten the retention"
            )
        if self.code == 404:
            return NotFound(f"NATS: {self.description}")
        if self.error_code in _NOT_ENABLED:
            return PreconditionFailed(
                "JetStream is not enabled on this NATS server", hint="enable JetStream for the account"
            )
        if self.code == 503:
            return Unavailable(f"NATS: {self.description}")
        return PreconditionFailed(f"NATS refused: {self.description} [{self.error_code}]")


class Refused(Exception):
    """Another message stands where a publish expected one, or a batch is not taken.

    `unanswered` is how often it had been sent before.
    """

    def __init__(self, fault: ApiFault, unanswered: int) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.unanswered = unanswered
