"""What streams hold for each tenant: sizes only, no content."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from functools import partial
from urllib.parse import unquote

from swe_ai_fleet.adapters.jetstream import subjects
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.key_value import OPERATION
from swe_ai_fleet.adapters.jetstream.messages import StoredMessage
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.domain.access import StoredPiece
from swe_ai_fleet.domain.task import DEFAULT_TENANT

_SIZE = "Nats-Msg-Size"
_MOST_HEARD = 256
_SEGMENTS_OF_CONTENT = 3
"""`<tenant>/<execution>/<sha256>`; a place has more."""


async def sizes(
    connection: Connection, stream: str, start: int, *, timeout: float
) -> AsyncGenerator[StoredPiece | None]:
    """The sizes of what a stream, a bucket or an object store has from a sequence on, without an end.

    Keys of a bucket begin with a tenant. Raises as `messages` does.
    """
    kind, _, bucket = stream.partition("_")
    prefix = {"KV": f"$KV.{bucket}.", "OBJ": f"$O.{bucket}.M."}.get(kind, "")
    wanted = (f"{prefix}>",) if prefix else subjects.STREAM_SUBJECTS[stream]
    stored = messages(
        connection, stream, *wanted, start=start, follow=True, timeout=timeout, headers_only=kind != "OBJ"
    )
    async with aclosing(stored) as heads:
        async for head in heads:
            if head is None:
                yield None
                continue
            piece = _piece(head, int(head.headers.get(_SIZE, "0")))
            tenant, size, place, at = piece.tenant, piece.bytes, "", head.at
            if kind == "KV":
                place, size = head.subject.removeprefix(prefix), 0 if OPERATION in head.headers else size
                tenant = place.split(".")[0]
            elif kind == "OBJ":
                info = json.loads(head.data)
                tenant, *rest = str(info["name"]).split("/")
                place = "/".join(rest) if len(rest) >= _SEGMENTS_OF_CONTENT else ""
                size, at = int(info.get("size", 0)), datetime.fromisoformat(info["mtime"]).timestamp()
                size = 0 if info.get("deleted") else size
            yield StoredPiece(sequence=head.sequence, tenant=tenant, bytes=size, at=at, place=place)


class HeardSizes:
    """The sizes of the newest messages of a stream, as somebody hears them who follows it anyway."""

    def __init__(self) -> None:
        self._newest = deque[StoredPiece](maxlen=_MOST_HEARD)
        self._changed = asyncio.Event()

    def take(self, message: StoredMessage) -> None:
        """Hear of the next message."""
        self._newest.append(_piece(message, len(message.data)))
        self._wake()

    def end(self) -> None:
        """Nothing more is heard."""
        self._newest.clear()
        self._wake()

    def has(self, sequence: int) -> bool:
        """Whether everything behind a position was, or will be, heard."""
        return bool(self._newest) and self._newest[0].sequence <= sequence <= self._newest[-1].sequence

    async def behind(self, sequence: int) -> AsyncGenerator[StoredPiece]:
        """The sizes behind a position, for as long as it has them all."""
        while self.has(sequence):
            # Mostly one is new, of hundreds.
            new = list(itertools.takewhile(partial(_is_behind, sequence), reversed(self._newest)))
            for piece in reversed(new):
                sequence = piece.sequence
                yield piece
            if not new:
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed.clear()


def _is_behind(sequence: int, piece: StoredPiece) -> bool:
    return piece.sequence > sequence


def _piece(message: StoredMessage, size: int) -> StoredPiece:
    return StoredPiece(
        sequence=message.sequence,
        tenant=tenant_of(message.subject),
        bytes=len(message.subject) + size,
        at=message.at,
    )


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
