"""What a run tells of itself, as what somebody in a chat is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from swe_ai_fleet.agents.function_calling.responses import AgentResponse
from swe_ai_fleet.conversations.answer import Progress, ProgressKind
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.tools.registry.toolkit import FINAL_ANSWER
from swe_ai_fleet.tools.secrets import Secrets


class Telling:
    """Hears a run and tells of calls, results and text, secrets masked.

    Args:
        secrets: What is masked.
        tell: Receives what happens.
    """

    def __init__(self, secrets: Secrets, tell: Callable[[Progress], None]) -> None:
        self._secrets = secrets
        self._tell = tell
        self._stream = secrets.stream()

    def hear(self, response: AgentResponse) -> None:
        """Take one response in."""
        metadata = response["metadata"]
        match metadata.get("event"):
            case "delta":
                self._say(self._stream.feed(well_formed(response["value"])))
            case "model_replied":
                self._say(self._stream.finish())
                self._stream = self._secrets.stream()
                for call in cast("list[dict[str, object]]", metadata.get("tool_calls") or []):
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
