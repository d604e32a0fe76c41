"""What goes over NATS: subjects and streams by name, messages, events in them, faults, and waits between tries.

A token made from an id is percent-encoded, the dot included: `a.b` becomes `a%2Eb`, so that an id is always one token.

A message of an event carries one `Event` as JSON (UTF-8), its `Nats-Msg-Id` header `<tenant>/` and the event's id (the
server looks for duplicates in the whole stream, so the header must tell tenants apart):

    {"id": "<execution>/<agent>/<generation>/<ordinal>", "tenant": ..., "execution_id": ..., "task_id": ...,
     "agent_id": ..., "at": ..., "body": {"type": "...", ...}}

Where that is more than 256 KiB, the JSON of `body` is a blob of its own and the message names it instead:

    {"id": ..., ..., "at": ..., "body_ref": {"name": "<tenant>/<execution>/<sha256>", "digest": "<sha256>",
     "size": <bytes>, "media_type": "application/json"}}
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from swe_ai_fleet.codec import from_json, from_plain, to_json, to_plain
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import (
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    ResourceExhausted,
    Unavailable,
)
from swe_ai_fleet.domain.event import CONTROL_SUBJECT, EXECUTION_SUBJECT, Event
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.ports import BlobStore

EVENTS = "AGENT_EVENTS"
RESULTS = "AGENT_RESULTS"
COMMANDS = "AGENT_COMMANDS"
PLANS = "AGENT_PLANS"
JOBS = "AGENT_JOBS"
DEAD_LETTERS = "AGENT_DLQ"
CONTEXT_CHANGES = "CONTEXT_CHANGES"
BLOBS_BUCKET = "agent-blobs"
BLOBS = f"OBJ_{BLOBS_BUCKET}"
"""The stream behind the object store, as every NATS client names it."""
STREAM_SUBJECTS = {
    EVENTS: ("agent.events.>",),
    RESULTS: ("agent.results.>",),
    COMMANDS: ("agent.cmd.execute", "agent.cmd.execute.>"),
    PLANS: ("agent.plans", "agent.plans.>"),
    JOBS: ("agent.jobs.>",),
    DEAD_LETTERS: ("agent.dlq.>",),
    CONTEXT_CHANGES: ("context.changes.>", "context.work.>"),
}
ASKED = "agent.ask.*.*.*"
ALL_HEADS = (f"agent.events.*.*.{EXECUTION_SUBJECT}", f"agent.events.*.*.{CONTROL_SUBJECT}")
FIRST_SECONDS = 0.05
LAST_SECONDS = 2.0
_WRONG_LAST_SEQUENCE = (10071, 10164)
_NO_BATCHES = (10174, 10177)
_STORE_FAILED = 10077
_EXHAUSTED = (10002, 10023, 10028, 10047)
_NOT_ENABLED = (10039, 10076)
MAX_EVENT_BYTES = 256 * 1024
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
_BATCH, _PLACE, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_REFERENCE = b'"body_ref"'
_MEDIA_TYPE = "application/json"
_ONE_LINE = str.maketrans("\r\n", "  ")


def token(text: str) -> str:
    """An id as one subject token. Raises InvalidRequest when it is empty."""
    if not text:
        raise InvalidRequest("a subject cannot contain an empty id")
    return quote(text, safe="").replace(".", "%2E")


def event_subject(tenant: str, execution_id: str, agent_id: str) -> str:
    """Where one writer's events go; `_` as agent id is the execution itself."""
    return f"agent.events.{token(tenant)}.{token(execution_id)}.{token(agent_id)}"


def execution_filter(tenant: str, execution_id: str) -> str:
    """Everything that one execution and its agents say."""
    return f"agent.events.{token(tenant)}.{token(execution_id)}.*"


def live_text_subject(tenant: str, execution_id: str, agent_id: str) -> str:
    """Where an agent's model is heard while it speaks; `*` as agent id is all of them."""
    agent = agent_id if agent_id == "*" else token(agent_id)
    return f"agent.live.text.{token(tenant)}.{token(execution_id)}.{agent}"


def live_want_subject(tenant: str, execution_id: str) -> str:
    """Where somebody says that they listen to an execution; both are tokens already."""
    return f"agent.live.want.{tenant}.{execution_id}"


def results_of(tenant: str) -> str:
    """What the subjects of a tenant's results begin with. No task id begins as the name of a tenant does here."""
    return "agent.results" if tenant == DEFAULT_TENANT else f"agent.results._{token(tenant)}"


def result_subject(tenant: str, task_id: str, agent_id: str = "") -> str:
    """Where a result goes. The default tenant uses the short name, others have theirs before the task."""
    tokens = [results_of(tenant)]
    tokens.append(token(task_id))
    if agent_id and agent_id != EXECUTION_SUBJECT:
        tokens.append(token(agent_id))
    return ".".join(tokens)


def job_subject(tenant: str, priority: str) -> str:
    """Where jobs of a tenant wait for a container; `*` as tenant is all of them."""
    return f"agent.jobs.{tenant if tenant == '*' else token(tenant)}.{token(priority)}"


