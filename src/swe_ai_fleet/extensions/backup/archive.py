"""Takes a backup while the fleet runs, and restores it.

`manifest.json` is written last, so a backup that has one is complete. Each stream is a snapshot of one moment, and the
order of the snapshots ensures that everything a saved item refers to is saved too:

1. Work queues first: a task claimed by a worker meanwhile is in the events, which are saved later. A task that is
   saved in both is accepted once, since its id is that of its execution.
2. Then the events, the only source of truth about executions.
3. Then streams derived from the events or without references to them: results, the context, buckets. A result that the
   saved events lack is found when its execution resumes, and is not published twice.
4. Blobs last: a blob is stored before the event or value that refers to it, so every saved reference has its blob.

A snapshot is therefore never older than those that depend on it; it may have later changes made during the backup.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.protocol import COMMANDS, EVENTS, JOBS, PLANS
from swe_ai_fleet.adapters.jetstream.streams import CHUNK_BYTES, StreamHead, restore, snapshot, stream_heads
from swe_ai_fleet.domain.errors import NotFound, PreconditionFailed, Unavailable

NAME = "manifest.json"
FORMAT = 1
_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One stream's snapshot: the file beside the manifest, its size and digest, and the state of the stream."""

    file: str
    size: int
    sha256: str
    config: dict[str, Any]
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    consumers: int
    began_at: str
    ended_at: str

    @property
    def name(self) -> str:
        return str(self.config.get("name", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup. `streams` are in the order in which they were saved, which makes the backup consistent."""

    format: int
    fleet_version: str
    nats_version: str
    made_at: str
    streams: tuple[Saved, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(stream.size for stream in self.streams)


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a backup. Raises NotFound, PreconditionFailed."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"{directory} is not a complete backup: {error.strerror}", field="directory", hint=f"it has a {NAME}"
        ) from error
    try:
        manifest = _MANIFEST.validate_json(content)
    except ValidationError as error:
        raise PreconditionFailed(f"{path} cannot be read: {error.errors()[0]['msg']}", field="directory") from error
    if manifest.format != FORMAT:
        raise PreconditionFailed(
            f"the backup has format {manifest.format}, this version reads {FORMAT}",
            field="directory",
            hint=f"restore it with swe-ai-fleet {manifest.fleet_version}",
        )
    for stream in manifest.streams:
        if not stream.name or Path(stream.file).name != stream.file or stream.file in ("", ".", "..", NAME):
            raise PreconditionFailed(f"{path} names a file {stream.file[:64]!r}", field="directory")
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of `manifest.json`."""
    return (json.dumps(asdict(manifest), indent=2) + "\n").encode()


ATTEMPTS = 3
_QUEUES = (COMMANDS, PLANS, JOBS)
_TIMEOUT_SECONDS = 60.0

Report = Callable[[str], None]


def rank(head: StreamHead) -> tuple[int, str]:
    """The position of a stream in the order of a backup."""
    if head.config.get("retention") == "workqueue" or head.name in _QUEUES:
        return 0, head.name
    if head.name == EVENTS:
        return 1, head.name
    return (3 if head.name.startswith("OBJ_") else 2), head.name


async def back_up(
    connection: Connection, directory: Path, *, fleet_version: str, report: Report = lambda _: None
) -> Manifest:
    """Save every stream that the login can read: events, results, queues, buckets, blobs.

    Args:
        connection: To NATS, with the rights of the fleet.
        directory: Created for its owner only; it must be new or empty.
        fleet_version: Recorded in the manifest.
        report: Called with a line for each stream.

    Raises:
        PreconditionFailed: The directory is not empty, there is nothing to save, or a stream is damaged.
        Unavailable: NATS did not answer.
    """
    await asyncio.to_thread(_make, directory)
    heads = sorted(await stream_heads(connection, timeout=_TIMEOUT_SECONDS), key=rank)
    if not any(head.name == EVENTS for head in heads):
        raise PreconditionFailed("this NATS server has no event stream of a fleet", field="nats_url")
    saved: list[Saved] = []
    for head in heads:
        stream = await _retry(lambda name=head.name: _save(connection, name, directory))
        if stream is None:
            report(f"{head.name}: deleted in the meantime")
            continue
        saved.append(stream)
        report(f"{stream.name}: {stream.messages} messages, {stream.size} bytes")
    manifest = Manifest(
        format=FORMAT,
        fleet_version=fleet_version,
        nats_version=connection.server_version,
        made_at=datetime.now(UTC).isoformat(),
        streams=tuple(saved),
    )
    await asyncio.to_thread(_finish, directory, manifest_bytes(manifest))
    return manifest


async def _retry(work: Callable[[], Awaitable[Saved | None]]) -> Saved | None:
    """Take a snapshot; if the connection is lost, retry from the beginning."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await work()
        except Unavailable:
            if attempt == ATTEMPTS:
                raise
        except NotFound:
            return None
    return None


async def _save(connection: Connection, name: str, directory: Path) -> Saved:
    file = f"{name}.snapshot"
    began = datetime.now(UTC).isoformat()
    async with snapshot(connection, name, timeout=_TIMEOUT_SECONDS) as (head, chunks):
        # Each attempt opens and truncates the file, so that nothing of a failed one remains.
        with await asyncio.to_thread(_private, directory / file) as target:
            digest, size = hashlib.sha256(), 0
            async for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                await asyncio.to_thread(target.write, chunk)
            await asyncio.to_thread(_sync, target)
    return Saved(
        file=file,
        size=size,
        sha256=digest.hexdigest(),
        config=dict(head.config),
        messages=head.messages,
        bytes=head.bytes,
        first_sequence=head.first_sequence,
        last_sequence=head.last_sequence,
        consumers=head.consumers,
        began_at=began,
        ended_at=datetime.now(UTC).isoformat(),
    )


def _private(path: Path):
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = any(directory.iterdir())
    except OSError as error:
        raise PreconditionFailed(f"{directory}: {error.strerror}", field="directory") from error
    if taken:
        raise PreconditionFailed(f"{directory} is not empty", field="directory", hint="name a new one")


def _finish(directory: Path, content: bytes) -> None:
    partial = directory / f"{NAME}.partial"
    with _private(partial) as file:
        file.write(content)
        _sync(file)
    partial.rename(directory / NAME)


_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A restored stream. `expired` messages were too old, and the server has dropped them."""

    name: str
    messages: int
    last_sequence: int
    expired: int


async def verified(directory: Path) -> Manifest:
    """Verify the digests of all files of a backup; returns its manifest. Raises NotFound, PreconditionFailed."""
    manifest = await asyncio.to_thread(read_manifest, directory)
    for saved in manifest.streams:
        await asyncio.to_thread(_check_file, directory / saved.file, saved)
    return manifest


async def restore_backup(
    connection: Connection, directory: Path, *, replicas: int = 0, report: Report = lambda _: None
) -> list[Restored]:
    """Restore a backup into NATS with the same sequence numbers. Every file is verified before anything is sent.

    Args:
        connection: To a server, or a cluster, that holds no stream.
        directory: The backup.
        replicas: Of each stream; 0: as before.
        report: Called with a line for each stream.

    Raises:
        NotFound: The directory has no complete backup.
        PreconditionFailed: A file is damaged, or the server is not empty.
        ResourceExhausted: The server has not enough storage.
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
    # The server read the stream just after it reported its state: the snapshot may have more messages, never fewer.
    if now.last_sequence < saved.last_sequence:
        raise PreconditionFailed(
            f"{saved.name} ends at {now.last_sequence} instead of {saved.last_sequence}", field="directory"
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
