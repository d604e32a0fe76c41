"""The process of an agent run over the log in memory, one small step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.domain.event import (
    ModelReplied,
    RunClaimed,
    RunFinished,
    RunStarted,
    ToolFinished,
    ToolStarted,
)
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall
from swe_ai_fleet.domain.run import fold_run, interrupted
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason

if TYPE_CHECKING:
    from tests.simulation.protocol import World

CALLS = 2
"""Tool calls, one a step, that each run makes."""


@dataclass(eq=False)
class Run:
    """The process of one agent run. It goes on whatever becomes of the orchestrator that began it."""

    world: World
    execution_id: str
    agent_id: str
    generation: int
    resume: bool
    done: bool = False
    fenced: bool = False
    lost: bool = False

    def __post_init__(self) -> None:
        self._steps = self._work()

    @property
    def over(self) -> bool:
        return self.done or self.fenced or self.lost

    def step(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self.done = True
        except Fenced:
            self.fenced = True

    def _work(self) -> Iterator[None]:
        world = self.world
        journal = world.journal(world.writer(self.execution_id, self.agent_id, generation=self.generation))
        yield
        world.do(journal.append(RunClaimed(generation=self.generation, host="h", resumes=self.resume)))
        yield
        events = [stored.event for stored in world.history[self.execution_id]]
        known = fold_run(events, self.agent_id)
        if known.finished is not None:
            return
        if known.started is None:
            world.do(journal.append(RunStarted(role="DEV", model="m", messages=(), tools=())))
        for call_id, entry in known.dangling.items():
            closed = ToolFinished(entry=_entry(self, call_id, Outcome.INTERRUPTED), result=interrupted(entry.operation))
            world.do(journal.append(closed))
            yield
        done = len(known.steps)
        for number in range(done + 1, CALLS + 1):
            call_id = f"call-{number}"
            world.do(journal.append(_reply(number, call_id)))
            yield
            world.do(journal.append(ToolStarted(entry=_entry(self, call_id, Outcome.STARTED))))
            yield
            world.effects[self.execution_id, self.agent_id, call_id] += 1
            result = ToolResult(success=True, operation="write_file", content="wrote")
            yield
            world.do(journal.append(ToolFinished(entry=_entry(self, call_id, Outcome.SUCCESS), result=result)))
            yield
        finished = RunFinished(
            stop_reason=StopReason.FINAL_ANSWER, artifacts=Artifacts(), usage=Usage(model_calls=CALLS), audit_head=""
        )
        world.do(journal.append(finished))


def _reply(number: int, call_id: str) -> ModelReplied:
    call = ToolCall(call_id=call_id, model_call_id=call_id, name="files_write_file", arguments="{}")
    message = AssistantMessage(content=f"step {number}", tool_calls=(call,))
    reply = ModelReply(message=message, finish_reason="tool_calls", usage=Usage(model_calls=1))
    return ModelReplied(step=number, reply=reply, duration_ms=1)


def _entry(run: Run, call_id: str, outcome: Outcome) -> AuditEntry:
    return AuditEntry(
        seq=1,
        at="",
        execution_id=run.execution_id,
        agent_id=run.agent_id,
        call_id=call_id,
        tool="files",
        operation="write_file",
        outcome=outcome,
    )
