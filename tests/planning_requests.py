"""A fast, a simple and a complex request to an agent that plans, and what its model says to them."""

from __future__ import annotations

import json

from swe_ai_fleet.testing import Conversation, Script, Turn

FAST, SIMPLE, COMPLEX = (
    "read file a.py",
    "Read a.py and b.py and say what they have in common.",
    "Refactor a.py and b.py.",
)
FILES = {"a.py": "def one():\n    return 1\n", "b.py": "def two():\n    return 2\n"}
_PLAN = [{"tool": "files", "operation": "read_file", "params": {"path": path}} for path in FILES]
_LOOKS = (
    ("files_read_file", {"path": "a.py"}),
    ("files_read_file", {"path": "b.py"}),
    ("files_search_in_files", {"pattern": "return"}),
)
SCRIPT = Script(
    conversations=(
        Conversation(
            match=SIMPLE,
            turns=(
                Turn(content=json.dumps({"steps": _PLAN})),
                Turn(content=json.dumps({"met": True, "missing": "", "answer": "Both return a number."})),
            ),
        ),
        Conversation(
            match=COMPLEX,
            turns=(Turn(tool_calls=_LOOKS, times=4), Turn(tool_calls=(("final_answer", {"result": "Done."}),))),
        ),
    )
)
