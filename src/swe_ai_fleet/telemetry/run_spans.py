"""Spans made from the events written to the log, which carry the times.

A phase of a driven execution, such as drafts, reviews or checks, lasts from its first operation to its last.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import server_attributes as server
from opentelemetry.trace import Span, SpanKind

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    Event,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    LoopNoticed,
    MessageAdded,
    ModelReplied,
    RunFinished,
    RunReassigned,
    RunStarted,
    ToolFinished,
    Writer,
)
from swe_ai_fleet.domain.tool import Outcome
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.telemetry.tracing import Tracing, current, execution_context, execution_span_id, failed, joined, stamp
from swe_ai_fleet.telemetry.tracing import nanoseconds as ns

_PROVIDER = "openai"
"""The name that the conventions require for every server with OpenAI's protocol."""
_MAX_MESSAGES = 20
_SUCCESSFUL = (StopReason.FINAL_ANSWER, StopReason.AWAITING_APPROVAL, StopReason.CANCELLED)


class Phases:
    """Opens the span of a phase with its first operation, and ends it with the last."""

    def __init__(self, tracing: Tracing, attributes: Mapping[str, str]) -> None:
        self._tracing = tracing
        self._attributes = attributes
        self._spans: dict[str, Span] = {}
        self._ends: dict[str, int] = {}

    @contextmanager
    def open(self) -> Generator[None]:
        """Within the context, `phase` uses these phases; then they end."""
        token = _phases.set(self)
        try:
            yield
        finally:
            _phases.reset(token)
            for name, span in self._spans.items():
                span.end(end_time=self._ends.get(name) or time.time_ns())

    @contextmanager
    def within(self, name: str) -> Generator[None]:
        """Within the context, an operation of a phase runs."""
        if name not in self._spans:
            self._spans[name] = self._tracing.begin(name, {**self._attributes, "fleet.phase": name})
        try:
            with current(trace.set_span_in_context(self._spans[name])):
                yield
        finally:
            self._ends[name] = time.time_ns()


@contextmanager
def phase(name: str) -> Generator[None]:
    """Within the context, an operation of a phase of the current execution runs; without tracing it does nothing."""
    phases = _phases.get()
    if phases is None:
        yield
        return
    with phases.within(name):
        yield


_phases: ContextVar[Phases | None] = ContextVar("phases", default=None)


class WrittenSpans:
    """The spans of one journal; this base class makes none."""

    def before(self, body: EventBody) -> EventBody:
        """The event to write."""
        return body

    def after(self, event: Event) -> None:
        """Called with each written event."""


@contextmanager
def written_spans(tracing: Tracing, writer: Writer, *, fresh: bool) -> Generator[WrittenSpans | None]:
    """The spans of a writer's journal, with the outer one current; None where its execution is not traced."""
    ids = _ids(writer)
    if fresh:
        with tracing.span("accept", ids):
            yield _Acceptance()
    elif writer.agent_id == EXECUTION_SUBJECT:
        context = execution_context(writer.traceparent, writer.execution_id)
        if context is None:
            yield None
            return
        phases = Phases(tracing, ids)
        with current(context), phases.open():
            yield _ExecutionSpans(tracing, writer)
    else:
        attributes = {
            **ids,
            gen_ai.GEN_AI_OPERATION_NAME: "invoke_agent",
            gen_ai.GEN_AI_AGENT_ID: writer.agent_id,
            gen_ai.GEN_AI_AGENT_NAME: writer.agent_id,
        }
        with tracing.span(f"invoke_agent {writer.agent_id}", attributes) as span:
            yield _AgentSpans(tracing, writer, span)


def _ids(writer: Writer) -> dict[str, str]:
    named = {} if writer.agent_id == EXECUTION_SUBJECT else {"fleet.agent_id": writer.agent_id}
    return {
        "fleet.tenant": writer.tenant,
        "fleet.task_id": writer.task_id,
        "fleet.execution_id": writer.execution_id,
        gen_ai.GEN_AI_CONVERSATION_ID: writer.execution_id,
        **named,
    }


def _server(host: str) -> dict[str, str | int]:
    parts = urlsplit(f"//{host}")
    port = {server.SERVER_PORT: parts.port} if parts.port is not None else {}
    return {server.SERVER_ADDRESS: parts.hostname, **port} if parts.hostname else {}


class _Acceptance(WrittenSpans):
    """Stores the current trace in an accepted task."""

    def before(self, body: EventBody) -> EventBody:
        if not isinstance(body, ExecutionStarted):
            return body
        return replace(body, task=replace(body.task, traceparent=stamp().get("traceparent", "")))


class _ExecutionSpans(WrittenSpans):
    """Spans of the wait in the queue, and of the whole execution when it ends, also after takeovers."""

    def __init__(self, tracing: Tracing, writer: Writer) -> None:
        self._tracing = tracing
        self._writer = writer

    def after(self, event: Event) -> None:
        match event.body:
            case ExecutionClaimed(generation=1) if self._writer.since:
                self._tracing.emit(
                    "queue", start=ns(self._writer.since), end=ns(event.at), attributes=_ids(self._writer)
                )
            case ExecutionClaimed(generation=generation, owner=owner):
                attributes = {**_ids(self._writer), "fleet.generation": generation, "fleet.replica": owner}
                self._tracing.emit("take over", start=ns(event.at), end=ns(event.at), attributes=attributes)
            case RunReassigned(lost_agent_id=agent_id, reason=reason, attempt=attempt):
                attributes = {**_ids(self._writer), "fleet.agent_id": agent_id, "fleet.attempt": attempt}
                at = ns(event.at)
                # The reason is our own text, but may quote untrusted text.
                self._tracing.emit(
                    "reassign",
                    start=at,
                    end=at,
                    attributes={**attributes, "fleet.reason": self._tracing.masked(reason)},
                )
            case ExecutionFinished():
                self._finished(event, event.body)
            case _:
                pass

    def _finished(self, event: Event, body: ExecutionFinished) -> None:
        parent = joined({"traceparent": self._writer.traceparent})
        if parent is None:
            return
        accepted = trace.get_current_span(parent).get_span_context().span_id
        end = ns(event.at)
        self._tracing.emit(
            "execution",
            start=end - body.duration_ms * 1_000_000,
            end=end,
            attributes={
                **_ids(self._writer),
                "fleet.status": str(body.status),
                "fleet.winner_id": body.winner_id,
                "fleet.cost": body.usage.cost,
                gen_ai.GEN_AI_USAGE_INPUT_TOKENS: body.usage.prompt_tokens,
                gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: body.usage.completion_tokens,
            },
            error=str(body.status) if body.status in (ExecutionStatus.FAILED, ExecutionStatus.TIMEOUT) else "",
            context=parent,
            span_id=execution_span_id(self._writer.execution_id, accepted),
        )


