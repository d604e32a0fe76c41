"""Where a text is left: everything that NATS stores, and files."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.protocol import StoredMessage, from_api
from swe_ai_fleet.adapters.jetstream.reader import messages

NO_MESSAGE = 10037


async def everywhere(log: JetStream, marker: str, home: Path) -> list[str]:
    """The streams whose messages have a text in a subject, header or body, and the files apart from NATS' own."""
    found: list[str] = []
    streams = (await log.connection.api("STREAM.LIST", timeout=10))["streams"]
    for name, retention in ((one["config"]["name"], one["config"]["retention"]) for one in streams):
        async with aclosing(_stored(log, name, retention)) as messages_of_it:
            async for stored in messages_of_it:
                text = f"{stored.subject} {stored.headers}".encode() + stored.data
                if any(marker.encode() in part for part in (text, _unwrapped(stored.data))):
                    found.append(f"{name} {stored.subject}")
    files = [path for path in home.rglob("*") if path.is_file() and (home / "nats") not in path.parents]
    return found + sorted({_file(path) for path in files if marker.encode() in path.read_bytes()})


async def _stored(log: JetStream, stream: str, retention: str) -> AsyncGenerator[StoredMessage]:
    if retention != "workqueue":
        async with aclosing(messages(log.connection, stream, ">", follow=False, timeout=10)) as all_of_it:
            async for message in all_of_it:
                if message is not None:
                    yield message
        return
    asked, wanted = f"STREAM.MSG.GET.{stream}", {"seq": 1, "next_by_subj": ">"}
    while answer := await log.connection.api_unless(NO_MESSAGE, asked, wanted, timeout=10):
        yield (message := from_api(answer))
        wanted["seq"] = message.sequence + 1


def _file(path: Path) -> str:
    # SQLite moves texts from its log into the database when it likes.
    return str(path).removesuffix("-wal")


def _unwrapped(data: bytes) -> bytes:
    """What is deflated, or a NATS subject in base64."""
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
