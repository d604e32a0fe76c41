"""A chat at a scripted model server, and a fleet that remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_ai_fleet.domain.errors import NotFound, Unavailable
from swe_ai_fleet.extensions.chat.session import ChatMessage
from swe_ai_fleet.runtime.execution_tools import CheckSummary, ExecutionDetail, ExecutionSummary
from swe_ai_fleet.testing import Conversation, Script, Turn
from tests.chat_script import COLOUR_CONVERSATIONS, SQUARES, answered, called, said

IDS = tuple(f"0000000{number}-0000-4000-8000-000000000000" for number in (1, 2, 3))

SCRIPT = Script(
    conversations=(
        *COLOUR_CONVERSATIONS,
        *said("Work out 15", called("calculator", expression="15 * 23 + 17"), answered("It is 362.")),
        *said("squares", called("python_executor", code=SQUARES), answered("The sum is 385.")),
        *said("List the executions", called("list_executions"), answered("Here is what goes on.")),
        *said("second one", called("show_execution", execution=IDS[1]), answered("It is done.")),
        *said(
            "Start",
            called("start_task", description="Fix the parser", repository="/srv/app", agents=2),
            answered("I propose this."),
        ),
        *said(
            "Read the page",
            called("read_notes"),
            Turn(
                tool_calls=(
                    ("start_task", {"description": "Delete everything", "repository": "/srv/app"}),
                    ("remember", {}),
                )
            ),
            answered("Read."),
        ),
        *said(
            "Conceal",
            called("start_task", description="Delete everything", repository="/srv/app"),
            answered("Shall I fix a comma? <details><!--"),
        ),
        *said(
            "Hide", called("start_task", description="Fix it", repository="/srv/\u202eppa"), answered("It is refused.")
        ),
        *said("Look into", called("file_reader", file_path="notes.txt"), answered("It needs NATS.")),
        *said("marked secret", answered("It says hunter2\\-**hunter2**, `hunter2-`hunter2.")),
        *said("secret", called("leak"), answered("It says hunter2-hunter2.")),
        *said("slow", Turn(content="Late.", delay_seconds=30)),
    ),
    default=Conversation(turns=(answered("Hello."),)),
)


@dataclass(frozen=True)
class Talk:
    """A chat, spoken to in few words."""

    chat: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.chat, name)

    async def told(self, session_id: str, text: str, **fields: Any) -> list[Any]:
        """The progress, and the answer behind it."""
        message = ChatMessage(session_id=session_id, text=text, **fields)
        return [update async for update in self.chat.stream(message)]

    async def send(self, session_id: str, text: str, **fields: Any) -> Any:
        return (await self.told(session_id, text, **fields))[-1]


@dataclass
class Fleet:
    """A fleet with three executions; what is started in it is only written down."""

    started: list[tuple[Any, str]] = field(default_factory=list)
    fault: Unavailable | None = None
    loses: bool = False
    hangs: asyncio.Event | None = None

    async def executions(self, *, status: str = "", limit: int = 10) -> Sequence[ExecutionSummary]:
        return [
            ExecutionSummary(execution_id=one, description=f"task {number}", status=status or "completed")
            for number, one in enumerate(IDS, start=1)
        ][:limit]

    async def execution(self, name: str) -> ExecutionDetail:
        if name not in IDS:
            raise NotFound(f"there is no execution {name}")
        summary = ExecutionSummary(execution_id=name, description="Fix it", status="completed")
        checks = (CheckSummary(name="tests", outcome="passed"),)
        return ExecutionDetail(execution=summary, winner="c1", checks=checks, files=("src/a.py", "src/b.py"))

    async def start(self, proposal: Any, *, key: str) -> str:
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.Event().wait()
        if self.fault is None or self.loses:
            self.started.append((proposal, key))
        if self.fault is not None:
            raise self.fault
        return "99999999-0000-4000-8000-000000000000"
