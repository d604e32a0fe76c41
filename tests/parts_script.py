"""What the scripted model says where a task is carried out in parts, two of which meet in the same place."""

from __future__ import annotations

import json

from swe_ai_fleet.testing import Conversation, Turn

PARTS = "[parts] Greet, and take leave"
_SPLIT = {
    "subtasks": [
        {"id": "Hello", "role": "DEV", "description": "[part-hello] Append hello() to utils.py.", "priority": 1},
        {"id": "bye", "role": "DEV", "description": "[part-bye] Append bye() to utils.py."},
        {"id": "tests", "role": "QA", "description": "[part-tests] Test both.", "depends_on": ["Hello", "bye"]},
    ],
    "reasoning": "Two functions, and what proves them.",
}
_TESTS = (
    "import utils\n\n\ndef test_both():\n    assert (utils.hello(), utils.bye()) == ('Hello', 'Bye')\n\n\n"
    "def test_no_marker():\n    assert '<<<<' not in open(utils.__file__).read()\n"
)
_BOTH_SIDES = "sed -i -e '/^<<<<<<< /d' -e '/^||||||| /d' -e '/^=======$/d' -e '/^>>>>>>> /d' utils.py"


def _answer(text: str) -> Turn:
    return Turn(tool_calls=(("final_answer", {"result": text}),))


def _appends(name: str, says: str) -> tuple[Turn, ...]:
    code = f"\n\ndef {name}():\n    return '{says}'\n"
    return (Turn(tool_calls=(("files_append_file", {"path": "utils.py", "content": code}),)), _answer(f"Added {name}."))


PARTS_CONVERSATIONS = (
    Conversation(match=PARTS, regex="You split a task", turns=(Turn(content=json.dumps(_SPLIT)),)),
    Conversation(
        regex=r"# Task\nTwo changes conflict",
        turns=(Turn(tool_calls=(("shell_run_command", {"command": _BOTH_SIDES}),)), _answer("Kept both.")),
    ),
    Conversation(match=PARTS, regex=r"# Task\n\[part-hello\]", turns=_appends("hello", "Hello")),
    Conversation(match=PARTS, regex=r"# Task\n\[part-bye\]", turns=_appends("bye", "Bye")),
    Conversation(
        match=PARTS,
        regex=r"# Task\n\[part-tests\]",
        turns=(
            Turn(tool_calls=(("files_write_file", {"path": "test_parts.py", "content": _TESTS}),)),
            _answer("Both are tested."),
        ),
    ),
)
