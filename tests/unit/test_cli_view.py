"""What reaches a terminal: untrusted text, hostile events, faults of an order before anything is asked."""

from __future__ import annotations

import asyncio
import io
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from swe_ai_fleet.cli.main import app
from swe_ai_fleet.cli.order import Order
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.domain import event as events_of
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, CheckKind, CheckReport, CheckResult, Delivered, Verdict
from swe_ai_fleet.domain.candidate import RankedCandidate as Ranked
from swe_ai_fleet.domain.candidate import TestSummary as CountedTests
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.environment import EnvironmentDecision, EnvironmentReport
from swe_ai_fleet.domain.event import EventBody, ExecutionStatus
from swe_ai_fleet.domain.memory import Memory, Recollection
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply
from swe_ai_fleet.domain.task import PinnedRepository, TaskKind
from swe_ai_fleet.domain.test_run import Baseline, SuiteBaseline
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.watching import clean, one_line, visible
from tests.candidates import a_candidate
from tests.event_source import EventSource, numbered, serving
from tests.tables import table
from tests.unit.test_executions import a_task

HOSTILE = "\x1b]0;owned\x07[bold red]look[/]\x1b[2J\u202e\r"
LOOK = "[bold red]look[/]"
EXECUTION = "d4aabe21-8419-5486-a248-ee9e7d880a4a"
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
    task = a_task("t", kind=TaskKind.ORCHESTRATE, description=f"Fix {HOSTILE}", num_agents=2)
    names = {"execution_id": "e", "agent_id": "a", "call_id": "c", "tool": "files", "operation": "read_file"}
    entry = AuditEntry(seq=1, at="", arguments={"path": HOSTILE}, duration_ms=100, **names).sealed("")
    candidate = a_candidate("a", summary=HOSTILE, artifacts=ENDED.artifacts, usage=USAGE, audit_head=entry.hash)
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


@contextmanager
def fleet(told: Sequence[tuple[str, EventBody]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """`fleet` against a server that has an execution of these events; the server has a thread of its own."""
    source, loop = EventSource(), asyncio.new_event_loop()
    source.add(*numbered(EXECUTION, told))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = serving(source)
    port = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    monkeypatch.setenv("FLEET_SERVER", f"127.0.0.1:{port}")
    try:
        yield lambda *words: CliRunner().invoke(app, [*words, EXECUTION])
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_lines_and_tables_bear_no_trace_of_what_would_drive_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet(told(), monkeypatch) as run:
        ran = run("watch")
    out, err = ran.stdout, ran.stderr
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(out + err)
    # Commands to be pasted have it quoted as a shell reads it.
    assert "owned" not in out.replace("\\x1b\\x5d0\\x3bowned\\x07", "")
    assert out.startswith(f"verified: a won\n  a says: {LOOK}\n  tests: {LOOK}\nbranch fleet/{LOOK}\n"), out
    for part in (
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
        f"baseline: 6 pass, 1 fail: t.py::{LOOK} (2.5 s)",
        f"a: runs {LOOK}",
        f"a: verified: tests: {LOOK}",
        "ranked: a 1.000; winner: a",
    ):
        assert part in err


def test_a_table_that_a_terminal_is_too_narrow_for_is_a_few_lines_a_row() -> None:
    name, words = EXECUTION, "the parser takes ISO weeks, tests of both calendars say so"
    for width, lines in ((200, 2), (60, 3)):
        out = Console(file=io.StringIO(), markup=False, highlight=False, emoji=False, width=width, color_system=None)
        Screen(json=False, out=out, err=out).table(("execution", "status", "task"), [(name, "completed", words)])
        assert isinstance(out.file, io.StringIO)
        printed = out.file.getvalue()
        assert len(printed.splitlines()) >= lines and name in printed, printed
        assert max(map(len, printed.splitlines())) <= width


def test_why_agents_stopped_and_what_to_do_is_said_once_where_nobody_won(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = replace(ENDED, stop_reason=StopReason.NO_TOOL_CALLS, artifacts=Artifacts(), answer="")
    end = events_of.ExecutionFinished(status=ExecutionStatus.NO_WINNER, winner_id="", usage=USAGE, duration_ms=1)
    with fleet([*told()[:5], ("a", stop), ("b", stop), ("_", end)], monkeypatch) as run:
        lines = run("show").stdout.splitlines()
    [line] = [line for line in lines if "2 agents stopped with no_tool_calls" in line]
    assert "`fleet doctor`" in line and line.endswith("docs/stop-reasons.md#no_tool_calls")
    assert [row for row in lines if "no_tool_calls; no patch" in row]


def test_no_name_of_a_file_or_a_person_is_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "packages/a\nverified: fix won\x1b[2K/pyproject.toml"
    report = EnvironmentReport(decisions=(EnvironmentDecision(what=name, source=name),), left_out=(name,))
    baseline = Baseline(commit="c" * 40, report=report, suites=())
    by_hand = events_of.CandidateDelivered(candidate_id="fix", delivered=DELIVERED, by=name, reason="it is wrong")
    end = events_of.ExecutionFinished(status=ExecutionStatus.NO_WINNER, winner_id="", usage=USAGE, duration_ms=1)
    events = [*told()[:5], ("_", events_of.BaselineFinished(baseline=baseline)), ("_", by_hand), ("_", end)]
    with fleet(events, monkeypatch) as run:
        lines = run("show").stdout.splitlines()
    assert sum("verified: fix won" in line for line in lines) == 3
    assert not any(line.startswith("verified: fix") or "\x1b" in line for line in lines)
    assert any(line.startswith("fix was delivered by packages") and line.endswith(": it is wrong") for line in lines)


@table(
    ("hostile", "harmless"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone", "gone"),
        ("\x1bPdevice\x1b\\string", "string"),
        ("\x1bc", ""),
        ("safe\rEVIL", "safeEVIL"),
        ("a\r\nb", "a\nb"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u2066x\u2069", "x"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("[bold]as it is[/bold]", "[bold]as it is[/bold]"),
        ("häß 日本 👩‍💻", "häß 日本 👩‍💻"),
    ],
)
def test_clean_leaves_only_what_can_be_read(hostile: str, harmless: str) -> None:
    assert clean(hostile) == harmless


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_nothing_that_drives_a_terminal_survives(text: str, limit: int) -> None:
    for result in (clean(text), one_line(text), visible(text)):
        kinds = {unicodedata.category(c) for c in result if c not in "\n\t\u200d"}
        assert not kinds & {"Cc", "Cf", "Cs"}
        result.encode()
    assert "\n" not in one_line(text) and len(one_line(text, limit)) <= limit
    assert visible("+ok \u202e\x1b[2K\n") == "+ok <U+202E><U+001B>[2K\n"


@table(
    ("order", "says"),
    [
        (Order(description="  "), "empty"),
        (Order(description="x", task_id="a/b"), "not a valid id"),
        (Order(description="x", role="CHEF"), "unknown role"),
        (Order(description="x", variables=("NOPE",)), "K=V"),
        (Order(description="x", variables=("=x",)), "K=V"),
        (Order(description="x", approve="maybe"), "maybe"),
        *(
            (Order(description="x", repo=place), "neither a directory nor a URL")
            for place in ("/does/not/exist", "~no-such-user-here/app", "a\0b", "x" * 5_000)
        ),
        (Order(description="x", branch="b", deliberate_only=True), "exclude"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(order: Order, says: str) -> None:
    with pytest.raises(CommandFault, match=says) as caught:
        order.request()
    assert caught.value.exit_code is Exit.USAGE
