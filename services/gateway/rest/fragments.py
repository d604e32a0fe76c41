"""What the document says of rooms that the table does not know: streams, sessions, probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.gateway.streams.openapi import OPENAPI

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
    told = _json(summary, {"status": {"type": "string"}})
    responses = {"200": told, "503": told} if otherwise else {"200": told}
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
