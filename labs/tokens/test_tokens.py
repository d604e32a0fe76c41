"""The lab of the tokens: its report adds up, its recordings fit their repositories, and one replay by a real fleet."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from labs.tokens import masking
from labs.tokens.parts import parts_of
from labs.tokens.recordings import Call, make_example, recordings, write_study
from labs.tokens.replaying import Replay, Strayed, replayed
from labs.tokens.report import figures, first_request, tables
from swe_ai_fleet.testing.repositories import git

if TYPE_CHECKING:
    from swe_ai_fleet.extensions.batch.records import TaskRecord

TASK = "Mend the parser.\n\nIt is torn."
MAP = "Where the code is:\n```\na.py:\n  1: def parse\n```\n"
RULES = "Instructions for contributors, from its AGENTS.md:\n<<<\n```\nmake test\n```\n>>>\n\n"
TOOLS = [{"type": "function", "function": {"name": "files_read_file", "parameters": {}}}]
BODY = {
    "tools": TOOLS,
    "messages": [
        {"role": "system", "content": "You are a developer."},
        {"role": "user", "content": f"# The repository\n{MAP}{RULES}# Task\n{TASK}\n"},
        {
            "role": "assistant",
            "content": "I read it.",
            "tool_calls": [{"id": "c1", "function": {"name": "files_read_file", "arguments": '{"path": "a.py"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "def parse(): ..."},
        {"role": "user", "content": "One reply is left."},
    ],
}


def test_a_requests_parts_add_up_to_all_that_it_says() -> None:
    assert parts_of(BODY, TASK) == {
        "tools": len(json.dumps(TOOLS)),
        "system": len("You are a developer."),
        "map": len(MAP),
        "contributors": len(RULES),
        "task": len(TASK),
        "opening": len("# The repository\n# Task\n\n"),
        "assistant text": len("I read it."),
        "tool calls": len('files_read_file{"path": "a.py"}'),
        "observed: files_read_file": len("def parse(): ..."),
        "remarks": len("One reply is left."),
    }


def test_masking_costs_what_lies_behind_it_and_saves_what_is_never_sent_again() -> None:
    body = {**BODY, "messages": [*BODY["messages"][:2]]}
    for number in range(4):
        call = {"id": f"c{number}", "function": {"name": "read", "arguments": "{}"}}
        body["messages"] += [
            {"role": "assistant", "content": "so", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": "x" * 1_000},
        ]
    pieces = masking.conversation([body])
    opening, turn, rest = pieces[0].characters, 1_004, masking.MASKED + 4
    kept = masking.cost(pieces, masking.never)
    assert (kept.requests, kept.missed) == (5, opening + 4 * turn)
    assert kept.sent == 5 * opening + (1 + 2 + 3 + 4) * turn
    assert kept.at(1) == kept.sent
    each = masking.cost(pieces, masking.always(1))
    # The third request and those behind it each mask one more, and send anew what begins with that.
    assert each.sent == 5 * opening + 4 * turn + (1 + 2 + 3) * rest
    assert each.missed == opening + turn + 3 * (turn + rest) - 3 * 4
    once = masking.cost(pieces, masking.batches(1_600, keep=1))
    assert once.sent == 5 * opening + (1 + 2) * turn + (turn + 2 * rest) + (2 * turn + 2 * rest)
    full = masking.cost(pieces, masking.filled(opening + 2_500))
    assert full.sent < kept.sent and full.missed > kept.missed
    long = masking.cost(masking.chained([[body]], 3), masking.rented(0.25, keep=1))
    assert long.at(0.25) < masking.cost(masking.chained([[body]], 3), masking.never).at(0.25)
    assert masking.table({"one": [body]}).row_count == 4 * 7


@pytest.mark.parametrize("before", [True, False])
def test_the_report_has_both_fleets_and_what_is_saved(before: bool) -> None:
    now = {"parser": Replay(requests=[{"tools": 60, "map": 5}, {"tools": 60, "map": 5}], others=[], tree="t")}
    then = {"parser": Replay(requests=[{"tools": 100}], others=[{"tools": 160}], tree="t")}
    console = Console(width=160, record=True)
    for table in tables(now, then if before else None):
        console.print(table)
    told, printed = figures(now, then if before else None), console.export_text()
    assert told["now"]["parts"] == {"tools": 120, "map": 10}
    assert told["now"]["first_request"] == first_request(now["parser"]) == 60
    assert told.get("saved") == (0.5 if before else None)
    assert ("-20" in printed) is before


def test_the_recorded_tasks_make_a_study(tmp_path: Path) -> None:
    """Each record's hidden tests fail on its base and pass with the recording's edits."""
    batch = pytest.importorskip("swe_ai_fleet.extensions.batch.records")  # it is an extension
    records, problems = batch.read_records(write_study(tmp_path))
    assert [record.instance_id for record in records] == [recording.name for recording in recordings()]
    assert not problems
    for record, recording in zip(records, recordings(), strict=True):
        root = make_example(recording.repository, tmp_path / "solved" / recording.name)
        subprocess.run(("git", "apply"), input=record.hidden.test_patch, cwd=root, check=True, text=True)
        assert not _passes(record, root)
        git(root, "checkout", "--quiet", ".")
        recording.edit(root)
        assert _passes(record, root)


def _passes(record: TaskRecord, root: Path) -> bool:
    return all(not subprocess.run(command, shell=True, cwd=root).returncode for command in record.hidden.commands)


def test_an_unknown_recording_is_refused() -> None:
    with pytest.raises(ValueError, match="no recording is called nothing; there are "):
        recordings(["nothing"])


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_replay_goes_the_recorded_way_or_says_where_it_does_not() -> None:
    (recording,) = recordings(["expired-lot"])
    replay = await replayed(recording, Path(sys.executable))
    assert len(replay.requests) >= len(recording.replies)
    assert all(later["tools"] == replay.requests[0]["tools"] for later in replay.requests)
    first = recording.replies[0]
    missing = Call(tool="files_read_file", arguments={"path": "nothing.py"}, shows="def nothing")
    other = replace(recording, replies=(replace(first, calls=(*first.calls, missing)), *recording.replies[1:]))
    with pytest.raises(Strayed, match="reply 1, files_read_file: 'def nothing' is not shown in: Error: there is no"):
        await replayed(other, Path(sys.executable))
