"""The API's document (OpenAPI 3.1), made from the table of RPCs and the protobuf descriptors.

The parts that the table does not cover (streams, sessions, probes, problems) come from `document.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from services.errors import bounds_of
from services.gateway.event_stream import MEDIA_TYPE as EVENTS
from services.gateway.rest.artifacts import MEDIA_TYPE, UPLOAD_MEDIA_TYPES
from services.gateway.rest.reading import RANGES
from services.gateway.rest.table import MAX_WAIT_SECONDS, OPERATIONS, SUBMIT, WAIT, Operation, field_of
from services.gateway.upstream import method, service

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


def load_json(name: str) -> dict[str, Any]:
    """A JSON file of this package: the hand-written part, or the comments of the .proto files as last generated."""
    return json.loads(files("services.gateway.rest").joinpath(name).read_text(encoding="utf-8"))


class Schemas:
    """The schemas of a document: one for each message and enumeration that something refers to.

    A message that is part of a request allows no additional properties. One that is only part of answers lists as
    required the fields that are always there.

    Args:
        comments: Of messages, fields and enumerations, by full names.
        requests: The messages that clients send as bodies.
    """

    def __init__(self, comments: Mapping[str, str], requests: Iterable[Descriptor]) -> None:
        self._comments = comments
        self._in_requests: set[str] = set()
        self._schemas: dict[str, Schema] = {}
        for kind in requests:
            self._add_request(kind)

    @property
    def components(self) -> dict[str, Schema]:
        """Every schema that was referred to, by its name in the document."""
        return dict(sorted(self._schemas.items()))

    def reference(self, kind: Descriptor | EnumDescriptor) -> Schema:
        """A reference to the schema of a message or an enumeration."""
        # `orchestrator.Execution` for `fleet.orchestrator.v1.Execution`.
        name = kind.full_name.removeprefix("fleet.").replace(".v1.", ".")
        if name not in self._schemas:
            # Entered before it is made, because it may refer to itself.
            self._schemas[name] = {}
            definition = self._enumeration(kind) if isinstance(kind, EnumDescriptor) else self.message(kind)
            self._schemas[name].update(definition)
        return {"$ref": f"#/components/schemas/{name}"}

    def message(self, kind: Descriptor, *, without: Iterable[str] = ()) -> Schema:
        """The schema of a message itself, not a reference to it."""
        left_out = set(without)
        fields = [field for field in kind.fields if field.name not in left_out]
        schema: Schema = {"type": "object"}
        # protobuf represents an optional field as a oneof with one field.
        several = [[field.name for field in choice.fields] for choice in kind.oneofs if len(choice.fields) > 1]
        exclusive = (f"One of {', '.join(f'`{name}`' for name in names)}." for names in several)
        self._describe(schema, kind.full_name, "\n\n".join(exclusive))
        schema["properties"] = {field.name: self.field(field) for field in fields}
        if kind.full_name in self._in_requests:
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

    def _add_request(self, kind: Descriptor) -> None:
        if kind.full_name in self._in_requests:
            return
        self._in_requests.add(kind.full_name)
        for field in kind.fields:
            if field.message_type is not None:
                self._add_request(field.message_type)


def _bounds(schema: Schema, field: FieldDescriptor) -> Schema:
    """The bounds of a field in the .proto files as JSON Schema keywords; those of a list's entries go to `items`."""
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


_ALWAYS = ("400", "401", "403", "404", "409", "421", "429", "501", "503", "504")
_WITH_BODY = ("408", "413", "415", "422")
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeated with the same body within a day, the request is answered again and not done again.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}


_WAIT = {
    "name": WAIT,
    "in": "query",
    "description": "How long to wait for the end; after that the answer is 202 and the execution goes on. "
    "Absent: to the end.",
    "schema": {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS},
}
_RANGE = {
    "name": "Range",
    "in": "header",
    "description": "One range of bytes, such as `bytes=1000-`; of several the whole is sent.",
    "schema": {"type": "string"},
}


