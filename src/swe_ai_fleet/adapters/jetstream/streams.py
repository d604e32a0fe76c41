"""The streams of the fleet: what they keep, for how long, and how full they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from swe_ai_fleet.adapters.jetstream import subjects
from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.faults import Backoff, Forbidden
from swe_ai_fleet.adapters.jetstream.messages import StoredMessage, from_api
from swe_ai_fleet.domain.errors import Unavailable

_NANOSECONDS = 1_000_000_000
_DAY_SECONDS = 86_400.0
_NO_MESSAGE = 10037
_NAME_IN_USE = 10058
_WORK_QUEUES = (subjects.COMMANDS, subjects.PLANS, subjects.JOBS)
ALL = "all"
"""The name under which `usage` has everything that is stored in the fleet's account, buckets too."""
_KEPT = (subjects.CONTEXT_CHANGES,)
"""What is known does not get old: it is only what was done that is forgotten in the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How much is kept. Sizes in bytes, 0 for no limit of our own; what is full refuses new messages."""

    replicas: int = 1
    max_age_seconds: float = 90 * _DAY_SECONDS
    max_event_bytes: int = 0
    max_result_bytes: int = 0
    max_blob_bytes: int = 0
    duplicate_window_seconds: float = 120.0
    bucket: str = "agent-blobs"

    @property
    def blob_age_seconds(self) -> float:
        """How long blobs are kept, 0 for ever: one is stored before the events that name it, up to a day before.

        With a short retention, for which executions have to be shorter still, it is twice that.
        """
        return self.max_age_seconds + min(self.max_age_seconds, _DAY_SECONDS)

    def lifetime(self, seconds: float) -> float:
        """How long values of a bucket are kept that may vanish after so long: no longer than events are."""
        return min(seconds, self.max_age_seconds) if seconds and self.max_age_seconds else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUsage:
    """How full a stream or an account is; an account counts each copy. `max_bytes` is 0 where there is no limit."""

    messages: int
    bytes: int
    max_bytes: int


async def ensure(connection: Connection, settings: StreamSettings, *, timeout: float) -> None:
    """Create every stream that is missing and bring the others up to the settings. Doing it again changes nothing.

    Raises:
        PreconditionFailed: The server has no JetStream, or refuses a change (a retention policy, say).
        ResourceExhausted: It has no room for the limits asked for.
        Unavailable: It does not answer within `timeout` seconds.
    """
    for config in _configurations(settings):
        await _ensure_one(connection, config, timeout=timeout)


async def _ensure_one(connection: Connection, config: Mapping[str, object], *, timeout: float) -> None:
    name = config["name"]
    try:
        created = await connection.api_unless(_NAME_IN_USE, f"STREAM.CREATE.{name}", config, timeout=timeout)
    except Forbidden:
        if await connection.api_unless(404, f"STREAM.INFO.{name}", timeout=timeout) is None:
            raise Unavailable(f"the stream {name} does not exist yet", hint="the orchestrator creates it") from None
        return
    if created is None:
        # Where it may not be changed it stands, which is enough here; another process decides what it is like.
        with suppress(Forbidden):
            await connection.api(f"STREAM.UPDATE.{name}", config, timeout=timeout)


async def ensure_bucket(
    connection: Connection,
    settings: StreamSettings,
    bucket: str,
    *,
    ttl_seconds: float,
    max_bytes: int = 0,
    timeout: float,
) -> None:
    """Create a key-value bucket or bring it up to the settings. Raises as `ensure` does."""
    name = f"KV_{bucket}"
    ttl_seconds = settings.lifetime(ttl_seconds)
    config = _stream(settings, name, [f"$KV.{bucket}.>"], max_bytes=max_bytes)
    config |= {
        "max_age": int(ttl_seconds * _NANOSECONDS),
        # What may be forgotten makes room; what may not is refused.
        "discard": "old" if max_bytes else "new",
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "duplicate_window": int(min(ttl_seconds or 120.0, 120.0) * _NANOSECONDS),
    }
    await _ensure_one(connection, config, timeout=timeout)


