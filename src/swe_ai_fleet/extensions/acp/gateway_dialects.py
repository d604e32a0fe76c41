"""The two APIs of the model gateway, and the fields of requests that may reach a model server.

Responses are translated to chat completions: servers differ most in `/v1/responses` (several write tool calls into the
text of its streams), while every server that the fleet supports answers chat completions with tools.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import is_object, items, json_object, mapping, mappings, parse_json, string
from swe_ai_fleet.domain.message import ModelReply, ToolCall

Json = dict[str, object]
# Fields of `/v1/responses` that chat completions do not have. All others are passed on.
_RESPONSES_ONLY = frozenset(
    {
        "background", "client_metadata", "context_management", "conversation", "include", "input", "instructions",
        "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt", "reasoning", "stream_options", "text",
        "top_logprobs", "truncation",
    }
)  # fmt: skip
_EVENT_END = re.compile(rb"\r?\n\r?\n")
# Fields that only the operator may set: priority, storing and sharing, cost, other servers that the server calls, and
# code that it runs. The names are those of OpenAI, vLLM, SGLang, LiteLLM and OpenRouter.
_OPERATOR_FIELDS = frozenset(
    {
        "best_of", "cache_salt", "chat_template", "custom_llm_provider", "custom_logit_processor", "custom_params",
        "data_parallel_rank", "ec_transfer_params", "extra_body", "fallbacks", "keep_alive", "kv_transfer_params",
        "logits_processors", "models", "options", "plugins", "priority", "provider", "request_id", "rid", "route",
        "service_tier", "session_params", "store", "transforms", "use_beam_search", "vllm_xargs", "web_search_options",
    }
)  # fmt: skip
_ADDRESS_FIELDS = re.compile(r"(?:^|_)(?:urls?|hosts?|ports?|base|keys?|headers?|paths?|proxy|endpoint|room)$")
# Tools of other types are run by the server itself.
_TOOL_TYPES = ("function", "custom")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")


class ChatCompletion:
    """A chat completion, passed on unchanged; the stream's usage event only if the agent asked for it."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields
        self._wants_usage = bool(mapping(fields, "stream_options").get("include_usage"))

    def request(self) -> Json:
        """The chat completion for the model server. Raises InvalidRequest."""
        if not items(self._fields.get("messages")):
            raise InvalidRequest("a list of messages is missing", field="messages")
        return dict(self._fields)

    def event(self, data: bytes) -> bytes:
        """The bytes for the agent for an event of the server's stream; `data` is the event without `data:`."""
        if not self._wants_usage and b'"usage"' in data and json_object(data).get("choices") == []:
            return b""
        return b"data: %b\n\n" % data.replace(b"\n", b"\ndata: ")

    def end(self, reply: ModelReply) -> bytes:
        """The bytes for the agent after the last event."""
        return b""

    def whole(self, body: bytes, reply: ModelReply) -> bytes:
        return body

    def broken(self, error: Json) -> bytes:
        """The bytes for the agent if a stream breaks off."""
        return b"data: %b\n\n" % _dump({"error": error})


