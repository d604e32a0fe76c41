"""Figures folded from events, and what the sketches behind them promise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.errors import InvalidRequest, Unavailable
from swe_ai_fleet.domain.event import (
    ApprovalRequested,
    ChecksFinished,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ModelReplied,
    RunClaimed,
    RunFinished,
    RunLost,
    RunStarted,
    StoredEvent,
    ToolFinished,
    Writer,
)
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall
from swe_ai_fleet.domain.task import ApprovalPolicy, PinnedRepository, RepoRef, Role, Task, TaskKind
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.orchestrator.metrics import RELATIVE_ERROR, Figures, Measurement, Meter, Sketch
from swe_ai_fleet.orchestrator.metrics.fold import MetricsFold
from swe_ai_fleet.orchestrator.metrics.history import TIERS, History, Tier
from swe_ai_fleet.orchestrator.metrics.names import MAX_NAMES, OTHER
from swe_ai_fleet.orchestrator.metrics.sketch import LONGEST_MS

NOW = 1_800_000_000.0
DURATIONS = st.lists(st.integers(min_value=0, max_value=LONGEST_MS), min_size=1, max_size=200)
SHARES = st.floats(min_value=0, max_value=1)


def sketch(durations: Sequence[float]) -> Sketch:
    found = Sketch()
    for duration in durations:
        found.add(duration)
    return found


def quantiles(of: Sketch) -> list[float]:
    return [of.quantile(q / 20) for q in range(21)]


@given(DURATIONS, SHARES)
def test_a_quantile_is_off_by_no_more_than_promised(durations: list[int], q: float) -> None:
    true = sorted(durations)[math.floor(q * (len(durations) - 1))]
    assert abs(sketch(durations).quantile(q) - true) <= true * RELATIVE_ERROR * (1 + 1e-9)


@given(DURATIONS, DURATIONS)
def test_merged_sketches_are_the_sketch_of_all(left: list[int], right: list[int]) -> None:
    merged, other = sketch(left), sketch(right)
    before = quantiles(other)
    merged.merge(other)
    assert merged.count == len(left) + len(right)
    assert quantiles(merged) == quantiles(sketch(left + right))
    assert quantiles(other) == before


def test_a_sketch_is_small_whatever_it_counts() -> None:
    wide = sketch([-5, 0, 0.5, 1, 10**6, LONGEST_MS, 1e30, math.inf])
    assert wide.count == 8
    assert wide.quantile(0) == 0
    assert wide.quantile(1) == pytest.approx(LONGEST_MS, rel=RELATIVE_ERROR)
    assert len(wide._counts) <= 545
    assert Sketch().quantile(0.5) == 0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat()


class Log:
    """Events of one execution, and what a fold makes of them."""

    def __init__(self, role: Role = Role.DEV, kind: TaskKind = TaskKind.DELIBERATE, tenant: str = "default") -> None:
        repo = RepoRef(location="/srv/app")
        self.task = Task(task_id=f"t-{role}", description="x", kind=kind, role=role, repo=repo, tenant=tenant)
        self.repository = PinnedRepository(tenant=tenant, location="/srv/app", commit="0" * 40)
        self.events: list[StoredEvent] = []

    def say(self, seconds: float, body: EventBody, agent: str = "_") -> Log:
        number = len(self.events) + 1
        writer = Writer(
            tenant=self.task.tenant, execution_id=self.task.execution_id, task_id=self.task.task_id, agent_id=agent
        )
        event = writer.event(body, ordinal=number, at=at(seconds))
        self.events.append(StoredEvent(sequence=number, event=event))
        return self

    def started(self, seconds: float = 0) -> Log:
        return self.say(seconds, ExecutionStarted(task=self.task, repository=self.repository, fingerprint="f"))

    def claimed(self, seconds: float = 2, generation: int = 1) -> Log:
        return self.say(seconds, ExecutionClaimed(generation=generation, owner="o"))

    def begun(self, seconds: float = 3, agent: str = "a", *, resumes: bool = False) -> Log:
        self.say(seconds, RunClaimed(generation=1, host="h", resumes=resumes), agent)
        return self.say(seconds, RunStarted(role="DEV", model="m", messages=(), tools=()), agent)

    def replied(self, seconds: float, milliseconds: int, agent: str = "a", *, model: str = "m") -> Log:
        usage = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=60, model_calls=1, duration_ms=5)
        reply = ModelReply(message=AssistantMessage(content=""), finish_reason="stop", usage=usage, model=model)
        return self.say(seconds, ModelReplied(step=1, reply=reply, duration_ms=milliseconds), agent)

    def called(self, seconds: float, tool: str = "files", outcome: Outcome = Outcome.SUCCESS) -> Log:
        entry = AuditEntry(
            seq=1,
            at="",
            execution_id="",
            agent_id="",
            call_id="",
            tool=tool,
            operation="x",
            outcome=outcome,
            duration_ms=40,
        )
        return self.say(seconds, ToolFinished(entry=entry, result=ToolResult(success=True, operation="x")), "a")

    def finished(self, seconds: float, usage: Usage, stop: StopReason = StopReason.FINAL_ANSWER) -> Log:
        body = RunFinished(stop_reason=stop, artifacts=Artifacts(), usage=usage, audit_head="")
        return self.say(seconds, body, "a")

    def ended(self, seconds: float, status: ExecutionStatus = ExecutionStatus.COMPLETED) -> Log:
        return self.say(seconds, ExecutionFinished(status=status, duration_ms=9_000))

    def folded(self, fold: MetricsFold | None = None) -> Figures:
        total, fold = Figures(), fold or MetricsFold()
        for stored in self.events:
            for counted in fold.take(stored):
                total.merge(counted.figures)
        return total


SPENT = Usage(prompt_tokens=300, completion_tokens=30, cached_tokens=60, model_calls=3, tool_calls=2, cost=0.5)


def test_a_whole_run_is_counted_once() -> None:
    log = Log().started(0).claimed(2).begun(3).replied(4, 900).called(5).called(6, outcome=Outcome.REFUSED)
    log.called(6, tool="approval").finished(13, SPENT).ended(14)
    fold = MetricsFold()
    found = log.folded(fold)
    assert (found.accepted, found.ended) == (1, {ExecutionStatus.COMPLETED: 1})
    assert (found.agents_started, found.agents_succeeded, found.agents_failed) == (1, 1, 0)
    assert (found.usage.prompt_tokens, found.usage.cached_tokens) == (300, 60)
    assert (found.usage.model_calls, found.usage.tool_calls, found.usage.cost) == (3, 2, 0.5)
    assert {name: one.count for name, one in found.latencies.items()} == {
        "queue_wait": 1,
        "model_call": 1,
        "tool_call": 2,
        "agent": 1,
        "deliberation": 1,
    }
    assert found.latencies["agent"].quantile(0.5) == pytest.approx(10_000, rel=RELATIVE_ERROR)
    assert found.latencies["queue_wait"].quantile(0.5) == pytest.approx(2_000, rel=RELATIVE_ERROR)
    assert (found.tools["files_x"].calls, found.tools["files_x"].failures, found.tool_failures) == (2, 1, 1)
    assert "approval_x" not in found.tools
    assert (found.models["m"].calls, found.models["m"].usage.cost) == (3, 0.5)
    assert not found.change.any()
    assert log.folded(fold).usage == Usage(), "an event seen before adds nothing"


def test_waiting_for_a_person_is_no_time_at_work() -> None:
    call = ToolCall(call_id="c", model_call_id="", name="propose_approach", arguments="{}")
    request = ApprovalRequest(
        approval_id="p",
        agent_id="a",
        policy=ApprovalPolicy.PLAN,
        goal="",
        approach="",
        call=call,
        step=1,
        requested_at="",
    )
    log = Log().started().claimed().begun(10).say(20, ApprovalRequested(request=request), "a")
    assert log.folded().change.agents == 0
    log.begun(500, resumes=True).finished(505, Usage())
    found = log.folded()
    assert found.latencies["agent"].quantile(1) == pytest.approx(15_000, rel=RELATIVE_ERROR)
    assert (found.agents_started, found.agents_succeeded) == (1, 1)


def test_a_run_begun_anew_starts_its_account_again() -> None:
    once = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=60, model_calls=1)
    log = Log().started().claimed().begun().replied(4, 5).begun(6).replied(7, 5).finished(8, once)
    found = log.folded()
    assert (found.usage.prompt_tokens, found.agents_started) == (200, 1)
    assert found.change.agents == 0


@pytest.mark.parametrize(
    ("status", "cancelled", "failed"), [(ExecutionStatus.CANCELLED, 2, 0), (ExecutionStatus.FAILED, 0, 2)]
)
def test_who_did_not_finish_ends_with_the_execution(status: ExecutionStatus, cancelled: int, failed: int) -> None:
    found = Log().started().claimed().begun().begun(agent="b").ended(9, status).folded()
    assert (found.agents_cancelled, found.agents_failed) == (cancelled, failed)
    assert not found.change.any()


def test_a_lost_run_is_a_failed_one() -> None:
    found = Log().started().claimed().begun().say(5, RunLost(lost_agent_id="a", reason="gone")).folded()
    assert (found.agents_failed, found.change.agents) == (1, 0)


def test_checks_that_ran_are_timed() -> None:
    ran = CheckResult(
        kind=CheckKind.LINT, name="lint", passed=True, duration_ms=70, usage=Usage(prompt_tokens=5, model_calls=1)
    )
    skipped = CheckResult(kind=CheckKind.APPLY, name="apply", passed=True, skipped_reason="nothing")
    report = CheckReport(candidate_id="c", results=(ran, skipped))
    found = Log().started().claimed().say(5, ChecksFinished(report=report)).folded()
    assert found.latencies["check"].count == 1
    assert found.usage.prompt_tokens == 5


def test_names_of_strangers_are_held_to_a_number() -> None:
    log = Log().started().claimed().begun()
    for number in range(MAX_NAMES + 20):
        log.replied(5, 5, model=f"m\n{number}" + "x" * 500)
    models = log.folded().models
    assert len(models) == MAX_NAMES + 1
    assert models[OTHER].calls == 20
    assert all(name.isprintable() and len(name) <= 128 for name in models)


STEPS = st.lists(
    st.sampled_from(["started", "claimed", "begun", "replied", "called", "lost", "finished", "ended"]), max_size=40
)


@given(STEPS)
@settings(max_examples=60)
def test_gauges_never_fall_below_nothing_whatever_the_order(steps: list[str]) -> None:
    log = Log()
    for number, step in enumerate(steps):
        match step:
            case "replied":
                log.replied(number, 5)
            case "finished":
                log.finished(number, SPENT)
            case "lost":
                log.say(number, RunLost(lost_agent_id="a", reason=""))
            case _:
                getattr(log, step)(number)
    fold, total = MetricsFold(), Figures()
    for stored in log.events:
        for counted in fold.take(stored):
            total.merge(counted.figures)
            assert min(total.change.agents, total.change.driven, total.change.queued) >= 0
    assert sum(total.ended.values()) <= total.accepted <= 1


async def measured(meter: Meter, **fields: object) -> Measurement:
    return await meter.measure("default", **fields)


def meter_of(*logs: Log, now: float = 100.0) -> Meter:
    async def events(start: int) -> AsyncGenerator[StoredEvent | None, None]:
        for stored in (one for log in logs for one in log.events):
            yield stored
        yield None
        await asyncio.Event().wait()

    return Meter(events, clock=lambda: NOW + now)


async def test_a_range_tells_only_of_itself() -> None:
    log = Log().started(0).claimed(60).begun(61).replied(62, 5).finished(200, SPENT).ended(300)
    async with meter_of(log, now=400) as meter:
        await meter.whole()
        whole = await measured(meter, start=NOW, end=NOW + 400)
        early = await measured(meter, start=NOW, end=NOW + 120)
        busy = await measured(meter, start=NOW + 120, end=NOW + 180)
        with pytest.raises(InvalidRequest):
            await measured(meter, start=NOW + 500)
        assert (await measured(meter, start=NOW - 6 * 86_400, step=60)).step == 3_600
        assert len((await measured(meter, start=1)).series) <= 120
    assert whole.step == 60
    assert (early.end, busy.start, busy.end) == (NOW + 120, NOW + 120, NOW + 180)
    assert (whole.total.accepted, sum(whole.total.ended.values())) == (1, 1)
    assert (early.total.accepted, early.total.agents_started, sum(early.total.ended.values())) == (1, 1, 0)
    assert busy.total.agents_started == 0
    assert busy.series[0].gauges.agents == busy.series[0].gauges.driven == 1
    assert whole.series[0].gauges.queued == 1
    assert [point.gauges.agents for point in whole.series][:5] == [0, 1, 1, 0, 0]


async def test_a_range_that_steps_widen_is_told_whole() -> None:
    # It begins within the six hours that minutes are kept for; its first step begins before them.
    log = Log().started(0).claimed(1_500).ended(1_800)
    async with meter_of(log, now=6 * 3_600 + 1_200) as meter:
        await meter.whole()
        told = await measured(meter, start=NOW + 1_300, step=3_600)
        assert told.start <= NOW
        assert told.total.accepted == told.series[0].figures.accepted == sum(told.total.ended.values()) == 1
        assert (await measured(meter, step=2_000_000_000)).total.accepted == 1


async def test_roles_and_tenants_are_told_apart() -> None:
    qa, dev, other = Log(Role.QA).started(), Log(Role.DEV), Log(Role.QA, tenant="other")
    dev.events = [StoredEvent(sequence=2, event=dev.started().events[0].event)]
    other.events = [StoredEvent(sequence=3, event=other.started().events[0].event)]
    async with meter_of(qa, dev, other) as meter:
        await meter.whole()
        assert (await measured(meter)).total.accepted == 2
        assert (await measured(meter, role="QA")).total.accepted == 1
        assert (await measured(meter, role="DATA")).total.accepted == 0
        assert (await meter.measure("other")).now.queued == 1


async def test_a_log_that_cannot_be_followed_is_said() -> None:
    broken = asyncio.Event()

    async def events(start: int) -> AsyncGenerator[StoredEvent | None, None]:
        yield None
        broken.set()
        raise Unavailable("gone")

    async with asyncio.timeout(5), Meter(events, clock=lambda: NOW) as meter:
        assert (await measured(meter)).incomplete
        await meter.whole()
        await broken.wait()
        with pytest.raises(Unavailable):
            while True:
                await measured(meter)


@given(st.lists(st.integers(min_value=0, max_value=200 * 86_400), min_size=1, max_size=30))
@settings(max_examples=40)
def test_old_cells_go_and_gauges_stay_right(ages: list[int]) -> None:
    history, key = History(), ("default", "DEV")
    for age in sorted(ages, reverse=True):
        log = Log().started()
        [counted] = MetricsFold().take(log.events[0])
        history.add(NOW - age, key, counted.figures, now=NOW)
    for tier in TIERS:
        cells = history.cells(tier, 0, int(NOW) + 1)
        inside = sum(cell.figures[key].accepted for cell in cells)
        assert len(cells) <= tier.kept_seconds // tier.cell_seconds + 2
        assert inside <= len(ages)
        before = history.before(tier, cells[0].start if cells else int(NOW))
        assert (before[key].queued if key in before else 0) + inside == len(ages)


def test_each_tier_is_made_of_whole_cells_of_the_finer_one() -> None:
    for fine, coarse in pairwise(TIERS):
        assert coarse.cell_seconds % fine.cell_seconds == 0
        assert coarse.kept_seconds > fine.kept_seconds
    assert History((Tier(cell_seconds=60, kept_seconds=600),)).tier(0, NOW).cell_seconds == 60
