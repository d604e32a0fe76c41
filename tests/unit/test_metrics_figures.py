"""Figures folded from events, and what the sketches behind them promise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply
from swe_ai_fleet.domain.task import PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.figures import RELATIVE_ERROR, Figures, Sketch
from swe_ai_fleet.orchestrator.meter import Measurement, Meter
from tests.sampling import sample

NOW = 1_800_000_000.0
DURATIONS = st.lists(st.integers(min_value=0, max_value=86_400_000), min_size=1, max_size=200)
SHARES = st.floats(min_value=0, max_value=1)


def sketch(durations: Sequence[float]) -> Sketch:
    found = Sketch()
    for duration in durations:
        found.add(duration)
    return found


@given(DURATIONS, SHARES)
def test_a_quantile_is_off_by_no_more_than_promised(durations: list[int], q: float) -> None:
    true = sorted(durations)[math.floor(q * (len(durations) - 1))]
    assert abs(sketch(durations).quantile(q) - true) <= true * RELATIVE_ERROR * (1 + 1e-9)


@given(DURATIONS, DURATIONS)
def test_merged_sketches_are_the_sketch_of_all(left: list[int], right: list[int]) -> None:
    merged, other, whole = sketch(left), sketch(right), sketch(left + right)
    merged.merge(other)
    for one, same in ((merged, whole), (other, sketch(right))):
        assert one.count == same.count
        assert [one.quantile(q / 20) for q in range(21)] == [same.quantile(q / 20) for q in range(21)]


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat()


class Log:
    """Events of one execution, and what a fold makes of them."""

    def __init__(self, role: Role = Role.DEV, kind: TaskKind = TaskKind.DELIBERATE, tenant: str = "default") -> None:
        repo = RepoRef(location="/srv/app")
        self.task = Task(task_id=f"t-{role}", description="x", kind=kind, role=role, repo=repo, tenant=tenant)
        self.repository = PinnedRepository(tenant=tenant, location="/srv/app", commit="0" * 40)
        self.events: list[ev.StoredEvent] = []

    def say(self, seconds: float, body: ev.EventBody, agent: str = "_") -> Log:
        number = len(self.events) + 1
        writer = ev.Writer(
            tenant=self.task.tenant, execution_id=self.task.execution_id, task_id=self.task.task_id, agent_id=agent
        )
        event = writer.event(body, ordinal=number, at=at(seconds))
        self.events.append(ev.StoredEvent(sequence=number, event=event))
        return self

    def started(self, seconds: float = 0) -> Log:
        return self.say(seconds, ev.ExecutionStarted(task=self.task, repository=self.repository, fingerprint="f"))

    def claimed(self, seconds: float = 2, generation: int = 1) -> Log:
        return self.say(seconds, ev.ExecutionClaimed(generation=generation, owner="o"))

    def begun(self, seconds: float = 3, agent: str = "a", *, resumes: bool = False) -> Log:
        self.say(seconds, ev.RunClaimed(generation=1, host="h", resumes=resumes), agent)
        return self.say(seconds, ev.RunStarted(role="DEV", model="m", messages=(), tools=()), agent)

    def replied(self, seconds: float, milliseconds: int, agent: str = "a", *, model: str = "m") -> Log:
        usage = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=60, model_calls=1, duration_ms=5)
        reply = ModelReply(message=AssistantMessage(content=""), finish_reason="stop", usage=usage, model=model)
        return self.say(seconds, ev.ModelReplied(step=1, reply=reply, duration_ms=milliseconds), agent)

    def called(self, seconds: float, tool: str = "files", outcome: Outcome = Outcome.SUCCESS) -> Log:
        entry = sample(AuditEntry, tool=tool, operation="x", outcome=outcome, duration_ms=40)
        return self.say(seconds, ev.ToolFinished(entry=entry, result=ToolResult(success=True, operation="x")), "a")

    def finished(self, seconds: float, usage: Usage, stop: StopReason = StopReason.FINAL_ANSWER) -> Log:
        body = ev.RunFinished(stop_reason=stop, artifacts=Artifacts(), usage=usage, audit_head="")
        return self.say(seconds, body, "a")

    def lost(self, seconds: float) -> Log:
        return self.say(seconds, ev.RunLost(lost_agent_id="a", reason="gone"))

    def ended(self, seconds: float, status: ev.ExecutionStatus = ev.ExecutionStatus.COMPLETED) -> Log:
        return self.say(seconds, ev.ExecutionFinished(status=status, duration_ms=9_000))

    def folded(self) -> Figures:
        return meter_of(self).totals()[self.task.tenant]


def meter_of(*logs: Log, now: float = 1_000_000.0) -> Meter:
    """A meter that has taken all of some logs, one after the other, and reads them once more while it is open."""
    every = [one.event for log in logs for one in log.events]
    stored = [ev.StoredEvent(sequence=number, event=event) for number, event in enumerate(every, 1)]

    async def events(start: int) -> AsyncGenerator[ev.StoredEvent | None, None]:
        """Breaks off, and begins a little too early each time."""
        for number, one in enumerate(stored[max(0, start - 3) :]):
            if number == 6:
                return
            yield one
        yield None
        await asyncio.Event().wait()

    meter = Meter(events, clock=lambda: NOW + now)
    for one in stored:
        meter.take(one)
    return meter


SPENT = Usage(prompt_tokens=300, completion_tokens=30, cached_tokens=60, model_calls=3, tool_calls=2, cost=0.5)


async def test_a_whole_run_is_counted_once() -> None:
    log = Log().started(0).claimed(2).begun(3).replied(4, 900).called(5).called(6, outcome=Outcome.TIMEOUT)
    log.say(7, ev.ModelAwaited(), "a").say(9, ev.ModelAwaited(waited_ms=2_000), "a")
    log.called(6, tool="approval").finished(13, SPENT).ended(14)
    async with asyncio.timeout(20), meter_of(log) as meter:
        # An event seen before adds nothing.
        await meter.whole()
        found = meter.totals()["default"]
    assert (found.accepted, found.ended) == (1, {ev.ExecutionStatus.COMPLETED: 1})
    assert (found.agents_started, found.agents_succeeded, found.agents_failed) == (1, 1, 0)
    assert (found.usage.prompt_tokens, found.usage.cached_tokens, found.usage.cost) == (300, 60, 0.5)
    assert (found.usage.model_calls, found.usage.tool_calls) == (3, 2)
    counts = {"queue_wait": 1, "model_call": 1, "model_wait": 1, "tool_call": 2, "agent": 1, "deliberation": 1}
    assert {name: one.count for name, one in found.latencies.items()} == counts
    assert found.latencies["agent"].quantile(0.5) == pytest.approx(10_000, rel=RELATIVE_ERROR)
    assert found.latencies["queue_wait"].quantile(0.5) == pytest.approx(2_000, rel=RELATIVE_ERROR)
    tool = found.tools["files_x"]
    assert (tool.outcomes, tool.failures) == ({Outcome.SUCCESS: 1, Outcome.TIMEOUT: 1}, 1)
    assert (found.tools.keys(), found.tool_failures) == ({"files_x"}, 1)
    assert (found.models["m"].calls, found.models["m"].usage.cost) == (3, 0.5)
    assert not found.change.any()


def test_what_befalls_runs_is_counted_by_kind() -> None:
    # Begun anew, a run starts its account again.
    once = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=60, model_calls=1)
    found = Log().started().claimed().begun().replied(4, 5).begun(6).replied(7, 5).finished(8, once).folded()
    assert (found.usage.prompt_tokens, found.agents_started, found.change.agents) == (200, 1, 0)
    log = Log().started().claimed().begun().replied(4, 5)
    place = ("default", log.task.execution_id)
    assert meter_of(log).running(*place).prompt_tokens == 100
    assert meter_of(log.ended(9)).running(*place) == Usage()
    # Who did not finish ends with the execution.
    for status, ended in ((ev.ExecutionStatus.CANCELLED, (2, 0)), (ev.ExecutionStatus.FAILED, (0, 2))):
        found = Log().started().claimed().begun().begun(agent="b").ended(9, status).folded()
        assert (found.agents_cancelled, found.agents_failed) == ended
        assert not found.change.any()
    found = Log().started().claimed().begun().lost(5).folded()
    assert (found.agents_failed, found.change.agents) == (1, 0)
    log = Log().started().claimed(2).begun(3).say(7, ev.LoopNoticed(step=3, pattern="same call", advice="replan"), "a")
    log.say(8, ev.RunReassigned(lost_agent_id="a", reason="gone", attempt=2)).claimed(9, generation=2)
    found = log.finished(13, SPENT, StopReason.LOOP).ended(14).folded()
    assert (found.loops, found.stops) == ({"replan": 1}, {"loop": 1})
    assert (found.lost, found.takeovers, found.agents_failed) == (1, 1, 1)


async def test_a_range_tells_only_of_itself() -> None:
    log = Log().started(0).claimed(60).begun(61).replied(62, 5).finished(200, SPENT).ended(300)
    qa, other = Log(Role.QA).started(), Log(Role.QA, tenant="other").started()
    async with asyncio.timeout(20), meter_of(log, qa, other, now=400) as meter:
        await meter.whole()

        async def dev(**fields: float) -> Measurement:
            return await meter.measure("default", role="DEV", **fields)

        whole, early = await dev(start=NOW, end=NOW + 400), await dev(start=NOW, end=NOW + 120)
        busy = await dev(start=NOW + 120, end=NOW + 180)
        for fields in ({"start": NOW + 500}, {"start": NOW, "end": NOW - 1}):
            with pytest.raises(InvalidRequest):
                await dev(**fields)
        assert (await dev(start=NOW - 6 * 86_400, step=60)).step == 3_600
        assert len((await dev(start=1)).series) <= 120
        accepted = [(await meter.measure("default", role=role)).total.accepted for role in ("", "QA", "DATA")]
        assert (accepted, (await meter.measure("other")).now.queued) == ([2, 1, 0], 1)
    assert whole.step == 60
    assert (early.end, busy.start, busy.end) == (NOW + 120, NOW + 120, NOW + 180)
    assert (whole.total.accepted, sum(whole.total.ended.values())) == (1, 1)
    assert (early.total.accepted, early.total.agents_started, sum(early.total.ended.values())) == (1, 1, 0)
    assert busy.total.agents_started == 0
    assert busy.series[0].gauges.agents == busy.series[0].gauges.driven == 1
    assert whole.series[0].gauges.queued == 1
    assert [point.gauges.agents for point in whole.series][:5] == [0, 1, 1, 0, 0]
