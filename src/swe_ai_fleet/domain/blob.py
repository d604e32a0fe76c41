"""Large content by reference."""

from __future__ import annotations

import hashlib
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


def blob_ref(tenant: str, execution_id: str, data: bytes, media_type: str) -> BlobRef:
    """The reference under which an execution stores this content."""
    digest = hashlib.sha256(data).hexdigest()
    return BlobRef(name=f"{tenant}/{execution_id}/{digest}", digest=digest, size=len(data), media_type=media_type)
