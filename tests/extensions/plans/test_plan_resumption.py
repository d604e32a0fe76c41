"""A plan whose process ends anywhere goes on from its last event in another one, and no other process writes beside it.

Over HTTP, in a real repository; only the model is scripted, and log and store are in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import (
    ApprovalAwaited,
    BreakpointsSet,
    Event,
    ExecutionErased,
    ExecutionFinished,
    ExecutionStatus,
    ModelReplied,
    StoredEvent,
    ToolFinished,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, fold
from swe_ai_fleet.domain.run import sub_agent_usage
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.plans.requests import AwaitingApproval, PlanResult
from swe_ai_fleet.extensions.plans.session import PlanSession, SessionStatus
from swe_ai_fleet.extensions.plans.store import KeyValueSessions, task_of
from swe_ai_fleet.in_process import MemoryKeyValue, MemoryLog
from swe_ai_fleet.testing import Turn
from tests.extensions.plans.plan_parts import plans_in
from tests.recorded_runs import cancel, check, cut, of
from tests.sub_agent_world import PLANNER, RESEARCHER, SESSION, call, says, world

GOAL, GAP = "Round invoice totals", "Stripe API"
PROPOSAL = call("propose_approach", approach="Round in total()", reasoning="It is small.")
READ = Turn(tool_calls=(("files_read_file", {"path": "billing.py"}), ("call_planner", {"goal": "Round"})))
WRITE = call("files_write_file", path="rounding.py", content="CENTS = 100\n")
BOTH = Turn(tool_calls=(*PROPOSAL.tool_calls, *WRITE.tool_calls))
TEST = call("shell_run_command", command="echo ran >> runs.txt")
DONE = call("final_answer", result="Rounded.")
FOUND = call("final_answer", result='{"summary": "It pays.", "answers": [], "data_points": []}')
OTHERS = {RESEARCHER: (call("web_search", query="stripe"), FOUND), PLANNER: (says(plan=["one"]),)}


class Kept(KeyValueSessions):
    """A store that knows what was put into it."""

    def __init__(self, *sessions: PlanSession) -> None:
        super().__init__(MemoryKeyValue(), MemoryKeyValue(), tenant=DEFAULT_TENANT)
        self.put_so_far: list[PlanSession] = []
        self._first = sessions
        self._begun = asyncio.Lock()

    async def get(self, session_id: str) -> PlanSession | None:
        async with self._begun:
            for session in self._first:
                await super().put(replace(session, revision=1))
            self._first = ()
        return await super().get(session_id)

    async def put(self, session: PlanSession) -> None:
        await super().put(session)
        self.put_so_far.append(session)

    def last(self, status: SessionStatus) -> PlanSession:
        return next(session for session in reversed(self.put_so_far) if session.status is status)


def execution(log: MemoryLog) -> ExecutionState:
    """The only one of a log."""
    (name,) = {event.execution_id for event in log.events}
    state = fold(StoredEvent(sequence=number, event=event) for number, event in enumerate(log.events, start=1))
    assert state is not None and state.execution_id == name
    return state


def spent(log: MemoryLog, agent_id: str) -> int:
    """The tokens of a run as its events tell them."""
    replies = sum(body.reply.usage.total_tokens for body in of(log.events, agent_id, ModelReplied))
    results = (body.result for body in of(log.events, agent_id, ToolFinished))
    return replies + sum((sub_agent_usage(result) for result in results), Usage()).total_tokens


def said(session: PlanSession) -> list[tuple[str, str]]:
    """The conversation without the ids of its calls, which are drawn."""
    return [(message.role, message.content) for message in session.messages]


APPROVED = "The person approved this approach. Carry it out now, then call final_answer."


WAITING = SessionStatus.AWAITING_APPROVAL


def kept_by(store: Kept, events: Sequence[Event]) -> PlanSession:
    """What the driver had kept at least when these were the events."""
    kinds = {type(event.body) for event in events}
    if ExecutionFinished in kinds:
        return store.last(SessionStatus.COMPLETED)
    if BreakpointsSet in kinds:
        return store.last(SessionStatus.EXECUTING)
    return store.last(WAITING) if ApprovalAwaited in kinds else store.put_so_far[0]


def told_once(messages: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The conversation without the note on the approval, which it holds once, wherever that stands."""
    assert sum(text.count(APPROVED) for _, text in messages) == 1
    without = [(role, text.replace(f"{APPROVED}\n", "").replace(APPROVED, "")) for role, text in messages]
    return [(role, text) for role, text in without if text or role != "user"]


