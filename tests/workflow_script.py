"""What the scripted model says to the nodes of the workflow templates, chosen by a marker in their inputs."""

from __future__ import annotations

from swe_ai_fleet.testing import Conversation, Turn
from tests.reviewing import REVIEWER, accepting

FIX, UPGRADE, REVIEW, RESEARCH = "[flow-fix]", "leftpad", "[flow-review]", "[flow-research]"
HELD = "[flow-held]"

CART_FILES = {
    "cart.py": "def total(prices):\n    return prices[0] + sum(prices[1:])\n",
    "test_cart.py": "import cart\n\n\ndef test_total():\n    assert cart.total([1, 2]) == 3\n",
    "vendored.txt": "leftpad 1.0\n",
}
_MENDED = "def total(prices):\n    return sum(prices)\n"
_TEST = "\n\ndef test_nothing():\n    assert cart.total([]) == 0\n"


def _answer(text: str) -> Turn:
    return Turn(tool_calls=(("final_answer", {"result": text}),))


def _reviewer(marker: str) -> Conversation:
    return Conversation(match=marker, regex=REVIEWER, turns=(_answer(accepting("It does what the task asks for.")),))


WORKFLOW_CONVERSATIONS = (
    _reviewer(FIX),
    _reviewer(UPGRADE),
    Conversation(
        match=FIX,
        regex="Reproduce this issue",
        turns=(
            Turn(tool_calls=(("shell_run_command", {"command": "python3 -c 'import cart; cart.total([])'"}),)),
            _answer("total([]) raises IndexError in cart.py, line 2: prices[0]."),
        ),
    ),
    Conversation(
        match=FIX,
        regex="Fix this issue with the smallest change",
        turns=(
            Turn(
                tool_calls=(
                    ("files_write_file", {"path": "cart.py", "content": _MENDED}),
                    ("files_append_file", {"path": "test_cart.py", "content": _TEST}),
                )
            ),
            _answer("total() sums up from nothing."),
        ),
    ),
    Conversation(
        match=FIX,
        regex="is to fix this issue",
        turns=(
            Turn(tool_calls=(("files_read_file", {"path": "cart.py"}),)),
            Turn(content="approve\nThe cause is mended, and there is a test."),
        ),
    ),
    Conversation(
        match=UPGRADE,
        regex="is to be upgraded to",
        turns=(
            Turn(tool_calls=(("files_read_file", {"path": "vendored.txt"}),)),
            _answer("Change the version in vendored.txt; nothing else uses it."),
        ),
    ),
    Conversation(
        match=UPGRADE,
        regex="Upgrade the dependency",
        turns=(
            Turn(tool_calls=(("files_write_file", {"path": "vendored.txt", "content": "leftpad 2.0\n"}),)),
            _answer("leftpad is at 2.0."),
        ),
    ),
    Conversation(match=UPGRADE, regex="line for the changelog", turns=(_answer("- leftpad 2.0"),)),
    Conversation(
        match=REVIEW,
        regex="Review the changes below for one thing only",
        turns=(
            Turn(tool_calls=(("files_read_file", {"path": "cart.py"}),)),
            _answer(f"{REVIEW} cart.py, line 2: fine."),
        ),
    ),
    Conversation(match=REVIEW, regex="These reviews of one change", turns=(_answer("approve"),)),
    Conversation(match=RESEARCH, regex="Write a report", turns=(Turn(content="It is so [1], and so [2]."),)),
    Conversation(
        match=HELD,
        regex="take your time",
        turns=(Turn(tool_calls=(("shell_run_command", {"command": "sleep 2"}),), times=3), _answer("Slept well.")),
    ),
    Conversation(match=HELD, turns=(_answer("At once."),)),
)
