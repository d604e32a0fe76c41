"""Messages of the contract as JSON schemas (draft 2020-12), with the contract's own comments.

The comments are kept in a file beside this module: generated descriptors have lost them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from services.errors import bounds_of
from services.gateway.rest.reading import RANGES

Schema = dict[str, Any]
_INTEGERS: Mapping[int, str] = {
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_UINT32: "uint32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT64: "uint64",
}
_FREE_FORM: Mapping[str, Schema] = {
    "google.protobuf.Struct": {"type": "object", "additionalProperties": True},
    "google.protobuf.Value": {},
    "google.protobuf.ListValue": {"type": "array", "items": {}},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string"},
}


def kept(name: str) -> dict[str, Any]:
    """A JSON file beside this module: what is written by hand, or the comments as they were when it was generated."""
    return json.loads(files("services.gateway.rest").joinpath(name).read_text(encoding="utf-8"))


class Schemas:
    """The components of a document: a schema for each message and enumeration that something refers to.

    A message that requests are made of refuses members it does not know; of one that only answers are made of, what is
    always there is required.

    Args:
        comments: What is said of messages, fields and enumerations, by full names.
        requests: The messages that bodies of requests are.
    """

    def __init__(self, comments: Mapping[str, str], requests: Iterable[Descriptor]) -> None:
        self._comments = comments
        self._asked: set[str] = set()
        self._found: dict[str, Schema] = {}
        for kind in requests:
            self._ask(kind)

    @property
    def components(self) -> dict[str, Schema]:
        """Every schema that was referred to, by its name in the document."""
        return dict(sorted(self._found.items()))

    def reference(self, kind: Descriptor | EnumDescriptor) -> Schema:
        """A reference to the schema of a message or an enumeration."""
        # `orchestrator.Execution` for `fleet.orchestrator.v1.Execution`.
        name = kind.full_name.removeprefix("fleet.").replace(".v1.", ".")
        if name not in self._found:
            # Before it is made: it may refer to itself.
            self._found[name] = {}
            definition = self._enumeration(kind) if isinstance(kind, EnumDescriptor) else self.message(kind)
            self._found[name].update(definition)
        return {"$ref": f"#/components/schemas/{name}"}

    def message(self, kind: Descriptor, *, without: Iterable[str] = ()) -> Schema:
        """The schema of a message in place."""
        left_out = set(without)
        fields = [field for field in kind.fields if field.name not in left_out]
        schema: Schema = {"type": "object"}
        # A oneof of one field is only how protobuf keeps an optional one.
        several = [[field.name for field in choice.fields] for choice in kind.oneofs if len(choice.fields) > 1]
        exclusive = (f"One of {', '.join(f'`{name}`' for name in names)}." for names in several)
        self._describe(schema, kind.full_name, "\n\n".join(exclusive))
        schema["properties"] = {field.name: self.field(field) for field in fields}
        if kind.full_name in self._asked:
            schema["additionalProperties"] = False
            if len(kind.oneofs) == 1 and len(kind.oneofs[0].fields) == len(kind.fields) > 1:
                schema["maxProperties"] = 1
        elif required := [field.name for field in fields if not field.has_presence]:
            schema["required"] = required
        return schema

    def field(self, field: FieldDescriptor) -> Schema:
        """The schema of a field's value."""
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            schema: Schema = {
                "type": "object",
                "additionalProperties": self._element(kind.fields_by_name["value"]),
            }
        else:
            schema = self._element(field)
            if field.is_repeated:
                schema = {"type": "array", "items": schema}
        schema.update(_bounds(schema, field))
        return self._describe(schema, field.full_name)

    def _element(self, field: FieldDescriptor) -> Schema:
        if field.message_type is not None:
            kind = field.message_type
            return dict(_FREE_FORM[kind.full_name]) if kind.full_name in _FREE_FORM else self.reference(kind)
        if field.enum_type is not None:
            return self.reference(field.enum_type)
        if field.cpp_type in _INTEGERS:
            least, most = RANGES[field.cpp_type]
            return {"type": "integer", "format": _INTEGERS[field.cpp_type], "minimum": least, "maximum": most}
        if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return {"type": "number", "format": "double"}
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return {"type": "boolean"}
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        return {"type": "string"}

    def _enumeration(self, kind: EnumDescriptor) -> Schema:
        comments = [
            f"- `{value.name}`: {text}"
            for value in kind.values
            if (text := self._comments.get(f"{kind.full_name}.{value.name}"))
        ]
        schema: Schema = {"type": "string", "enum": [value.name for value in kind.values]}
        return self._describe(schema, kind.full_name, "\n".join(comments))

    def _describe(self, schema: Schema, name: str, more: str = "") -> Schema:
        text = "\n\n".join(part for part in (self._comments.get(name, ""), more) if part)
        if text:
            schema["description"] = text
        return schema

    def _ask(self, kind: Descriptor) -> None:
        if kind.full_name in self._asked:
            return
        self._asked.add(kind.full_name)
        for field in kind.fields:
            if field.message_type is not None:
                self._ask(field.message_type)


def _bounds(schema: Schema, field: FieldDescriptor) -> Schema:
    """What the contract asks of a value, in JSON schema's words; of a list's entries in those of the list's items."""
    if (bounds := bounds_of(field)) is None:
        return {}
    bound: Schema = {}
    if bounds.HasField("max_chars"):
        bound["maxLength"] = bounds.max_chars
    if bounds.HasField("pattern"):
        bound["pattern"] = f"^{bounds.pattern}$"
    if bounds.HasField("max"):
        bound["maximum"] = int(bounds.max) if bounds.max.is_integer() else bounds.max
        bound["minimum"] = 0
    if bounds.HasField("min"):
        bound["minimum"] = int(bounds.min) if bounds.min.is_integer() else bounds.min
    if schema.get("type") == "object":
        return {"maxProperties": bounds.max_items} if bounds.HasField("max_items") else {}
    if not field.is_repeated:
        return bound
    array_bounds: Schema = {"maxItems": bounds.max_items} if bounds.HasField("max_items") else {}
    return {**array_bounds, "items": {**schema["items"], **bound}}