def untimed(answer: PlanResult) -> PlanResult:
    return replace(answer, usage=Usage())


async def test_cut_off_anywhere_a_proposal_and_what_follows_its_approval_go_on(tmp_path: Path) -> None:
    async with world(tmp_path, {SESSION: (READ, BOTH, TEST, DONE), **OTHERS}) as place:
        whole, store = MemoryLog(), Kept()
        plans = await plans_in(place, store=store, log=whole)
        proposal = await plans.execute_plan(GOAL, ["Invoice", GAP], "s1")
        assert isinstance(proposal, AwaitingApproval), proposal
        approved_at = len(whole.events)
        await plans.approve("s1", "approved")
        result = await plans.continue_plan("s1")
        session = await plans.session("s1")
        assert (result.status, result.usage.model_calls) == ("completed", 7)
        assert session.usage.total_tokens == spent(whole, "planner-1") + spent(whole, "planner-2")

        # Every third event: each kind is the last one of some log.
        for count in range(1, approved_at + 1, 3):
            log = cut(whole, count)
            before = log.events
            kinds = [type(event.body).__name__ for event in before]
            asked = len(place.server.bodies)
            again = await plans_in(place, store=Kept(kept_by(store, before)), log=log)
            assert await again.execute_plan(GOAL, ["Invoice", GAP], "s1") == proposal, kinds
            assert check(log, "planner-1", before) == []
            there = await again.session("s1")
            waiting = next(s for s in store.put_so_far if s.status is SessionStatus.AWAITING_APPROVAL)
            assert (said(there), there.sub_agents) == (said(waiting), waiting.sub_agents), kinds
            assert there.usage.total_tokens == spent(log, "planner-1"), kinds
            # What was said before is not asked for again.
            replied, new = len(of(before, "planner-1", ModelReplied)), place.server.bodies[asked:]
            assert sum(str(body["messages"][0]["content"]).startswith(SESSION) for body in new) == 2 - replied, kinds

        for count in range(approved_at + 1, len(whole.events) + 1, 3):
            log = cut(whole, count)
            before = log.events
            kinds = [type(event.body).__name__ for event in before[approved_at:]]
            replied = len(of(before, "planner-2", ModelReplied))
            asked = len(place.server.bodies)
            (place.root / "rounding.py").unlink(missing_ok=True)
            again = await plans_in(place, store=Kept(kept_by(store, before)), log=log)
            carried = await again.continue_plan("s1")
            assert len(place.server.bodies) - asked == 2 - replied, kinds
            lost = check(log, "planner-2", before)
            assert (carried.status, carried.results, carried.iterations) == ("completed", "Rounded.", 4), kinds
            if not lost:
                assert untimed(carried) == untimed(result), kinds
                assert told_once(said(await again.session("s1"))) == told_once(said(session)), kinds
            else:
                assert lost[0] in ("write_file", "run_command")
                told = [message.content for message in (await again.session("s1")).messages]
                assert sum("interrupted: the process that ran this call ended" in text for text in told) == 1
            assert await again.continue_plan("s1") == carried
            state = execution(log)
            assert (state.status, state.usage.total_tokens) == (ExecutionStatus.COMPLETED, carried.usage.total_tokens)
            assert state.pending == ()


