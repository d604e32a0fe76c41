"""A planning agent at a scripted model server, with a laboratory for its tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.planning import ModeRules, drive
from swe_ai_fleet.agents.run_parts import RunParts
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.event import (
    Event,
    MessageAdded,
    Writer,
)
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Trajectory
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.sandbox import LocalWorkspace, open_workspace
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, ScriptRequest, Turn
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.builtin import BuiltinTools
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.git import GitTool
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.tests import TestTool
from tests.with_pytest import WITH_PYTEST

TASK = "Look at a.py and say what one() returns."

CHANGE = "Create the file b.py."

PLAN, CORRECT, AGAIN, VERIFY, ALONE = (
    "# Operations",
    "cannot be carried out",
    "The plan no longer holds",
    "Is the goal met?",
    "choose each next step yourself",
)

WRITER = Writer(tenant="default", execution_id="e", task_id="t", agent_id="agent", generation=1)


class Lab(Toolkit):
    """Operations that do as they are told."""

    name: ClassVar[str] = "lab"

    def __init__(self, workspace: Any, pipeline: Pipeline, *, fails: int = 0) -> None:
        super().__init__(workspace, pipeline)
        self.fails = fails
        self.calls: list[str] = []

    @operation(read_only=True)
    async def look(self, at: str = "") -> ToolResult:
        """Look at something."""
        self.calls.append(f"look {at}".strip())
        return ToolResult(success=True, operation="lab_look", content=f"saw {at}")

    @operation(read_only=True)
    async def flaky(self) -> ToolResult:
        """Fail as often as the lab says."""
        self.calls.append("flaky")
        if len([call for call in self.calls if call == "flaky"]) <= self.fails:
            raise ToolFailure("it is out of order")
        return ToolResult(success=True, operation="lab_flaky", content="works")

    @operation(read_only=True)
    async def wait(self) -> ToolResult:
        """Wait for what never comes."""
        self.calls.append("wait")
        await asyncio.Event().wait()
        return ToolResult(success=True, operation="lab_wait")

    @operation(executes=True)
    async def check(self, code: int) -> ToolResult:
        """End with an exit code."""
        self.calls.append(f"check {code}")
        error = f"exit code {code}" if code else ""
        outcome = Outcome.ERROR if code else Outcome.SUCCESS
        return ToolResult(
            success=not code, operation="lab_check", content="red", error=error, exit_code=code, outcome=outcome
        )


@dataclass(kw_only=True)
class Bench:
    """One agent's surroundings: a repository, tools, a log, a scripted model."""

    server: ScriptedModelServer
    model: OpenAIChatModel
    toolbox: Toolbox
    lab: Lab
    root: Path
    log: MemoryLog
    journal: Journal
    budget: Budget
    history: History = field(default_factory=lambda: opening(TASK))

    async def run(
        self,
        mode: PlanningMode = PlanningMode.SIMPLE,
        *,
        task_text: str = TASK,
        mode_rules: ModeRules | None = None,
        **others: Any,
    ) -> Trajectory:
        parts = RunParts(
            model=self.model, toolbox=self.toolbox, history=self.history, budget=self.budget, journal=self.journal
        )
        trajectory = await drive(mode, replace(parts, **others), task_text=task_text, mode_rules=mode_rules)
        await self.journal.flush()
        well_formed(self.history.messages)
        return trajectory

    @property
    def asked(self) -> int:
        """How many requests the model server got, its probing left out."""
        return len([body for body in self.server.bodies if any(m["role"] == "system" for m in body["messages"])])

    @property
    def told(self) -> list[str]:
        """What the fleet itself said to the model."""
        added = [event.body.message for event in self.events if isinstance(event.body, MessageAdded)]
        return [message.content for message in added if isinstance(message, UserMessage)]

    @property
    def events(self) -> list[Event]:
        return self.log.events


Extra = Callable[[LocalWorkspace, Pipeline], Sequence[Toolkit]]


@asynccontextmanager
async def bench(
    place: Path,
    *conversations: Conversation,
    fails: int = 0,
    task: str = TASK,
    context: int = 131_072,
    extra: Extra | None = None,
    **limits: Any,
) -> AsyncIterator[Bench]:
    root = place / "clone"
    log = MemoryLog()
    async with (
        ScriptedModelServer(Script(conversations=conversations), max_model_len=context) as server,
        OpenAIChatModel(base_url=server.url, retry_wait_seconds=0.001, max_retries=2) as model,
        open_workspace(root, environment=WITH_PYTEST) as workspace,
        log.journal(WRITER) as journal,
    ):
        pipeline = Pipeline(trail=AuditTrail(execution_id="e", agent_id="agent", journal=journal))
        lab = Lab(workspace, pipeline, fails=fails)
        kits: list[Toolkit] = [
            FileTool(workspace, pipeline),
            GitTool(workspace, pipeline),
            TestTool(workspace, pipeline),
            BuiltinTools(workspace, pipeline),
            lab,
            *(extra(workspace, pipeline) if extra else ()),
        ]
        toolbox = Toolbox({kit.name: kit for kit in kits}, pipeline)
        yield Bench(
            server=server,
            model=model,
            toolbox=toolbox,
            lab=lab,
            root=root,
            log=log,
            journal=journal,
            budget=Budget(Limits(**limits)),
            history=opening(task),
        )


def opening(task: str) -> History:
    return History((SystemMessage(content="You are an agent."), UserMessage(content=task)))


def said(marker: str, content: object, *, nth: int = 1) -> Conversation:
    """What the model answers where the last thing it was told holds the marker, for the nth time."""

    def fits(request: ScriptRequest) -> bool:
        told = [_text(message) for message in request.payload["messages"] if message["role"] == "user"]
        return marker in told[-1] and len([text for text in told if marker in text]) == nth

    text = content if isinstance(content, str) else json.dumps(content)
    return Conversation(predicate=fits, turns=(Turn(content=text),))


def _text(message: dict[str, Any]) -> str:
    return message["content"] if isinstance(message["content"], str) else json.dumps(message["content"])


def plan(*steps: dict[str, Any], marker: str = PLAN, nth: int = 1) -> Conversation:
    return said(marker, {"reasoning": "so", "steps": steps}, nth=nth)


def step(name: str, *, on_failure: str = "", expect: str = "", **params: object) -> dict[str, Any]:
    tool, _, rest = name.partition("_")
    given = {"tool": tool, "operation": rest, "params": params, "why": "why not"}
    return given | ({"on_failure": on_failure} if on_failure else {}) | ({"expect": expect} if expect else {})


def verdict(answer: str, *, met: bool = True, missing: str = "", nth: int = 1) -> Conversation:
    return said(VERIFY, {"met": met, "missing": missing, "answer": answer}, nth=nth)


def statuses(trajectory: Trajectory) -> list[str]:
    assert trajectory.plan is not None
    return [str(report.status) for report in trajectory.plan.steps]


def well_formed(messages: Sequence[Message]) -> None:
    """Each call is answered exactly once, right behind its message; only the last message's calls may still wait."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.call_id in open_calls
            open_calls.remove(message.call_id)
            continue
        assert not open_calls
        if isinstance(message, AssistantMessage):
            open_calls = [call.call_id for call in message.tool_calls]
            assert not seen & set(open_calls)
            seen |= set(open_calls)


LOOK = step("lab_look", at="x")
