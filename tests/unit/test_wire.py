"""Request bodies, written once a message and growing at their end alone; conversations that are none."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.adapters.openai_model import WireWriter, head_fields
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    Sampling,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolProtocol,
    UserMessage,
)
from swe_ai_fleet.domain.tool import OperationSpec
from tests.function_calling import make, serving
from tests.tables import table

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = tuple(
    OperationSpec(name=name, tool="files", operation=name, description="Do.", parameters=PARAMETERS)
    for name in ("look", "write")
)
TEXT = st.text(max_size=20)
CALL = st.builds(
    ToolCall,
    call_id=st.sampled_from("abc"),
    model_call_id=st.sampled_from(["", "x", "y"]),
    name=st.sampled_from(["look", "write", ""]),
    arguments=st.sampled_from(["{}", '{"path": "\u00e4"}', "{broken", ""]),
)
MESSAGES = st.lists(
    st.builds(SystemMessage, content=TEXT)
    | st.builds(UserMessage, content=TEXT, images=st.sampled_from([(), ("https://a/b.png",)]))
    | st.builds(AssistantMessage, content=TEXT, tool_calls=st.lists(CALL, max_size=2).map(tuple))
    | st.builds(ToolMessage, call_id=st.sampled_from("abc"), content=TEXT),
    max_size=8,
)


def write(writer: WireWriter, messages: Sequence[Message], protocol: ToolProtocol, *, tools: bool = True) -> Any:
    head = head_fields("m", Sampling(), limit_field="max_tokens")
    offered = TOOLS if tools else ()
    if protocol is ToolProtocol.NATIVE:
        return json.loads(writer.native(writer.conversation(messages), offered, head=head, strict=True))
    return json.loads(writer.spoken(messages, offered, head=head, protocol=protocol))


@given(MESSAGES, st.permutations(list(ToolProtocol)), st.integers(0, 400))
def test_what_was_written_before_changes_nothing(
    messages: list[Message], protocols: list[ToolProtocol], cache_bytes: int
) -> None:
    used = WireWriter(cache_bytes=cache_bytes)
    for end in range(len(messages) + 1):
        for protocol in protocols:
            for tools in (True, False):
                fresh = write(WireWriter(), messages[:end], protocol, tools=tools)
                assert write(used, messages[:end], protocol, tools=tools) == fresh


def flat(body: Any) -> str:
    """All that a model would read, without what a template puts at the end of each message."""
    said: list[str] = []
    for message in body["messages"]:
        content = message["content"]
        said.append("|" + message["role"])
        parts = [{"text": content}] if isinstance(content, str) else content
        said.extend(part["text"] if "text" in part else json.dumps(part) for part in parts)
    return "".join(said)


@given(MESSAGES, st.sampled_from([ToolProtocol.JSON, ToolProtocol.TEXT]))
def test_a_longer_conversation_begins_with_the_shorter_one_and_its_turns_alternate(
    messages: list[Message], protocol: ToolProtocol
) -> None:
    writer = WireWriter()
    start: list[Message] = [SystemMessage(content="s"), UserMessage(content="u")]
    before = flat(write(writer, start, protocol))
    for end in range(1, len(messages) + 1):
        after = flat(write(writer, [*start, *messages[:end]], protocol))
        assert after.startswith(before)
        before = after
    roles = [message["role"] for message in write(WireWriter(), messages, protocol)["messages"]]
    assert roles[0] == "system" and all(one != other for one, other in pairwise(roles))


def look() -> str:
    """Look."""
    return "seen"


def calling(*ids: str, name: str = "look") -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": name, "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


USER = {"role": "user", "content": "Look."}


@table(
    ("messages", "said"),
    [
        (["x"], r"chat_history\[0\]: a message must be an object"),
        ([USER, {"role": "system", "content": "x"}], r"chat_history\[1\]: a system message must be the first message"),
        ([calling("a", name="fly"), result("a")], "it calls 'fly'; the tools are: look"),
        ([calling("a", "a"), result("a")], "two calls have the id 'a'"),
        ([calling("a"), USER], r"chat_history\[1\]: no tool result for the calls a"),
        ([calling("a"), result("a"), result("a")], r"chat_history\[2\]: it answers 'a'"),
    ],
)
async def test_what_is_refused(messages: Any, said: str) -> None:
    async with serving() as server:
        with pytest.raises(ValueError, match=said):
            await anext(make(server, look).run("Go on.", chat_history=messages))
        assert server.requests == 0
