"""What the scripted model says to executions that people watch on the page."""

from __future__ import annotations

from dataclasses import replace

from swe_ai_fleet.testing import Conversation, Turn
from tests.chat_script import final

BUSY = "[web-busy]"
"""Three agents that take their time and then differ."""
HOSTILE = "[web-hostile]"
"""An agent whose words, files and output try to be markup."""

MARKUP = "<img src=x onerror=\"document.title='owned'\">"
HOSTILE_FILE = "<img src=x onerror=alert(1)>.py"
HOSTILE_TASK = f"{HOSTILE} {MARKUP}<script>document.title='owned'</script> \u202ertl [x](javascript:alert(1))"
HOSTILE_MARKDOWN = (
    "**Bold** [x](javascript:alert(1)) [y](data:text/html,x) ![p](https://evil.example/p.png) <b>b</b> "
    "[fine](https://example.org/fine)\n\n| a | b |\n| - | - |\n| <script>1</script> | c |\n"
)
"""An answer in Markdown; one of its links may be followed."""
_HOSTILE_CODE = "x = '</script><script>document.title=\"owned\"</script>'\n# <b onmouseover=alert(1)>bold</b>\n"


def _paced(code: str, answer: str, *, seconds: float) -> tuple[Turn, ...]:
    looks = (("files_list_files", {}), ("shell_run_command", {"command": "grep -n def utils.py"}))
    writes = ("files_append_file", {"path": "utils.py", "content": code})
    turns = (
        Turn(content="I look at the module first.", tool_calls=(("files_read_file", {"path": "utils.py"}),)),
        Turn(content="What is there already?", tool_calls=looks),
        Turn(content="Now the function itself.", tool_calls=(writes,)),
        Turn(content="And the tests.", tool_calls=(("tests_run", {}),)),
        final(answer),
    )
    return tuple(replace(turn, delay_seconds=seconds) for turn in turns)


_GREETS = "\n\ndef hello_world():\n    return 'Hello, World!'\n"
WEB_CONVERSATIONS = (
    Conversation(match=BUSY, seed=1, turns=_paced(_GREETS.replace("ello, World!", "i"), "It greets.", seconds=0.5)),
    Conversation(match=BUSY, seed=2, turns=_paced(f"\n\nimport os\n{_GREETS}", "It greets the world.", seconds=0.7)),
    Conversation(match=BUSY, turns=_paced(_GREETS, "Added hello_world; the tests pass.", seconds=0.9)),
    Conversation(
        match=HOSTILE,
        turns=(
            Turn(
                content=f"Thinking {MARKUP} <script>document.title='owned'</script>",
                tool_calls=(
                    ("files_write_file", {"path": HOSTILE_FILE, "content": _HOSTILE_CODE}),
                    ("shell_run_command", {"command": f"printf '%s\\n' '{MARKUP.replace(chr(39), chr(34))}'"}),
                ),
            ),
            final(f"Done {MARKUP}\n\n{HOSTILE_MARKDOWN}"),
        ),
    ),
)
