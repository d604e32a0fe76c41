"""What streams hold for each tenant: sizes only, no content."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from urllib.parse import unquote

from swe_ai_fleet.adapters.jetstream import subjects
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.key_value import OPERATION, bucket_stream
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.streams import object_stream
from swe_ai_fleet.domain.access import StoredPiece
from swe_ai_fleet.domain.task import DEFAULT_TENANT

_SIZE = "Nats-Msg-Size"
_SEGMENTS_OF_CONTENT = 3
"""`<tenant>/<execution>/<sha256>`; a place has more."""


async def bucket_held(
    connection: Connection, bucket: str, start: int, *, timeout: float
) -> AsyncGenerator[StoredPiece | None]:
    """The sizes of values of a bucket whose keys begin with a tenant, without an end. Raises as `messages` does."""
    prefix = f"$KV.{bucket}."
    stored = messages(
        connection, bucket_stream(bucket), f"{prefix}>", start=start, follow=True, timeout=timeout, headers_only=True
    )
    async with aclosing(stored) as heads:
        async for head in heads:
            if head is None:
                yield None
                continue
            key = head.subject.removeprefix(prefix)
            size = 0 if OPERATION in head.headers else len(head.subject) + int(head.headers.get(_SIZE, "0"))
            yield StoredPiece(sequence=head.sequence, tenant=key.split(".")[0], bytes=size, at=head.at, place=key)


async def blobs_held(
    connection: Connection, bucket: str, start: int, *, timeout: float
) -> AsyncGenerator[StoredPiece | None]:
    """The sizes of blobs from a sequence on, without an end. Raises as `messages` does."""
    described = messages(
        connection, object_stream(bucket), f"$O.{bucket}.M.>", start=start, follow=True, timeout=timeout
    )
    async with aclosing(described) as metas:
        async for meta in metas:
            if meta is None:
                yield None
                continue
            info = json.loads(meta.data)
            tenant, *rest = str(info["name"]).split("/")
            yield StoredPiece(
                sequence=meta.sequence,
                tenant=tenant,
                bytes=0 if info.get("deleted") else int(info.get("size", 0)),
                at=datetime.fromisoformat(info["mtime"]).timestamp(),
                place="/".join(rest) if len(rest) >= _SEGMENTS_OF_CONTENT else "",
            )


async def held(
    connection: Connection, stream: str, start: int, *, timeout: float
) -> AsyncGenerator[StoredPiece | None]:
    """The sizes of a stream's messages from a sequence on, without an end. Raises as `messages` does."""
    wanted = subjects.STREAM_SUBJECTS[stream]
    stored = messages(connection, stream, *wanted, start=start, follow=True, timeout=timeout, headers_only=True)
    async with aclosing(stored) as heads:
        async for head in heads:
            if head is None:
                yield None
            else:
                size = len(head.subject) + int(head.headers.get(_SIZE, "0"))
                yield StoredPiece(sequence=head.sequence, tenant=tenant_of(head.subject), bytes=size, at=head.at)


def tenant_of(subject: str) -> str:
    """Whose a message of a stream of ours is, as its subject says."""
    tokens = subject.split(".")
    # Where no tenant is named, it is the default one's.
    rest = tokens[3:] if subject.startswith("agent.cmd.") else tokens[2:]
    named = unquote(rest[0]) if rest else ""
    if subject.startswith("agent.results."):
        # No task id begins as the name of a tenant does.
        return named[1:] if named.startswith("_") else DEFAULT_TENANT
    if subject.startswith("agent.cmd.") and (named in ("high", "normal", "low") or named.isdigit()):
        return DEFAULT_TENANT
    return named or DEFAULT_TENANT
