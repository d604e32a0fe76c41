"""The answer of a chat, and the progress on the way to it: calls, results and text of a run, secrets masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.agents.function_calling.responses import AgentResponse
from swe_ai_fleet.agents.references.resolving import Reference
from swe_ai_fleet.conversations.document import Table
from swe_ai_fleet.conversations.pages import Channel, pages
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.json_values import mappings
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.extensions.chat.session import Session, Turn
from swe_ai_fleet.tools.registry.toolkit import FINAL_ANSWER
from swe_ai_fleet.tools.secrets import Secrets


class ProgressKind(StrEnum):
    """Kinds of progress: a tool was called, a tool returned, the model wrote more text."""

    TOOL = "tool"
    RESULT = "result"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step on the way to an answer; `text` is a piece of the model's text."""

    kind: ProgressKind
    text: str = ""
    tool: str = ""
    success: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one message.

    Attributes:
        session_id: Of the chat.
        turn: The number of the message in it.
        text: The answer in Markdown.
        tables: The data below it.
        channel: Where it is read.
        pages: Text and tables in the format of that channel.
        success: Whether it is an answer rather than an excuse.
        stop_reason: How the work ended: `final_answer`, `no_tool_calls`, a limit, `question`, `started`, a fault.
        references: The resolved phrases of the message.
        tools: The names of the called tools, in order.
        proposed: Whether a task waits for the person's yes.
        execution_id: Of the task that this message started.
        repeated: Whether the same message had been answered before, and this is that answer.
        usage: What was spent.
    """

    session_id: str
    turn: int
    text: str
    channel: Channel
    pages: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    success: bool = True
    stop_reason: str = ""
    references: tuple[Reference, ...] = ()
    tools: tuple[str, ...] = ()
    proposed: bool = False
    execution_id: str = ""
    repeated: bool = False
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def to(cls, session: Session, turn: Turn, channel: Channel) -> Answer:
        """The answer to a message in the format of a channel; `session` is the state after it."""
        return cls(
            session_id=session.session_id,
            turn=turn.number,
            text=turn.answer,
            channel=channel,
            pages=pages(turn.answer, channel, turn.tables),
            tables=turn.tables,
            success=turn.success,
            stop_reason=turn.stop_reason,
            references=turn.references,
            tools=turn.tools,
            proposed=session.proposal is not None and session.proposal.turn == turn.number,
            execution_id=turn.execution_id,
        )


class ProgressNotifier:
    """Reports the calls, results and text of a run as they happen, secrets masked.

    Args:
        secrets: What is masked.
        tell: Receives what happens.
    """

    def __init__(self, secrets: Secrets, tell: Callable[[Progress], None]) -> None:
        self._secrets = secrets
        self._tell = tell
        self._stream = secrets.stream()

    def hear(self, response: AgentResponse) -> None:
        """Report one response of the run."""
        metadata = response["metadata"]
        match metadata.get("event"):
            case "delta":
                self._say(self._stream.feed(well_formed(response["value"])))
            case "model_replied":
                self._say(self._stream.finish())
                self._stream = self._secrets.stream()
                for call in mappings(metadata.get("tool_calls")):
                    if (name := well_formed(str(call.get("name", "")))[:64]) != FINAL_ANSWER:
                        self._tell(Progress(kind=ProgressKind.TOOL, tool=name))
            case "tool_finished":
                success = bool(metadata.get("success"))
                self._tell(Progress(kind=ProgressKind.RESULT, tool=str(metadata.get("tool", "")), success=success))
            case _:
                pass

    def _say(self, text: str) -> None:
        if text:
            self._tell(Progress(kind=ProgressKind.TEXT, text=text))
