"""Holds a proposal until a person has decided, and everything with an effect until it is approved."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swe_ai_fleet.agents.approval_gate import Ruling, Verdict
from swe_ai_fleet.agents.plan_session.proposals import proposed_by
from swe_ai_fleet.agents.repair import Understood
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import OperationSpec
from swe_ai_fleet.tools.builtin.dialogue import PROPOSE

APPROVED = "The person approved this approach. Carry it out now, then call final_answer."
ADJUSTED = (
    "The person does not want it quite like this. What they ask for: {text}\n"
    "Work that in and call propose_approach again."
)
TOO_EARLY = "not run: nothing with an effect runs before the approach is approved. Call propose_approach first."
NOT_THIS = "not run: the approach that it belongs to is being adjusted."
SETTLED = "the approach is approved and stands; carry it out, and say in final_answer where you had to leave it."


class Understanding(Protocol):
    """Reads a call; `Toolbox.understand` does."""

    def __call__(self, call: ToolCall, *, truncated: bool = False) -> Understood: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalGate:
    """An `ApprovalGate` for one part of a plan session: before the decision, or after it.

    `understand` reads a call as the toolbox will. `waiting` are the ids of the calls that the decision is about; where
    it was to adjust, `adjustment` says how.
    """

    approved: bool
    understand: Understanding
    waiting: Collection[str] = field(default_factory=frozenset[str])
    adjustment: str = ""

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        """One ruling a call; a reply that was cut off proposes nothing."""
        return [self._ruling(self.understand(call, truncated=truncated)) for call in calls]

    def _ruling(self, understood: Understood) -> Ruling:
        waiting = understood.call.call_id in self.waiting
        if self.approved:
            if understood.spec is None or understood.spec.name != PROPOSE:
                return Ruling()
            return Ruling(text=APPROVED) if waiting else Ruling(verdict=Verdict.REFUSE, text=SETTLED)
        if proposed_by(understood) is not None:
            if waiting:
                return Ruling(verdict=Verdict.REFUSE, text=ADJUSTED.format(text=self.adjustment))
            return Ruling(verdict=Verdict.WAIT)
        if understood.spec is not None and has_effect(understood.spec):
            return Ruling(verdict=Verdict.REFUSE, text=NOT_THIS if waiting else TOO_EARLY)
        return Ruling()


def has_effect(spec: OperationSpec) -> bool:
    """Whether an operation can change anything."""
    return not spec.read_only or spec.executes
