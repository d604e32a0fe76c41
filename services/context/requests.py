"""Limits of requests to the context service, beside those that the modules check themselves."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from google.protobuf.message import Message

from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, fields_named

M = TypeVar("M", bound=Message)

MAX_REPLY_BYTES = 3 * 1024 * 1024
"""A default gRPC client refuses replies of 4 MiB."""
UNNAMED = "unnamed"
"""Stands for callers that do not name themselves."""
_SOURCE = re.compile(r"(agent|execution):[A-Za-z0-9][A-Za-z0-9._/-]{0,149}")


def source_of(given: str, caller: str) -> str:
    """The source of a memory: the one that the caller gives, if it is valid, and the caller. Raises InvalidRequest.

    The caller is always part of it: only memories that the fleet made itself have an execution as their only source.
    """
    if given and not _SOURCE.fullmatch(given):
        raise InvalidRequest(f"{given[:64]!r} is not a source", field="source", hint="agent:<id> or execution:<id>")
    by = f"caller:{caller or UNNAMED}"
    return f"{given}, {by}" if given else by


def foreign(execution_id: str, *, field: str) -> str:
    """The id of an execution that cannot be one of this fleet's, begun or not. Raises PreconditionFailed.

    The fleet's own are UUIDs of version 5, which callers can compute before an execution begins.
    """
    try:
        parsed = uuid.UUID(execution_id)
    except ValueError:
        return execution_id
    if parsed.version == 5:
        raise PreconditionFailed(
            f"{execution_id[:64]} is an execution of this fleet, which records it itself when it ends",
            field=field,
            hint="for work outside of the fleet use an id that is not a UUID version 5",
        )
    return execution_id


def fitting(messages: Iterable[M], room: int = MAX_REPLY_BYTES) -> list[M]:
    """The first of the messages, as many as fit into so many bytes."""
    fit: list[M] = []
    for message in messages:
        room -= message.ByteSize() + 16
        if room < 0:
            break
        fit.append(message)
    return fit


def fields_within(message: str, **renamed: str) -> AbstractContextManager[None]:
    """Inside, faults name fields as they are called in the request, where they stand in its field `message`.

    `renamed` are those that stand elsewhere or have another name there.
    """
    return fields_named(lambda head: renamed.get(head, f"{message}.{head}") if head else "")
