"""The progress of answers: calls, results and text as they come, for whoever waits; nothing of it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from swe_ai_fleet.agents.function_calling.setup import AgentResponse
from swe_ai_fleet.domain.json_values import mappings
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.tools.registry import FINAL_ANSWER
from swe_ai_fleet.tools.secrets import Secrets


class ProgressKind(StrEnum):
    """Kinds of progress: a tool was called, a tool returned, the model wrote more text."""

    TOOL = "tool"
    RESULT = "result"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStep:
    """One step on the way to an answer; `text` is a piece of the model's text."""

    kind: ProgressKind
    text: str = ""
    tool: str = ""
    success: bool = True


class ProgressNotifier:
    """Reports the calls, results and text of a run as they happen, secrets masked.

    Args:
        secrets: What is masked.
        tell: Receives what happens.
    """

    def __init__(self, secrets: Secrets, tell: Callable[[AnswerStep], None]) -> None:
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
                        self._tell(AnswerStep(kind=ProgressKind.TOOL, tool=name))
            case "tool_finished":
                success = bool(metadata.get("success"))
                self._tell(AnswerStep(kind=ProgressKind.RESULT, tool=str(metadata.get("tool", "")), success=success))
            case _:
                pass

    def _say(self, text: str) -> None:
        if text:
            self._tell(AnswerStep(kind=ProgressKind.TEXT, text=text))


@dataclass(kw_only=True, eq=False)
class Listener:
    """Somebody who waits for an answer in this process: its progress, and a None at the end.

    `live` says that the progress comes from where the answer is given, with the text as it arrives.
    """

    progress: asyncio.Queue[AnswerStep | None] = field(default_factory=lambda: asyncio.Queue[AnswerStep | None]())
    live: bool = False


class LiveAnswers:
    """Passes on the progress of answers that are given in this process to those who wait for them here."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    @contextmanager
    def listening(self, execution_id: str) -> Generator[Listener]:
        """Listen to a message until the context ends."""
        listener = Listener()
        listeners = self._listeners.setdefault(execution_id, [])
        listeners.append(listener)
        try:
            yield listener
        finally:
            listeners.remove(listener)
            if not listeners:
                self._listeners.pop(execution_id, None)

    def tell(self, execution_id: str, step: AnswerStep) -> None:
        """Tell whoever listens now."""
        for listener in self._listeners.get(execution_id, ()):
            listener.live = True
            listener.progress.put_nowait(step)
