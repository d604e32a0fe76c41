"""A chat model, and embeddings, behind an OpenAI-compatible server.

A request is written together with the context for reading its answer. When calls come as JSON, the thought inside is
streamed while the JSON comes in.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlsplit

from swe_ai_fleet.adapters.openai_model.answers import ErrorAnswer, ReplyContext, read_reply, read_tokens
from swe_ai_fleet.adapters.openai_model.connection import ServerConnection
from swe_ai_fleet.adapters.openai_model.embeddings import OpenAIEmbedder
from swe_ai_fleet.adapters.openai_model.faults import (
    Feature,
    Quirks,
    ServerRefusal,
    StatusError,
    public_url,
    pushback,
)
from swe_ai_fleet.adapters.openai_model.probing import (
    Findings,
    ListedModel,
    is_about_the_request,
    probe_features,
    read_models,
)
from swe_ai_fleet.adapters.openai_model.streaming import BrokenStream, StreamedCompletion, read_answer
from swe_ai_fleet.adapters.openai_model.tool_protocols import ThoughtDeltas, follow_schema, response_format
from swe_ai_fleet.adapters.openai_model.wire import WireWriter, dump_json, head_fields
from swe_ai_fleet.domain.errors import ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.json_values import mapping
from swe_ai_fleet.domain.message import (
    LIMIT_FIELDS,
    Message,
    ModelCapabilities,
    ModelReply,
    ModelRequest,
    Passthrough,
    ToolProtocol,
    UserMessage,
)

__all__ = ["OpenAIChatModel", "OpenAIEmbedder"]

_FRESH_SECONDS = 5.0
_PING_SECONDS = 10.0
# HTTP statuses of an answer that is no completion, and of the server's own faults; not those of a proxy.
_PROVOKED = (200, 500, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A request's body, the context of its answer, and the server's features it uses, in the order of giving them up.

    `streams`: the answer is a stream; `send` gets its bytes, for a request that is passed on for another agent.
    """

    body: bytes
    context: ReplyContext
    uses: tuple[Feature, ...]
    streams: bool = False
    send: Callable[[bytes], Awaitable[None]] | None = None


class RequestWriter:
    """Writes requests in the protocol that the probe found, without features that the server turned out to lack."""

    def __init__(self, quirks: Quirks) -> None:
        self._quirks = quirks
        self._writer = WireWriter()

    def write(self, request: ModelRequest, findings: Findings) -> WireRequest:
        """The wire request for one reply, streamed if the request has a listener."""
        if request.passthrough is not None:
            return self._passed_on(request.passthrough, findings)
        messages, tools, schema = request.messages, request.tools, request.schema
        capabilities = self._quirks.without_refused(findings.capabilities)
        protocol = capabilities.protocol
        # Streams are read for their text only, so not with log-probabilities.
        extra, uses = self._stream_fields(request.on_delta is not None and not request.top_logprobs)
        with_ids = request.on_tokens is not None and self._quirks.allow(Feature.SAMPLED)
        if with_ids:
            uses.append(Feature.SAMPLED)
            extra["return_token_ids"] = True
        if (request.top_logprobs or with_ids) and capabilities.logprobs:
            uses.append(Feature.LOGPROBS)
            extra |= {"logprobs": True, "top_logprobs": request.top_logprobs}
        head = head_fields(capabilities.model, request.sampling, limit_field=findings.limit_field, more=extra)
        format_ = b""
        if schema is not None and capabilities.structured_output:
            uses.append(Feature.SCHEMA)
            format_ = dump_json(response_format(schema, name="answer"))
        elif schema is not None:
            messages = _with_instruction(messages, follow_schema(schema))
        elif tools and protocol is ToolProtocol.JSON:
            full = self._quirks.allow(Feature.FULL_ENVELOPE)
            uses.append(Feature.FULL_ENVELOPE if full else Feature.ENVELOPE)
            format_ = self._writer.envelope_format(tools, full=full)
        ids: dict[str, str] = {}
        if protocol is ToolProtocol.NATIVE:
            conversation, strict = self._writer.conversation(messages), capabilities.strict_schemas
            ids = conversation.ids
            body = self._writer.native(conversation, tools, head=head, strict=strict, response_format=format_)
        else:
            body = self._writer.spoken(messages, tools, head=head, protocol=protocol, response_format=format_)
        context = ReplyContext(
            protocol=protocol, tools_offered=bool(tools), taken=tuple(ids.values()), raw=schema is not None
        )
        return WireRequest(body=body, context=context, uses=tuple(uses), streams=Feature.STREAM in uses)

    def _passed_on(self, request: Passthrough, findings: Findings) -> WireRequest:
        """A request passed on unchanged, except for the model's name, the server's name of the token limit, and the
        option that makes a stream report its usage."""
        fields = {name: value for name, value in request.fields.items() if name not in LIMIT_FIELDS}
        fields["model"] = findings.capabilities.model
        if request.most_tokens is not None:
            fields[findings.limit_field] = request.most_tokens
        streams, uses = fields.get("stream") is True, list[Feature]()
        fields.pop("stream_options", None)
        if streams and self._quirks.allow(Feature.STREAM_OPTIONS):
            fields["stream_options"] = {**mapping(request.fields, "stream_options"), "include_usage": True}
            uses.append(Feature.STREAM_OPTIONS)
        context = ReplyContext(protocol=ToolProtocol.NATIVE, tools_offered=True, raw=True)
        return WireRequest(
            body=dump_json(fields), context=context, uses=tuple(uses), streams=streams, send=request.send
        )

    def _stream_fields(self, wanted: bool) -> tuple[dict[str, object], list[Feature]]:
        if not wanted or not self._quirks.allow(Feature.STREAM):
            return {}, []
        if not self._quirks.allow(Feature.STREAM_OPTIONS):
            return {"stream": True}, [Feature.STREAM]
        # Without this option a stream does not report its usage.
        options = {"include_usage": True}
        return {"stream": True, "stream_options": options}, [Feature.STREAM_OPTIONS, Feature.STREAM]


