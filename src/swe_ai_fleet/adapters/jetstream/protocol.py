"""The protocol over NATS: names of subjects and streams, messages, events in messages, faults, and backoff.

A token made from an id is percent-encoded, the dot included: `a.b` becomes `a%2Eb`, so that an id is always one token.

A message of an event carries one `Event` as JSON (UTF-8), its `Nats-Msg-Id` header `<tenant>/` and the event's id (the
server looks for duplicates in the whole stream, so the header must distinguish tenants):

    {"id": "<execution>/<agent>/<generation>/<ordinal>", "tenant": ..., "execution_id": ..., "task_id": ...,
     "agent_id": ..., "at": ..., "body": {"type": "...", ...}}

For an event of more than 256 KiB, the JSON of `body` is stored as a blob and the message refers to it instead:

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
NANOSECONDS = 1_000_000_000
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
_BATCH, _BATCH_SEQUENCE, _COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_REFERENCE = b'"body_ref"'
_MEDIA_TYPE = "application/json"
_ONE_LINE = str.maketrans("\r\n", "  ")


def token(text: str) -> str:
    """An id as one subject token. Raises InvalidRequest when it is empty."""
    if not text:
        raise InvalidRequest("a subject cannot contain an empty id")
    return quote(text, safe="").replace(".", "%2E")


def event_subject(tenant: str, execution_id: str, agent_id: str) -> str:
    """The subject of one writer's events; `_` as agent id is the execution itself."""
    return f"agent.events.{token(tenant)}.{token(execution_id)}.{token(agent_id)}"


def execution_filter(tenant: str, execution_id: str) -> str:
    """A filter for the events of an execution and all its agents."""
    return f"agent.events.{token(tenant)}.{token(execution_id)}.*"


def live_text_subject(tenant: str, execution_id: str, agent_id: str) -> str:
    """The subject of the live text of an agent's model; `*` as agent id matches all agents."""
    agent = agent_id if agent_id == "*" else token(agent_id)
    return f"agent.live.text.{token(tenant)}.{token(execution_id)}.{agent}"


def live_want_subject(tenant: str, execution_id: str) -> str:
    """The subject on which watchers of an execution announce themselves; the arguments are tokens already."""
    return f"agent.live.want.{tenant}.{execution_id}"


def results_of(tenant: str) -> str:
    """The subject prefix of a tenant's results. No task id begins with `_`, which marks a tenant."""
    return "agent.results" if tenant == DEFAULT_TENANT else f"agent.results._{token(tenant)}"


def result_subject(tenant: str, task_id: str, agent_id: str = "") -> str:
    """The subject of a result. Other tenants than the default one are named before the task."""
    tokens = [results_of(tenant)]
    tokens.append(token(task_id))
    if agent_id and agent_id != EXECUTION_SUBJECT:
        tokens.append(token(agent_id))
    return ".".join(tokens)


def job_subject(tenant: str, priority: str) -> str:
    """The subject of a tenant's jobs that wait for a container; `*` as tenant matches all."""
    return f"agent.jobs.{tenant if tenant == '*' else token(tenant)}.{token(priority)}"


def ask_subject(what: str, tenant: str, execution_id: str) -> str:
    """The subject of an agent host's requests to the orchestrators about an execution."""
    return f"agent.ask.{what}.{token(tenant)}.{token(execution_id)}"


def chunk_prefix(tenant: str) -> str:
    """The prefix of the ids of a tenant's chunks in the object store, so that their subjects name the tenant."""
    return f"{token(tenant)}."


def dead_letter_subject(consumer: str) -> str:
    """The subject of the messages that a consumer could not handle."""
    return f"agent.dlq.{token(consumer)}"


def change_subject(tenant: str, story_id: str) -> str:
    """The subject of a story's changes, one for each version."""
    return f"context.changes.{token(tenant)}.{token(story_id)}"


def work_subject(tenant: str, execution_id: str) -> str:
    """The subject of the one record of an execution's work."""
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
        """Wait before the next attempt. Raises Unavailable with the reason once the time is up."""
        remaining = self.remaining
        if remaining is not None and remaining <= 0:
            raise Unavailable(f"NATS does not answer: {reason}", hint="is the server running and reachable?")
        delay = random.uniform(0.5, 1.0) * self._delay  # noqa: S311 (jitter, not a secret)
        self._delay = min(2 * self._delay, LAST_SECONDS)
        await asyncio.sleep(delay if remaining is None else min(delay, remaining))


class Unanswered(Exception):
    """A request got no answer; whether the server processed it is unknown."""


class Forbidden(PreconditionFailed):
    """This user has no permission to publish to a subject; repeating does not help."""


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
        """The stream takes no atomic batches, or not with our headers."""
        return self.error_code in _NO_BATCHES

    @property
    def full(self) -> bool:
        """A stream, an account or the disk has no room."""
        return self.error_code in _EXHAUSTED or (self.error_code == _STORE_FAILED and "maximum" in self.description)

    @property
    def passing(self) -> bool:
        """The next attempt may succeed (no leader at the moment, a server that starts or stops)."""
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
    """A publish found another last sequence than it expects, or its batch was refused.

    `unanswered` is how often it had been sent without an answer before.
    """

    def __init__(self, fault: ApiFault, unanswered: int) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.unanswered = unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsMessage:
    """A received message; `status` is a code of the server (`408`), empty for content."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def status(self) -> str:
        return self.headers.get("Status", "") if self.headers else ""


class OutgoingMessage(NamedTuple):
    """A message to send."""

    payload: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The server's acknowledgement; `unanswered` is how often the message had been sent without an answer before."""

    sequence: int
    duplicate: bool
    unanswered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message of a stream; `at` is when it was stored, in seconds since 1970 (0: unknown)."""

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
    """The headers of a received message; the server's status line becomes `Status` and `Description`."""
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
        OutgoingMessage(message.payload, {**message.headers, _BATCH: batch, _BATCH_SEQUENCE: str(number)})
        for number, message in enumerate(messages, start=1)
    ]
    marked[-1].headers[_COMMIT] = "1"
    return marked


def head_of(message: OutgoingMessage) -> bytes:
    """The header block of a message, empty without headers; line breaks in values become spaces."""
    if not message.headers:
        return b""
    lines = [f"{name}: {value.translate(_ONE_LINE)}\r\n" for name, value in message.headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


async def outgoing(event: Event, payload: bytes, blobs: BlobStore) -> OutgoingMessage:
    """The message for an event and its JSON; the body of a too large one is put into the blob store first."""
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
    """The event in a message, its body fetched if it is a blob. Raises NotFound, ValueError."""
    # The name can also be a key deeper down, so its presence only makes parsing worth while.
    if _REFERENCE in data:
        envelope: dict[str, Any] = json.loads(data)
        reference = envelope.pop("body_ref", None)
        if reference is not None:
            body = await blobs.get(from_plain(BlobRef, reference))
            return from_json(Event, json.dumps(envelope)[:-1].encode() + b',"body":' + body + b"}")
    return from_json(Event, data)


def generation_and_ordinal(message_id: str) -> tuple[int, int]:
    """(generation, ordinal) of the event with a message id; (0, 0) for text that is no such id."""
    parts = message_id.rsplit("/", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return int(parts[1]), int(parts[2])
    return 0, 0