def document(comments: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The document. `comments`: of the .proto files, by full names; None: those in `comments.json`."""
    proto_comments = load_json("comments.json") if comments is None else comments
    schemas = Schemas(proto_comments, [_input(operation) for operation in OPERATIONS if operation.has_body])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _described(operation, schemas, proto_comments)
    tags = [
        {"name": _tag(name), "description": proto_comments.get(name, "")}
        for name in dict.fromkeys(operation.service for operation in OPERATIONS)
    ]
    whole = load_json("document.json")
    whole["components"]["schemas"] = schemas.components | whole["components"]["schemas"]
    return whole | {"tags": tags + whole["tags"], "paths": paths | whole["paths"]}


def document_text(comments: Mapping[str, str] | None = None) -> str:
    """The whole document, indented, as in docs/."""
    return json.dumps(document(comments), indent=1, ensure_ascii=False) + "\n"


def document_bytes() -> bytes:
    """The whole document, compact, as it is served."""
    return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode()


def _described(operation: Operation, schemas: Schemas, comments: Mapping[str, str]) -> dict[str, Any]:
    kind = _input(operation)
    fields: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "description": comments.get(operation.rpc, ""),
        "tags": [_tag(operation.service)],
    }
    parameters = [_in_path(name, field, kind, schemas) for name, field in operation.parameters.items()]
    if operation.kind == "upload":
        parameters += _in_query(field_of(kind, "header").message_type, schemas, ())
        fields["requestBody"] = {
            "required": True,
            "description": "A git bundle.",
            "content": {media: {"schema": {}} for media in UPLOAD_MEDIA_TYPES},
        }
    elif operation.has_body:
        inside = set(operation.parameters.values())
        body = schemas.message(kind, without=inside) if inside else schemas.reference(kind)
        fields["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
        parameters.append(_KEY)
    else:
        hidden = (*operation.parameters.values(), *(("offset_bytes",) if operation.kind == "bytes" else ()))
        parameters += _in_query(kind, schemas, hidden)
    if operation.kind == "waiting":
        parameters.append(_WAIT)
    if operation.kind == "bytes":
        parameters.append(_RANGE)
    if parameters:
        fields["parameters"] = parameters
    fields["responses"] = _responses(operation, schemas)
    return fields


def _in_path(name: str, field: str, kind: Descriptor, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.field(field_of(kind, field))
    about = schema.pop("description", "")
    if schema.get("type") == "string" and "pattern" not in schema:
        schema["pattern"] = "^[^/]+$"
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


def _in_query(kind: Any, schemas: Schemas, hidden: Iterable[str]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for field in cast("list[FieldDescriptor]", kind.fields):
        if field.name in hidden:
            continue
        schema = schemas.field(field)
        about = schema.pop("description", "")
        parameters.append({"name": field.name, "in": "query", "description": about, "schema": schema})
    return parameters


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if operation.kind == "bytes":
        whole: Schema = {"content": {MEDIA_TYPE: {"schema": {}}}}
        fields["200"] = {"description": "The artifact.", **whole}
        fields["206"] = {"description": "The part that was asked for.", **whole}
        fields["304"] = {"description": "The client has it already."}
    else:
        fields[str(operation.status)] = _success(operation, schemas)
    if operation.kind == "waiting":
        submit = method(SUBMIT).output_type
        fields["202"] = {
            "description": "It has not ended yet; `Location` says where it runs.",
            "headers": {"Location": {"schema": {"type": "string"}}},
            "content": {"application/json": {"schema": schemas.reference(submit)}},
        }
    faults = [*_ALWAYS]
    if operation.verb == "POST":
        faults += _WITH_BODY
    if operation.kind == "bytes":
        faults.append("416")
    for status in sorted(faults):
        fields[status] = {"$ref": f"#/components/responses/Problem{status}"}
    return fields


def _success(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    reply = operation.method.output_type
    answer = cast("Descriptor", field_of(reply, operation.answer).message_type) if operation.answer else reply
    fields: dict[str, Any] = {"description": operation.summary + ": done."}
    if operation.location and operation.kind == "unary":
        fields["headers"] = {"Location": {"description": "Where it is.", "schema": {"type": "string"}}}
    if operation.verb == "GET" and "next_page_token" in reply.fields_by_name:
        about = 'The next page, rel="next"; absent on the last one.'
        fields["headers"] = {"Link": {"description": about, "schema": {"type": "string"}}}
    fields["content"] = {"application/json": {"schema": schemas.reference(answer)}}
    if operation.events:
        update = method(operation.events).output_type
        schemas.reference(update)
        fields["content"][EVENTS] = {
            "schema": {
                "type": "string",
                "description": f"What happens, as it happens: the data of each event is a `{update.name}`. A fault is "
                "an event `problem` with the problem document.",
            }
        }
    return fields


def _input(operation: Operation) -> Descriptor:
    return operation.method.input_type


def _tag(full_name: str) -> str:
    return service(full_name).name.removesuffix("Service")
