"""Tool calls as tagged text, for servers that take neither tools nor schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping

from swe_ai_fleet.agents.tool_call_dialects import RawToolCall, render
from swe_ai_fleet.domain.message import AssistantMessage

INSTRUCTIONS = """\
You can call tools. To call one, write its name and its arguments as JSON between tags, exactly like this:
<tool_call>
{"name": "<tool>", "arguments": {"<parameter>": "<value>"}}
</tool_call>
You may write several calls one after the other; then stop and wait for the results. The tools, as JSON schemas:
"""


def show(message: AssistantMessage) -> str:
    """A message of the model's with its calls as text."""
    calls = [render(RawToolCall(name=call.name, arguments=call.arguments)) for call in message.tool_calls]
    return "\n".join([message.content, *calls]).strip()


def follow_schema(schema: Mapping[str, object]) -> str:
    """How to ask for a reply that follows a schema where the server cannot be told."""
    text = json.dumps(schema, ensure_ascii=False)
    return f"Answer with one JSON value that follows this JSON schema, and with nothing else:\n{text}"
