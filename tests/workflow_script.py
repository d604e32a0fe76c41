"""What the scripted model says to the nodes of the workflow templates, chosen by a marker in their inputs."""

from __future__ import annotations

from swe_ai_fleet.testing import Conversation, Turn
from tests.chat_script import called, final
from tests.reviewing import REVIEWER, accepting

FIX, REVIEW, RESEARCH = "[flow-fix]", "[flow-review]", "[flow-research]"
HELD = "[flow-held]"

CART_FILES = {
    "cart.py": "def total(prices):\n    return prices[0] + sum(prices[1:])\n",
    "test_cart.py": "import cart\n\n\ndef test_total():\n    assert cart.total([1, 2]) == 3\n",
}
_MENDED = "def total(prices):\n    return sum(prices)\n"
_TEST = "\n\ndef test_nothing():\n    assert cart.total([]) == 0\n"


WORKFLOW_CONVERSATIONS = (
    Conversation(match=FIX, regex=REVIEWER, turns=(final(accepting("It does what the task asks for.")),)),
    Conversation(
        match=FIX,
        regex="Reproduce this issue",
        turns=(
            called("shell_run_command", command="python3 -c 'import cart; cart.total([])'"),
            final("total([]) raises IndexError in cart.py, line 2: prices[0]."),
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
            final("total() sums up from nothing."),
        ),
    ),
    Conversation(
        match=FIX,
        regex="is to fix this issue",
        turns=(
            called("files_read_file", path="cart.py"),
            Turn(content="approve\nThe cause is mended, and there is a test."),
        ),
    ),
    Conversation(
        match=REVIEW,
        regex="Review the changes below for one thing only",
        turns=(
            called("files_read_file", path="cart.py"),
            final(f"{REVIEW} cart.py, line 2: fine."),
        ),
    ),
    Conversation(match=REVIEW, regex="These reviews of one change", turns=(final("approve"),)),
    Conversation(match=RESEARCH, regex="Write a report", turns=(Turn(content="It is so [1], and so [2]."),)),
    Conversation(match=HELD, turns=(final("At once."),)),
)
