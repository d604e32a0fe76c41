"""What models say while they say it, as lines of a terminal."""

from __future__ import annotations

import json

from fleet.orchestrator.v1 import orchestrator_pb2 as pb

TEXT_DELTA = "text_delta"
_LONGEST = 400


class Speech:
    """Pieces of text, put together to lines, for each agent."""

    def __init__(self) -> None:
        self._begun: dict[str, str] = {}

    def hear(self, event: pb.ExecutionEvent) -> list[str]:
        """The lines that a piece completes; a piece that begins a reply completes what stood before it."""
        piece = json.loads(event.payload_json)
        text, lines = str(piece["text"]), list[str]()
        before = self._begun.pop(event.agent_id, "")
        if piece.get("begins") and before:
            lines, before = [before], ""
        *whole, rest = (before + text).split("\n")
        lines += whole
        while len(rest) > _LONGEST:
            lines, rest = [*lines, rest[:_LONGEST]], rest[_LONGEST:]
        if rest:
            self._begun[event.agent_id] = rest
        return [f"{event.agent_id} | {line}" for line in lines if line.strip()]

    def rest(self, agent_id: str) -> list[str]:
        """What an agent's model said last, where its line never ended."""
        left = self._begun.pop(agent_id, "")
        return [f"{agent_id} | {left}"] if left.strip() else []
