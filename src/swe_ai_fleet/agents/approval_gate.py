"""What of a reply has to wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from swe_ai_fleet.domain.message import ToolCall


class Verdict(StrEnum):
    """Carry it out; tell the model why not; wait for a person; end the run."""

    GO = "go"
    REFUSE = "refuse"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What happens to one call. `text` is for the model where it is refused, and goes before the result otherwise."""

    verdict: Verdict = Verdict.GO
    text: str = ""


class ApprovalGate(Protocol):
    """Decides about the calls of a reply before any of them is carried out."""

    async def review(self, calls: Sequence[ToolCall], *, step: int) -> Sequence[Ruling]:
        """One ruling a call. Where one must wait, that it is asked for is durable in the log when this returns."""
        ...