async def usage(connection: Connection, settings: StreamSettings, *, timeout: float) -> Mapping[str, StreamUsage]:
    """How full each stream is, and under `ALL` the account. Raises NotFound before `ensure`, Unavailable."""
    account = await connection.api("INFO", timeout=timeout)
    limits: dict[str, int] = account["limits"]
    usages: dict[str, StreamUsage] = {}
    names = [str(config["name"]) for config in _configurations(settings)]
    asked = (connection.api(f"STREAM.INFO.{name}", timeout=timeout) for name in names)
    for name, info in zip(names, await asyncio.gather(*asked), strict=True):
        state: dict[str, int] = info["state"]
        limit: int = info["config"].get("max_bytes", -1)
        usages[name] = StreamUsage(messages=state["messages"], bytes=state["bytes"], max_bytes=max(0, limit))
    messages = sum(stream.messages for stream in usages.values())
    whole = StreamUsage(messages=messages, bytes=account["storage"], max_bytes=max(0, limits["max_storage"]))
    return {**usages, ALL: whole}


async def last_sequence(connection: Connection, stream: str, *, timeout: float) -> int:
    """The sequence that was given last in a stream. Raises NotFound, Unavailable."""
    info = await connection.api(f"STREAM.INFO.{stream}", timeout=timeout)
    return int(info["state"]["last_seq"])


async def last_message(
    connection: Connection, stream: str, subject: str, *, timeout: float | None
) -> StoredMessage | None:
    """The last message on a subject (wildcards allowed), read from the stream's leader so that it is never stale.

    A host reads from any server that has the stream, since only there the subject stands in the request's own; what
    that is behind, the server refuses when the host writes on it.
    """
    if connection.is_host:
        place = f"$JS.API.DIRECT.GET.{stream}.{subject}"
        message, _ = await connection.request_until_answered(place, b"", Backoff.lasting(timeout))
        if message.status == "404":
            return None
        headers = message.headers
        return StoredMessage(
            sequence=int(headers["Nats-Sequence"]), subject=headers["Nats-Subject"], data=message.data, headers=headers
        )
    wanted = {"last_by_subj": subject}
    answer = await connection.api_unless(_NO_MESSAGE, f"STREAM.MSG.GET.{stream}", wanted, timeout=timeout)
    return None if answer is None else from_api(answer)


async def first_message(connection: Connection, stream: str, subject: str, *, timeout: float) -> StoredMessage | None:
    """The oldest message on a subject, read from the stream's leader. Raises Unavailable."""
    wanted = {"next_by_subj": subject, "seq": 1}
    answer = await connection.api_unless(_NO_MESSAGE, f"STREAM.MSG.GET.{stream}", wanted, timeout=timeout)
    return None if answer is None else from_api(answer)


def object_stream(bucket: str) -> str:
    """The stream behind an object store, as every NATS client names it."""
    return f"OBJ_{bucket}"


def _configurations(settings: StreamSettings) -> list[dict[str, object]]:
    limits = {subjects.EVENTS: settings.max_event_bytes, subjects.RESULTS: settings.max_result_bytes}
    configurations = [
        _stream(
            settings,
            name,
            list(patterns),
            retention="workqueue" if name in _WORK_QUEUES else "limits",
            max_bytes=limits.get(name, 0),
        )
        | ({"max_age": 0} if name in _KEPT else {})
        # With one copy the server makes a store of files for each batch: over thirty times the CPU of single messages.
        | ({"allow_atomic": True} if name == subjects.EVENTS and settings.replicas > 1 else {})
        for name, patterns in subjects.STREAM_SUBJECTS.items()
    ]
    bucket = settings.bucket
    # A blob is stored before the event that names it and must not expire before it.
    blobs = _stream(
        settings,
        object_stream(bucket),
        [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        max_bytes=settings.max_blob_bytes,
        age=settings.blob_age_seconds,
    )
    configurations.append({**blobs, "allow_rollup_hdrs": True})
    return configurations


def _stream(
    settings: StreamSettings,
    name: str,
    patterns: list[str],
    *,
    retention: str = "limits",
    max_bytes: int = 0,
    age: float | None = None,
) -> dict[str, object]:
    age = settings.max_age_seconds if age is None else age
    window = min(settings.duplicate_window_seconds, age) if age else settings.duplicate_window_seconds
    return {
        "name": name,
        "subjects": patterns,
        "retention": retention,
        "storage": "file",
        "discard": "new",
        "max_age": int(age * _NANOSECONDS),
        "max_bytes": max_bytes or -1,
        "max_msgs": -1,
        "max_consumers": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "num_replicas": settings.replicas,
        "duplicate_window": int(window * _NANOSECONDS),
        "allow_direct": True,
    }
