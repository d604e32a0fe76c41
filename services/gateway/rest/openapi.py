"""The API's document (OpenAPI 3.1), made from the table of RPCs and the descriptors.

Rooms that the table does not know (streams, sessions, probes) add fragments of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.gateway.event_stream import MEDIA_TYPE as EVENTS
from services.gateway.problems import MEDIA_TYPE as PROBLEM
from services.gateway.rest.artifacts import MEDIA_TYPE, UPLOAD_MEDIA_TYPES
from services.gateway.rest.schemas import Schema, Schemas, kept_comments
from services.gateway.rest.table import MAX_WAIT_SECONDS, OPERATIONS, SUBMIT, WAIT, Operation, field_of
from services.gateway.streams.openapi import OPENAPI
from services.gateway.upstream import method, service
from swe_ai_fleet.domain.json_values import is_list, is_mapping, is_object

Part = dict[str, Any]


def _json(about: str, properties: Mapping[str, Part]) -> Part:
    schema = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _problems(*statuses: str) -> Part:
    return {status: {"$ref": f"#/components/responses/Problem{status}"} for status in statuses}


_AUTHENTICATED: Part = {"authenticated": {"type": "boolean"}, "by": {"type": "string"}}
_USUAL = ("400", "401", "403", "421", "429")
_SESSION: Part = {
    "post": {
        "operationId": "OpenSession",
        "summary": "Trade the token for a cookie",
        "description": "For browsers: the answer sets a cookie that stands for the token.",
        "tags": ["Session"],
        "security": [],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"token": {"type": "string"}},
                        "required": ["token"],
                        "additionalProperties": False,
                    }
                }
            },
        },
        "responses": {"200": _json("Let in.", _AUTHENTICATED), **_problems(*_USUAL, "408", "413", "415")},
    },
    "get": {
        "operationId": "GetSession",
        "summary": "By what the caller is known",
        "description": "And, of a cookie, until when: `expires_at_ms`.",
        "tags": ["Session"],
        "responses": {"200": _json("Known.", _AUTHENTICATED), **_problems(*_USUAL)},
    },
    "delete": {
        "operationId": "EndSession",
        "summary": "Forget the cookie",
        "description": "The browser removes it.",
        "tags": ["Session"],
        "responses": {"204": {"description": "Gone."}, **_problems(*_USUAL, "415")},
    },
}


def _probe(name: str, summary: str, *, otherwise: bool) -> Part:
    probe = _json(summary, {"status": {"type": "string"}})
    responses = {"200": probe, "503": probe} if otherwise else {"200": probe}
    get = {"operationId": name, "summary": summary, "tags": ["Probes"], "security": [], "responses": responses}
    return {"get": get}


FRAGMENTS: Sequence[Mapping[str, Any]] = (
    OPENAPI,
    {
        "tags": [
            {"name": "Session", "description": "The cookie of the page."},
            {"name": "Probes", "description": "For whoever watches the process."},
        ],
        "paths": {
            "/api/session": _SESSION,
            "/health": _probe("GetHealth", "Whether it is alive", otherwise=False),
            "/ready": _probe("GetReadiness", "Whether it can do its work", otherwise=True),
        },
    },
)
"""Parts of the document, to be added to what the table makes."""


VERSION = "1"
_ABOUT = (
    "Tasks for coding agents, over HTTP. JSON is proto3's mapping with the contract's own field names: defaults are "
    "printed, enumerations are names, bytes are base64; 64-bit integers are numbers. A member that is null counts as "
    "not given, an unknown one is refused. Every fault is a problem document (RFC 9457)."
)
_STATUSES: Mapping[str, str] = {
    "400": "The request is wrong; `field` says where.",
    "401": "No valid token.",
    "403": "A page of another origin asked.",
    "404": "Not found.",
    "408": "The body did not come in time.",
    "409": "It is there with other content, or in another state.",
    "413": "The body is too large.",
    "415": "The body is of another media type.",
    "416": "The artifact ends before that range.",
    "421": "The gateway is not reached under that host.",
    "422": "The idempotency key was used for another body.",
    "429": "Too much at once; `retry_after_seconds` says when to come again.",
    "501": "The service does not offer this.",
    "503": "Something that is needed does not answer; worth another try.",
    "504": "The service did not answer in time.",
}
_ALWAYS = ("400", "401", "403", "404", "409", "421", "429", "501", "503", "504")
_WITH_BODY = ("408", "413", "415", "422")
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeated with the same body within a day, the request is answered again and not done again.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
_PROBLEM: Schema = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "properties": {
        "type": {"type": "string", "description": "`about:blank`: the status says what kind of problem it is."},
        "title": {"type": "string", "description": "The status in words."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What is wrong, for people."},
        "instance": {"type": "string", "description": "The path that was asked for."},
        "code": {"type": "string", "description": "The gRPC code, such as `INVALID_ARGUMENT`."},
        "field": {"type": "string", "description": "What to change."},
        "hint": {"type": "string", "description": "The way out."},
        "retry_after_seconds": {"type": "integer", "description": "When another try makes sense."},
    },
    "required": ["type", "title", "status", "detail", "code"],
}


def document(
    comments: Mapping[str, str] | None = None,
    *,
    operations: Sequence[Operation] = OPERATIONS,
    fragments: Iterable[Mapping[str, Any]] = FRAGMENTS,
) -> dict[str, Any]:
    """The document.

    Args:
        comments: Of the contract, by full names; None: those kept beside the code.
        operations: What there is.
        fragments: `paths`, `components` and `tags` of rooms that the table does not know.
    """
    proto_comments = kept_comments() if comments is None else comments
    schemas = Schemas(proto_comments, [_input(operation) for operation in operations if operation.has_body])
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.verb.lower()] = _described(operation, schemas, proto_comments)
    tags = [
        {"name": _tag(name), "description": proto_comments.get(name, "")}
        for name in dict.fromkeys(operation.service for operation in operations)
    ]
    schema_document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "SWE AI Fleet over HTTP",
            "version": VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"cookie": []}],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The fleet's token."},
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "fleet-session",
                    "description": "From POST /api/session, for the page; the port is in its name.",
                },
            },
            "responses": {f"Problem{status}": _problem(text) for status, text in _STATUSES.items()},
            "schemas": {**schemas.components, "Problem": _PROBLEM},
        },
    }
    for fragment in fragments:
        _add(schema_document, fragment)
    return schema_document


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
        fields["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(operation, schemas)}},
        }
        parameters.append(_KEY)
    else:
        hidden = (*operation.parameters.values(), *(("offset_bytes",) if operation.kind == "bytes" else ()))
        parameters += _in_query(kind, schemas, hidden)
    if operation.kind == "waiting":
        parameters.append(_wait())
    if operation.kind == "bytes":
        parameters.append(_range())
    if parameters:
        fields["parameters"] = parameters
    fields["responses"] = _responses(operation, schemas)
    return fields


def _body(operation: Operation, schemas: Schemas) -> Schema:
    inside = set(operation.parameters.values())
    kind = _input(operation)
    return schemas.message(kind, without=inside) if inside else schemas.reference(kind)


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


def _problem(text: str) -> dict[str, Any]:
    return {"description": text, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _wait() -> dict[str, Any]:
    about = "How long to wait for the end; after that the answer is 202 and the execution goes on. Absent: to the end."
    schema = {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS}
    return {"name": WAIT, "in": "query", "description": about, "schema": schema}


def _range() -> dict[str, Any]:
    about = "One range of bytes, such as `bytes=1000-`; of several the whole is sent."
    return {"name": "Range", "in": "header", "description": about, "schema": {"type": "string"}}


def _input(operation: Operation) -> Descriptor:
    return operation.method.input_type


def _tag(full_name: str) -> str:
    return service(full_name).name.removesuffix("Service")


def _add(target: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    """Take over what a room says of itself; what it does not name stays."""
    for name, value in fragment.items():
        if is_mapping(value) and is_object(target.get(name)):
            _add(target[name], value)
        elif is_list(value) and isinstance(target.get(name), list):
            target[name] = [*target[name], *value]
        else:
            target[name] = value
