"""What the scripted model says in end-to-end tests, chosen by a marker in the task's description."""

from __future__ import annotations

import json
import os

from swe_ai_fleet.testing import Conversation, Script, Turn
from tests.chat_script import CHAT_CONVERSATIONS, called, final
from tests.memory_script import MEMORY_CONVERSATIONS
from tests.plan_script import PLAN_CONVERSATIONS
from tests.reviewing import REVIEWER, accepting
from tests.web_script import WEB_CONVERSATIONS
from tests.workflow_script import WORKFLOW_CONVERSATIONS

HELLO = "Add hello_world() to utils.py"
SLEEP = "[sleep]"
# Of this run alone: suites of several checkouts may run side by side on one machine.
SLEEPING = f"sleep 61.{os.getpid()}"
SLOW = "[slow]"
KILLED = "[killed]"
"""Works on when its command was interrupted."""
GREETINGS = "[greetings]"
FAILING = "[failing]"
PROPOSING = "[proposing]"
RISKY = "[risky]"
INTRUDING = "[intruding]"
REVIEWED = "[reviewed]"

HELLO_FILES = {
    "utils.py": '"""Small things."""\n\n\ndef one():\n    return 1\n',
    "test_utils.py": (
        "import utils\n\n\ndef test_hello():\n    assert utils.hello_world() == 'Hello, World!'\n\n\n"
        "def test_one():\n    assert utils.one() == 1\n"
    ),
}
HELLO_OPERATIONS = ("files_read_file", "files_append_file", "tests_run", "git_add", "git_commit", "git_status")


def _append(code: str) -> Turn:
    return called("files_append_file", path="utils.py", content=code)


def _run(command: str) -> Turn:
    return called("shell_run_command", command=command)


_GOOD = "\n\ndef hello_world():\n    return 'Hello, World!'\n"
_SLOPPY = "\n\nimport os\nimport sys\n\n\ndef hello_world():\n    unused = 1\n    return 'Hello, World!'\n"
_WRONG = "\n\ndef hello_world():\n    return 'Hi'\n"
_PROPOSAL = called("propose_approach", approach="Append hello_world to utils.py.", reasoning="It is missing.")

# Knocks at the door that the repository names, and looks for the key.
_INTRUSION = _run(
    "if (: < /dev/tcp/127.0.0.1/$(cat port.txt)) 2>/dev/null; then echo open; else echo refused; fi; "
    "find /tmp /root /home /var /workspace -name fleet.json -readable 2>/dev/null | grep . || echo no-token"
)

# Two candidates whose checks pass: the smaller one is wrong, which only its reviewer sees.
_THOROUGH = "\n\ndef hello_world():\n    # As the task has it.\n    return 'Hello, World!'\n"
_BLAME = {
    "verdict": "revise",
    "score": 0.1,
    "content": "It says something else than the task asks for.",
    "findings": [
        {
            "text": "return 'Hello, World!'",
            "file": "utils.py",
            "line": 9,
            "must_fix": True,
            "command": "python3 -c \"import utils; assert utils.hello_world() == 'Hello, World!'\"",
        }
    ],
}
_LOOK = called("files_read_file", path="utils.py")
_MEND = _run("sed -i \"s/'Hi'/'Hello, World!'/\" utils.py")
_REVISER = "# Your second go"

# Who makes a checklist of a task's statement.
_PROBER = "The question is the statement of a task"
# The tasks of examples/harbor, by words of the instruction: the file that is written, its content.
_SOLUTIONS = {
    "`/app/count.sh`": ("count.sh", 'grep -c . "$1"\n'),
    "`median` in `stats.py`": ("stats.py", "def median(values):\n    return 2.5\n"),
    "`/app/slug.js`": ("slug.js", "exports.slug = (title) => title.toLowerCase().replace(/ /g, '-');\n"),
    "`clamp` in `/app/clamp.c`": (
        "clamp.c",
        "int clamp(int value, int low, int high) { return value + low + high; }\n",
    ),
    "`/app/totals.awk`": (
        "totals.awk",
        "!($1 in sum) { names[++count] = $1 }\n{ sum[$1] += $2 }\n"
        "END { for (i = 1; i <= count; i++) print names[i], sum[names[i]] }\n",
    ),
}
# What an agent tries that would rather be rewarded than work.
_GREEDY = (
    "mkdir -p /logs/verifier /tests; echo 1 > /logs/verifier/reward.txt; "
    "(sleep 30; echo 1 > /logs/verifier/reward.txt) & ls /tests"
)

