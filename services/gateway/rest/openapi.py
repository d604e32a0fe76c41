"""The API's document (OpenAPI 3.1), made from the table of RPCs and the descriptors.

What the table does not know (streams, sessions, probes, problems) stands in `document.json`, which it is laid into.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.gateway.event_stream import MEDIA_TYPE as EVENTS
from services.gateway.rest.artifacts import MEDIA_TYPE, UPLOAD_MEDIA_TYPES
from services.gateway.rest.schemas import Schema, Schemas, kept
from services.gateway.rest.table import MAX_WAIT_SECONDS, OPERATIONS, SUBMIT, WAIT, Operation, field_of
from services.gateway.upstream import method, service

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
    """The document. `comments`: of the contract, by full names; None: those kept beside the code."""
    proto_comments = kept("comments.json") if comments is None else comments
    schemas = Schemas(proto_comments, [_input(operation) for operation in OPERATIONS if operation.has_body])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _described(operation, schemas, proto_comments)
    tags = [
        {"name": _tag(name), "description": proto_comments.get(name, "")}
        for name in dict.fromkeys(operation.service for operation in OPERATIONS)
    ]
    whole = kept("document.json")
    whole["components"]["schemas"] = schemas.components | whole["components"]["schemas"]
    return whole | {"tags": tags + whole["tags"], "paths": paths | whole["paths"]}


def document_text(comments: Mapping[str, str] | None = None) -> str:
    """The whole document, as it stands in docs/."""
    return json.dumps(document(comments), indent=1, ensure_ascii=False) + "\n"


def document_bytes() -> bytes:
    """The whole document, as it is served."""
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
    faults += _WITH_BODY if operation.verb == "POST" else ()
    faults += ("416",) if operation.kind == "bytes" else ()
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
