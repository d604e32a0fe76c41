"""One reply to be asked for: the body that goes out, and what has to be known to read the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swe_ai_fleet.adapters.openai_model import json_protocol, text_protocol
from swe_ai_fleet.adapters.openai_model.answers import Asked
from swe_ai_fleet.adapters.openai_model.probing import Findings
from swe_ai_fleet.adapters.openai_model.quirks import Feature, Quirks
from swe_ai_fleet.adapters.openai_model.wire import WireWriter, dump_json, head_fields, wire_ids
from swe_ai_fleet.domain.message import Message, ModelRequest, ToolProtocol, UserMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A body, how to read its answer, and which features of the server it uses, the first to be given up first."""

    body: bytes
    asked: Asked
    uses: tuple[Feature, ...]


class RequestWriter:
    """Writes requests in the protocol that the server was found to take, without what it turned out to lack."""

    def __init__(self, quirks: Quirks) -> None:
        self._quirks = quirks
        self._writer = WireWriter()

    def write(self, wanted: ModelRequest, findings: Findings) -> Request:
        """The request for one reply, which comes as a stream where somebody hears it come in."""
        messages, tools, schema = wanted.messages, wanted.tools, wanted.schema
        capabilities = self._quirks.known(findings.capabilities)
        protocol = capabilities.protocol
        # A stream is read for its text alone.
        more, uses = self._stream_fields(wanted.on_delta is not None and not wanted.top_logprobs)
        if wanted.top_logprobs and capabilities.logprobs:
            uses.append(Feature.LOGPROBS)
            more |= {"logprobs": True, "top_logprobs": wanted.top_logprobs}
        head = head_fields(capabilities.model, wanted.sampling, limit_field=findings.limit_field, more=more)
        held_to = b""
        if schema is not None and capabilities.structured_output:
            uses.append(Feature.SCHEMA)
            held_to = dump_json(json_protocol.response_format(schema, name="answer"))
        elif schema is not None:
            messages = _with_words(messages, text_protocol.follow_schema(schema))
        elif tools and protocol is ToolProtocol.JSON:
            full = self._quirks.allow(Feature.FULL_ENVELOPE)
            uses.append(Feature.FULL_ENVELOPE if full else Feature.ENVELOPE)
            held_to = self._writer.envelope_format(tools, full=full)
        ids: dict[str, str] = {}
        if protocol is ToolProtocol.NATIVE:
            ids, strict = wire_ids(messages), capabilities.strict_schemas
            body = self._writer.native(messages, tools, head=head, wire_ids=ids, strict=strict, response_format=held_to)
        else:
            body = self._writer.spoken(messages, tools, head=head, protocol=protocol, response_format=held_to)
        asked = Asked(protocol=protocol, tools_offered=bool(tools), taken=tuple(ids.values()), raw=schema is not None)
        return Request(body=body, asked=asked, uses=tuple(uses))

    def _stream_fields(self, wanted: bool) -> tuple[dict[str, object], list[Feature]]:
        if not wanted or not self._quirks.allow(Feature.STREAM):
            return {}, []
        if not self._quirks.allow(Feature.STREAM_OPTIONS):
            return {"stream": True}, [Feature.STREAM]
        # Without it a stream does not say what it cost.
        options = {"include_usage": True}
        return {"stream": True, "stream_options": options}, [Feature.STREAM_OPTIONS, Feature.STREAM]


def _with_words(messages: Sequence[Message], words: str) -> list[Message]:
    """The conversation with words at its end, in the last message where that is the user's."""
    last = messages[-1] if messages else None
    if not isinstance(last, UserMessage):
        return [*messages, UserMessage(content=words)]
    said = f"{last.content}\n\n{words}" if last.content else words
    return [*messages[:-1], replace(last, content=said)]