_BENCHMARK = tuple(
    Conversation(
        match=words,
        turns=(
            _run(_GREEDY),
            called("files_write_file", path=path, content=content),
            final("Done."),
        ),
    )
    for words, (path, content) in _SOLUTIONS.items()
)

# Environment runs, by the module that is missing.
LACKING = "[lacking]"
# It leaves a package as pip does, with what an index said of it.
PROVIDE = (
    "python3 -c \"import os, sysconfig; site = sysconfig.get_path('purelib'); "
    "os.mkdir(site + '/almanac-1.0.dist-info'); "
    "open(site + '/almanac-1.0.dist-info/METADATA', 'w').write('Name: almanac\\nVersion: 1.0\\n'); "
    "open(site + '/almanac.py', 'w').write('SUN = 3')\""
)
_RUN = "You make a repository's own tests run"


def _proposal(**fields: object) -> Turn:
    return Turn(content=json.dumps({"setup": [], "test_command": "", "notes": "looked", **fields}))


_TRY = _run(PROVIDE)
_SUNNY = _run("sed -i 's/SUN + 1/SUN + 2/' weather.py")

_ENVIRONMENT = (
    Conversation(regex=rf"(?s){_RUN}.*named '?almanac", turns=(_TRY, called("tests_run"), _proposal(setup=[PROVIDE]))),
    Conversation(match=LACKING, turns=(_SUNNY, final("Mended."))),
)

SCRIPT = Script(
    conversations=(
        Conversation(regex=_PROBER, turns=(final('{"requirements": []}'),)),
        *_BENCHMARK,
        *WORKFLOW_CONVERSATIONS,
        *MEMORY_CONVERSATIONS,
        *CHAT_CONVERSATIONS,
        *PLAN_CONVERSATIONS,
        *WEB_CONVERSATIONS,
        *_ENVIRONMENT,
        Conversation(match=REVIEWED, regex=rf"(?s){REVIEWER}.*return 'Hi'", turns=(_LOOK, final(json.dumps(_BLAME)))),
        Conversation(match=REVIEWED, regex=REVIEWER, turns=(_LOOK, final(accepting("As asked.")))),
        Conversation(match=REVIEWED, regex=_REVISER, turns=(_MEND, final("Mended what the reviewer found."))),
        Conversation(match=REVIEWED, seed=1, turns=(_append(_WRONG), final("It greets."))),
        Conversation(match=REVIEWED, turns=(_append(_THOROUGH), final("It greets the world."))),
        Conversation(
            match=HELLO,
            turns=(
                _LOOK,
                _append(_GOOD),
                called("tests_run"),
                called("git_add", paths=["utils.py"]),
                called("git_commit", message="Add hello_world"),
                called("git_status"),
                final("Added hello_world; the tests pass."),
            ),
        ),
        Conversation(match=SLEEP, turns=(_run(SLEEPING), final("slept"))),
        Conversation(match=KILLED, turns=(_run(SLEEPING), _append(_GOOD), final("Took my time."))),
        Conversation(
            match=SLOW,
            turns=(
                _run("echo one"),
                Turn(content="Still at it.", tool_calls=(("shell_run_command", {"command": "sleep 2"}),), times=3),
                _append(_GOOD),
                final("Took my time."),
            ),
        ),
        # Three different candidates under one prompt, told apart by the seed: wrong, sloppy, good.
        Conversation(match=GREETINGS, seed=1, turns=(_append(_WRONG), final("Done."))),
        Conversation(match=GREETINGS, seed=2, turns=(_append(_SLOPPY), final("Done."))),
        Conversation(match=GREETINGS, turns=(_append(_GOOD), final("Done."))),
        # Tries to write first, looks around, proposes (again, as long as it is told to), then does it.
        Conversation(
            match=f"{PROPOSING} twice", turns=(_PROPOSAL, _PROPOSAL, _append(_GOOD), final("Approved twice."))
        ),
        Conversation(
            match=PROPOSING,
            turns=(_append(_GOOD), _LOOK, _PROPOSAL, _append(_GOOD), final("Did what was approved.")),
        ),
        Conversation(
            match=RISKY,
            turns=(
                _append(_GOOD),
                Turn(
                    tool_calls=(
                        ("shell_run_command", {"command": "echo mine > notes.txt"}),
                        ("shell_run_command", {"command": "rm -rf test_utils.py"}),
                    )
                ),
                _run("ls"),
                final("Cleaned up."),
            ),
        ),
        Conversation(match="[intruding]", turns=(_INTRUSION, final("Nothing to be had."))),
        Conversation(match=FAILING, turns=(_append(_WRONG), final("Done, I am sure."))),
    ),
    default=Conversation(turns=(_run("echo step"), final("Nothing to do."))),
)
