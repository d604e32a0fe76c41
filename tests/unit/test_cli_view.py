"""What a watcher and a reader of an outcome see, from hostile events too."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.live import Progress, view
from swe_ai_fleet.cli.outcome import print_outcome
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.codec import to_json
from swe_ai_fleet.domain import event as events_of
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
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.test_run import Baseline, SuiteBaseline
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
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


def told() -> list[tuple[str, EventBody]]:
    """An execution with a winner, a lost agent and hostile words in each place."""
    task = Task(
        task_id="t", kind=TaskKind.ORCHESTRATE, description=f"Fix {HOSTILE}", repo=RepoRef(location="/r"), num_agents=2
    )
    names = {"execution_id": "e", "agent_id": "a", "call_id": "c", "tool": "files", "operation": "read_file"}
    entry = AuditEntry(seq=1, at="", arguments={"path": HOSTILE}, duration_ms=100, **names).sealed("")
    candidate = Candidate(
        candidate_id="a",
        agent_id="a",
        role=Role.DEV,
        summary=HOSTILE,
        stop_reason=StopReason.FINAL_ANSWER,
        artifacts=ENDED.artifacts,
        usage=USAGE,
        audit_head=entry.hash,
        submitted_at="",
    )
    tests = replace(TESTS, shown=("t",), message=HOSTILE)
    report = CheckReport(
        candidate_id="a", results=(tests,), verdict=Verdict.VERIFIED, reasons=(f"tests: {HOSTILE}",), tree="t"
    )
    suite = SuiteBaseline(command="pytest -q", tests=CountedTests(passed=6, failed=1, failing=(f"t.py::{HOSTILE}",)))
    ranked = Ranked(candidate_id="a", rank=1, score=1.0, accepted=True, reason=HOSTILE)
    reply = ModelReply(message=AssistantMessage(content=HOSTILE), finish_reason="tool_calls", usage=USAGE)
    pinned = PinnedRepository(tenant="default", location="/r", commit="c" * 40)
    recalled = Recollection(memory=Memory(namespace="fleet", text=HOSTILE, source="execution:e0"), score=0.5)
    gathered = GatheredContext(text="what is known", tokens=1200, recalled=(recalled,), omitted=(HOSTILE,))
    return [
        ("_", events_of.ExecutionStarted(task=task, repository=pinned, fingerprint="f")),
        ("_", events_of.ExecutionClaimed(generation=1, owner="o")),
        ("_", events_of.ChecksStarted()),
        ("a", events_of.RunStarted(role="DEV", model=HOSTILE, messages=(), tools=("x",))),
        ("b", events_of.RunStarted(role="DEV", model="m", messages=(), tools=("x",))),
        ("a", events_of.ModelReplied(step=1, reply=reply, duration_ms=5)),
        ("a", events_of.ToolFinished(entry=entry, result=ToolResult(success=True, operation="files_read_file"))),
        ("a", replace(ENDED, audit_head=entry.hash, answer=HOSTILE)),
        ("_", events_of.RunLost(lost_agent_id="b", reason=HOSTILE)),
        ("_", events_of.BaselineFinished(baseline=Baseline(commit="c" * 40, suites=(suite,), duration_ms=2_500))),
        ("_", events_of.CandidateSubmitted(candidate=candidate)),
        ("_", events_of.ChecksStarted(candidate_id="a", command=HOSTILE)),
        ("_", events_of.ChecksFinished(report=report)),
        ("_", events_of.CandidatesRanked(ranking=(ranked,), winner_id="a")),
        ("_", events_of.WinnerDelivered(delivered=replace(DELIVERED, branch=f"fleet/{HOSTILE}"), report=report)),
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


def events() -> list[pb.ExecutionEvent]:
    return [an_event(number, agent_id, body) for number, (agent_id, body) in enumerate(told())]


def screen(*, terminal: bool = False, width: int = 160) -> Screen:
    plain = {"markup": False, "highlight": False, "emoji": False, "width": width, "color_system": None}
    out, err = (Console(file=io.StringIO(), force_terminal=terminal, **plain) for _ in range(2))
    return Screen(json=False, out=out, err=err)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def ended() -> ExecutionState:
    progress = Progress()
    for event in events():
        progress.add(event)
    assert progress.state is not None
    return progress.state


def outcome(state: ExecutionState) -> list[str]:
    shown = screen()
    print_outcome(shown, state, "")
    return printed(shown.out).splitlines()


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


def test_a_table_that_a_terminal_is_too_narrow_for_is_a_few_lines_a_row() -> None:
    name, words = "d4aabe21-8419-5486-a248-ee9e7d880a4a", "the parser takes ISO weeks, tests of both calendars say so"
    for width, lines in ((200, 2), (60, 3)):
        shown = screen(width=width)
        shown.table(("execution", "status", "task"), [(name, "completed", words)])
        told = printed(shown.out)
        assert len(told.splitlines()) >= lines and name in told, told
        assert max(map(len, told.splitlines())) <= width


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
