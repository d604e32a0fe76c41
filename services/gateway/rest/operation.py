"""One thing that can be asked over HTTP, and the RPC that does it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from services.gateway.upstream import CALL_SECONDS, method

Kind = Literal["unary", "waiting", "last", "bytes", "upload"]
PLACES = re.compile(r"\{([a-z_]+)\}")
"""Names in braces, in a path or a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A row of the table.

    Attributes:
        verb: The HTTP method.
        path: From `/api` on; names in braces are its parameters.
        rpc: The full name of the gRPC method.
        summary: What it does, in a few words.
        kind: unary: asks once. waiting: a task, whose end may be waited for or not. last: the last message of a stream
            is the answer. bytes: a blob comes. upload: a blob goes.
        fields: Of path parameters, the request's fields, where they are called otherwise; dots lead into messages.
        status: Of success.
        location: Where the thing is that was made; names in braces are fields of the reply.
        events: The RPC whose messages are sent where events are accepted; empty where there is none.
        answer: The field of the reply that alone is the answer; empty: the whole reply.
        seconds: How long the service may take.
    """

    verb: Literal["GET", "POST", "DELETE"]
    path: str
    rpc: str
    summary: str
    kind: Kind = "unary"
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    status: int = 200
    location: str = ""
    events: str = ""
    answer: str = ""
    seconds: float = CALL_SECONDS

    @property
    def method(self) -> MethodDescriptor:
        """The RPC."""
        return method(self.rpc)

    @property
    def service(self) -> str:
        """The full name of the RPC's service."""
        return self.rpc.rpartition(".")[0]

    @property
    def parameters(self) -> Mapping[str, str]:
        """Of each path parameter the request's field."""
        return {name: self.fields.get(name, name) for name in PLACES.findall(self.path)}

    @property
    def has_body(self) -> bool:
        """Whether what is not in the path comes as JSON; otherwise it comes in the query."""
        return self.verb == "POST" and self.kind != "upload"

    @property
    def id(self) -> str:
        """Unique in the table: the RPC's own name."""
        return self.rpc.rpartition(".")[2]


def field_of(message: Descriptor, name: str) -> FieldDescriptor:
    """A field by its name; dots lead into messages. Raises KeyError."""
    *way, last = name.split(".")
    for part in way:
        inner = message.fields_by_name[part].message_type
        if inner is None:
            raise KeyError(name)
        message = inner
    return message.fields_by_name[last]