class Response:
    """A response of `/v1/responses`, translated from a chat completion, with text and reasoning as they arrive.

    Tools that a server would run by itself are left out, and nothing is stored between requests.
    """

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._free_form = frozenset(
            string(tool.get("name")) for tool in mappings(fields.get("tools")) if tool.get("type") == "custom"
        )
        self._sequence = 0
        self._output: list[Json] = []
        self._kind, self._text = "", list[str]()

    def request(self) -> Json:
        fields = self._fields
        for name in ("previous_response_id", "conversation", "prompt", "background"):
            if fields.get(name):
                raise InvalidRequest("nothing is kept here between requests: send all of the input", field=name)
        chat: Json = {name: value for name, value in fields.items() if name not in _RESPONSES_ONLY}
        chat["messages"] = _messages(string(fields.get("instructions")), fields.get("input"))
        if limit := fields.get("max_output_tokens"):
            chat["max_completion_tokens"] = limit
        if effort := mapping(fields, "reasoning").get("effort"):
            chat["reasoning_effort"] = effort
        if form := mapping(fields, "text", "format"):
            schema = {name: value for name, value in form.items() if name != "type"}
            chat["response_format"] = {"type": form.get("type"), **({"json_schema": schema} if schema else {})}
        choice = mapping(fields, "tool_choice")
        if choice.get("name"):
            chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
        chat["tools"] = [_tool(tool) for tool in mappings(fields.get("tools"))]
        return chat

    def event(self, data: bytes) -> bytes:
        return b"".join(self._add(mapping(choice, "delta")) for choice in mappings(json_object(data).get("choices")))

    def end(self, reply: ModelReply) -> bytes:
        written = self._close()
        for call in reply.message.tool_calls:
            written += self._call(call)
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish_reason)
        status = "incomplete" if cut else "completed"
        more = {"usage": _usage(reply.usage), "incomplete_details": {"reason": cut} if cut else None}
        return written + self._say(f"response.{status}", response=self._response(status, **more))

    def whole(self, body: bytes, reply: ModelReply) -> bytes:
        for choice in mappings(json_object(body).get("choices")):
            self._add(mapping(choice, "message"))
        # The last event has the whole response.
        last = self.end(reply).rpartition(b"data: ")[2]
        return _dump(json_object(last)["response"])

    def broken(self, error: Json) -> bytes:
        error_fields = {"code": error["code"] or "server_error", "message": error["message"]}
        return self._say("response.failed", response=self._response("failed", error=error_fields))

    def _add(self, delta: Mapping[str, object]) -> bytes:
        reasoning = string(delta.get("reasoning_content")) or string(delta.get("reasoning"))
        return self._write("reasoning", reasoning) + self._write("message", string(delta.get("content")))

    def _write(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        written = b""
        if kind != self._kind:
            written = self._close()
            self._kind = kind
            opened = self._item("in_progress", "")
            self._output.append(opened)
            written += self._say("response.output_item.added", **self._index(), item=opened)
            if kind == "message":
                written += self._say("response.content_part.added", **self._part(), part=_output_text(""))
        self._text.append(text)
        event = "output_text" if kind == "message" else "reasoning_text"
        return written + self._say(f"response.{event}.delta", **self._part(), delta=text)

    def _close(self) -> bytes:
        if not self._kind:
            return b""
        text = "".join(self._text)
        done = self._output[-1] = self._item("completed", text)
        event = "output_text" if self._kind == "message" else "reasoning_text"
        written = self._say(f"response.{event}.done", **self._part(), text=text)
        if self._kind == "message":
            written += self._say("response.content_part.done", **self._part(), part=_output_text(text))
        written += self._say("response.output_item.done", **self._index(), item=done)
        self._kind, self._text = "", []
        return written

    def _item(self, status: str, text: str) -> Json:
        index = len(self._output) - (status == "completed")
        item: Json = {"id": f"item_{self._id}_{index}", "type": self._kind, "status": status}
        if self._kind == "message":
            return {**item, "role": "assistant", "content": [_output_text(text)] if status == "completed" else []}
        return {**item, "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    def _call(self, call: ToolCall) -> bytes:
        is_free_form = call.name in self._free_form
        argument = string(json_object(call.arguments).get("input")) if is_free_form else call.arguments
        field = "input" if is_free_form else "arguments"
        item: Json = {
            "id": f"item_{self._id}_{len(self._output)}",
            "type": "custom_tool_call" if is_free_form else "function_call",
            "status": "completed",
            "call_id": call.model_call_id,
            "name": call.name,
            field: argument,
        }
        self._output.append(item)
        event = f"response.{item['type']}_{field}"
        position: Json = {"item_id": item["id"], **self._index()}
        return b"".join(
            (
                self._say(
                    "response.output_item.added", **self._index(), item={**item, field: "", "status": "in_progress"}
                ),
                self._say(f"{event}.delta", **position, delta=argument),
                self._say(f"{event}.done", **position, **{field: argument}),
                self._say("response.output_item.done", **self._index(), item=item),
            )
        )

    def _index(self) -> Json:
        return {"output_index": len(self._output) - 1}

    def _part(self) -> Json:
        return {"item_id": self._output[-1]["id"], **self._index(), "content_index": 0}

    def _response(self, status: str, **more: object) -> Json:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._fields.get("model"),
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._output,
            "parallel_tool_calls": self._fields.get("parallel_tool_calls", True),
            "tool_choice": self._fields.get("tool_choice", "auto"),
            "tools": self._fields.get("tools", []),
            "usage": None,
            **more,
        }

    def _say(self, kind: str, **fields: object) -> bytes:
        first = b""
        if not self._sequence and kind != "response.created":
            first = self._say("response.created", response=self._response("in_progress", output=[]))
        self._sequence += 1
        fields_sent = {"type": kind, "sequence_number": self._sequence - 1, **fields}
        return first + b"event: %b\ndata: %b\n\n" % (kind.encode(), _dump(fields_sent))


Dialect = ChatCompletion | Response


def _messages(instructions: str, given: object) -> list[Json]:
    """Input items as messages: one system message first, and calls inside the assistant's messages."""
    listed: list[Mapping[str, object]] = (
        [{"role": "user", "content": given}] if isinstance(given, str) else mappings(given)
    )
    if not listed:
        raise InvalidRequest("a text or a list of items is missing", field="input")
    system_texts, messages, reasoning, images = [instructions] if instructions else [], list[Json](), "", list[Json]()
    for item in listed:
        kind = item.get("type") or "message"
        if images and kind not in ("function_call_output", "custom_tool_call_output"):
            messages.append({"role": "user", "content": images})
            images = []
        if kind == "message":
            role, content = string(item.get("role")), _content(item.get("content"))
            if role in ("system", "developer") and not messages and isinstance(content, str):
                system_texts.append(content)
                continue
            # Chat templates accept a system message only at the start.
            message: Json = {"role": "assistant" if role == "assistant" else "user", "content": content}
            if role == "assistant" and reasoning:
                message["reasoning_content"], reasoning = reasoning, ""
            messages.append(message)
        elif kind == "reasoning":
            parts = mappings(item.get("content")) or mappings(item.get("summary"))
            reasoning = "\n".join(string(part.get("text")) for part in parts)
        elif kind in ("function_call", "custom_tool_call"):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
                if reasoning:
                    messages[-1]["reasoning_content"], reasoning = reasoning, ""
            arguments = (
                item.get("arguments") if kind == "function_call" else _dump({"input": item.get("input")}).decode()
            )
            function = {"name": item.get("name"), "arguments": arguments}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1]["tool_calls"] = [*items(messages[-1].get("tool_calls")), call]
        elif kind in ("function_call_output", "custom_tool_call_output"):
            content = _content(item.get("output"))
            if not isinstance(content, str):
                images += [part for part in content if part["type"] != "text"]
                content = "\n".join(string(part.get("text")) for part in content if part["type"] == "text")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise InvalidRequest(f"items of the type {str(kind)[:64]!r} are not served", field="input")
    if images:
        messages.append({"role": "user", "content": images})
    system: list[Json] = [{"role": "system", "content": "\n\n".join(system_texts)}] if system_texts else []
    return [*system, *messages]