def ask_subject(what: str, tenant: str, execution_id: str) -> str:
    """Where a host of agents asks the orchestrators for something of an execution."""
    return f"agent.ask.{what}.{token(tenant)}.{token(execution_id)}"


def chunk_prefix(tenant: str) -> str:
    """What the ids of a tenant's chunks in the object store begin with, so that their subjects tell tenants apart."""
    return f"{token(tenant)}."


def dead_letter_subject(consumer: str) -> str:
    """Where a consumer puts what it could not handle."""
    return f"agent.dlq.{token(consumer)}"


def change_subject(tenant: str, story_id: str) -> str:
    """Where the changes of a story go, each a version of it."""
    return f"context.changes.{token(tenant)}.{token(story_id)}"


def work_subject(tenant: str, execution_id: str) -> str:
    """Where the one record of what an execution did goes."""
    return f"context.work.{token(tenant)}.{token(execution_id)}"


class Backoff:
    """Waits that double up to a cap, with jitter, until a deadline (None = for ever)."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._delay = FIRST_SECONDS

    @classmethod
    def lasting(cls, seconds: float | None) -> Backoff:
        return cls(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    @property
    def remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - asyncio.get_running_loop().time())

    async def wait(self, reason: object) -> None:
        """Wait before another try. Raises Unavailable with the reason once the time is up."""
        remaining = self.remaining
        if remaining is not None and remaining <= 0:
            raise Unavailable(f"NATS does not answer: {reason}", hint="is the server running and reachable?")
        delay = random.uniform(0.5, 1.0) * self._delay  # noqa: S311 (jitter, not a secret)
        self._delay = min(2 * self._delay, LAST_SECONDS)
        await asyncio.sleep(delay if remaining is None else min(delay, remaining))


class Unanswered(Exception):
    """A request got no answer; whether it was carried out is unknown."""


class Forbidden(PreconditionFailed):
    """The server does not let this user send to a subject; no repetition changes that."""


class ApiFault(Exception):
    """JetStream's own error: `code` is HTTP-like, `error_code` says which."""

    def __init__(self, code: int, error_code: int, description: str) -> None:
        super().__init__(f"{description} [{error_code}]")
        self.code = code
        self.error_code = error_code
        self.description = description

    @classmethod
    def from_json(cls, error: Mapping[str, Any]) -> ApiFault:
        return cls(error.get("code", 500), error.get("err_code", 0), error.get("description", ""))

    @property
    def conflict(self) -> bool:
        """The subject's last sequence is not the expected one."""
        return self.error_code in _WRONG_LAST_SEQUENCE

    @property
    def no_batches(self) -> bool:
        """The stream takes no atomic batches, or none with what ours need."""
        return self.error_code in _NO_BATCHES

    @property
    def full(self) -> bool:
        """A stream, an account or the disk has no room."""
        return self.error_code in _EXHAUSTED or (self.error_code == _STORE_FAILED and "maximum" in self.description)

    @property
    def passing(self) -> bool:
        """It may be over on the next try (no leader at the moment, a server that starts or stops)."""
        return self.code == 503 and not self.full and not self.conflict and self.error_code not in _NOT_ENABLED

    def as_fleet_error(self) -> FleetError:
        if self.full:
            return ResourceExhausted(
                f"NATS storage is full: {self.description}", hint="raise the limit or shorten the retention"
            )
        if self.code == 404:
            return NotFound(f"NATS: {self.description}")
        if self.error_code in _NOT_ENABLED:
            return PreconditionFailed(
                "JetStream is not enabled on this NATS server", hint="enable JetStream for the account"
            )
        if self.code == 503:
            return Unavailable(f"NATS: {self.description}")
        return PreconditionFailed(f"NATS refused: {self.description} [{self.error_code}]")


class PublishRefused(Exception):
    """Another message stands where a publish expected one, or a batch is not taken.

    `unanswered` is how often it had been sent before.
    """

    def __init__(self, fault: ApiFault, unanswered: int) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.unanswered = unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsMessage:
    """A message as it came in; `status` is the server's own code (`408`), empty for content."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def status(self) -> str:
        return self.headers.get("Status", "") if self.headers else ""


class OutgoingMessage(NamedTuple):
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


def as_batch(messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
    """Messages with the headers that make them one atomic batch: all of them are stored with the last one, or none."""
    batch = secrets.token_hex(8)
    marked = [
        OutgoingMessage(message.payload, {**message.headers, _BATCH: batch, _PLACE: str(place)})
        for place, message in enumerate(messages, start=1)
    ]
    marked[-1].headers[_COMMIT] = "1"
    return marked


def head_of(message: OutgoingMessage) -> bytes:
    """What stands before the payload of a message; values of several lines come as one."""
    if not message.headers:
        return b""
    lines = [f"{name}: {value.translate(_ONE_LINE)}\r\n" for name, value in message.headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


async def outgoing(event: Event, payload: bytes, blobs: BlobStore) -> OutgoingMessage:
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
    return OutgoingMessage(payload, headers_of(event))


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
