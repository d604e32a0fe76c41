"""What a tool of an MCP server answered, as text for a model and facts for a program."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from swe_ai_fleet.tools.mcp.schemas import plain

MAX_STRUCTURED_CHARS = 16_384
_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer; `structured` is its JSON value where it has one that is not too large, else a description of it."""

    text: str
    structured: object = None
    failed: bool = False


def answer(result: CallToolResult) -> Answer:
    """Read an answer. Whatever is not text is described by its kind, size and digest."""
    text = "\n".join(_text(part) for part in result.content)
    value: object = result.structured_content
    if value is None:
        return Answer(text=text, failed=result.is_error)
    written = json.dumps(value, ensure_ascii=False)
    if len(written) > MAX_STRUCTURED_CHARS:
        data = written.encode("utf-8", "surrogatepass")
        value = {"left_out": True, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return Answer(text=text or written, structured=value, failed=result.is_error)


def _text(part: ContentBlock) -> str:
    match part:
        case TextContent():
            return part.text
        case ImageContent() | AudioContent():
            return _described(part.type, part.mime_type, part.data)
        case ResourceLink():
            about = plain(part.description or "", _SHOWN_CHARS)
            return f"[link to {plain(part.name, _SHOWN_CHARS)}: {_address(part.uri)}]" + (f" {about}" if about else "")
        case EmbeddedResource(resource=BlobResourceContents() as held):
            return _described(f"resource {_address(held.uri)}", held.mime_type or "", held.blob)
        case EmbeddedResource():
            return f"[resource {_address(part.resource.uri)}]\n{getattr(part.resource, 'text', '')}"


def _described(kind: str, mime_type: str, encoded: str) -> str:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return f"[{kind} {plain(mime_type, 80)}: {len(encoded)} characters that are no base64]"
    digest = hashlib.sha256(data).hexdigest()
    return f"[{kind} {plain(mime_type, 80)}: {len(data)} bytes, not shown, sha256 {digest}]"


def _address(uri: object) -> str:
    return plain(str(uri), _SHOWN_CHARS)
