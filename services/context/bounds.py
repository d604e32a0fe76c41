"""How much a request may hold, beside what the parts it goes to check themselves."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager

from swe_ai_fleet.adapters.context_service.messages import MAX_MS
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.memory import MAX_NAMESPACES, check_namespace

MAX_METADATA = 16
MAX_METADATA_CHARS = 256
MAX_QUERY_CHARS = 4_000
MAX_ITEMS = 50
MAX_ITEM_CHARS = 1_000
_SOURCE = re.compile(r"(agent|execution):[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")


def bounded(text: str, limit: int, *, field: str) -> str:
    """The text itself, if it has no more characters than that. Raises InvalidRequest."""
    if len(text) > limit:
        raise InvalidRequest(f"{field} has {len(text)} characters", field=field, hint=f"at most {limit}")
    return text


def few(items: Collection[str], *, field: str, most: int = MAX_ITEMS, chars: int = MAX_ITEM_CHARS) -> tuple[str, ...]:
    """The items, if there are no more than `most` and none is longer than `chars`. Raises InvalidRequest."""
    if len(items) > most:
        raise InvalidRequest(f"{field} has {len(items)} entries", field=field, hint=f"at most {most}")
    for number, item in enumerate(items):
        bounded(item, chars, field=f"{field}[{number}]")
    return tuple(items)


def metadata(pairs: Mapping[str, str], *, field: str = "metadata") -> dict[str, str]:
    """The pairs, if they are few and short. Raises InvalidRequest."""
    few(pairs.keys(), field=field, most=MAX_METADATA, chars=MAX_METADATA_CHARS)
    return {name: bounded(value, MAX_METADATA_CHARS, field=f"{field}[{name}]") for name, value in pairs.items()}


def namespaces(names: Collection[str], *, field: str = "namespaces") -> tuple[str, ...]:
    """The namespaces of memory, each of them one. Raises InvalidRequest."""
    few(names, field=field, most=MAX_NAMESPACES)
    return tuple(check_namespace(name, field=f"{field}[{number}]") for number, name in enumerate(names))


def moment(at_ms: int, *, field: str) -> int:
    """Milliseconds that are a time. Raises InvalidRequest."""
    if at_ms > MAX_MS:
        raise InvalidRequest(f"{field} is {at_ms}", field=field, hint="milliseconds since 1970")
    return at_ms


def within(number: int, most: int, *, field: str) -> int:
    """The number, if it is no larger. Raises InvalidRequest."""
    if number > most:
        raise InvalidRequest(f"{field} is {number}", field=field, hint=f"at most {most}; 0 for the default")
    return number


def source_of(given: str, caller: str) -> str:
    """Where a memory comes from: what the caller says, if it can be that, or the caller. Raises InvalidRequest.

    A caller with a name stands in it whatever it says.
    """
    if given and not _SOURCE.fullmatch(given):
        raise InvalidRequest(f"{given[:64]!r} is no source", field="source", hint="agent:<id> or execution:<id>")
    by = f"caller:{caller}" if caller else ""
    return ", ".join(part for part in (given, by) if part) or "caller"


@contextmanager
def fields_within(message: str, **renamed: str) -> Generator[None]:
    """Inside, faults name fields as they are called in the request, where they stand in its field `message`.

    `renamed` are those that stand elsewhere or have another name there.
    """
    try:
        yield
    except FleetError as error:
        head, bracket, rest = error.field.partition("[")
        name = renamed.get(head, f"{message}.{head}" if message and head else head)
        if not error.field or f"{name}{bracket}{rest}" == error.field:
            raise
        raise type(error)(error.message, field=f"{name}{bracket}{rest}", hint=error.hint) from error
