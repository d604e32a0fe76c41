"""What the log is told of a run of an external agent: texts and calls as steps, its own doings as its word."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.spec import RunContext
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Diff
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import ModelReplied
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.tool import Decision, OperationSpec, ToolResult
from swe_ai_fleet.tools.truncation import beginning

MAX_KEPT_MESSAGES = 200
MAX_MESSAGES = 5_000
MAX_MESSAGE_CHARS = 4_000
MAX_SUMMARY_CHARS = 16_000
MAX_CALL_CHARS = 4_000
HARNESS = "harness"
"""The tool in audit entries of what an agent in the workspace does by itself, asks for, and leaves."""
OWN_WORD = "by the agent's own word: no tool of the fleet carried it out"
_MOST_FILES = 200


class AgentFault(FleetError):
    """An external agent cannot be reached or started, refuses, ends too early, or answers what is no answer."""


class OutsideRecord:
    """Each text and each call of an external agent is a step of its run in the log, bounded and masked.

    Args:
        run: The run.
        model: The name under which the agent's work is shown.
    """

    def __init__(self, run: RunContext, *, model: str) -> None:
        self.run, self.model = run, model
        self.usage, self.answer, self.waiting = Usage(), "", ""
        self.budget: Budget | None = None
        """Counts what an agent spends whose model the fleet asks; None: it says itself what it spent, in the end."""
        self.paths: set[str] = set()
        """Files that the agent said it changes, relative to the repository."""
        self.step = len(run.earlier.steps)
        self._heard = self._kept = 0
        self._told = run.earlier.usage
        self._started_at = time.monotonic()

    @property
    def duration_ms(self) -> int:
        """The time since this process took the run."""
        return round((time.monotonic() - self._started_at) * 1000)

    @property
    def spent(self) -> Usage:
        """What the run spent so far, in earlier processes too."""
        return self.budget.total() if self.budget else replace(self.usage, duration_ms=self.duration_ms)

    def say(self, text: str) -> None:
        """What the agent says while it works. Raises AgentFault where it does not stop."""
        self._heard += 1
        if self._heard > MAX_MESSAGES:
            raise AgentFault(f"the agent said more than {MAX_MESSAGES} things")
        if self._kept < MAX_KEPT_MESSAGES:
            self._kept += 1
            self._reply(AssistantMessage(content=self.masked(text, MAX_MESSAGE_CHARS)))

    def conclude(self, summary: str, usage: Usage) -> None:
        """The agent's last words, and what it says that it spent."""
        self.usage, self.answer = usage, self.masked(summary, MAX_SUMMARY_CHARS)
        self._reply(AssistantMessage(content=self.answer), usage)

    def call(self, name: str, arguments: Mapping[str, object], *, text: str = "", call_id: str = "") -> ToolCall:
        """A step with one call behind what the agent said; its result is told by whoever carries it out."""
        call_id = call_id or uuid.uuid4().hex[:12]
        written = self.masked(json.dumps(arguments, ensure_ascii=False, default=str), MAX_CALL_CHARS)
        call = ToolCall(call_id=call_id, model_call_id=call_id, name=name, arguments=written)
        self._reply(AssistantMessage(content=self.masked(text, MAX_MESSAGE_CHARS), tool_calls=(call,)))
        return call

    def tell(
        self,
        operation: str,
        arguments: Mapping[str, str],
        result: ToolResult,
        *,
        call_id: str = "",
        decision: Decision = Decision.ALLOWED,
        reason: str = OWN_WORD,
    ) -> None:
        """An entry in the audit chain about something that the agent did by itself, or asked for."""
        name = f"{HARNESS}_{operation}"
        spec = OperationSpec(name=name, tool=HARNESS, operation=operation, description="", parameters={})
        shown = {key: self.masked(value, MAX_CALL_CHARS) for key, value in arguments.items()}
        result = replace(
            result,
            operation=name,
            content=self.masked(result.content, MAX_SUMMARY_CHARS),
            error=self.masked(result.error, MAX_CALL_CHARS),
        )
        self.run.trail.open(spec, arguments=shown, secret=arguments, call_id=call_id).close(result, decision, reason)

    def record_diff(self, diff: Diff) -> None:
        """What differs on disk in the end, and which of it the agent never spoke of."""
        silent = [path for path in diff.files if path not in self.paths][:_MOST_FILES]
        summary = f"not spoken of: {', '.join(silent)}" if silent else "all of it was spoken of"
        arguments = {"files": ", ".join(diff.files[:_MOST_FILES])}
        result = ToolResult(success=True, operation="", content=summary, metadata={"silent": silent})
        self.tell("left", arguments, result, reason="as the fleet found the clone")

    def masked(self, text: str, limit: int) -> str:
        """A text masked and cut."""
        # Secrets are looked for in more than is shown: a cut could hide one from the mask.
        return beginning(self.run.equipment.mask(well_formed(text[: 2 * limit])), limit)

    def _reply(self, message: AssistantMessage, usage: Usage | None = None) -> None:
        self.step += 1
        if self.budget is not None:
            # The model's calls since the step before; tool calls are counted by their results.
            total, known = self.budget.usage, self._told
            names = ("prompt_tokens", "completion_tokens", "cached_tokens", "model_calls", "cost")
            usage = Usage(**{name: getattr(total, name) - getattr(known, name) for name in names})
            self._told = total
        reply = ModelReply(
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
            usage=usage or Usage(),
            model=self.model,
        )
        self.run.post(ModelReplied(step=self.step, reply=reply, duration_ms=self.duration_ms))
