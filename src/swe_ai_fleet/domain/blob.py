"""Large content by reference."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRef:
    """Something too large for an event, by reference; `size` in bytes.

    `name` is `<tenant>/<execution>/<sha256>`, or `<tenant>/<execution>/<place>` for what is replaced and discarded.
    """

    name: str
    digest: str
    size: int
    media_type: str = "application/octet-stream"
