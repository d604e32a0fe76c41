"""Everything that reads what strangers wrote, fed what nobody wrote: it reads, or says no in the way it promises.

Each gets a tenth of a second here; `make fuzz SECONDS=60` gives each a minute. What hangs meets the test's time limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from swe_ai_fleet import codec
from swe_ai_fleet.adapters.git_workspace import read_header
from swe_ai_fleet.adapters.git_workspace.uploads import read_upload_header
from swe_ai_fleet.agents import tool_call_dialects
from swe_ai_fleet.agents.judging import read_choice
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.command import HostPattern
from swe_ai_fleet.domain.council import AgentEndpoint
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import Event
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.tools import FileTool
from swe_ai_fleet.tools.tests.running import read_events, sealed
from swe_ai_fleet.tools.tests.text_reports import recognise

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0.1"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
GOLDEN = Path(__file__).parents[1] / "unit/golden"
PATCH = """diff --git a/app.py b/app.py
index 3b18e51..8f9b4ee 100644
--- a/app.py
+++ b/app.py
@@ -1,3 +1,4 @@ def greet():
 import os
-print("hello")
+print("hello, world")
+print("again")
 # end
diff --git a/new.sh b/new.sh
new file mode 100755
--- /dev/null
+++ b/new.sh
@@ -0,0 +1 @@
+echo hi
\\ No newline at end of file
diff --git a/old b/renamed
similarity index 100%
rename from old
rename to renamed
"""
PLAN = json.dumps(
    {
        "reasoning": "first look, then write",
        "steps": [
            {"tool": "files", "operation": "read_file", "params": {"path": "app.py"}},
            {"tool": "files", "operation": "edit_file", "params": {"path": "app.py", "old": "a", "new": "b"}},
        ],
    }
)
CALLS = (
    '<tool_call>\n{"name": "files_read_file", "arguments": {"path": "a"}}\n</tool_call>',
    '<function=shell_run>{"command": "ls"}</function>',
    '[TOOL_CALLS][{"name": "x", "arguments": {}}]',
    '<think>hm</think><|python_tag|>{"name": "x", "parameters": {}}',
    "<tool_call>x\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
)
TEST_EVENTS = """{"e": "start", "id": "a.py::test_x"}
{"e": "end", "id": "a.py::test_x", "o": "failed", "ms": 3, "m": "no", "t": "E", "k": "hung"}
{"e": "stop", "why": "time"}
"""
OUTPUT = """FAILED tests/test_a.py::test_x - AssertionError: no
ERROR tests/test_b.py - ImportError
========== 1 failed, 3 passed, 1 error in 0.12s ==========
"""
ALONE = f"# v2 git bundle\n{'2' * 40} refs/heads/main\n\nPACK"
BUNDLE = ALONE.replace("bundle\n", f"bundle\n-{'1' * 40} base\n")


@dataclass(frozen=True)
class Target:
    """A parser, texts that it reads, and what it may raise."""

    name: str
    read: Callable[[str], object]
    corpus: Sequence[str]
    raises: type[Exception] | tuple[type[Exception], ...] = ()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _sealed(text: str) -> bytes:
    return b"\n".join(sealed(line, "k") for line in _bytes(text).split(b"\n"))


def _understood(text: str) -> object:
    call = ToolCall(call_id="1", model_call_id="", name="files_write_file", arguments=text)
    return Toolbox({"files": FILES}, FILES.pipeline).understand(call)


FILES = FileTool(".")


def _patched(text: str) -> ToolResult:
    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(FileTool(name).apply_patch(text))


EVENTS = [path.read_text() for path in sorted(GOLDEN.rglob("*.json"))]
TARGETS = (
    Target("event codec", lambda text: codec.from_json(Event, text), EVENTS, ValueError),
    Target("patch", _patched, (PATCH,)),
    Target("choice", lambda text: read_choice((text,), "ABC"), ('{"choice": "B"}',), ValueError),
    Target("tool calls", tool_call_dialects.parse, CALLS),
    Target("arguments", _understood, (PLAN, "{'a': 1, b: [1,2,],}", "{}")),
    Target("test events", lambda text: read_events(_sealed(text), "k"), (TEST_EVENTS,)),
    Target("printed reports", recognise, (OUTPUT,)),
    Target("bundle", lambda text: read_header(_bytes(text)), (BUNDLE,), FleetError),
    Target("uploaded bundle", lambda text: read_upload_header(_bytes(text)), (ALONE,), FleetError),
    Target("endpoint", AgentEndpoint.parse, ("agents.example.org:50060", "[::1]:80", "https://a.b:443"), FleetError),
    Target("host", HostPattern.parse, ("*.example.org", "10.0.0.1:80", "[::1]:443"), FleetError),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
@pytest.mark.timeout(120 + 2 * SECONDS)
def test_it_reads_or_says_no(target: Target) -> None:
    dice = random.Random(f"{SEED} {target.name}")
    for text in target.corpus:
        target.read(text)
    tried, read, ends = 0, 0, time.monotonic() + SECONDS
    while tried < 20 or time.monotonic() < ends:
        text = mutated(target.corpus, dice)
        tried += 1
        try:
            target.read(text)
            read += 1
        except target.raises:
            continue
        except Exception as fault:
            raise AssertionError(f"{target.name}: {type(fault).__name__}: {fault} for {text[:2_000]!r}") from fault
    print(f"{target.name}: {tried} tried, {read} read")


_SPRINKLES: Sequence[str] = (
    "{", "}", "[", "]", '"', "'", "\\", "\\u", "\\ud800", ",", ":", "\n", "\r\n", "\r", "\t", "\x00", "\ufeff",
    "```", "```json\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<function=", "&a", "*a",
    "!!python/object/apply:os.system", "<<: *a", "- ", "? ", "|", ">", "%", "#", "---\n", "...\n", "@@ -1,1 +1,1 @@\n",
    "diff --git a/x b/x\n", "--- a/x\n", "+++ b/../../x\n", "new file mode 120000\n", "rename from ",
    "NaN", "Infinity", "-0", "1e999", "9" * 400, "null", "true", "\\ No newline at end of file\n", "é", "\U0001f600",
    "${x}", "{{ x }}", "<!DOCTYPE x [<!ENTITY a 'b'>]>", "&a;", "]]>", "<![CDATA[", "\u2028",
    "index 0..1 160000", "(" * 60, "[" * 60, "a" * 5_000,
)  # fmt: skip
_LONGEST = 60_000


def mutated(corpus: Sequence[str], dice: random.Random) -> str:
    """One of the corpus after one to six accidents, most of them small."""
    text = dice.choice(corpus)
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        here, there = sorted((dice.randrange(len(text) + 1), dice.randrange(len(text) + 1)))
        match dice.randrange(7):
            case 0:
                text = text[:here] + dice.choice(_SPRINKLES) + text[here:]
            case 1:
                text = text[:here] + text[there:]
            case 2:
                text = text[:there] + text[here:there] * dice.choice((1, 2, 20)) + text[there:]
            case 3:
                other = dice.choice(corpus)
                text = text[:here] + other[dice.randrange(len(other) + 1) :]
            case 4:
                text = text[:here]
            case 5:
                text = text[:here] + chr(dice.choice((0, 9, 32, 34, 92, 0x7F, 0xA0, 0x2028, 0xFFFD))) + text[here + 1 :]
            case _:
                # Opened without end.
                text = text[:here] + dice.choice("([{<\"'`") * dice.choice((2, 50, 2_000)) + text[here:]
    return text[:_LONGEST]
