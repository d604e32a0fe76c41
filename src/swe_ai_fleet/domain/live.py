"""What is said at this moment and kept nowhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of what a model says to an agent, masked. `begins` opens a new reply, or the same one tried again."""

    agent_id: str
    text: str
    begins: bool = False
