"""Where a text is left: everything that NATS stores, and files."""

from __future__ import annotations

import zlib
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.messages import from_api
from swe_ai_fleet.adapters.jetstream.snapshots import stream_heads

NO_MESSAGE = 10037


async def everywhere(log: JetStream, marker: str, home: Path) -> list[str]:
    """The streams whose messages have a text in a subject, header or body, and the files apart from NATS' own."""
    found: list[str] = []
    connection = log.connection
    for stream in await stream_heads(connection, timeout=10):
        asked, sequence = f"STREAM.MSG.GET.{stream.name}", 0
        while answer := await connection.api_unless(
            NO_MESSAGE, asked, {"seq": sequence + 1, "next_by_subj": ">"}, timeout=10
        ):
            stored = from_api(answer)
            sequence = stored.sequence
            text = f"{stored.subject} {stored.headers}".encode() + stored.data
            if any(marker.encode() in part for part in (text, _unwrapped(stored.data))):
                found.append(f"{stream.name} {stored.subject}")
    files = [path for path in home.rglob("*") if path.is_file() and (home / "nats") not in path.parents]
    return found + sorted({_file(path) for path in files if marker.encode() in path.read_bytes()})


def _file(path: Path) -> str:
    # SQLite moves texts from its log into the database when it likes.
    return str(path).removesuffix("-wal")


def _unwrapped(data: bytes) -> bytes:
    """What is deflated, or a NATS subject in base64."""
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
