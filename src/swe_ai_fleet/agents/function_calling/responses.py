"""Responses: what a run tells its caller while it goes on, and what it leaves.

The journal of such a run has the caller as its reader, who sees each event as it happens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.event import (
    CallRepaired,
    Event,
    EventBody,
    HistoryCondensed,
    LoopNoticed,
    MessageAdded,
    ModelReplied,
    ToolFinished,
    ToolStarted,
    Writer,
)
from swe_ai_fleet.domain.message import ToolMessage
from swe_ai_fleet.domain.text import now
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.tools.registry.toolkit import FINAL_ANSWER

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Of whole results, together; what comes later is kept as the model saw it."""
_ERROR = "Error: "


class AgentResponse(TypedDict):
    """One thing that happened. `channel` is `tool` for what a tool said, `run` for everything else.

    `step` is a reply of the model or the result of a call, `log` what the run itself notes, `final` the answer; there
    is exactly one of these, the last. `metadata` is JSON: `event` names what it is, the rest depends on that.
    """

    type: Literal["step", "final", "log"]
    channel: Literal["run", "tool"]
    value: str
    metadata: dict[str, object]


@dataclass(slots=True, kw_only=True)
class AgentTask:
    """A task as far as it has come. `result` is None until there is one; `steps_taken` counts the model's turns.

    `results` are the whole results of its tool calls by call id, where the model was shown only the beginning too.
    """

    id: str
    description: str
    result: str | None = None
    steps_taken: int = 0
    results: Mapping[str, str] = field(default_factory=dict[str, str])


class Narration:
    """A `Journal` that keeps whole results by call id and hands each event on as a response.

    Args:
        task: Whose events these are; its steps and results are kept up to date.
        tell: Receives the responses.
    """

    def __init__(self, task: AgentTask, tell: Callable[[AgentResponse], None]) -> None:
        self._task = task
        self._tell = tell
        self._writer = Writer(tenant="", execution_id=task.id, task_id=task.id)
        self._ordinal = 0
        self._kept: dict[str, str] = {}
        self._kept_bytes = 0
        self.results: dict[str, str] = {}
        """What each call gave, whole, by call id."""
        task.results = self.results

    async def append(self, body: EventBody) -> Event:
        """Hand an event on."""
        return self.post(body)

    def post(self, body: EventBody) -> Event:
        """Hand an event on."""
        match body:
            case ModelReplied():
                self._replied(body)
            case ToolStarted():
                self._say("log", "tool", f"{body.entry.operation} started", "tool_started", _call(body.entry))
            case ToolFinished():
                self._finished(body.entry, body.result)
            case MessageAdded(message=ToolMessage() as observation):
                self._observed(observation)
            case MessageAdded():
                self.log(body.message.content, "message_added", step=body.step)
            case LoopNoticed():
                self.log(body.pattern, "loop_noticed", step=body.step, advice=body.advice)
            case CallRepaired():
                self.log("; ".join(body.repairs), "call_repaired", step=body.step, call_id=body.call_id)
            case HistoryCondensed():
                counts: dict[str, object] = {"tokens_before": body.tokens_before, "tokens_after": body.tokens_after}
                self.log(body.method, "history_condensed", step=body.step, **counts)
            case _:
                self.log(body.type, body.type)
        self._ordinal += 1
        return self._writer.event(body, ordinal=self._ordinal, at=now())

    async def flush(self) -> None:
        """Nothing is held back."""

    async def keep(self, data: bytes) -> BlobRef:
        """Keep a whole result whose observation will be cut."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._kept and self._kept_bytes + len(data) <= MAX_KEPT_BYTES:
            self._kept[digest] = data.decode("utf-8", "replace")
            self._kept_bytes += len(data)
        return BlobRef(name=f"{self._task.id}/{digest}", digest=digest, size=len(data), media_type="text/plain")

    def log(self, value: str, event: str, **metadata: object) -> None:
        """Note something about the run."""
        self._say("log", "run", value, event, metadata)

    def delta(self, text: str) -> None:
        """Tell of a part of a reply that is still coming in; one that is tried again begins anew."""
        self._say("log", "run", text, "delta", {})

    def step(self, value: str, event: str, **metadata: object) -> None:
        """Tell of something that the model said."""
        self._say("step", "run", value, event, metadata)

    def _replied(self, body: ModelReplied) -> None:
        self._task.steps_taken = body.step
        message = body.reply.message
        self.step(
            message.content,
            "model_replied",
            step=body.step,
            tool_calls=[
                {"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
            ],
            finish_reason=body.reply.finish_reason,
            duration_ms=body.duration_ms,
            prompt_tokens=body.reply.usage.prompt_tokens,
            completion_tokens=body.reply.usage.completion_tokens,
        )

    def _finished(self, entry: AuditEntry, result: ToolResult) -> None:
        whole = replace(result, content=self._kept.get(result.artifact, result.content)).observation()
        self.results[entry.call_id] = whole
        metadata: dict[str, object] = {
            **_call(entry),
            "success": result.success,
            "outcome": str(result.outcome),
            "cached": result.cached,
            "truncated": result.truncated,
            "characters": len(whole),
            "duration_ms": entry.duration_ms,
        }
        self._say("step", "tool", result.observation(), "tool_finished", metadata)

    def _observed(self, observation: ToolMessage) -> None:
        """Of an answer that was none there is not an audit entry, so it is told here."""
        if observation.call_id in self.results:
            return
        self.results[observation.call_id] = observation.content
        if observation.content.startswith(_ERROR):
            metadata = {"call_id": observation.call_id, "tool": FINAL_ANSWER, "success": False}
            self._say("step", "tool", observation.content, "tool_finished", metadata)

    def _say(
        self,
        kind: Literal["step", "log"],
        channel: Literal["run", "tool"],
        value: str,
        event: str,
        metadata: Mapping[str, object],
    ) -> None:
        self._tell({"type": kind, "channel": channel, "value": value, "metadata": {"event": event, **metadata}})


def _call(entry: AuditEntry) -> dict[str, object]:
    return {"call_id": entry.call_id, "tool": entry.operation, "arguments": dict(entry.arguments)}
