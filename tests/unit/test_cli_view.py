"""What a watcher and a reader of an outcome see, from hostile events too."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import sys
import termios
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.doctor import print_findings
from swe_ai_fleet.cli.documents import exit_of_state
from swe_ai_fleet.cli.findings import broken, ok
from swe_ai_fleet.cli.live import SILENT_SECONDS, Progress, View, view
from swe_ai_fleet.cli.outcome import print_outcome
from swe_ai_fleet.cli.rows import ROWS
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain import event as events_of
from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckKind, CheckReport, CheckResult, Delivered, Verdict
from swe_ai_fleet.domain.candidate import RankedCandidate as Ranked
from swe_ai_fleet.domain.candidate import TestSummary as CountedTests
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.environment import Decision, EnvironmentReport
from swe_ai_fleet.domain.event import EventBody, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import Memory, Recollection
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.test_run import Baseline, SuiteBaseline
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.watching.text import clean
from tests.tables import table

HOSTILE = "\x1b]0;owned\x07[bold red]look[/]\x1b[2J\u202e\r"
START_MS = 1_767_225_600_000
USAGE = Usage(prompt_tokens=1000, completion_tokens=234)
TESTS = CheckResult(kind=CheckKind.DRY_RUN, name="tests", passed=True, score=1.0, tests=CountedTests(passed=7))
DELIVERED = Delivered(commit_sha="d" * 40, branch=f"fleet/{HOSTILE}")
ENDED = events_of.RunFinished(
    stop_reason=StopReason.FINAL_ANSWER,
    artifacts=Artifacts(insertions=3, deletions=1, files_changed=("x.py",)),
    usage=USAGE,
    audit_head="",
    answer=HOSTILE,
)


def told(words: str = HOSTILE) -> list[tuple[str, EventBody]]:
    """An execution with a winner, a lost agent and these words in each place."""
    task = Task(
        task_id="t", kind=TaskKind.ORCHESTRATE, description=f"Fix {words}", repo=RepoRef(location="/r"), num_agents=2
    )
    names = {"execution_id": "e", "agent_id": "a", "call_id": "c", "tool": "files", "operation": "read_file"}
    entry = AuditEntry(seq=1, at="", arguments={"path": words}, duration_ms=100, **names).sealed("")
    candidate = Candidate(
        candidate_id="a",
        agent_id="a",
        role=Role.DEV,
        summary=words,
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=ENDED.artifacts,
        usage=USAGE,
        audit_head=entry.hash,
        submitted_at="",
    )
    tests = replace(TESTS, shown=("t",), message=words)
    report = CheckReport(
        candidate_id="a", results=(tests,), verdict=Verdict.VERIFIED, reasons=(f"tests: {words}",), tree="t"
    )
    suite = SuiteBaseline(command="pytest -q", tests=CountedTests(passed=6, failed=1, failing=(f"t.py::{words}",)))
    ranked = Ranked(candidate_id="a", rank=1, score=1.0, accepted=True, reason=words)
    reply = ModelReply(message=AssistantMessage(content=words), finish_reason="tool_calls", usage=USAGE)
    pinned = PinnedRepository(tenant="default", location="/r", commit="c" * 40)
    recalled = Recollection(memory=Memory(namespace="fleet", text=words, source="execution:e0"), score=0.5)
    gathered = GatheredContext(text="what is known", tokens=1200, recalled=(recalled,), omitted=(words,))
    return [
        ("_", events_of.ExecutionStarted(task=task, repository=pinned, fingerprint="f")),
        ("_", events_of.ExecutionClaimed(generation=1, owner="o")),
        ("_", events_of.ChecksStarted()),
        ("a", events_of.RunStarted(role="DEV", model=words, messages=(), tools=("x",))),
        ("b", events_of.RunStarted(role="DEV", model="m", messages=(), tools=("x",))),
        ("a", events_of.ModelReplied(step=1, reply=reply, duration_ms=5)),
        ("a", events_of.ToolFinished(entry=entry, result=ToolResult(success=True, operation="files_read_file"))),
        ("a", replace(ENDED, audit_head=entry.hash, answer=words)),
        ("_", events_of.RunLost(lost_agent_id="b", reason=words)),
        ("_", events_of.BaselineFinished(baseline=Baseline(commit="c" * 40, suites=(suite,), duration_ms=2_500))),
        ("_", events_of.CandidateSubmitted(candidate=candidate)),
        ("_", events_of.ChecksStarted(candidate_id="a", command=words)),
        ("_", events_of.ChecksFinished(report=report)),
        ("_", events_of.CandidatesRanked(ranking=(ranked,), winner_id="a")),
        ("_", events_of.WinnerDelivered(delivered=replace(DELIVERED, branch=f"fleet/{words}"), report=report)),
        ("_", events_of.ContextGathered(context=gathered)),
        (
            "_",
            events_of.ExecutionFinished(status=ExecutionStatus.COMPLETED, winner_id="a", usage=USAGE, duration_ms=9000),
        ),
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


def events(words: str = HOSTILE) -> list[pb.ExecutionEvent]:
    return [an_event(number, agent_id, body) for number, (agent_id, body) in enumerate(told(words))]


def screen(*, json: bool = False, terminal: bool = False) -> Screen:
    plain = {"markup": False, "highlight": False, "emoji": False, "width": 160, "color_system": None}
    out, err = (Console(file=io.StringIO(), force_terminal=terminal, quiet=quiet, **plain) for quiet in (False, json))
    return Screen(json=json, out=out, err=err)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def ended(words: str = HOSTILE) -> ExecutionState:
    progress = Progress()
    for event in events(words):
        progress.add(event)
    assert progress.state is not None
    return progress.state


def outcome(state: ExecutionState) -> list[str]:
    shown = screen()
    print_outcome(shown, state, "")
    return printed(shown.out).splitlines()


def test_rows_tell_step_tool_tokens_seconds_and_standing_as_they_change() -> None:
    progress = Progress(now=lambda: START_MS / 1000 + 60)
    # Events that cannot be read stop nobody.
    for number, kind in enumerate(("run_finished", "of_a_later_version")):
        progress.add(pb.ExecutionEvent(sequence=number, execution_id="e", type=kind, payload_json="{"))
    seen: dict[int, list[tuple[str, ...]]] = {}
    for event in events():
        progress.add(event)
        seen[event.sequence] = progress.rows()
    assert seen[1] == []
    baseline = ("baseline", "", "the repository's tests, once their environment is there", "", "58", "checks run")
    assert seen[4] == [("a", "0", "", "0", "57", "running"), ("b", "0", "", "0", "56", "running"), baseline]
    assert seen[6][0] == ("a", "1", "files_read_file success", "1,234", "57", "running")
    gone = ("b", "0", "", "0", "0", "lost")
    assert seen[8] == [("a", "1", "files_read_file success", "1,234", "4", "final_answer"), gone, baseline]
    assert seen[9] == seen[8][:-1]
    assert seen[10][0][-1] == "being checked"
    assert seen[11][2] == ("a", "", HOSTILE, "", "49", "checks run")
    assert (len(seen[12]), seen[12][0][-1]) == (2, "verified")


LOOK = "[bold red]look[/]"


@table("terminal", [False, True])
def test_lines_and_tables_bear_no_trace_of_what_would_drive_the_terminal(terminal: bool) -> None:
    shown, progress = screen(terminal=terminal), Progress()
    with view(shown, progress) as show:
        for event in events():
            show(event)
    assert progress.state is not None
    print_outcome(shown, progress.state, f"+{HOSTILE}\n")
    out, err = printed(shown.out), printed(shown.err)
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(out if terminal else out + err)
    # Commands to be pasted have it quoted as a shell reads it.
    assert "owned" not in out.replace("<U+001B>]0;owned", "").replace("\\x1b\\x5d0\\x3bowned\\x07", "")
    assert out.startswith(f"verified: a won\n  a says: {LOOK}\n  tests: {LOOK}\nbranch fleet/{LOOK}\n")
    for part in (
        f"+<U+001B>]0;owned<U+0007>{LOOK}",
        "completed: a won (9.0 s, 1,234 tokens)",
        f"\nbaseline: 6 pass, 1 fail: t.py::{LOOK}\n",
        "tests ok: 7 passed; 1 fails without the change",
        "+3 -1",
        "lost; no patch",
        f"context 1,200 tokens, 1 memory\n  recalled from fleet: {LOOK}\n  not in it: {LOOK}",
    ):
        assert part in out
    for part in (
        "context: 1,200 tokens, 1 memory",
        f"a: files_read_file {LOOK} -> success (0.1 s)",
        "baseline: runs the repository's tests",
        f"baseline: 6 pass, 1 fail: t.py::{LOOK} (2.5 s)",
        f"a: runs {LOOK}",
        f"a: verified: tests: {LOOK}",
        "ranked: a 1.000; winner: a",
    ):
        assert terminal or part in err


PICTURES = Path(__file__).with_name("terminal")
WORDS = "the parser takes ISO weeks, the tests of both calendars say so"


def in_a_terminal(width: int, draw: Callable[[Screen], object]) -> str:
    """What a process of its own writes to a terminal that is so many characters wide."""
    process, terminal = pty.fork()
    if not process:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        for name in ("COLUMNS", "FORCE_COLOR"):
            os.environ.pop(name, None)
        os.environ |= {"TERM": "xterm", "NO_COLOR": "1", "TZ": "UTC"}
        time.tzset()
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        try:
            draw(Screen.open(json=False))
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - nothing above is this process's
            traceback.print_exc()
        os._exit(0)
    written = b""
    with suppress(OSError):  # the other side is gone
        while piece := os.read(terminal, 65536):
            written += piece
    os.close(terminal)
    os.waitpid(process, 0)
    return "\n".join(line.rstrip() for line in clean(written.decode()).splitlines()) + "\n"


def commands(shown: Screen) -> None:
    """`fleet list`, `show`, `doctor`, `status`, `councils list` and `tools list` as they print what they were told."""
    listed = pb.Execution(
        execution_id="d4aabe21-8419-5486-a248-ee9e7d880a4a",
        task_id="weeks-91ac2b",
        kind=pb.EXECUTION_KIND_ORCHESTRATION,
        status=pb.DELIBERATION_STATUS_COMPLETED,
        verdict=pb.EVIDENCE_VERDICT_VERIFIED,
        role=pb.ROLE_DEV,
        created_at_ms=START_MS,
        task_description=f"Fix it: {WORDS}",
    )
    status = pb.GetStatusResponse(
        status="healthy",
        queue=pb.QueueStatus(driven=3, awaiting_approval=1, waiting=1, oldest_wait_ms=4_000),
        components=[pb.ComponentStatus(name="model", state=pb.COMPONENT_STATE_DOWN, message=WORDS)],
        storage=[pb.StorageStatus(name="AGENT_EVENTS", messages=103, bytes=123_000)],
    )
    council = pb.CouncilInfo(council_id="council-dev", role="DEV", num_agents=1, status="ready", model="large")
    for show, answer in (
        (ROWS["list"].view, pb.ListExecutionsResponse(executions=[listed, listed])),
        (ROWS["status"].view, status),
        (ROWS["councils list"].view, pb.ListCouncilsResponse(councils=[council])),
    ):
        assert show is not None
        show(shown, answer, None)
    print_outcome(shown, ended(WORDS), "+one line\n")
    print_findings(shown, [ok("disk", "61.5 GiB free"), broken("model server", WORDS, "start the server")])


@table("width", [60, 80, 120, 200])
def test_every_table_can_be_read_in_a_terminal_of_this_width(width: int) -> None:
    written = in_a_terminal(width, commands)
    assert written == (PICTURES / f"{width}.txt").read_text()
    # Words and ids are whole, so that they can be read and copied.
    assert max(map(len, written.splitlines())) <= max(width, 100)
    for part in ("d4aabe21-8419-5486-a248-ee9e7d880a4a", "weeks-91ac2b", "orchestration", "verified"):
        assert part in written


def test_lines_say_again_what_is_run_after_a_silence_and_json_lines_carry_every_event_whole() -> None:
    shown, seconds = screen(), [0.0]
    progress = Progress(now=lambda: START_MS / 1000 + 44)
    show = View(shown, progress, clock=lambda: seconds[0])
    for event in events()[:5]:
        show(event)
    for seconds[0] in (SILENT_SECONDS - 1, SILENT_SECONDS, SILENT_SECONDS):
        show.tick()
    assert printed(shown.err).count("baseline: the repository's tests, once their environment is there, 42 s\n") == 1
    shown = screen(json=True)
    with view(shown, Progress(), json_lines=True) as show:
        for event in events():
            show(event)
    lines = [json.loads(line) for line in printed(shown.out).splitlines()]
    assert [line["type"] for line in lines] == [body.type for _, body in told()]
    assert (lines[7]["payload"]["answer"], printed(shown.err)) == (HOSTILE, "")


def test_a_line_says_why_there_is_no_context_why_a_run_failed_and_what_was_checked_of_a_delivery() -> None:
    failed = replace(TESTS, tests=None, passed=False)
    skipped = replace(failed, skipped_reason="no test command was found")
    deliveries = [
        (events_of.WinnerDelivered(delivered=DELIVERED, report=CheckReport(candidate_id="a", results=results)), words)
        for results, words in (((skipped,), "tests skipped"), ((failed,), "tests FAILED"), ((), "none"))
    ]
    for body, line in (
        (events_of.ContextGathered(context=GatheredContext(), error="no service"), "context: none: no service"),
        (events_of.ContextGathered(context=GatheredContext()), "context: nothing relevant found"),
        (
            replace(ENDED, stop_reason=StopReason.MODEL_ERROR, answer="", error="answered 500"),
            "_: ended (model_error): +3 -1 in 1 file, 1,234 tokens: answered 500",
        ),
        *((body, f"delivered as dddddddddddd on fleet/{LOOK}; checks there: {words}") for body, words in deliveries),
    ):
        shown = screen()
        View(shown, Progress())(an_event(0, "_", body))
        assert printed(shown.err).strip().removeprefix("00:00:00 ") == line


def test_what_the_checks_said_of_the_winner_is_said_once() -> None:
    reasons = ("tests: 1 test fails without the change and passes with it", "lint: nothing")
    done = ended("words")
    report = replace(done.reports["a"], verdict=Verdict.VERIFIED, reasons=reasons)
    why = f"verified: {'; '.join(reasons)}; 24 changed lines"
    first = replace(done.ranking[0], verdict=Verdict.VERIFIED, reason=why)
    second = replace(first, candidate_id="b", rank=2)
    for others, delivered, times in (((), report, 1), ((second,), report, 2), ((), replace(report, reasons=("x",)), 1)):
        state = replace(done, reports={"a": report}, delivery_report=delivered, ranking=(first, *others), winner_id="a")
        text = " ".join(" ".join(outcome(state)).split())
        assert (text.count("1 test fails without"), text.count("24 changed lines")) == (times, 1 + len(others))


def test_why_agents_stopped_and_what_to_do_is_said_once_where_nobody_won() -> None:
    stop = replace(ENDED, stop_reason=StopReason.NO_TOOL_CALLS, artifacts=Artifacts(), answer="")
    progress = Progress()
    for number, (agent_id, body) in enumerate(told()[:5]):
        progress.add(an_event(number, agent_id, body))
    end = events_of.ExecutionFinished(status=ExecutionStatus.NO_WINNER, winner_id="", usage=USAGE, duration_ms=1)
    for number, (agent_id, body) in enumerate((("a", stop), ("b", stop), ("_", end)), 5):
        progress.add(an_event(number, agent_id, body))
    assert progress.state is not None
    [line] = [line for line in outcome(progress.state) if "2 agents stopped with no_tool_calls" in line]
    assert "`fleet doctor`" in line and line.endswith("docs/stop-reasons.md#no_tool_calls")
    assert [row for row in outcome(progress.state) if "no_tool_calls; no patch" in row]


def test_a_plan_that_waits_for_approval_is_shown_whole_and_its_agent_counts_as_waiting() -> None:
    steps = [f"step {number}" for number in range(200)]
    asked = ApprovalRequest(
        approval_id="p1",
        agent_id="b",
        policy=ApprovalPolicy.PLAN,
        goal="g",
        approach="\n".join(steps),
        call=ToolCall(call_id="c", model_call_id="c", name="propose_approach", arguments="{}"),
        step=1,
        requested_at="2026-01-01T00:00:00+00:00",
        expires_at="2026-01-01T01:00:00+00:00",
    )
    progress = Progress()
    for event in (events()[0], an_event(1, "b", events_of.ApprovalRequested(request=asked))):
        progress.add(event)
    assert progress.state is not None
    lines = outcome(progress.state)
    assert [line.strip() for line in lines if line.strip() in steps] == steps
    assert any(" b " in line and line.rstrip().endswith("awaiting approval") for line in lines)
    assert any(line.startswith("  expires 2026-01-01 ") for line in lines)


def test_an_agent_whose_model_is_away_is_shown_to_wait_until_it_goes_on() -> None:
    progress = Progress()
    for event in (events()[0], an_event(1, "b", events_of.ModelAwaited())):
        progress.add(event)
    assert progress.state is not None
    since = progress.state.agents["b"].model_awaited_since[11:19]
    assert any(line.rstrip().endswith(f"waiting for a model server since {since}") for line in outcome(progress.state))
    progress.add(an_event(2, "b", events_of.ModelAwaited(waited_ms=61_000)))
    assert not any("waiting" in line for line in outcome(progress.state))


def test_the_exit_code_tells_the_verdict() -> None:
    done, unverified, refuted = ended(), Verdict.UNVERIFIED, Verdict.REFUTED
    lost, judged = ExecutionStatus.NO_WINNER, TaskKind.JUDGE
    for verdict, status, kind, code in (
        (Verdict.VERIFIED, ExecutionStatus.COMPLETED, TaskKind.ORCHESTRATE, 0),
        (unverified, ExecutionStatus.COMPLETED, TaskKind.ORCHESTRATE, 6),
        (None, ExecutionStatus.COMPLETED, TaskKind.ORCHESTRATE, 0),
        (refuted, lost, TaskKind.ORCHESTRATE, 1),
        (unverified, lost, TaskKind.ORCHESTRATE, 1),
        (unverified, ExecutionStatus.CANCELLED, TaskKind.ORCHESTRATE, 4),
        (unverified, lost, judged, 6),
        (refuted, lost, judged, 1),
    ):
        report = replace(done.reports["a"], verdict=verdict)
        won = status is ExecutionStatus.COMPLETED
        state = replace(
            done,
            status=status,
            task=replace(done.task, kind=kind),
            reports={"a": report},
            delivery_report=report if won else None,
            winner_id="a" if won else "",
            ranking=(replace(done.ranking[0], verdict=verdict, accepted=won),),
        )
        assert exit_of_state(state) == code, (verdict, status, kind)


def test_no_name_of_a_file_or_a_person_is_a_line_of_its_own() -> None:
    name = "packages/a\nverified: fix won\x1b[2K/pyproject.toml"
    report = EnvironmentReport(decisions=(Decision(what=name, source=name),), left_out=(name,))
    by_hand = events_of.CandidateDelivered(candidate_id="fix", delivered=DELIVERED, by=name, reason="it is wrong")
    state = replace(
        ended(),
        status=ExecutionStatus.NO_WINNER,
        baseline=Baseline(commit="c" * 40, report=report, suites=()),
        hand_deliveries=(by_hand,),
    )
    lines = outcome(state)
    assert sum("verified: fix won" in line for line in lines) == 3
    assert not any(line.startswith("verified: fix") or "\x1b" in line for line in lines)
    assert any(line.startswith("fix was delivered by packages") and line.endswith(": it is wrong") for line in lines)


def test_a_checks_tests_are_counted_in_words() -> None:
    state, seen = ended(), CountedTests(passed=3, failed=1)
    for result, text in (
        ({"shown": ("a", "b", "c")}, "tests ok: 7 passed; 3 fail without the change"),
        (
            {"tests": replace(seen, errors=1), "shown": ("a",)},
            "tests ok: 3 passed; 1 fails without the change; 2 failed before and fail now",
        ),
        ({"tests": seen, "passed": False}, "tests FAILED: 3 passed; 1 fails"),
        ({"tests": None, "passed": False, "problems": ("a", "b")}, "tests FAILED (2 problems)"),
        ({"skipped_reason": "there are none"}, "tests skipped"),
    ):
        report = CheckReport(candidate_id="a", results=(replace(TESTS, **result),))
        assert text in "\n".join(outcome(replace(state, reports={"a": report})))


if __name__ == "__main__":
    for columns in (60, 80, 120, 200):
        (PICTURES / f"{columns}.txt").write_text(in_a_terminal(columns, commands))
