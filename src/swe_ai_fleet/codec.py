"""Domain values to JSON and back: the only place that serialises them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from swe_ai_fleet.domain.event import Event, EventBody, ModelReplied

T = TypeVar("T")


class _Head(TypedDict):
    id: str
    tenant: str
    execution_id: str
    task_id: str
    agent_id: str
    at: str


class _Envelope(_Head):
    """An event as it is read: the `type` selects its body at once, where a plain union would try all of them."""

    body: Annotated[EventBody, Field(discriminator="type")]


_HEAD = tuple(_Head.__annotations__)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _event_writer(body: type) -> TypeAdapter[Any]:
    """Writes events with this body: the schema of all bodies, which takes long to build, is only needed for reading."""
    return _adapter(type("_Event", (_Head,), {"__annotations__": {"body": body}, "__module__": __name__}))


def to_json(value: object) -> bytes:
    """A domain value as UTF-8 JSON."""
    if isinstance(value, Event):
        return _event_writer(type(value.body)).dump_json(
            {name: getattr(value, name) for name in _HEAD} | {"body": _without_server(value.body)}
        )
    return _adapter(type(value)).dump_json(_without_server(value))


def _without_server(value: object) -> object:
    """The value without the name of a model server: that is for the operator's traces, and tenants read the log."""
    if isinstance(value, Event) and isinstance(value.body, ModelReplied) and value.body.reply.server:
        return replace(value, body=cast("EventBody", _without_server(value.body)))
    if isinstance(value, ModelReplied) and value.reply.server:
        return replace(value, reply=replace(value.reply, server=""))
    return value


def from_json(kind: type[T], data: bytes | str) -> T:
    """The value that `to_json` made. Raises ValueError (pydantic's) naming what does not fit."""
    if kind is Event:
        return cast("T", Event(**_adapter(_Envelope).validate_json(data)))
    return _adapter(kind).validate_json(data)


def to_plain(value: object) -> Any:
    """A domain value as dicts, lists, strings and numbers."""
    return _adapter(type(value)).dump_python(_without_server(value), mode="json")


def from_plain(kind: type[T], value: object) -> T:
    """The value that `to_plain` made. Raises ValueError naming what does not fit."""
    return _adapter(kind).validate_python(value)
