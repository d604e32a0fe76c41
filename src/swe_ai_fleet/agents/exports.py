"""A run for other readers: as OpenAI messages and as Markdown. As a trajectory it is in `atif`."""

from __future__ import annotations

from collections.abc import Iterable

from swe_ai_fleet.agents.function_calling.conversation import write_conversation
from swe_ai_fleet.agents.prompting import fenced
from swe_ai_fleet.domain.event import Event, HistoryCondensed
from swe_ai_fleet.domain.message import ToolMessage
from swe_ai_fleet.domain.run import RunState, fold_run
from swe_ai_fleet.domain.trajectory import Observation
from swe_ai_fleet.tools.truncation import truncate

_LONGEST_SHOWN = 4_000


def whole_run(events: Iterable[Event], agent_id: str) -> RunState:
    """A run with its whole conversation, whatever of it was condensed meanwhile."""
    return fold_run((event for event in events if not isinstance(event.body, HistoryCondensed)), agent_id)


def openai_messages(run: RunState) -> list[dict[str, object]]:
    """The conversation as the OpenAI chat API writes messages, call ids ours throughout."""
    return write_conversation(run.messages)


def markdown(run: RunState) -> str:
    """The run for a person to read. Whatever tools and the model said stands in fences that it cannot close."""
    started, finished = run.started, run.finished
    lines = [f"# {run.agent_id}", ""]
    if started is not None:
        lines += [f"{started.role}, model {started.model or 'unknown'}, temperature {started.temperature}", ""]
        for message in started.messages:
            lines += [f"## {message.role}", "", _code_block(message.content), ""]
    answered = {message.call_id: message.content for message in run.messages if isinstance(message, ToolMessage)}
    for step in run.steps:
        lines += [f"## Step {step.number}", ""]
        if step.reply.content:
            lines += [_code_block(step.reply.content), ""]
        seen = {observation.call_id: observation for observation in step.observations}
        for call in step.reply.tool_calls:
            lines += [f"**{_inline(call.name)}**", "", _code_block(call.arguments, "json"), ""]
            observation = seen.get(call.call_id)
            if observation is not None:
                lines += [_verdict(observation), ""]
            lines += [_code_block(answered.get(call.call_id, "(no answer)")), ""]
    if finished is not None:
        usage = finished.usage
        lines += [f"## {finished.stop_reason}", "", _code_block(finished.answer or finished.error), ""]
        lines += [
            f"{usage.model_calls} model calls, {usage.tool_calls} tool calls, {usage.prompt_tokens} prompt tokens "
            f"({usage.cached_tokens} cached), {usage.completion_tokens} completion tokens, {usage.duration_ms} ms",
            "",
        ]
    return "\n".join(lines)


def _verdict(seen: Observation) -> str:
    exit_code = "" if seen.result.exit_code is None else f", exit code {seen.result.exit_code}"
    repairs = f", repaired: {_inline('; '.join(seen.repairs))}" if seen.repairs else ""
    return f"{seen.result.outcome}{exit_code}, {seen.result.duration:.2f} s{repairs}"


def _inline(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!<>|~" else c for c in " ".join(text.split())[:200])


def _code_block(text: str, language: str = "") -> str:
    return fenced(truncate(text, _LONGEST_SHOWN), language)
