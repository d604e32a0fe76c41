"""What is stored for tenants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """Something that was stored for a tenant: `bytes` since `at` (seconds since 1970), told at position `sequence`.

    A `place` is one whose content is replaced by the next piece there (with 0 bytes it is given back); empty: it stays
    until it is too old.
    """

    sequence: int
    tenant: str
    bytes: int
    at: float
    place: str = ""
