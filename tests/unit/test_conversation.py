"""Conversations in OpenAI's shape: read, checked, written back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.function_calling.conversation import read_conversation, write_conversation
from swe_ai_fleet.domain.message import UserMessage
from tests.tables import table

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "id", "function", "name", "tool_call_id"]) | st.text(), inner
    ),
    max_leaves=20,
)  # fmt: skip


def calling(*ids: str, name: str = "look") -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": name, "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


USER = {"role": "user", "content": "Look."}
WHOLE = [
    {"role": "system", "content": "Be brief."}, USER, calling("a", "b"), result("b"), result("a"),
    {"role": "assistant", "content": "Seen."},
]  # fmt: skip


def test_what_is_read_is_written_back() -> None:
    given_, before = copy.deepcopy(WHOLE), copy.deepcopy(WHOLE)
    messages = read_conversation(given_, known_tools=("look",))
    assert given_ == before
    written = write_conversation(messages)
    assert written == WHOLE
    assert all(one is not other for one, other in zip(written, given_, strict=True))


def test_parts_of_text_and_pictures() -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "https://a.test/x.png"}},
        {"type": "image_url", "image_url": "data:image/png;base64,AA=="},
    ]
    (message,) = read_conversation([{"role": "user", "content": parts}], known_tools=())
    assert message == UserMessage(content="What is it?", images=("https://a.test/x.png", "data:image/png;base64,AA=="))
    assert write_conversation([message])[0]["content"][0] == parts[0]  # type: ignore[index]


@table(
    ("messages", "said"),
    [
        ({}, "chat_history is a dict"),
        (["x"], r"chat_history\[0\]: a message must be an object"),
        ([{"content": "x"}], "the role is None"),
        ([USER, {"role": "system", "content": "x"}], r"chat_history\[1\]: a system message must be the first message"),
        ([{"role": "user", "content": 7}], "must be a string"),
        ([{"role": "assistant", "content": None}], "content or tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "an id and a function"),
        ([calling("a", name="fly"), result("a")], "it calls 'fly'; the tools are: look"),
        ([calling("a", "a"), result("a")], "two calls have the id 'a'"),
        ([calling("a"), USER], r"chat_history\[1\]: no tool result for the calls a"),
        ([calling("a"), result("a"), result("a")], r"chat_history\[2\]: it answers 'a'"),
        ([result("a")], "not the id of an earlier call"),
    ],
)
def test_what_is_refused(messages: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_conversation(messages, known_tools=("look",))


@given(st.lists(JSON, max_size=6))
def test_whatever_is_given_it_is_a_conversation_or_a_value_error(messages: list[Any]) -> None:
    before = copy.deepcopy(messages)
    try:
        read = read_conversation(messages, known_tools=("look",))
    except ValueError:
        pass
    else:
        assert read_conversation(write_conversation(read), known_tools=("look",)) is not None
    assert messages == before
