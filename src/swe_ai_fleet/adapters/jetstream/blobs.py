"""Large content in a JetStream object store (the layout that every NATS client reads), named by its digest."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Refused
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.adapters.jetstream.streams import last_message, object_stream
from swe_ai_fleet.adapters.jetstream.wire import MESSAGE_ID
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import NotFound

CHUNK_BYTES = 128 * 1024
_OFF_LOOP_BYTES = 1024 * 1024
_ROLLUP = "Nats-Rollup"
_OF_SUBJECT = "sub"


class JetStreamBlobs:
    """A `BlobStore` in one bucket."""

    def __init__(self, connection: Connection, bucket: str, *, patience: float) -> None:
        self._connection = connection
        self._bucket = bucket
        self._stream = object_stream(bucket)
        self._patience = patience

    async def put(self, tenant: str, execution_id: str, data: bytes, media_type: str, *, place: str = "") -> BlobRef:
        """Store content unless it is there already; what a `place` held is gone then, at once.

        Raises ResourceExhausted, Unavailable.
        """
        digest = await _sha256(data)
        name = f"{tenant}/{execution_id}/{place or digest.hex()}"
        ref = BlobRef(name=name, digest=digest.hex(), size=len(data), media_type=media_type)
        info = None if place else await self._info(name)
        if info is not None and not info.get("deleted") and info.get("size") == len(data):
            return ref
        attempt = secrets.token_hex(11)
        object_id = _object_id(name) if place else attempt
        chunks = range(0, len(data), CHUNK_BYTES)
        for number, offset in enumerate(chunks):
            # The first chunk takes the place of all that were there.
            replacing = {_ROLLUP: _OF_SUBJECT} if place and not number else {}
            await self._publish(
                f"$O.{self._bucket}.C.{object_id}",
                data[offset : offset + CHUNK_BYTES],
                {MESSAGE_ID: f"{attempt}/{number}", **replacing},
            )
        meta = {
            "name": name,
            "bucket": self._bucket,
            "nuid": object_id,
            "size": len(data),
            "chunks": len(chunks),
            "digest": f"SHA-256={base64.urlsafe_b64encode(digest).decode()}",
            "mtime": datetime.now(UTC).isoformat(),
            "headers": {"Content-Type": [media_type]},
            "options": {"max_chunk_size": CHUNK_BYTES},
        }
        # The description comes last: what it names is whole.
        await self._publish(
            self._meta_subject(name), json.dumps(meta).encode(), {MESSAGE_ID: attempt, _ROLLUP: _OF_SUBJECT}
        )
        return ref

    async def discard(self, ref: BlobRef) -> None:
        """Leave an empty object where a place held something. Raises ResourceExhausted, Unavailable.

        Nothing but the right to publish is needed for it, which every writer has.
        """
        object_id, attempt = _object_id(ref.name), secrets.token_hex(11)
        meta = {
            "name": ref.name,
            "bucket": self._bucket,
            "nuid": object_id,
            "size": 0,
            "chunks": 0,
            "mtime": datetime.now(UTC).isoformat(),
            "deleted": True,
        }
        # The description first: what it names is whole, or it names nothing.
        for subject, payload in (
            (self._meta_subject(ref.name), json.dumps(meta).encode()),
            (f"$O.{self._bucket}.C.{object_id}", b""),
        ):
            await self._publish(subject, payload, {MESSAGE_ID: f"{attempt}/{subject}", _ROLLUP: _OF_SUBJECT})

    async def get(self, ref: BlobRef) -> bytes:
        """The content, checked against its digest. Raises NotFound (also for damaged content), Unavailable."""
        info = await self._info(ref.name)
        if info is None or info.get("deleted"):
            raise NotFound(f"no blob {ref.name}")
        parts: list[bytes] = []
        if info["size"]:
            chunks = f"$O.{self._bucket}.C.{info['nuid']}"
            stored = messages(self._connection, self._stream, chunks, follow=False, patience=self._patience)
            async with aclosing(stored):
                parts.extend([chunk.data async for chunk in stored if chunk is not None])
        data = b"".join(parts)
        if (await _sha256(data)).hex() != ref.digest:
            raise NotFound(f"blob {ref.name} is damaged: {len(data)} of {ref.size} bytes")
        return data

    async def _info(self, name: str) -> dict[str, Any] | None:
        meta = await last_message(self._connection, self._stream, self._meta_subject(name), patience=self._patience)
        return None if meta is None else json.loads(meta.data)

    def _meta_subject(self, name: str) -> str:
        return f"$O.{self._bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    async def _publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        try:
            await self._connection.publish(subject, payload, headers=headers, patience=self._patience)
        except Refused as refusal:
            raise refusal.fault.as_fleet_error() from refusal


def _object_id(name: str) -> str:
    """What the chunks of a place are published under, whoever writes there."""
    return hashlib.sha256(name.encode()).hexdigest()[:22]


async def _sha256(data: bytes) -> bytes:
    if len(data) < _OFF_LOOP_BYTES:
        return hashlib.sha256(data).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).digest())
