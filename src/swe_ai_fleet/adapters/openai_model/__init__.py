"""A chat model, and embeddings, behind an OpenAI-compatible server.

A request is written together with what has to be known to read its answer. Where calls come as JSON, the thought inside
is heard while the JSON comes in.
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
# Of HTTP: an answer that is no completion, and the server's own faults; not those of what stands before it.
_PROVOKED = (200, 500, 501)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRequest:
    """A body, how to read its answer, and which features of the server it uses, the first to be given up first.

    `streams`: the answer is to be a stream; `send` is given its bytes, for a request of somebody else's agent.
    """

    body: bytes
    context: ReplyContext
    uses: tuple[Feature, ...]
    streams: bool = False
    send: Callable[[bytes], Awaitable[None]] | None = None


class RequestWriter:
    """Writes requests in the protocol that the server was found to take, without what it turned out to lack."""

    def __init__(self, quirks: Quirks) -> None:
        self._quirks = quirks
        self._writer = WireWriter()

    def write(self, wanted: ModelRequest, findings: Findings) -> WireRequest:
        """The request for one reply, which comes as a stream where somebody hears it come in."""
        if wanted.passthrough is not None:
            return self._passed_on(wanted.passthrough, findings)
        messages, tools, schema = wanted.messages, wanted.tools, wanted.schema
        capabilities = self._quirks.less_refused(findings.capabilities)
        protocol = capabilities.protocol
        # A stream is read for its text alone.
        more, uses = self._stream_fields(wanted.on_delta is not None and not wanted.top_logprobs)
        with_ids = wanted.on_tokens is not None and self._quirks.allow(Feature.SAMPLED)
        if with_ids:
            uses.append(Feature.SAMPLED)
            more["return_token_ids"] = True
        if (wanted.top_logprobs or with_ids) and capabilities.logprobs:
            uses.append(Feature.LOGPROBS)
            more |= {"logprobs": True, "top_logprobs": wanted.top_logprobs}
        head = head_fields(capabilities.model, wanted.sampling, limit_field=findings.limit_field, more=more)
        held_to = b""
        if schema is not None and capabilities.structured_output:
            uses.append(Feature.SCHEMA)
            held_to = dump_json(response_format(schema, name="answer"))
        elif schema is not None:
            messages = _with_words(messages, follow_schema(schema))
        elif tools and protocol is ToolProtocol.JSON:
            full = self._quirks.allow(Feature.FULL_ENVELOPE)
            uses.append(Feature.FULL_ENVELOPE if full else Feature.ENVELOPE)
            held_to = self._writer.envelope_format(tools, full=full)
        ids: dict[str, str] = {}
        if protocol is ToolProtocol.NATIVE:
            conversation, strict = self._writer.conversation(messages), capabilities.strict_schemas
            ids = conversation.ids
            body = self._writer.native(conversation, tools, head=head, strict=strict, response_format=held_to)
        else:
            body = self._writer.spoken(messages, tools, head=head, protocol=protocol, response_format=held_to)
        context = ReplyContext(
            protocol=protocol, tools_offered=bool(tools), taken=tuple(ids.values()), raw=schema is not None
        )
        return WireRequest(body=body, context=context, uses=tuple(uses), streams=Feature.STREAM in uses)

    def _passed_on(self, wanted: Passthrough, findings: Findings) -> WireRequest:
        """A request in somebody else's words, with the model's name, the server's name for its bound, and a stream that
        says what it cost."""
        fields = {name: value for name, value in wanted.fields.items() if name not in LIMIT_FIELDS}
        fields["model"] = findings.capabilities.model
        if wanted.most_tokens is not None:
            fields[findings.limit_field] = wanted.most_tokens
        streams, uses = fields.get("stream") is True, list[Feature]()
        fields.pop("stream_options", None)
        if streams and self._quirks.allow(Feature.STREAM_OPTIONS):
            fields["stream_options"] = {**mapping(wanted.fields, "stream_options"), "include_usage": True}
            uses.append(Feature.STREAM_OPTIONS)
        context = ReplyContext(protocol=ToolProtocol.NATIVE, tools_offered=True, raw=True)
        return WireRequest(body=dump_json(fields), context=context, uses=tuple(uses), streams=streams, send=wanted.send)

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
    content = f"{last.content}\n\n{words}" if last.content else words
    return [*messages[:-1], replace(last, content=content)]


class OpenAIChatModel:
    """A `ChatModel` behind any OpenAI-compatible server, shared by all agents of a process.

    Use it as an async context manager, within one event loop. It tries nothing twice: whoever holds it does.

    Args:
        base_url: of the API; a bare `http://host:port` gets `/v1`. A user and password in it are sent as basic
            authentication where there is no key.
        model: its name on the server; empty takes the first that the server lists.
        api_key: sent as a bearer token; empty for servers that want none.
        timeout_seconds: what one try may take from the first byte sent to the last received.
        session_headers: that carry a request's `session`, the client's own id where a request has none. Empty: none
            is sent.
        new_call_id: makes ids for tool calls, unique within a run.

    Raises ModelRejected for a base URL that is none.
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
        """What the server can do: one look at its models and a tiny request or a few, asked once and remembered.

        What a later request finds out is in it too. Raises ModelUnavailable, ModelRejected. A failed probe is tried
        again by the next caller.
        """
        return self._quirks.less_refused((await self._findings()).capabilities)

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
            # Some servers have no list of models; that they say so is an answer.
            if not (isinstance(error.__cause__, StatusError) and error.__cause__.status in (404, 405)):
                raise

    async def metrics(self) -> bytes:
        """The server's page of metrics for Prometheus; empty where it has none."""
        return await self._connection.metrics()

    async def reply(self, request: ModelRequest) -> ModelReply:
        """One completion, its calls by whichever protocol the probe found.

        Raises ContextTooLong, ModelRejected, ModelUnavailable; ValueError for a schema beside tools.
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
                # Each turn of this loop leaves one more feature out for good.
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
        request: WireRequest,
        started: float,
        wanted: ModelRequest,
        headers: Mapping[str, str],
    ) -> ModelReply:
        on_delta = wanted.on_delta
        answer, repairs, begun = b"", list[str](), False
        stream = StreamedCompletion(_hearer(request.context, on_delta))

        async def take(chunk: bytes) -> bool:
            nonlocal begun
            whole = stream.take(chunk)
            if request.send is None or stream.failed:
                return whole
            if stream.is_plain:
                raise ModelRejected(f"{self._connection.server} does not stream")
            begun = True
            await request.send(chunk)
            return whole

        try:
            if request.streams:
                await self._connection.stream(request.body, take, headers)
                answer = stream.beginning
                completion, repairs = stream.completion(), stream.repairs
            else:
                answer = await self._connection.complete(request.body, headers=headers)
                completion = read_answer(answer, repairs)
            tokens = read_tokens(completion, repairs) if Feature.SAMPLED in request.uses else None
            duration_ms = round((time.monotonic() - started) * 1000)
            reply = read_reply(
                completion,
                request.context,
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
            if request.send is not None and not request.streams:
                await request.send(answer)
            if on_delta is not None and not request.streams and reply.message.content:
                on_delta(reply.message.content)
            if tokens is not None and wanted.on_tokens is not None:
                wanted.on_tokens(tokens)
            elif Feature.SAMPLED in request.uses and (reply.message.content or reply.message.tool_calls):
                self._quirks.miss(Feature.SAMPLED)
            return replace(reply, server=self._server)
        fault.__cause__ = cause
        # What has begun to arrive elsewhere cannot be tried again. A fault that a stranger's request may have
        # brought about says nothing of the server.
        if begun:
            raise ModelError(self._connection.broken_off().message) from cause
        if request.send is not None and pushback(fault)[0] in _PROVOKED:
            raise ModelError(fault.message) from cause
        raise fault

    async def _findings(self) -> Findings:
        if self._probing is None or (self._probing.done() and not _succeeded(self._probing)):
            self._probing = asyncio.create_task(self._probe())
        # One caller's cancellation must not end the probe that the others wait for.
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
            # Some servers have no list, or none for this key. With a name the completion will tell.
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
        """The answer to a probe, or the refusal, if it is about the request itself."""

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


def _hearer(context: ReplyContext, on_delta: Callable[[str], None] | None) -> Callable[[str], None] | None:
    """Who hears the text as it comes: of calls as JSON, only the thought."""
    enveloped = context.protocol is ToolProtocol.JSON and context.tools_offered
    return ThoughtDeltas(on_delta) if enveloped and on_delta is not None else on_delta


def _ignores_schema(reply: ModelReply, schema: Mapping[str, object] | None) -> bool:
    """Whether a whole reply holds nothing that could follow a schema of an object or a list."""
    structured = schema is not None and schema.get("type") in ("object", "array")
    text = reply.message.content
    return structured and reply.finish_reason == "stop" and bool(text.strip()) and not set("{[") & set(text)
