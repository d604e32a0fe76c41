"""Where a text is left: everything that NATS stores, and files."""

from __future__ import annotations

import base64
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import JetStream

NO_MESSAGE = 10037


async def everywhere(log: JetStream, marker: str, home: Path) -> list[str]:
    """The streams whose messages have a text in a subject, header or body, and the files apart from NATS' own."""
    found: list[str] = []
    for stream in (await log.connection.api("STREAM.LIST", timeout=10))["streams"]:
        name = stream["config"]["name"]
        async with aclosing(stored(log, name)) as messages:
            async for subject, headers, data in messages:
                if any(marker.encode() in part for part in (subject.encode(), headers, data, _unwrapped(data))):
                    found.append(f"{name} {subject}")
    files = [path for path in home.rglob("*") if path.is_file() and (home / "nats") not in path.parents]
    # SQLite moves texts from its log into the database when it likes.
    return found + sorted({str(path).removesuffix("-wal") for path in files if marker.encode() in path.read_bytes()})


async def stored(log: JetStream, stream: str) -> AsyncGenerator[tuple[str, bytes, bytes]]:
    """Subject, headers and body of each message of a stream."""
    asked, wanted = f"STREAM.MSG.GET.{stream}", {"seq": 1, "next_by_subj": ">"}
    while answer := await log.connection.api_unless(NO_MESSAGE, asked, wanted, timeout=10):
        message = answer["message"]
        headers, data = (base64.b64decode(message.get(part, "")) for part in ("hdrs", "data"))
        yield message["subject"], headers, data
        wanted["seq"] = message["seq"] + 1


def _unwrapped(data: bytes) -> bytes:
    """What is deflated."""
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
