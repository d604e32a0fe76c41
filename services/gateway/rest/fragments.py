"""What the document says of rooms that the table does not know: sessions, events, audit chains, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Part = dict[str, Any]


def _json(about: str, properties: Mapping[str, Part]) -> Part:
    schema = {"type": "object", "properties": dict(properties), "required": list(properties)}
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _problems(*statuses: str) -> Part:
    return {status: {"$ref": f"#/components/responses/Problem{status}"} for status in statuses}


def _query(name: str, schema: Part, about: str) -> Part:
    return {"name": name, "in": "query", "description": about, "schema": schema}


_NUMBER: Part = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_EXECUTION_ID: Part = {
    "name": "execution_id",
    "in": "path",
    "required": True,
    "description": "The execution.",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
}
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
_EVENTS: Part = {
    "get": {
        "operationId": "GetExecutionEvents",
        "summary": "Get an execution's events",
        "description": "A page of them, or, where `text/event-stream` is accepted, all of them as they come: the id of "
        "each is its sequence, and `Last-Event-ID` goes on behind one. A WebSocket at "
        "`/api/ws/executions/{execution_id}?from=` carries the same messages.",
        "tags": ["Events"],
        "parameters": [
            _EXECUTION_ID,
            _query("from", _NUMBER, "The first sequence."),
            _query("events", {"enum": ["0", "1"]}, "Whether each message has its whole stored event."),
            _query("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}, "Most of a page; 200 by default."),
        ],
        "responses": {
            "200": {
                "description": "The page, or the events.",
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "properties": {
                                "events": {"type": "array", "items": {"type": "object"}},
                                "next_from": {"type": "integer", "description": "Where the next page begins."},
                                "ended": {"type": "boolean", "description": "Nothing comes behind it."},
                            },
                            "required": ["events", "next_from", "ended"],
                        }
                    },
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            },
            "204": {"description": "An event stream that has nothing more to say: do not connect again."},
            **_problems(*_USUAL, "404", "503", "504"),
        },
    }
}
_AUDIT: Part = {
    "get": {
        "operationId": "GetExecutionAudit",
        "summary": "Verify an execution's audit chains",
        "description": "Each agent's chain, recomputed from the log; entries of one agent where it is named.",
        "tags": ["Events"],
        "parameters": [
            _EXECUTION_ID,
            _query("agent_id", {"type": "string"}, "Whose entries to show."),
            _query("run", _NUMBER, "Of this run of the agent only. 0: of all."),
            _query("from", _NUMBER, "The first entry."),
            _query("limit", {"type": "integer", "minimum": 1, "maximum": 500}, "Most entries; 100 by default."),
        ],
        "responses": {
            "200": _json(
                "The verdicts.",
                {
                    "execution_id": {"type": "string"},
                    "intact": {"type": "boolean"},
                    "last_sequence": {"type": "integer"},
                    "chains": {"type": "array", "items": {"type": "object"}},
                    "entries": {"type": "array", "items": {"type": "object"}},
                    "next_from": {"type": ["integer", "null"]},
                },
            ),
            **_problems(*_USUAL, "404", "503", "504"),
        },
    }
}


def _probe(name: str, summary: str, *, otherwise: bool) -> Part:
    told = _json(summary, {"status": {"type": "string"}})
    responses = {"200": told, "503": told} if otherwise else {"200": told}
    get = {"operationId": name, "summary": summary, "tags": ["Probes"], "security": [], "responses": responses}
    return {"get": get}


FRAGMENTS: Sequence[Mapping[str, Any]] = (
    {
        "tags": [
            {"name": "Events", "description": "What executions do, as they do it."},
            {"name": "Session", "description": "The cookie of the page."},
            {"name": "Probes", "description": "For whoever watches the process."},
        ],
        "paths": {
            "/api/executions/{execution_id}/events": _EVENTS,
            "/api/executions/{execution_id}/audit": _AUDIT,
            "/api/session": _SESSION,
            "/health": _probe("GetHealth", "Whether it is alive", otherwise=False),
            "/ready": _probe("GetReadiness", "Whether it can do its work", otherwise=True),
        },
    },
)
"""Parts of the document, to be added to what the table makes."""
