"""Conversations in OpenAI's shape that are none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.function_calling import make, serving
from tests.tables import table


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