def _content(content: object) -> str | list[Json]:
    """The content of a message: a text, or parts if there are others than texts."""
    if isinstance(content, str):
        return content
    parts = [_part_of(part) for part in mappings(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(string(part["text"]) for part in parts)
    return parts


def _part_of(part: Mapping[str, object]) -> Json:
    kind = string(part.get("type"))
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": string(part.get("text"))}
    if kind == "refusal":
        return {"type": "text", "text": string(part.get("refusal"))}
    if kind == "input_image":
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part.get("image_url"), **detail}}
    raise InvalidRequest(f"content of the type {kind[:64]!r} is not served", field="input")


def _tool(tool: Mapping[str, object]) -> Json:
    if tool.get("type") == "custom":
        # Its input is free text; the description has its grammar.
        form = string(mapping(tool, "format").get("definition"))
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        described = "\n\n".join(filter(None, (string(tool.get("description")), form)))
        return {
            "type": "function",
            "function": {"name": tool.get("name"), "description": described, "parameters": schema},
        }
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": tool.get("type"), "function": function}


def _output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def events(buffer: bytearray) -> Iterator[bytes]:
    """Remove the complete events from a buffer; yields each without `data:`, and no comments."""
    while end := _EVENT_END.search(buffer):
        lines = [line[5:].strip() for line in bytes(buffer[: end.start()]).splitlines() if line.startswith(b"data:")]
        del buffer[: end.end()]
        if lines:
            yield b"\n".join(lines)


def json_body(body: bytes) -> Mapping[str, object]:
    """The object in a request's body. Raises InvalidRequest."""
    try:
        fields = parse_json(body, finite=True)
    except ValueError as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None
    if not is_object(fields):
        raise InvalidRequest("the body is not a JSON object")
    return fields


def screened(request_fields: Mapping[str, object]) -> dict[str, object]:
    """The fields of a chat completion that an agent may set; the nesting of `request_fields` is bounded.

    Raises InvalidRequest for requests that are not served.
    """
    fields = {
        name: value
        for name, value in request_fields.items()
        if name not in _OPERATOR_FIELDS and _ADDRESS_FIELDS.search(name) is None
    }
    if fields.get("n") not in (None, 1):
        raise InvalidRequest("one answer to a request is served", field="n")
    for message in mappings(fields.get("messages")):
        _check_urls(message)
    fields["tools"] = [tool for tool in mappings(fields.get("tools")) if tool.get("type") in _TOOL_TYPES]
    if not fields["tools"]:
        fields = {name: value for name, value in fields.items() if name not in _TOOL_FIELDS}
    return fields


def _check_urls(part: Mapping[str, object]) -> None:
    """Refuse URLs that the server would fetch."""
    for name, value in part.items():
        if name.endswith("_url"):
            url = string(value) or string(mapping(value).get("url"))
            if not url.startswith("data:"):
                raise InvalidRequest("send pictures and files as data: URLs, nothing is fetched", field="messages")
            continue
        for inner in (mapping(value), *mappings(value)):
            _check_urls(inner)