def _with_instruction(messages: Sequence[Message], instruction: str) -> list[Message]:
    """The conversation with an instruction at its end, in the last message if that is the user's."""
    last = messages[-1] if messages else None
    if not isinstance(last, UserMessage):
        return [*messages, UserMessage(content=instruction)]
    content = f"{last.content}\n\n{instruction}" if last.content else instruction
    return [*messages[:-1], replace(last, content=content)]


class OpenAIChatModel:
    """A `ChatModel` behind any OpenAI-compatible server, shared by all agents of a process.

    Use it as an async context manager, within one event loop. It does not retry; its caller does.

    Args:
        base_url: the API's URL; a bare `http://host:port` gets `/v1`. A user and password in it are sent as basic
            authentication if there is no key.
        model: its name on the server; empty takes the first that the server lists.
        api_key: sent as a bearer token; empty for servers that require none.
        timeout_seconds: for one attempt, from the first byte sent to the last one received.
        session_headers: the headers for a request's `session`, or for the client's own id if it has none. Empty: no
            such headers.
        new_call_id: makes ids for tool calls, unique within a run.

    Raises ModelRejected for a malformed base URL.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str = "",
        api_key: str = "",
        timeout_seconds: float = 600.0,
        session_headers: Sequence[str] = (),
        new_call_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12],
    ) -> None:
        self._connection = ServerConnection(
            base_url=base_url, model=model, api_key=api_key, timeout_seconds=timeout_seconds
        )
        self._model = model
        self._session_headers, self._session = tuple(session_headers), uuid.uuid4().hex
        self._new_call_id = new_call_id
        public = public_url(self._connection.base_url)
        self._server, self._quirks = urlsplit(public).netloc, Quirks(public)
        self._requests = RequestWriter(self._quirks)
        self._probing: asyncio.Task[Findings] | None = None

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError, ModelError):
                await self._probing
        await self._connection.__aexit__()

    async def probe(self) -> ModelCapabilities:
        """The server's capabilities, from its list of models and a few tiny requests, probed once and remembered.

        Findings of later requests are included. Raises ModelUnavailable, ModelRejected. A failed probe is repeated by
        the next caller.
        """
        return self._quirks.without_refused((await self._findings()).capabilities)

    async def ping(self) -> None:
        """Raise ModelUnavailable or ModelRejected unless the server answers, now or within the last seconds."""
        if time.monotonic() - self._connection.answered_at < _FRESH_SECONDS:
            return
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self._connection.models()
        except TimeoutError as error:
            raise self._connection.unreachable(error) from error
        except ModelRejected as error:
            # Some servers have no list of models; this status is an answer, too.
            if not (isinstance(error.__cause__, StatusError) and error.__cause__.status in (404, 405)):
                raise

    async def metrics(self) -> bytes:
        """The server's page of metrics for Prometheus; empty where it has none."""
        return await self._connection.metrics()

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One completion, with tool calls in the protocol that the probe found.

        Raises ContextTooLong, ModelRejected, ModelUnavailable; ValueError for a schema together with tools.
        """
        if request.schema is not None and request.tools:
            raise ValueError("a reply can follow a schema or call tools, not both")
        findings = await self._findings()
        started = time.monotonic()
        headers = dict.fromkeys(self._session_headers, request.session or self._session)
        while True:
            written = self._requests.write(request, findings)
            try:
                reply = await self._ask(written, started, request, headers)
            except ModelError as error:
                # Each iteration disables one more feature for good.
                if not self._quirks.learn(error, written.uses):
                    raise
                continue
            if Feature.LOGPROBS in written.uses and request.top_logprobs and not reply.top_logprobs:
                self._quirks.miss(Feature.LOGPROBS)
            if Feature.SCHEMA in written.uses and _ignores_schema(reply, request.schema):
                self._quirks.miss(Feature.SCHEMA)
                continue
            return reply

    async def _ask(
        self,
        written: WireRequest,
        started: float,
        request: ModelRequest,
        headers: Mapping[str, str],
    ) -> ModelReply:
        on_delta = request.on_delta
        answer, repairs, begun = b"", list[str](), False
        stream = StreamedCompletion(_text_listener(written.context, on_delta))

        async def take(chunk: bytes) -> bool:
            nonlocal begun
            whole = stream.take(chunk)
            if written.send is None or stream.failed:
                return whole
            if stream.is_plain:
                raise ModelRejected(f"{self._connection.server} does not stream")
            begun = True
            await written.send(chunk)
            return whole

        try:
            if written.streams:
                await self._connection.stream(written.body, take, headers)
                answer = stream.beginning
                completion, repairs = stream.completion(), stream.repairs
            else:
                answer = await self._connection.complete(written.body, headers=headers)
                completion = read_answer(answer, repairs)
            tokens = read_tokens(completion, repairs) if Feature.SAMPLED in written.uses else None
            duration_ms = round((time.monotonic() - started) * 1000)
            reply = read_reply(
                completion,
                written.context,
                repairs=repairs,
                new_call_id=self._new_call_id,
                duration_ms=duration_ms,
            )
        except ValueError as error:
            fault, cause = self._connection.unreadable(answer), error
        except BrokenStream as error:
            fault, cause = self._connection.broken_off(), error
        except ErrorAnswer as error:
            fault, cause = self._connection.refused(error.refusal), error
        except ModelUnavailable as error:
            fault, cause = error, error.__cause__
        else:
            if written.send is not None and not written.streams:
                await written.send(answer)
            if on_delta is not None and not written.streams and reply.message.content:
                on_delta(reply.message.content)
            if tokens is not None and request.on_tokens is not None:
                request.on_tokens(tokens)
            elif Feature.SAMPLED in written.uses and (reply.message.content or reply.message.tool_calls):
                self._quirks.miss(Feature.SAMPLED)
            return replace(reply, server=self._server)
        fault.__cause__ = cause
        # A reply that is partly passed on cannot be retried. A fault that another agent's request may have caused
        # says nothing about the server.
        if begun:
            raise ModelError(self._connection.broken_off().message) from cause
        if written.send is not None and pushback(fault)[0] in _PROVOKED:
            raise ModelError(fault.message) from cause
        raise fault

    async def _findings(self) -> Findings:
        if self._probing is None or (self._probing.done() and not _succeeded(self._probing)):
            self._probing = asyncio.create_task(self._probe())
        # One caller's cancellation must not cancel the probe for the others.
        return await asyncio.shield(self._probing)

    async def _probe(self) -> Findings:
        listed = await self._listed_model()
        return await probe_features(listed, self._try_body)

    async def _listed_model(self) -> ListedModel:
        server = self._connection.server

        try:
            answer = await self._connection.models()
            try:
                models = read_models(answer)
            except ValueError as error:
                hint = "set the model, and check the base URL"
                raise ModelRejected(f"{server} has no list of models", field="model", hint=hint) from error
        except ModelError as error:
            answered = isinstance(error, ModelRejected) or isinstance(error.__cause__, StatusError)
            # Some servers have no list, or none for this key. With a model's name a completion will show the fault.
            if not self._model or not answered:
                raise
            models = []
        if not self._model:
            if not models:
                raise ModelRejected(f"{server} lists no model", field="model", hint="set the model")
            return models[0]
        for entry in models:
            if entry.id == self._model or entry.id.endswith(f"/{self._model}"):
                return replace(entry, id=self._model)
        return ListedModel(id=self._model, owned_by=models[0].owned_by if models else "")

    async def _try_body(self, body: bytes) -> ServerRefusal | bytes:
        """The answer to a probe's request, or a refusal that concerns the request itself."""

        try:
            return await self._connection.complete(body)
        except ModelError as error:
            cause = error.__cause__
            refusal = ServerRefusal.of(cause) if isinstance(cause, StatusError) else None
            if refusal is None or not is_about_the_request(refusal):
                raise
            return refusal


def _succeeded(task: asyncio.Task[Findings]) -> bool:
    return not task.cancelled() and task.exception() is None


def _text_listener(context: ReplyContext, on_delta: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """The listener for the text of a stream; of calls as JSON it gets the thought only."""
    enveloped = context.protocol is ToolProtocol.JSON and context.tools_offered
    return ThoughtDeltas(on_delta) if enveloped and on_delta is not None else on_delta


def _ignores_schema(reply: ModelReply, schema: Mapping[str, object] | None) -> bool:
    """Whether a complete reply contains no object or list, though the schema is one's."""
    structured = schema is not None and schema.get("type") in ("object", "array")
    text = reply.message.content
    return structured and reply.finish_reason == "stop" and bool(text.strip()) and not set("{[") & set(text)
