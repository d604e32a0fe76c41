"""The progress of answers: calls, results and text as they arrive, for callers that wait; nothing is stored."""

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
        secrets: Masks the text.
        report: Receives the progress.
    """

    def __init__(self, secrets: Secrets, report: Callable[[AnswerStep], None]) -> None:
        self._secrets = secrets
        self._report = report
        self._stream = secrets.stream()

    def notify(self, response: AgentResponse) -> None:
        """Report the progress that a response of the run shows."""
        metadata = response["metadata"]
        match metadata.get("event"):
            case "delta":
                self._say(self._stream.feed(well_formed(response["value"])))
            case "model_replied":
                self._say(self._stream.finish())
                self._stream = self._secrets.stream()
                for call in mappings(metadata.get("tool_calls")):
                    if (name := well_formed(str(call.get("name", "")))[:64]) != FINAL_ANSWER:
                        self._report(AnswerStep(kind=ProgressKind.TOOL, tool=name))
            case "tool_finished":
                success = bool(metadata.get("success"))
                self._report(AnswerStep(kind=ProgressKind.RESULT, tool=str(metadata.get("tool", "")), success=success))
            case _:
                pass

    def _say(self, text: str) -> None:
        if text:
            self._report(AnswerStep(kind=ProgressKind.TEXT, text=text))


@dataclass(kw_only=True, eq=False)
class Listener:
    """The queue of a caller that waits for an answer in this process: the progress, and a None at the end.

    `live` says that this process drives the answer, so that its text is reported as it arrives.
    """

    progress: asyncio.Queue[AnswerStep | None] = field(default_factory=lambda: asyncio.Queue[AnswerStep | None]())
    live: bool = False


class LiveAnswers:
    """Passes the progress of answers that this process drives to the callers that wait for them here."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}

    @contextmanager
    def listening(self, execution_id: str) -> Generator[Listener]:
        """Listen to the answer of an execution until the context ends."""
        listener = Listener()
        listeners = self._listeners.setdefault(execution_id, [])
        listeners.append(listener)
        try:
            yield listener
        finally:
            listeners.remove(listener)
            if not listeners:
                self._listeners.pop(execution_id, None)

    def publish(self, execution_id: str, step: AnswerStep) -> None:
        """Pass a step to all current listeners."""
        for listener in self._listeners.get(execution_id, ()):
            listener.live = True
            listener.progress.put_nowait(step)