class _AgentSpans(WrittenSpans):
    """Spans of an agent's run, and below it of each call of its model and its tools."""

    def __init__(self, tracing: Tracing, writer: Writer, span: Span) -> None:
        self._tracing = tracing
        self._ids = _ids(writer)
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._model = ""
        self._new_messages: list[Any] = []

    def after(self, event: Event) -> None:
        match event.body:
            case RunStarted() as started:
                self._started(started)
            case MessageAdded(message=message) if self._tracing.content and len(self._new_messages) < _MAX_MESSAGES:
                self._new_messages.append(to_plain(message))
            case ModelReplied() as replied:
                self._replied(event, replied)
            case ToolFinished() as finished:
                self._called(event, finished)
            case LoopNoticed(pattern=pattern, advice=advice):
                self._span.add_event("fleet.loop", {"fleet.pattern": pattern[:200], "fleet.advice": advice})
            case RunFinished() as finished:
                self._finished(finished)
            case _:
                pass

    def _started(self, started: RunStarted) -> None:
        self._model = started.model
        self._span.set_attribute("fleet.role", str(started.role))
        self._span.set_attribute(gen_ai.GEN_AI_REQUEST_MODEL, started.model)
        if self._tracing.content:
            self._new_messages = [to_plain(message) for message in started.messages[:_MAX_MESSAGES]]

    def _replied(self, event: Event, body: ModelReplied) -> None:
        reply, end = body.reply, ns(event.at)
        model = self._model or reply.model
        attributes: dict[str, str | bool | int | float | tuple[str, ...]] = {
            **self._ids,
            gen_ai.GEN_AI_OPERATION_NAME: "chat",
            gen_ai.GEN_AI_PROVIDER_NAME: _PROVIDER,
            gen_ai.GEN_AI_REQUEST_MODEL: model,
            gen_ai.GEN_AI_RESPONSE_MODEL: reply.model or model,
            gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: (str(reply.finish_reason),),
            gen_ai.GEN_AI_USAGE_INPUT_TOKENS: reply.usage.prompt_tokens,
            gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: reply.usage.completion_tokens,
            gen_ai.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: reply.usage.cached_tokens,
            "fleet.step": body.step,
            "fleet.repairs": len(reply.repairs),
            **_server(reply.server),
        }
        if self._tracing.content:
            attributes[gen_ai.GEN_AI_INPUT_MESSAGES] = self._text(self._new_messages)
            attributes[gen_ai.GEN_AI_OUTPUT_MESSAGES] = self._text(to_plain(reply.message))
            self._new_messages = []
        self._tracing.emit(
            f"chat {model}",
            start=end - body.duration_ms * 1_000_000,
            end=end,
            attributes=attributes,
            kind=SpanKind.CLIENT,
            context=self._context,
        )

    def _called(self, event: Event, body: ToolFinished) -> None:
        entry, end = body.entry, ns(event.at)
        name = entry.name
        attributes: dict[str, str | bool | int | float | tuple[str, ...]] = {
            **self._ids,
            gen_ai.GEN_AI_OPERATION_NAME: "execute_tool",
            gen_ai.GEN_AI_TOOL_NAME: name,
            gen_ai.GEN_AI_TOOL_TYPE: "function",
            gen_ai.GEN_AI_TOOL_CALL_ID: entry.call_id,
            "fleet.outcome": str(entry.outcome),
            "fleet.decision": str(entry.decision),
            "fleet.cached": body.result.cached,
            "fleet.output_bytes": entry.bytes_out,
        }
        if self._tracing.content:
            attributes[gen_ai.GEN_AI_TOOL_CALL_ARGUMENTS] = self._text(dict(entry.arguments))
            attributes[gen_ai.GEN_AI_TOOL_CALL_RESULT] = self._tracing.masked(body.result.observation())
        self._tracing.emit(
            f"execute_tool {name}",
            start=end - entry.duration_ms * 1_000_000,
            end=end,
            attributes=attributes,
            error="" if entry.outcome is Outcome.SUCCESS else str(entry.outcome),
            context=self._context,
        )

    def _finished(self, body: RunFinished) -> None:
        self._span.set_attribute("fleet.stop_reason", str(body.stop_reason))
        self._span.set_attribute(gen_ai.GEN_AI_USAGE_INPUT_TOKENS, body.usage.prompt_tokens)
        self._span.set_attribute(gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS, body.usage.completion_tokens)
        self._span.set_attribute("fleet.cost", body.usage.cost)
        if body.stop_reason not in _SUCCESSFUL:
            failed(self._span, str(body.stop_reason))

    def _text(self, value: object) -> str:
        return self._tracing.masked(json.dumps(value, ensure_ascii=False, default=str))
