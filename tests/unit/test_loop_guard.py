"""Loops that an agent gets into, and things that only look like one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.agents.loop_guard import LoopAction, LoopAdvice, LoopGuard
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.message import AssistantMessage, ToolCall
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Observation, Step
from tests.tables import table


def spec(name: str, **traits: object) -> OperationSpec:
    return OperationSpec(name=name, tool=name, operation=name, description="", parameters={}, **traits)  # type: ignore[arg-type]


TOOLS = (
    spec("read_file", read_only=True, locks=frozenset({"workspace"})),
    spec("edit_file", locks=frozenset({"workspace"})),
    spec("run_command", executes=True, locks=frozenset({"workspace"})),
    spec("run_tests", executes=True, locks=frozenset({"workspace"})),
    spec("docker_logs", read_only=True, network=True),
    spec("http_get", read_only=True, network=True, cache_seconds=300.0),
)
Call = tuple[str, Mapping[str, object], ToolResult]


def ok(name: str, content: str = "", *, tests: Mapping[str, object] | None = None, **arguments: object) -> Call:
    metadata = {"tests": tests} if tests is not None else {}
    return name, arguments, ToolResult(success=True, operation=name, content=content, metadata=metadata)


def bad(name: str, error: str, content: str = "", **arguments: object) -> Call:
    result = ToolResult(success=False, operation=name, error=error, content=content, outcome=Outcome.ERROR)
    return name, arguments, result


def step(number: int, *calls: Call) -> Step:
    asked = tuple(
        ToolCall(call_id=f"{number}-{i}", model_call_id="", name=name, arguments=json.dumps(arguments))
        for i, (name, arguments, _) in enumerate(calls)
    )
    seen = tuple(Observation(call_id=f"{number}-{i}", result=result) for i, (_, _, result) in enumerate(calls))
    return Step(number=number, reply=AssistantMessage(tool_calls=asked), observations=seen, usage=Usage())


def watch(calls: Iterable[Call | tuple[Call, ...]]) -> list[LoopAdvice | None]:
    guard = LoopGuard(TOOLS)
    steps: list[tuple[Call, ...]] = [one if isinstance(one[0], tuple) else (one,) for one in calls]  # type: ignore[misc]
    return [guard.observe(step(number, *those)) for number, those in enumerate(steps, start=1)]


def actions(calls: Iterable[Call | tuple[Call, ...]]) -> list[str]:
    return [str(advice.action) if advice else "" for advice in watch(calls)]


class TestRepeats:
    def test_the_ladder_from_nudge_to_stop(self) -> None:
        said = actions([ok("run_command", "a.py", command="ls")] * 8)
        assert said == ["", "", "nudge", "strong_nudge", "replan", "", "", "stop"]

    def test_a_read_after_an_edit_is_none(self) -> None:
        edits = [ok("edit_file", "edited", path="b", old=number) for number in range(6)]
        read = ok("read_file", "the same", path="a")
        assert set(actions([call for edit in edits for call in (read, edit)])) == {""}

    def test_tests_between_different_edits_are_none(self) -> None:
        failing = {"passed": 1, "failed": 1, "failing": [{"id": "t::a"}]}
        name, arguments, result = bad("run_tests", "1 of 2 tests did not pass", "assert 1 == 2")
        run = (name, arguments, replace(result, metadata={"tests": failing}))
        edits = [ok("edit_file", "Replaced 1 passage in a.py.", path="a.py", new=f"x = {n}") for n in range(8)]
        assert set(actions([call for edit in edits for call in (run, edit)])) == {""}

    def test_the_same_failing_edit_three_times_is_one_whatever_is_read_in_between(self) -> None:
        edit = bad("edit_file", "the passage was not found", path="a.py", old="x")
        calls = [edit, ok("read_file", "1", path="a"), edit, ok("read_file", "2", path="b"), edit]
        advice = watch(calls)[-1]
        assert advice is not None
        assert advice.pattern == "repeat: the same failing call 3 times, and nothing was changed in between"

    def test_what_only_looks_like_one(self) -> None:
        retried: list[Call] = []
        for number in range(5):
            retried += [bad("edit_file", "not found", path="a.py"), ok("edit_file", "ok", path="b.py", old=number)]
        dates = [ok("read_file", f"deadline = 2026-01-0{n}", path="a") for n in range(1, 6)]
        growing = [ok("docker_logs", "starting", container="db")] * 20
        for calls in (retried, dates, growing):
            assert set(actions(calls)) == {""}, calls[0]


class TestCycles:
    @table("period", [2, 3, 4])
    def test_of_two_to_four_steps(self, period: int) -> None:
        calls = [ok("run_command", f"out {n % period}", command=str(n % period)) for n in range(4 * period)]
        advice = watch(calls)
        first = next(index for index, one in enumerate(advice) if one is not None)
        found = advice[first]
        assert found is not None and first == 3 * period - 1
        pattern = f"cycle: the same {period} steps 3 times, with the same outcomes"
        assert (found.pattern, found.steps) == (pattern, 3 * period)
        assert advice[first + 1 : first + period] == [None] * (period - 1)  # it gets a whole cycle to do better
        assert advice[first + period] is not None


class TestErrors:
    def test_one_kind_from_whatever_calls(self) -> None:
        calls = [bad("read_file", f"there is no file 'src/{n}/x.py'", path=str(n)) for n in range(4)]
        advice = watch(calls)
        assert advice[:3] == [None] * 3
        assert advice[3] is not None
        assert advice[3].pattern == "errors: 4 errors of the same kind in a row"
        assert advice[3].steps == 4


class TestNoProgress:
    def stale(self, count: int) -> list[Call]:
        """Reads of three files in no order that repeats, nothing of it new after the first three."""
        order = [0, 1, 2, 0, 2, 1, 1, 0, 2, 2, 0, 1, 2, 1, 0, 0, 1, 2, 1, 2, 0, 2, 1, 0, 1, 1, 2, 0]
        return [ok("read_file", f"file {n}", path=str(n)) for n in (order * 3)[:count]]

    def test_nothing_new_for_long(self) -> None:
        advice = watch(self.stale(15))
        assert advice[:14] == [None] * 14
        assert advice[14] is not None
        assert advice[14].pattern == "no progress: 12 steps without anything new"

    def test_another_test_result_is_progress(self) -> None:
        calls: list[Call] = []
        for number, base in enumerate(self.stale(40)):
            tests = {"passed": number, "failed": 40 - number, "failing": []}
            calls += [base] if number % 6 else [base, ok("run_tests", "same words", tests=tests, n=0)]
        assert "no progress" not in " ".join(one.pattern for one in watch(calls) if one)


class TestWaiting:
    @table(
        "command",
        ["sleep 5", "sleep 2 && curl -s localhost:8000/health", "for i in 1 2; do sleep 1; done", "tail -f x"],
    )
    def test_a_command_that_sleeps_is_given_time(self, command: str) -> None:
        call = bad("run_command", "exit code 7", "connection refused", command=command)
        assert set(actions([call] * 20)) == {""}
        assert "nudge" in actions([call] * 30)  # not for ever


class TestEscalation:
    def test_something_new_takes_a_step_back(self) -> None:
        looped = [ok("read_file", "1", path="a")] * 4
        fresh = [ok("read_file", f"new {n}", path=f"n{n}") for n in range(2)]
        said = actions([*looped, *fresh, *looped])
        assert said == ["", "", "nudge", "strong_nudge", "", "", "", "", "nudge", "strong_nudge"]

    def test_a_run_that_goes_on_remembers(self) -> None:
        looped = [ok("read_file", "1", path="a")] * 4
        earlier = [step(number, call) for number, call in enumerate(looped)]
        guard = LoopGuard(TOOLS, earlier=earlier)
        advice = guard.observe(step(9, looped[0]))
        assert advice is not None
        assert advice.action is LoopAction.REPLAN
        assert advice.steps == 5


class TestProperties:
    alphabet = st.sampled_from(
        [
            ok("read_file", "1", path="a"),
            ok("read_file", "2", path="b"),
            ok("run_command", "out", command="make"),
            ok("edit_file", "ok", path="a"),
            bad("edit_file", "not found", path="a"),
            bad("read_file", "no file 'x'", path="x"),
        ]
    )

    @given(cycle=st.lists(alphabet, min_size=1, max_size=4), before=st.lists(alphabet, max_size=10))
    @settings(max_examples=50)
    def test_a_cycle_of_up_to_four_steps_is_always_stopped(self, cycle: list[Call], before: list[Call]) -> None:
        assert "stop" in actions([*before, *cycle * 40])


class TestNormaliseOutput:
    @table(
        ("one", "other"),
        [
            ("3 passed in 0.03s", "3 passed in 1.27s"),
            ("2026-01-02T03:04:05.1Z started", "2026-11-12T13:14:15.123456+02:00 started"),
            ("<A object at 0x7f00aa12bc>", "<A object at 0x7fffb81200>"),
            ("pid 123 started", "pid 98765 started"),
            ("/tmp/tmpab_12/x.py", "/tmp/pytest-of-u/x.py"[:16] + "/x.py"),
            ("job 123e4567-e89b-12d3-a456-426614174000", "job abcdefab-e89b-42d3-b456-426614174001"),
            ("http://localhost:1234/", "http://localhost:4321/"),
            ("(from the cache, 1 second old)\nx", "(from the cache, 29 seconds old)\nx"),
        ],
    )
    def test_what_differs_for_no_reason_hides_no_loop(self, one: str, other: str) -> None:
        assert actions([ok("run_command", text, command="x") for text in (one, other, one)])[-1] == "nudge"

    @table(
        "piece",
        ["1", "1.", "1:", "0x", "/tmp/", "1-", "2024-", "a/", "'", "'a", "pid ", "-abcd", "9s", "1 ", "seed ", "µ"],
    )
    def test_hostile_text_takes_linear_time(self, piece: str) -> None:
        text = piece * (100_000 // len(piece))
        begun = time.process_time()
        call = bad("run_command", text, text, command=text)
        watch([call, call, call])
        assert time.process_time() - begun < 5