async def test_a_process_that_lost_its_session_stops(tmp_path: Path) -> None:
    """Both are alive and one counts as dead: what it goes on to do is refused by the log, and both tell the end."""
    slow = Turn(tool_calls=WRITE.tool_calls, delay_seconds=1.6)
    async with world(tmp_path, {SESSION: (PROPOSAL, slow, DONE), **OTHERS}) as place:
        log, store, alive = MemoryLog(), Kept(), {"first", "second"}
        first, second = [
            await plans_in(place, store=store, log=log, me=me, alive=lambda: alive) for me in ("first", "second")
        ]
        await first.execute_plan(GOAL, (), "s1")
        await first.approve("s1", "approved")
        carrying = asyncio.ensure_future(first.continue_plan("s1"))
        await place.server.wait_until(in_flight=1)
        assert (await second.session("s1")).status is SessionStatus.EXECUTING
        with pytest.raises(PreconditionFailed, match="being worked on"):
            await second.execute_plan("Another", (), "s1")
        with pytest.raises(PreconditionFailed, match="its status is executing"):
            await second.approve("s1", "approved")
        owner = execution(log).owner
        alive.remove(owner)
        result = await second.continue_plan("s1")
        assert await carrying == result
        assert (result.status, execution(log).owner) == ("completed", ({"first", "second"} - {owner}).pop())
        made = [body for body in of(log.events, "planner-2", ToolFinished) if body.entry.operation == "write_file"]
        assert len(made) == 1
        assert (await first.session("s1")).status is SessionStatus.COMPLETED


async def test_a_goal_that_is_cancelled_ends_and_another_one_goes_on_in_the_session(tmp_path: Path) -> None:
    slow = Turn(tool_calls=WRITE.tool_calls, delay_seconds=0.5)
    second = call("propose_approach", approach="Another way", reasoning="")
    async with world(tmp_path, {SESSION: (PROPOSAL, slow, second), **OTHERS}) as place:
        log, store = MemoryLog(), Kept()
        plans = await plans_in(place, store=store, log=log)
        await plans.execute_plan(GOAL, (), "s1")
        assert execution(log).status is ExecutionStatus.AWAITING_APPROVAL
        await plans.approve("s1", "approved")
        carrying = asyncio.ensure_future(plans.continue_plan("s1"))
        await place.server.wait_until(in_flight=1)
        await cancel(log, "not now")
        result = await carrying
        assert (result.status, result.error) == ("error", "the goal was cancelled: not now")
        state = execution(log)
        assert (state.status, state.error) == (ExecutionStatus.CANCELLED, "not now")
        assert not (place.root / "rounding.py").exists()
        with pytest.raises(PreconditionFailed, match="the session is error"):
            await plans.continue_plan("s1")
        answer = await plans.execute_plan("Something else", (), "s1")
        assert isinstance(answer, AwaitingApproval) and answer.approach == "Another way"
        # It is told what the cancelled one may have left.
        assert str(place.requests(SESSION)[-1]["messages"]).count("some of it may be done") == 1
        assert len({event.execution_id for event in log.events}) == 2


async def test_a_session_whose_execution_was_erased_takes_a_goal_again(tmp_path: Path) -> None:
    """The erasure took the session's document with it; the tombstones keep the numbers of its goals."""
    async with world(tmp_path, {SESSION: (PROPOSAL, DONE), **OTHERS}) as place:
        log = MemoryLog()
        for attempt in (1, 3):
            goal = PlanSession(session_id="s1", goal=GOAL, attempt=attempt)
            erased = task_of(goal, DEFAULT_TENANT, Limits()).execution_id
            writer = Writer(tenant=DEFAULT_TENANT, execution_id=erased, task_id="s1")
            await log.tell(writer, ExecutionErased(scope="execution", by="ops", reason="asked for"))
        plans = await plans_in(place, log=log)
        answer = await plans.execute_plan(GOAL, (), "s1")
        assert isinstance(answer, AwaitingApproval), answer
        assert await plans.execute_plan(GOAL, (), "s1") == answer
        await plans.approve("s1", "approved")
        assert (await plans.continue_plan("s1")).status == "completed"
        assert len({event.execution_id for event in log.events}) == 3
