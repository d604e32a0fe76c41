"""Replies as servers send them, each with what an agent has to make of it; and the agent that is made to read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from swe_ai_fleet.agents.agent_run import RunParts
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning.plan_run import drive
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.message import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from swe_ai_fleet.domain.task import PlanningMode, Role
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.domain.trajectory import Trajectory
from swe_ai_fleet.ports import ChatModel
from swe_ai_fleet.testing import Conversation, Failure, Script, Turn
from swe_ai_fleet.tools import Pipeline, Toolkit
from swe_ai_fleet.tools.catalogue import operations, shown_first
from swe_ai_fleet.tools.definition import CalledToolkit

CASES = Path(__file__).parent / "cases"
DONE = "It is done."
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What must come of a reply.

    `calls` are those carried out, with their arguments; `repairs` the names of the repairs of calls, all of them, in
    any order; `reply_repairs` whether the adapter mended something; `feedback` texts that the model reads; `unsaid`
    texts that it must not read; `content` what is kept as the reply's text; `stop` the stop reason.
    """

    __pydantic_config__ = _STRICT

    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    repairs: Sequence[str] = ()
    reply_repairs: bool | None = None
    feedback: Sequence[str] = ()
    unsaid: Sequence[str] = ()
    content: str | None = None
    stop: str = "final_answer"
    answer: str | None = None
    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A reply: one `call` (name, arguments), several `calls`, a `message`, or a whole `body`; then a final answer.

    `times` repeats it. `recorded` says where it was seen.
    """

    __pydantic_config__ = _STRICT

    id: str
    expect: Expected
    call: tuple[str, str] | None = None
    calls: Sequence[tuple[str, str]] = ()
    message: Mapping[str, Any] | None = None
    body: Any = None
    finish_reason: str | None = "tool_calls"
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5})
    protocol: str = "native"
    stream: bool = False
    status: int = 200
    times: int = 1
    recorded: str = ""

    @property
    def marker(self) -> str:
        return f"<<{self.id}>>"

    @property
    def text(self) -> str:
        """The body of the answer."""
        if self.body is not None:
            return self.body if isinstance(self.body, str) else json.dumps(self.body)
        message = self.message
        if message is None:
            pairs = [self.call] if self.call else list(self.calls)
            message = {"role": "assistant", "content": None, "tool_calls": [_wire(*pair) for pair in pairs]}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": self.usage})


def _wire(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def load_cases() -> list[Case]:
    """Every case of every file, named by file and id."""
    found: list[Case] = []
    for path in sorted(CASES.glob("*.json")):
        cases = TypeAdapter(list[Case]).validate_json(path.read_bytes())
        found += [replace(case, id=f"{path.stem}-{case.id}") for case in cases]
    return found


_END = Turn(tool_calls=(("final_answer", {"result": DONE}),))


def script_of(cases: Sequence[Case]) -> Script:
    """Each case's reply, and then a final answer, for the conversation that names it."""
    return Script(
        conversations=tuple(
            Conversation(
                match=case.marker,
                turns=(Failure(status=case.status, body=case.text, times=case.times), _END) * case.times,
            )
            for case in cases
        )
    )


class Noted(Toolkit):
    """Every operation of the catalogue with its own schema and checks; what would be carried out is noted instead."""

    name = "noted"

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.definitions = {name: _Noting(definition) for name, definition in operations().items()}


class _Noting:
    def __init__(self, definition: Any) -> None:
        self._definition = definition

    @property
    def spec(self) -> OperationSpec:
        return self._definition.spec

    def validate(self, arguments: Mapping[str, object]) -> dict[str, object]:
        self._definition.validate(arguments)
        return dict(arguments)

    async def run(self, toolkit: CalledToolkit, arguments: Mapping[str, object]) -> ToolResult:
        assert isinstance(toolkit, Noted)
        toolkit.calls.append((self.spec.name, dict(arguments)))
        return ToolResult(success=True, operation=self.spec.name, content="noted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run did."""

    trajectory: Trajectory
    calls: list[tuple[str, dict[str, Any]]]
    history: History

    @property
    def told(self) -> str:
        """Everything the model was told after the opening."""
        messages = list(self.history.messages)[2:]
        return "\n".join(m.content for m in messages if isinstance(m, ToolMessage | UserMessage))


async def run_agent(
    model: ChatModel, prompt: str, *, stream: bool = False, mode: PlanningMode = PlanningMode.AGENTIC
) -> Ran:
    """One agent with a note-taking toolbox, driven to its end."""
    pipeline = Pipeline()
    kit = Noted(pipeline)
    idle = frozenset(kit.definitions) - shown_first(Role.DEV)
    toolbox = Toolbox({kit.name: kit}, pipeline, idle=idle)
    history = History((SystemMessage(content="You are an agent."), UserMessage(content=prompt)))
    heard: list[str] = []
    parts = RunParts(
        model=model,
        toolbox=toolbox,
        history=history,
        budget=Budget(Limits(max_iterations=12, max_tool_calls=40, timeout_seconds=20.0)),
        on_delta=heard.append if stream else None,
    )
    trajectory = await drive(mode, parts, task_text=prompt)
    return Ran(trajectory=trajectory, calls=kit.calls, history=history)


def assert_well_formed(ran: Ran) -> None:
    """Every call is answered exactly once, after it and before the next reply; no id stands for two calls."""
    messages = list(ran.history.messages)
    ids: set[str] = set()
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert waiting, "an observation that answers no call"
            assert message.call_id == waiting.pop(0)
            continue
        assert not waiting, "a call without an observation"
        if isinstance(message, AssistantMessage):
            waiting = [call.call_id for call in message.tool_calls]
            assert len(set(waiting)) == len(waiting)
            assert not ids & set(waiting)
            ids |= set(waiting)
    assert not waiting, "a call without an observation"
    seen = [observation.call_id for step in ran.trajectory.steps for observation in step.observations]
    assert len(seen) == len(set(seen))
    assert ran.trajectory.stop_reason
    # What is kept must be fit for the log and for the wire.
    for message in messages:
        message.content.encode()


def kind(repair: str) -> str:
    """The stable name of a repair."""
    return re.split(r"[:\s]", repair, maxsplit=1)[0]
