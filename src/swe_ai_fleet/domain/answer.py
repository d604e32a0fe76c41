"""What an agent answered to a question of a workflow's node."""

from __future__ import annotations

from dataclasses import dataclass, field

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.trajectory import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an agent answered: untrusted text. `error` says why it is not one that can be built upon.

    `tools` are the names of what it called, in order.
    """

    text: str
    stop_reason: StopReason
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    audit_head: str = ""
    error: str = ""
    tools: tuple[str, ...] = ()
