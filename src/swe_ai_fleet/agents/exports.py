"""A run for other readers: as OpenAI messages, as a trajectory in JSON, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.event import Event, HistoryCondensed, LoopNoticed
from swe_ai_fleet.domain.message import AssistantMessage, Message, ToolMessage, UserMessage
from swe_ai_fleet.domain.run import RunState, fold_run
from swe_ai_fleet.domain.trajectory import Observation, Step

FORMAT = "swe-ai-fleet.trajectory/1"
_LONGEST_SHOWN = 4_000


def whole_run(events: Iterable[Event], agent_id: str) -> RunState:
    """A run with its whole conversation, whatever of it was condensed meanwhile."""
    return fold_run((event for event in events if not isinstance(event.body, HistoryCondensed)), agent_id)


def openai_messages(run: RunState) -> list[dict[str, object]]:
    """The conversation as the OpenAI chat API writes messages, call ids ours throughout."""
    return [_message(message) for message in run.messages]


def trajectory(run: RunState, events: Iterable[Event] = ()) -> dict[str, object]:
    """The run as JSON values, every step with its calls, observations and usage.

    Args:
        run: What is told.
        events: Those of the execution; condensations and loops are taken from them.
    """
    started, finished = run.started, run.finished
    notes = [
        {"step": event.body.step, **_note(event.body)}
        for event in events
        if event.agent_id == run.agent_id and isinstance(event.body, HistoryCondensed | LoopNoticed)
    ]
    return {
        "format": FORMAT,
        "agent_id": run.agent_id,
        "role": started.role if started else "",
        "model": started.model if started else "",
        "temperature": started.temperature if started else None,
        "seed": started.seed if started else None,
        "tools": list(started.tools) if started else [],
        "opening": [_message(message) for message in started.messages] if started else [],
        "steps": [_step(step) for step in run.steps],
        "notes": notes,
        "approvals": [to_plain(resolution) for resolution in run.resolutions.values()],
        "stop_reason": str(finished.stop_reason) if finished else "",
        "answer": finished.answer if finished else "",
        "error": finished.error if finished else "",
        "usage": asdict(finished.usage if finished else run.usage),
        "audit_head": finished.audit_head if finished else (run.entries[-1].hash if run.entries else ""),
    }


def markdown(run: RunState) -> str:
    """The run for a person to read. Whatever tools and the model said stands in fences that it cannot close."""
    started, finished = run.started, run.finished
    lines = [f"# {run.agent_id}", ""]
    if started is not None:
        lines += [f"{started.role}, model {started.model or 'unknown'}, temperature {started.temperature}", ""]
        for message in started.messages:
            lines += [f"## {message.role}", "", _fenced(message.content), ""]
    answered = {message.call_id: message.content for message in run.messages if isinstance(message, ToolMessage)}
    for step in run.steps:
        lines += [f"## Step {step.number}", ""]
        if step.reply.content:
            lines += [_fenced(step.reply.content), ""]
        seen = {observation.call_id: observation for observation in step.observations}
        for call in step.reply.tool_calls:
            lines += [f"**{_inline(call.name)}**", "", _fenced(call.arguments, "json"), ""]
            observation = seen.get(call.call_id)
            if observation is not None:
                lines += [_verdict(observation), ""]
            lines += [_fenced(answered.get(call.call_id, "(no answer)")), ""]
    if finished is not None:
        usage = finished.usage
        lines += [f"## {finished.stop_reason}", "", _fenced(finished.answer or finished.error), ""]
        lines += [
            f"{usage.model_calls} model calls, {usage.tool_calls} tool calls, {usage.prompt_tokens} prompt tokens "
            f"({usage.cached_tokens} cached), {usage.completion_tokens} completion tokens, {usage.duration_ms} ms",
            "",
        ]
    return "\n".join(lines)


def _message(message: Message) -> dict[str, object]:
    match message:
        case ToolMessage(call_id=call_id, content=content):
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case AssistantMessage(content=content, tool_calls=calls) if calls:
            functions = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
            return {"role": "assistant", "content": content or None, "tool_calls": functions}
        case UserMessage(content=content, images=images) if images:
            pictures = [{"type": "image_url", "image_url": {"url": url}} for url in images]
            return {"role": "user", "content": [{"type": "text", "text": content}, *pictures]}
        case _:
            return {"role": message.role, "content": message.content}


def _step(step: Step) -> dict[str, object]:
    return {
        "number": step.number,
        "content": step.reply.content,
        "tool_calls": [
            {"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in step.reply.tool_calls
        ],
        "observations": [
            {
                "call_id": seen.call_id,
                "operation": seen.result.operation,
                "outcome": str(seen.result.outcome),
                "content": seen.result.observation(),
                "exit_code": seen.result.exit_code,
                "seconds": seen.result.duration,
                "cached": seen.result.cached,
                "truncated": seen.result.truncated,
                "artifact": seen.result.artifact,
                "repairs": list(seen.repairs),
            }
            for seen in step.observations
        ],
        "usage": asdict(step.usage),
    }


def _note(body: HistoryCondensed | LoopNoticed) -> Mapping[str, object]:
    if isinstance(body, LoopNoticed):
        return {"kind": "loop", "pattern": body.pattern, "advice": body.advice}
    return {
        "kind": "condensed",
        "method": body.method,
        "tokens_before": body.tokens_before,
        "tokens_after": body.tokens_after,
    }


def _verdict(seen: Observation) -> str:
    exit_code = "" if seen.result.exit_code is None else f", exit code {seen.result.exit_code}"
    repairs = f", mended: {_inline('; '.join(seen.repairs))}" if seen.repairs else ""
    return f"{seen.result.outcome}{exit_code}, {seen.result.duration:.2f} s{repairs}"


def _inline(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!<>|~" else c for c in " ".join(text.split())[:200])


def _fenced(text: str, language: str = "") -> str:
    """The text between more backticks than it has in a row anywhere; long text is cut in the middle."""
    if len(text) > _LONGEST_SHOWN:
        half = _LONGEST_SHOWN // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
