"""Static tokens: made once, shown to their owner once, kept as a digest."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import UTC, date, datetime, time

from services.access.tables import TokenTable
from services.auth import Admission
from swe_ai_fleet.domain.access import Principal

PREFIX = "fleet_"
"""By which secret scanners know one."""
_ENTROPY_BYTES = 32


def new_token() -> str:
    """A token that nobody guesses. Its entropy is what makes one round of SHA-256 enough to keep it by."""
    return PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)


def token_digest(token: str) -> str:
    """What the access file keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def end_of(expires: datetime | date | None) -> float:
    """When a token ends, in seconds since 1970; 0 = never. A day without a time counts to its end, in UTC."""
    if expires is None:
        return 0.0
    if not isinstance(expires, datetime):
        expires = datetime.combine(expires, time.max, UTC)
    return expires.timestamp()


class StaticTokens:
    """Finds who holds a token.

    The look-up is by digest: whoever tries tokens cannot choose its bits, so that how long it takes tells nothing.
    """

    def __init__(self, entries: Iterable[TokenTable]) -> None:
        self._holders = {
            entry.sha256: Admission(
                principal=Principal(tenant=entry.tenant, name=entry.name, roles=entry.roles),
                expires=end_of(entry.expires),
            )
            for entry in entries
        }

    def find(self, token: str, now: float) -> Admission | None:
        """Whose it is; None where it is nobody's, or over."""
        found = self._holders.get(token_digest(token))
        return None if found is None or 0 < found.expires <= now else found
