"""A message whose process ends anywhere is answered from its last event on by another one, and nothing is done twice.

Over HTTP; only the model is scripted, and log and store are in memory.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionFinished, ExecutionStatus, ModelReplied
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.extensions.chat.opening import open_chats
from swe_ai_fleet.in_process import MemoryKeyValue, MemoryLog
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools import FunctionTool
from tests.chat_script import answered, called, said
from tests.extensions.chat.chat_parts import Fleet, Talk
from tests.recorded_runs import cancel, check, cut, of
from tests.scripted_fleet import execution_deps

ASKED = "Have 15 cubes added and a task proposed"
BOTH = Turn(
    content="I look.",
    tool_calls=(("calculator", {"expression": "15 ** 3"}), ("note", {"text": "cubes"})),
)
SCRIPT = Script(
    conversations=(
        *said(ASKED, BOTH, called("start_task", description="Add cubes", repository="/srv/app"), answered("Shall I?")),
        *said("slow", Turn(content="Late.", delay_seconds=30)),
        *said("Yes please", Turn(content="Late.", delay_seconds=30)),
    )
)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(SCRIPT, keep=1_000) as running:
        yield running


def note(text: str) -> str:
    """Write a note."""
    return f"noted: {text}"


class Place:
    """Chats of one process after the other, at one model server."""

    def __init__(self, server: ScriptedModelServer, home: Path) -> None:
        self.settings = Settings(home=home, model_url=server.url, model="scripted")
        self.fleet = Fleet()

    @asynccontextmanager
    async def process(self, log: MemoryLog, store: MemoryKeyValue) -> AsyncIterator[tuple[Any, Executions]]:
        deps = execution_deps(log, owner=f"process-{uuid.uuid4().hex}")
        async with (
            Executions(deps) as executions,
            open_chats(
                self.settings,
                store=store,
                executions=executions,
                fleet=lambda _: self.fleet,
                starter=lambda _: self.fleet,
                tools=[FunctionTool(note, read_only=False)],
            ) as chats,
        ):
            yield Talk(chats(DEFAULT_TENANT)), executions


@pytest.fixture
def place(server: ScriptedModelServer, tmp_path: Path) -> Place:
    return Place(server, tmp_path)


def replies_asked(server: ScriptedModelServer) -> int:
    return sum(ASKED in str(body["messages"]) for body in server.bodies)


async def test_cut_off_behind_any_event_a_message_is_answered_once(place: Place, server: ScriptedModelServer) -> None:
    whole, kept = MemoryLog(), MemoryKeyValue()
    async with place.process(whole, kept) as (chat, _):
        first = await chat.send("s", ASKED, message_id="m1")
        session = await chat.session("s")
    assert (first.success, first.proposed, first.usage.model_calls, first.usage.tool_calls) == (True, True, 3, 3)
    lost: list[list[str]] = []
    for count in range(1, len(whole.events) + 1):
        log, asked = cut(whole, count), replies_asked(server)
        before = log.events
        over = any(isinstance(event.body, ExecutionFinished) for event in before)
        async with place.process(log, kept if over else MemoryKeyValue()) as (chat, executions):
            # Nobody asks for it again.
            state = await executions.wait(DEFAULT_TENANT, before[0].execution_id)
            again = await chat.send("s", ASKED, message_id="m1")
            assert state.status is ExecutionStatus.COMPLETED
            assert (again.text, again.proposed, again.turn, again.repeated) == (first.text, True, 1, True)
            told = (await chat.session("s")).turns[0].messages
        lost.append(check(log, "assistant", before))
        replied = len(of(before, "assistant", ModelReplied))
        assert replies_asked(server) - asked == 3 - replied, type(before[-1].body)
        if not lost[-1]:
            assert [message.content for message in told] == [m.content for m in session.turns[0].messages]
    assert ["note"] in lost


async def test_a_confirmed_task_is_started_once_wherever_its_process_ends(place: Place) -> None:
    log, kept = MemoryLog(), MemoryKeyValue()
    async with place.process(log, kept) as (chat, _):
        await chat.send("s", ASKED)
    entries = await kept.entries("")
    begun = len(log.events)
    async with place.process(log, kept) as (chat, _):
        started = await chat.send("s", "yes", message_id="y")
    assert started.execution_id
    for count in range(begun + 1, len(log.events)):
        store = MemoryKeyValue()
        for entry in entries:
            await store.put(entry.key, entry.value)
        async with place.process(cut(log, count), store) as (chat, _):
            again = await chat.send("s", "yes", message_id="y")
            assert (again.text, again.execution_id) == (started.text, started.execution_id)
    # Whichever process says it, it names the same task.
    assert len(place.fleet.started) > 1 and len({key for _, key in place.fleet.started}) == 1


async def test_a_cancelled_yes_to_a_proposal_not_seen_leaves_no_task_in_doubt(
    place: Place, server: ScriptedModelServer
) -> None:
    log = MemoryLog()
    async with place.process(log, MemoryKeyValue()) as (chat, _):
        assert (await chat.send("s", ASKED)).proposed
        stale = asyncio.ensure_future(chat.send("s", "Yes please", seen_turn=0))
        await server.wait_until(in_flight=1)
        await cancel(log, "not now")
        assert (await stale).stop_reason == "cancelled"
        assert (await chat.session("s")).proposal is None
    assert not place.fleet.started


async def test_the_end_of_a_session_ends_the_message_that_has_no_answer(
    place: Place, server: ScriptedModelServer
) -> None:
    async with place.process(MemoryLog(), MemoryKeyValue()) as (chat, executions):
        slow = asyncio.ensure_future(chat.send("s", "a slow one"))
        await server.wait_until(in_flight=1)
        assert await chat.end("s")
        with pytest.raises(PreconditionFailed, match="was ended"):
            await slow
        (state,) = executions.projection.select(DEFAULT_TENANT)
        assert state.status is ExecutionStatus.CANCELLED
        # Its number goes on where the log has it.
        assert (await chat.send("s", "Hello")).turn == 2


async def test_a_replica_that_follows_is_told_of_calls_and_the_answer(place: Place) -> None:
    """What is written elsewhere comes from the log, the text once it is whole."""
    log, kept = MemoryLog(), MemoryKeyValue()
    async with place.process(log, kept) as (other, _), place.process(log, kept) as (chat, executions):
        executions.dispatcher.drained = lambda: True
        *steps, answer = await chat.told("s", ASKED, message_id="m1")
        assert [step.kind for step in steps] == ["tool", "tool", "result", "result", "tool", "result"]
        assert answer.text.startswith("Shall I?")
        assert (await other.send("s", ASKED, message_id="m1")).text == answer.text
