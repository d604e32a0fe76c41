"""What a watcher sees, from hostile events too."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.live import SILENT_SECONDS, Progress, View, view
from swe_ai_fleet.cli.outcome import print_outcome
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.baseline import Baseline, SuiteBaseline
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import (
    Artifacts,
    Candidate,
    CheckKind,
    CheckReport,
    CheckResult,
    Delivered,
    RankedCandidate,
)
from swe_ai_fleet.domain.candidate import (
    TestSummary as CountedTests,
)
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.event import (
    BaselineFinished,
    CandidatesRanked,
    CandidateSubmitted,
    ChecksFinished,
    ChecksStarted,
    ContextGathered,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ModelReplied,
    RunFinished,
    RunLost,
    RunStarted,
    ToolFinished,
    WinnerDelivered,
)
from swe_ai_fleet.domain.memory import Memory, Recollection
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.verdict import Verdict

HOSTILE = "\x1b]0;owned\x07[bold red]look[/]\x1b[2J\u202e\r"
START_MS = 1_767_225_600_000


def told() -> list[tuple[str, EventBody]]:
    task = Task(
        task_id="t", kind=TaskKind.ORCHESTRATE, description=f"Fix {HOSTILE}", repo=RepoRef(location="/r"), num_agents=2
    )
    entry = AuditEntry(
        seq=1,
        at="",
        execution_id="e",
        agent_id="a",
        call_id="c",
        tool="files",
        operation="read_file",
        arguments={"path": HOSTILE},
        duration_ms=100,
    ).sealed("")
    usage = Usage(prompt_tokens=1000, completion_tokens=234)
    candidate = Candidate(
        candidate_id="a",
        agent_id="a",
        role=Role.DEV,
        summary=HOSTILE,
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=Artifacts(insertions=3, deletions=1, files_changed=("x.py",)),
        usage=usage,
        audit_head=entry.hash,
        submitted_at="",
    )
    tests = CheckResult(
        kind=CheckKind.DRY_RUN,
        name="tests",
        passed=True,
        score=1.0,
        tests=CountedTests(passed=7),
        shown=("t",),
        message=HOSTILE,
    )
    report = CheckReport(
        candidate_id="a", results=(tests,), verdict=Verdict.VERIFIED, reasons=(f"tests: {HOSTILE}",), tree="t"
    )
    suite = SuiteBaseline(command="pytest -q", tests=CountedTests(passed=6, failed=1, failing=(f"t.py::{HOSTILE}",)))
    baseline = Baseline(commit="c" * 40, suites=(suite,), duration_ms=2_500)
    ranked = RankedCandidate(candidate_id="a", rank=1, score=1.0, accepted=True, reason=HOSTILE)
    reply = ModelReply(message=AssistantMessage(content=HOSTILE), finish_reason="tool_calls", usage=usage)
    pinned = PinnedRepository(tenant="default", location="/r", commit="c" * 40)
    memory = Memory(namespace="fleet", text=HOSTILE, source="execution:e0")
    gathered = GatheredContext(
        text="what is known", tokens=1200, recalled=(Recollection(memory=memory, score=0.5),), omitted=(HOSTILE,)
    )
    return [
        ("_", ExecutionStarted(task=task, repository=pinned, fingerprint="f")),
        ("_", ExecutionClaimed(generation=1, owner="o")),
        ("_", ChecksStarted()),
        ("a", RunStarted(role="DEV", model=HOSTILE, messages=(), tools=("x",))),
        ("b", RunStarted(role="DEV", model="m", messages=(), tools=("x",))),
        ("a", ModelReplied(step=1, reply=reply, duration_ms=5)),
        ("a", ToolFinished(entry=entry, result=ToolResult(success=True, operation="files_read_file"))),
        (
            "a",
            RunFinished(
                stop_reason=StopReason.FINAL_ANSWER,
                artifacts=candidate.artifacts,
                usage=usage,
                audit_head=entry.hash,
                answer=HOSTILE,
            ),
        ),
        ("_", RunLost(lost_agent_id="b", reason=HOSTILE)),
        ("_", BaselineFinished(baseline=baseline)),
        ("_", CandidateSubmitted(candidate=candidate)),
        ("_", ChecksStarted(candidate_id="a", command=HOSTILE)),
        ("_", ChecksFinished(report=report)),
        ("_", CandidatesRanked(ranking=(ranked,), winner_id="a")),
        ("_", WinnerDelivered(delivered=Delivered(commit_sha="d" * 40, branch=f"fleet/{HOSTILE}"), report=report)),
        ("_", ContextGathered(context=gathered)),
        ("_", ExecutionFinished(status=ExecutionStatus.COMPLETED, winner_id="a", usage=usage, duration_ms=9000)),
    ]


def an_event(number: int, agent_id: str, body: EventBody) -> pb.ExecutionEvent:
    return pb.ExecutionEvent(
        sequence=number,
        event_id=str(number),
        execution_id="e",
        task_id="t",
        agent_id=agent_id,
        type=body.type,
        at_ms=START_MS + 1000 * number,
        payload_json=to_json(body).decode(),
    )


def events() -> list[pb.ExecutionEvent]:
    return [an_event(number, agent_id, body) for number, (agent_id, body) in enumerate(told())]


def screen(*, json: bool = False, terminal: bool = False) -> Screen:
    def console(*, quiet: bool = False) -> Console:
        return Console(
            file=io.StringIO(),
            markup=False,
            highlight=False,
            emoji=False,
            width=160,
            force_terminal=terminal,
            color_system=None,
            quiet=quiet,
        )

    return Screen(json=json, out=console(), err=console(quiet=json))


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rows_tell_step_tool_tokens_seconds_and_standing_as_they_change() -> None:
    progress = Progress(now=lambda: START_MS / 1000 + 60)
    seen: dict[int, list[tuple[str, ...]]] = {}
    for event in events():
        progress.add(event)
        seen[event.sequence] = progress.rows()
    assert seen[1] == []
    baseline = ("baseline", "", "the repository's tests, once their environment is there", "", "58", "checks run")
    assert seen[4] == [("a", "0", "", "0", "57", "running"), ("b", "0", "", "0", "56", "running"), baseline]
    assert seen[6][0] == ("a", "1", "files_read_file success", "1,234", "57", "running")
    assert seen[8] == [
        ("a", "1", "files_read_file success", "1,234", "4", "final_answer"),
        ("b", "0", "", "0", "0", "lost"),
        baseline,
    ]
    assert seen[9] == seen[8][:-1]
    assert seen[10][0][-1] == "being checked"
    assert seen[11][2] == ("a", "", HOSTILE, "", "49", "checks run")
    assert seen[12][0][-1] == "verified"
    assert len(seen[12]) == 2


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_and_tables_bear_no_trace_of_what_would_drive_the_terminal(terminal: bool) -> None:
    shown = screen(terminal=terminal)
    progress = Progress()
    with view(shown, progress) as show:
        for event in events():
            show(event)
    assert progress.state is not None
    print_outcome(shown, progress.state, f"+{HOSTILE}\n")
    out, err = printed(shown.out), printed(shown.err)
    for text in (out, "" if terminal else err):
        assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and "\r" not in text
    # Commands to be pasted have it quoted as a shell reads it.
    assert "owned" not in out.replace("<U+001B>]0;owned", "").replace("\\x1b\\x5d0\\x3bowned\\x07", "")
    assert "[bold red]look[/]" in out
    assert "+<U+001B>]0;owned<U+0007>[bold red]look[/]" in out
    assert out.startswith("verified: a won\n  tests: [bold red]look[/]\nbranch fleet/[bold red]look[/]\n")
    assert "completed: a won (9.0 s, 1,234 tokens)" in out
    assert "\nbaseline: 6 pass, 1 fail: t.py::[bold red]look[/]\n" in out
    assert (
        "tests ok: 7 passed; 1 fails without the change" in out and "+3 -1" in out and "left no candidate: lost" in out
    )
    assert (
        "context 1,200 tokens, 1 memory\n  recalled from fleet: [bold red]look[/]\n  not in it: [bold red]look[/]"
        in out
    )
    if not terminal:
        assert "context: 1,200 tokens, 1 memory" in err
        assert "a: files_read_file [bold red]look[/] -> success (0.1 s)" in err
        assert "baseline: runs the repository's tests" in err
        assert "baseline: 6 pass, 1 fail: t.py::[bold red]look[/] (2.5 s)" in err
        assert "a: runs [bold red]look[/]" in err
        assert "a: verified: tests: [bold red]look[/]" in err
        assert "ranked: a 1.000; winner: a" in err


def test_plain_lines_say_again_what_is_run_once_nothing_was_said_for_a_while() -> None:
    shown, seconds = screen(), [0.0]
    progress = Progress(now=lambda: START_MS / 1000 + 44)
    show = View(shown, progress, clock=lambda: seconds[0])
    for event in events()[:5]:
        show(event)
    seconds[0] = SILENT_SECONDS - 1
    show.tick()
    assert "42 s" not in printed(shown.err)
    seconds[0] = SILENT_SECONDS
    show.tick()
    show.tick()
    assert printed(shown.err).count("baseline: the repository's tests, once their environment is there, 42 s\n") == 1
    for other in (screen(json=True), screen(terminal=True)):
        quiet = View(other, progress, clock=lambda: seconds[0])
        seconds[0] += SILENT_SECONDS
        quiet.tick()
        assert printed(other.err) == ""


def test_json_lines_carry_every_event_whole() -> None:
    shown = screen(json=True)
    with view(shown, Progress(), json_lines=True) as show:
        for event in events():
            show(event)
    lines = [json.loads(line) for line in printed(shown.out).splitlines()]
    assert [line["type"] for line in lines] == [body.type for _, body in told()]
    assert lines[7]["payload"]["answer"] == HOSTILE
    assert printed(shown.err) == ""


def narrated(body: EventBody) -> str:
    """The line that an event is told in."""
    shown = screen()
    View(shown, Progress())(an_event(0, "_", body))
    return printed(shown.err).strip().removeprefix("00:00:00 ")


def test_that_there_is_no_context_is_told_with_the_reason() -> None:
    unread = ContextGathered(context=GatheredContext(), error="no context service answers")
    empty = ContextGathered(context=GatheredContext(), error="")
    assert [narrated(unread), narrated(empty)] == [
        "context: none: no context service answers",
        "context: nothing is known that fits",
    ]


def test_a_line_says_why_a_run_failed_and_what_was_checked_of_a_delivery() -> None:
    fault = RunFinished(
        stop_reason=StopReason.MODEL_ERROR, artifacts=Artifacts(), usage=Usage(), audit_head="", error="answered 500"
    )
    tests = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=False, required=True, score=0.0)
    delivered = Delivered(commit_sha="d" * 40, branch="fleet/t")
    untested = CheckReport(candidate_id="a", results=(replace(tests, skipped_reason="no test command was found"),))
    failed = CheckReport(candidate_id="a", results=(tests,))
    assert [
        narrated(fault),
        narrated(WinnerDelivered(delivered=delivered, report=untested)),
        narrated(WinnerDelivered(delivered=delivered, report=failed)),
        narrated(WinnerDelivered(delivered=delivered, report=CheckReport(candidate_id="a"))),
    ] == [
        "_: ended (model_error): +0 -0 in 0 files, 0 tokens: answered 500",
        "delivered as dddddddddddd on fleet/t; checks there: tests skipped",
        "delivered as dddddddddddd on fleet/t; checks there: tests FAILED",
        "delivered as dddddddddddd on fleet/t; checks there: none",
    ]


def test_an_event_that_cannot_be_read_stops_nobody_and_lines_are_cleaned() -> None:
    progress, shown = Progress(), screen()
    log = events()
    log[6].payload_json = "{"
    log[7].type = "of_a_later_version"
    for event in log:
        progress.add(event)
    assert progress.state is not None and progress.state.status is ExecutionStatus.COMPLETED
    shown.line(HOSTILE)
    shown.note(HOSTILE)
    assert (printed(shown.out), printed(shown.err)) == ("[bold red]look[/]\n", "[bold red]look[/]\n")
