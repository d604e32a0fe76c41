"""What the tools of one turn share."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_ai_fleet.conversations.session import Proposal
from swe_ai_fleet.domain.memory import MemoryScope


@dataclass(slots=True, kw_only=True)
class Desk:
    """What one turn's tools work with and leave: the person's words, the proposal, what was kept."""

    text: str
    scope: MemoryScope
    source: str
    now: str
    nonce: str
    proposal: Proposal | None = None
    remembered: list[str] = field(default_factory=list[str])
