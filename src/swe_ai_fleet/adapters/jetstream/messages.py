"""Messages as NATS and the JetStream API bring them, and events as they lie in them.

A message carries one `Event` as JSON (UTF-8), its `Nats-Msg-Id` header `<tenant>/` and the event's id (the server looks
for duplicates in the whole stream, so the header must tell tenants apart):

    {"id": "<execution>/<agent>/<generation>/<ordinal>", "tenant": ..., "execution_id": ..., "task_id": ...,
     "agent_id": ..., "at": ..., "body": {"type": "...", ...}}

Where that is more than 256 KiB, the JSON of `body` is a blob of its own and the message names it instead:

    {"id": ..., ..., "at": ..., "body_ref": {"name": "<tenant>/<execution>/<sha256>", "digest": "<sha256>",
     "size": <bytes>, "media_type": "application/json"}}
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swe_ai_fleet.codec import from_json, from_plain, to_json, to_plain
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.event import Event
from swe_ai_fleet.ports import BlobStore

MAX_EVENT_BYTES = 256 * 1024
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
_BATCH, _PLACE, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_REFERENCE = b'"body_ref"'
_MEDIA_TYPE = "application/json"
_ONE_LINE = str.maketrans("\r\n", "  ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as it came in; `status` is the server's own code (`408`), empty for content."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def status(self) -> str:
        return self.headers.get("Status", "") if self.headers else ""


class Outgoing(NamedTuple):
    """A message that is to be sent."""

    payload: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """What the server said to a stored message; `unanswered` is how often it had been sent without an answer before."""

    sequence: int
    duplicate: bool
    unanswered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message of a stream; `at` is when it was stored, in seconds since 1970 (0: not told)."""

    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    at: float = 0.0


def from_api(answer: dict[str, Any]) -> StoredMessage:
    """The message in an answer of `STREAM.MSG.GET`."""
    message: dict[str, Any] = answer["message"]
    return StoredMessage(
        sequence=message["seq"],
        subject=message["subject"],
        data=base64.b64decode(message.get("data", "")),
        headers=read_headers(base64.b64decode(message.get("hdrs", ""))),
    )


def read_headers(raw: bytes | bytearray) -> dict[str, str]:
    """The headers of a message as they came, the server's own code and its words as `Status` and `Description`."""
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    headers: dict[str, str] = {}
    if status := first[len("NATS/1.0 ") :]:
        headers = {"Status": status[:3], "Description": status[3:].strip()}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers


def as_batch(messages: Sequence[Outgoing]) -> list[Outgoing]:
    """Messages with the headers that make them one atomic batch: all of them are stored with the last one, or none."""
    batch = secrets.token_hex(8)
    marked = [
        Outgoing(message.payload, {**message.headers, _BATCH: batch, _PLACE: str(place)})
        for place, message in enumerate(messages, start=1)
    ]
    marked[-1].headers[_COMMIT] = "1"
    return marked


def head_of(message: Outgoing) -> bytes:
    """What stands before the payload of a message; values of several lines come as one."""
    if not message.headers:
        return b""
    lines = [f"{name}: {value.translate(_ONE_LINE)}\r\n" for name, value in message.headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


async def outgoing(event: Event, payload: bytes, blobs: BlobStore) -> Outgoing:
    """The message for an event and its JSON; where that is too large, its body is put into the blob store first."""
    if len(payload) > MAX_EVENT_BYTES:
        ref = await blobs.put(event.tenant, event.execution_id, to_json(event.body), _MEDIA_TYPE)
        document = {
            "id": event.id,
            "tenant": event.tenant,
            "execution_id": event.execution_id,
            "task_id": event.task_id,
            "agent_id": event.agent_id,
            "at": event.at,
            "body_ref": to_plain(ref),
        }
        payload = json.dumps(document).encode()
    return Outgoing(payload, headers_of(event))


def headers_of(event: Event) -> dict[str, str]:
    """The headers of an event's message."""
    return {MESSAGE_ID: f"{event.tenant}/{event.id}"}


async def event_of(data: bytes, blobs: BlobStore) -> Event:
    """The event in a message, its body fetched where it lies elsewhere. Raises NotFound, ValueError."""
    # The name can also be a key deeper down, so finding it only makes a look worth while.
    if _REFERENCE in data:
        envelope: dict[str, Any] = json.loads(data)
        reference = envelope.pop("body_ref", None)
        if reference is not None:
            body = await blobs.get(from_plain(BlobRef, reference))
            return from_json(Event, json.dumps(envelope)[:-1].encode() + b',"body":' + body + b"}")
    return from_json(Event, data)


def place_of(message_id: str) -> tuple[int, int]:
    """(generation, ordinal) of the event with a message id; (0, 0) for something that is not one."""
    parts = message_id.rsplit("/", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return int(parts[1]), int(parts[2])
    return 0, 0
