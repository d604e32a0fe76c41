"""Conversations in OpenAI's shape: read, written back, and answered by calling functions."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict

from swe_ai_fleet.agents.agent_run import AgentRun, RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.function_calling.setup import AgentTask, Narration, Setup
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.tool_call_dialects import without_calls
from swe_ai_fleet.domain.errors import ModelError
from swe_ai_fleet.domain.json_values import is_array, is_mapping, mapping
from swe_ai_fleet.domain.message import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from swe_ai_fleet.domain.trajectory import StopReason, Trajectory
from swe_ai_fleet.ports import ChatModel

_ROLES = ("system", "user", "assistant", "tool")
Status = Literal["success", "error", "max_turns_exceeded"]
_STATUS: Mapping[StopReason, Status] = {
    StopReason.FINAL_ANSWER: "success",
    StopReason.NO_TOOL_CALLS: "success",
    StopReason.MAX_ITERATIONS: "max_turns_exceeded",
}


def read_conversation(
    given: object, *, known_tools: Collection[str], field: str = "chat_history"
) -> tuple[Message, ...]:
    """The messages of a conversation in OpenAI's shape: roles system (first only; `developer` is the same), user,
    assistant and tool; each call is answered by exactly one tool message before the next reply. Raises ValueError
    naming the message and its problem."""
    if not is_array(given):
        raise ValueError(f"{field} is a {type(given).__name__}; give a list of messages")
    reader = _Reader(known_tools)
    for number, entry in enumerate(given):
        try:
            reader.take(entry)
        except ValueError as fault:
            raise ValueError(f"{field}[{number}]: {fault}") from None
    if reader.open:
        raise ValueError(f"{field}: no tool result for the calls {', '.join(reader.open)}")
    return tuple(reader.messages)


def with_system(messages: Sequence[Message], prompt: str) -> tuple[Message, ...]:
    """The conversation, starting with a system message: its own, else one with this prompt."""
    if messages and isinstance(messages[0], SystemMessage):
        return tuple(messages)
    return (SystemMessage(content=prompt), *messages)


def write_conversation(messages: Sequence[Message], *, answer: str = "") -> list[dict[str, object]]:
    """The messages as new OpenAI objects; the answer is added unless it is the last message already."""
    final_message = AssistantMessage(content=answer)
    ending = (final_message,) if answer and tuple(messages[-1:]) != (final_message,) else ()
    return [_as_dict(message) for message in (*messages, *ending)]


class _Reader:
    """Reads one message after the other; `open` maps the given ids of unanswered calls to unique ones."""

    def __init__(self, known_tools: Collection[str]) -> None:
        self._tools = known_tools
        self._call_ids: set[str] = set()
        self.messages: list[Message] = []
        self.open: dict[str, str] = {}

    def take(self, message: object) -> None:
        if not is_mapping(message):
            raise ValueError(f"a message must be an object, not a {type(message).__name__}")
        role = "system" if message.get("role") == "developer" else message.get("role")
        if self.open and role != "tool":
            raise ValueError(f"no tool result for the calls {', '.join(self.open)} before it")
        match role:
            case "system":
                if self.messages:
                    raise ValueError("a system message must be the first message")
                self.messages.append(SystemMessage(content=_text(message.get("content"))))
            case "user":
                content = message.get("content")
                self.messages.append(UserMessage(content=_text(content), images=_images(content)))
            case "assistant":
                self._assistant(message)
            case "tool":
                call_id = message.get("tool_call_id")
                if not isinstance(call_id, str) or call_id not in self.open:
                    raise ValueError(f"it answers {call_id!r:.64}, which is not the id of an earlier call")
                content = _text(message.get("content"))
                self.messages.append(ToolMessage(call_id=self.open.pop(call_id), content=content))
            case _:
                raise ValueError(f"the role is {role!r:.40}; the roles are: {', '.join(_ROLES)}")

    def _assistant(self, message: Mapping[str, object]) -> None:
        raw_calls = message.get("tool_calls") or ()
        if not is_array(raw_calls):
            raise ValueError("tool_calls must be a list")
        calls = tuple(self._call(call) for call in raw_calls)
        content = "" if message.get("content") is None else _text(message.get("content"))
        if not calls and not content:
            raise ValueError("an assistant message must have content or tool_calls")
        self.messages.append(AssistantMessage(content=content, tool_calls=calls))

    def _call(self, raw_call: object) -> ToolCall:
        call = mapping(raw_call)
        parts = mapping(call.get("function"))
        name, call_id, arguments = parts.get("name"), call.get("id"), parts.get("arguments", "{}")
        if not isinstance(name, str) or not isinstance(call_id, str) or not call_id:
            raise ValueError("a tool call must have an id and a function with a name")
        if name not in self._tools:
            raise ValueError(f"it calls {name[:64]!r}; the tools are: {', '.join(self._tools)}")
        if call_id in self.open:
            raise ValueError(f"two calls have the id {call_id[:64]!r}")
        unique, number = call_id, 1
        while unique in self._call_ids:
            number += 1
            unique = f"{call_id}-{number}"
        self._call_ids.add(unique)
        self.open[call_id] = unique
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
        return ToolCall(call_id=unique, model_call_id=call_id, name=name, arguments=text)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = _parts(content)
    if parts is None or any(part.get("type") not in ("text", "image_url") for part in parts):
        raise ValueError("the content must be a string or a list of text and image parts")
    return "\n".join(str(part["text"]) for part in parts if "text" in part)


def _images(content: object) -> tuple[str, ...]:
    pictures = [part["image_url"] for part in _parts(content) or () if "image_url" in part]
    urls = [image if isinstance(image, str) else mapping(image).get("url") for image in pictures]
    return tuple(url for url in urls if isinstance(url, str))


def _parts(content: object) -> list[Mapping[str, object]] | None:
    return [mapping(part) for part in content] if is_array(content) else None


def _as_dict(message: Message) -> dict[str, object]:
    match message:
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
        case AssistantMessage() if message.tool_calls:
            calls = [
                {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
            return {"role": "assistant", "content": message.content or None, "tool_calls": calls}
        case UserMessage() if message.images:
            pictures = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
            return {"role": "user", "content": [{"type": "text", "text": message.content}, *pictures]}
        case _:
            return {"role": message.role, "content": message.content}


class CallResult(TypedDict):
    """A call of the model and its whole result; `arguments` is the text that the model wrote."""

    id: str
    tool: str
    arguments: str
    success: bool
    result: str


class ToolConversation(TypedDict):
    """The answer to a conversation. `messages` is all of it, with the given ones; `error` says why it failed."""

    final_text: str
    tool_calls_executed: int
    all_results: list[CallResult]
    messages: list[dict[str, object]]
    iterations: int
    status: Status
    error: str


async def converse(
    model: ChatModel, setup: Setup, messages: Sequence[object], system_prompt: str, *, max_turns: int
) -> ToolConversation:
    """Have the model answer a conversation; it may call functions, and its first reply without a call is the answer.

    `system_prompt`, unless empty, replaces a system message in `messages`. `model` needs no retries, which are added
    here. Raises ValueError for messages that are no conversation, and as `Setup.priced` does.
    """
    if max_turns < 1:
        raise ValueError("max_turns must be at least 1")
    conversation = read_conversation(messages, known_tools=setup.known_tools, field="messages")
    if not conversation:
        raise ValueError("messages is empty")
    if system_prompt:
        rest = conversation[1:] if isinstance(conversation[0], SystemMessage) else conversation
        conversation = (SystemMessage(content=system_prompt), *rest)
    task = AgentTask(id=uuid.uuid4().hex[:12], description=conversation[-1].content)
    narration = Narration(task, lambda response: None)
    toolbox = setup.toolbox(narration, task)
    history = History(conversation)
    retrying = setup.model(model, narration.results)
    budget = Budget(replace(setup.limits, max_iterations=max_turns))
    if setup.prices:
        try:
            async with asyncio.timeout(budget.seconds_left):
                budget = setup.priced(budget, await retrying.probe())
        except (ModelError, TimeoutError) as fault:
            stop = StopReason.TIMEOUT if isinstance(fault, TimeoutError) else StopReason.MODEL_ERROR
            error = str(fault) or f"the limit of {budget.limits.timeout_seconds:g} seconds was reached"
            nothing = Trajectory(steps=(), stop_reason=stop, answer="", usage=budget.total(), error=error)
            return _outcome(nothing, narration, write_conversation(history.messages))
    parts = RunParts(
        model=retrying,
        toolbox=toolbox,
        history=history,
        budget=budget,
        rules=replace(setup.rules, max_reminders=0),
        journal=narration,
        guard=setup.guard(toolbox, threshold=setup.loop_threshold),
        sampling=setup.sampling,
    )
    trajectory = await AgentRun(parts).drive()
    return _outcome(trajectory, narration, write_conversation(history.messages, answer=trajectory.answer))


def _outcome(trajectory: Trajectory, narration: Narration, messages: list[dict[str, object]]) -> ToolConversation:
    results: list[CallResult] = [
        {
            "id": call.call_id,
            "tool": call.name,
            "arguments": call.arguments,
            "success": observation.result.success,
            "result": narration.results.get(call.call_id) or observation.result.observation(),
        }
        for step in trajectory.steps
        for call, observation in zip(step.reply.tool_calls, step.observations, strict=False)
    ]
    status: Status = _STATUS.get(trajectory.stop_reason, "error")
    return {
        "final_text": without_calls(trajectory.answer),
        "tool_calls_executed": len(results),
        "all_results": results,
        "messages": messages,
        "iterations": len(trajectory.steps),
        "status": status,
        "error": "" if status == "success" else trajectory.error,
    }
