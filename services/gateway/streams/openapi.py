"""What the API's document says of the streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.gateway.streams import pages
from services.gateway.streams.following import MAX_SEQUENCE

Schema = dict[str, Any]
_FAULTS = ("400", "401", "403", "404", "421", "429", "503", "504")


def _parameter(name: str, about: str, schema: Schema, *, where: str = "query") -> Schema:
    return {"name": name, "in": where, "required": where == "path", "description": about, "schema": schema}


def _number(least: int, most: int = MAX_SEQUENCE, default: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least, "maximum": most}
    return schema if default is None else {**schema, "default": default}


def _object(about: str, members: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    return {"type": "object", "description": about, "properties": dict(members), "required": list(required or members)}


def _responses(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {**answer, **{status: {"$ref": f"#/components/responses/Problem{status}"} for status in _FAULTS}}


def _json(about: str, schema: Schema) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}


_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_YES_NO: Schema = {"type": "boolean"}
_ID = _parameter("execution_id", "The execution.", {"type": "string", "format": "uuid"}, where="path")
_EVENTS = "Whether the whole stored event goes with each message; 1 by default for pages, 0 for server-sent events."
_STORED = _object(
    "A stored event.",
    {
        "sequence": {**_WHOLE, "description": "Its number in the log."},
        "event_id": _TEXT,
        "agent_id": {**_TEXT, "description": "`_`: the execution itself."},
        "type": _TEXT,
        "at_ms": _WHOLE,
        "payload": {"type": "object", "description": "Its body, as stored."},
    },
)
_MESSAGE = _object(
    "One message for each stored event; which of the members behind `at_ms` there are depends on `type`.",
    {
        "type": {"type": "string", "enum": ["status", "node_update", "log", "completion", "error"]},
        "execution_id": _TEXT,
        "sequence": {**_WHOLE, "description": "The event's number; whoever has it resumes behind it."},
        "at_ms": _WHOLE,
        "status": _TEXT,
        "data": {"type": "object"},
        "node_id": _TEXT,
        "node_state": {"type": "object"},
        "log": {"type": "object"},
        "result": {"type": "object"},
        "error": _TEXT,
        "event": {"$ref": "#/components/schemas/StoredEvent"},
    },
    ("type", "execution_id", "sequence", "at_ms"),
)
_CHAIN = _object(
    "One agent's audit chain, recomputed.",
    {
        "agent_id": _TEXT,
        "run": {**_WHOLE, "description": "Of the agent's runs, from 1."},
        "entries": {**_WHOLE, "description": "How many it has."},
        "head": {**_TEXT, "description": "The hash of its last entry."},
        "recorded_head": {**_TEXT, "description": "What the run recorded at its end; empty before that."},
        "intact": _YES_NO,
        "fault": {
            "oneOf": [
                _object("The first entry that does not fit.", {"entry": _WHOLE, "reason": _TEXT}),
                {"type": "null"},
            ]
        },
        "signing": {
            "type": "string",
            "enum": ["whole", "part", "none", "unchecked"],
            "description": "How much of it the orchestrator signed, by a key that counts.",
        },
        "signed_entries": {**_WHOLE, "description": "What the last signature is about: so many entries."},
        "key_id": {**_TEXT, "description": "Of the key that signed last; empty where none did."},
    },
)
_AUDIT = _object(
    "The audit chains of an execution, and a page of one agent's entries where an agent is named.",
    {
        "execution_id": _TEXT,
        "intact": {**_YES_NO, "description": "Whether all chains are."},
        "last_sequence": _WHOLE,
        "chains": {"type": "array", "items": {"$ref": "#/components/schemas/AuditChain"}},
        "entries": {"type": "array", "items": {"type": "object"}},
        "next_from": {"type": ["integer", "null"], "description": "Where the next page of entries begins."},
    },
)
_PAGE = _object(
    "Some messages.",
    {
        "events": {"type": "array", "items": {"$ref": "#/components/schemas/WatchMessage"}},
        "next_from": {**_WHOLE, "description": "Where the next page begins."},
        "ended": {**_YES_NO, "description": "Whether nothing comes after these any more."},
    },
)
OPENAPI: Mapping[str, Any] = {
    "tags": [{"name": "Streams", "description": "Executions as they happen."}],
    "paths": {
        pages.EVENTS_PATH: {
            "get": {
                "operationId": "WatchExecution",
                "tags": ["Streams"],
                "summary": "What happened in an execution",
                "description": "A page of messages; with `Accept: text/event-stream` all of them, as they come.",
                "parameters": [
                    _ID,
                    _parameter("from", "The first sequence number wanted.", _number(0, default=0)),
                    _parameter("events", _EVENTS, {"type": "string", "enum": ["0", "1"]}),
                    _parameter("limit", "How many; pages only.", _number(1, pages.MOST, default=pages.DEFAULT_LIMIT)),
                ],
                "responses": _responses(
                    {
                        "200": {
                            "description": "Messages, oldest first.",
                            "content": {
                                "application/json": {"schema": {"$ref": "#/components/schemas/WatchPage"}},
                                "text/event-stream": {"schema": _TEXT},
                            },
                        },
                        "204": {"description": "Server-sent events only: it has ended, and nothing comes any more."},
                    }
                ),
            }
        },
        pages.AUDIT_PATH: {
            "get": {
                "operationId": "VerifyAudit",
                "tags": ["Streams"],
                "summary": "Audit chains, recomputed",
                "parameters": [
                    _ID,
                    _parameter("agent_id", "Whose entries to show; absent: nobody's.", _TEXT),
                    _parameter("run", "Of which of its runs; 0: all.", _number(0, default=0)),
                    _parameter("from", "The number of the first entry wanted.", _number(0, default=1)),
                    _parameter(
                        "limit", "How many entries.", _number(1, pages.MOST_ENTRIES, default=pages.DEFAULT_ENTRIES)
                    ),
                ],
                "responses": _responses({"200": _json("The verdicts.", {"$ref": "#/components/schemas/AuditReport"})}),
            }
        },
    },
    "components": {
        "schemas": {
            "StoredEvent": _STORED,
            "WatchMessage": _MESSAGE,
            "WatchPage": _PAGE,
            "AuditChain": _CHAIN,
            "AuditReport": _AUDIT,
        }
    },
}
"""`tags`, `paths` and `components`, to be laid into the document that is made from the contract."""
