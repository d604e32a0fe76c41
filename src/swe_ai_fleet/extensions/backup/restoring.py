"""Restores a backup into an empty NATS server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.streams import CHUNK_BYTES, StreamHead, restore, stream_heads
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.extensions.backup.making import Manifest, Report, Saved, read_manifest

_TIMEOUT_SECONDS = 60.0
_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A stream that was put back. `expired` messages were past their age, and the server has dropped them."""

    name: str
    messages: int
    last_sequence: int
    expired: int


async def verified(directory: Path) -> Manifest:
    """The manifest of a backup whose files all have the right digests. Raises NotFound, PreconditionFailed."""
    manifest = await asyncio.to_thread(read_manifest, directory)
    for saved in manifest.streams:
        await asyncio.to_thread(_check_file, directory / saved.file, saved)
    return manifest


async def restore_backup(
    connection: Connection, directory: Path, *, replicas: int = 0, report: Report = lambda _: None
) -> list[Restored]:
    """Restore a backup into NATS with all sequence numbers kept. Every file is checked before anything is sent.

    Args:
        connection: To a server, or a cluster, that holds no stream.
        directory: The backup.
        replicas: Of each stream; 0: as they had.
        report: Called with a line for each stream.

    Raises:
        NotFound: The directory holds no whole backup.
        PreconditionFailed: A file is damaged, or the server is not empty.
        ResourceExhausted: The server has no room.
        Unavailable: NATS did not answer; the streams restored so far have to be removed.
    """
    manifest = await verified(directory)
    heads = await stream_heads(connection, timeout=_TIMEOUT_SECONDS)
    if heads:
        names = ", ".join(head.name for head in heads[:5])
        raise PreconditionFailed(
            f"this NATS server is not empty: {names}{' …' if len(heads) > 5 else ''}",
            field="nats_url",
            hint="restore into an empty one, while no fleet is running in it",
        )
    streams: list[Restored] = []
    for saved in manifest.streams:
        restored = await _restore(connection, directory, saved, replicas)
        streams.append(restored)
        expired = f", {restored.expired} past their age" if restored.expired else ""
        report(f"{restored.name}: {restored.messages} messages{expired}")
    return streams


async def _restore(connection: Connection, directory: Path, saved: Saved, replicas: int) -> Restored:
    config = {**saved.config, "num_replicas": replicas} if replicas else saved.config
    head = StreamHead(
        config=config,
        messages=saved.messages,
        bytes=saved.bytes,
        first_sequence=saved.first_sequence,
        last_sequence=saved.last_sequence,
        consumers=saved.consumers,
    )
    with await asyncio.to_thread((directory / saved.file).open, "rb") as file:
        now = await restore(connection, head, _pieces(file), timeout=_TIMEOUT_SECONDS)
    # The server read the stream a moment after it reported its state: the snapshot may hold more, never less.
    if now.last_sequence < saved.last_sequence:
        raise PreconditionFailed(
            f"{saved.name} ends at {now.last_sequence} where it ended at {saved.last_sequence}", field="directory"
        )
    return Restored(
        name=saved.name,
        messages=now.messages,
        last_sequence=now.last_sequence,
        expired=max(0, saved.messages - now.messages),
    )


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(file.read, CHUNK_BYTES):
        yield piece


def _check_file(path: Path, saved: Saved) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
                size += len(piece)
    except OSError as error:
        raise PreconditionFailed(f"{path}: {error.strerror}", field="directory") from error
    if (size, digest.hexdigest()) != (saved.size, saved.sha256):
        raise PreconditionFailed(
            f"{path} is damaged: {size} bytes, its SHA-256 is not the one in the manifest", field="directory"
        )
