"""Proposals in a model's replies, and the gate that holds them until a person has decided.

A proposal is a call of `propose_approach`, a final answer, or a text that opens with one. Operations with an effect
wait for the approval.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.repair.reading import Understood
from swe_ai_fleet.agents.structured_output import Shape, flat
from swe_ai_fleet.agents.tool_call_dialects import OPENING
from swe_ai_fleet.agents.toolbox import FINAL_ANSWER, CallVerdict, Ruling, Toolbox
from swe_ai_fleet.domain.message import ToolCall
from swe_ai_fleet.domain.tool import OperationSpec, ToolResult
from swe_ai_fleet.tools.builtin import ANSWER_KEYS, ASK, PROPOSE
from swe_ai_fleet.tools.operation import Toolkit, operation

_MAX_CHARS = 40_000
APPROVED = "The person approved this approach. Carry it out now, then call final_answer."
ADJUSTED = (
    "The person does not want it quite like this. What they ask for: {text}\n"
    "Work that in and call propose_approach again."
)
ANSWERED = "The person answers: {text}"
PROPOSE_NOW = (
    "Nothing is done yet. Look further with a tool, call propose_approach with what you would do, or call ask_user "
    "where you cannot tell without the person."
)
NOT_NOW = "not asked: the approach is approved. Go on as you think best, and say in final_answer what you assumed."
TOO_EARLY = "not run: nothing with an effect runs before the approach is approved. Call propose_approach first."
NOT_THIS = "not run: the approach that it belongs to is being adjusted."
SETTLED = "the approach is approved and stands; carry it out, and say in final_answer where you had to leave it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """An approach as a model proposed it, or a `question` to the person in its place.

    A proposal that was `said`, in a text or a final answer, counts once a separate model call has confirmed it.
    """

    approach: str = ""
    reasoning: str = ""
    question: str = ""
    said: bool = False


class SaidShape(Shape):
    """The kind of a text, as a separate model call finds it."""

    kind: Literal["proposal", "question", "neither"]

    def read(self, text: str) -> Proposed | None:
        """The text as a proposal or a question; None for neither."""
        return {"proposal": Proposed(approach=text), "question": Proposed(question=text)}.get(self.kind)


class Proposals(Toolkit):
    """`propose_approach` and `ask_user`; the gate holds their calls, so only decided ones are run."""

    name: ClassVar[str] = "plan_session"
    bare: ClassVar[bool] = True

    @operation(read_only=True, locks=("proposal",), time_limit_seconds=10.0)
    async def propose_approach(
        self,
        approach: Annotated[str, BeforeValidator(flat), Field(description="The steps, in order.", min_length=1)],
        reasoning: Annotated[str, BeforeValidator(flat), Field(description="Why this way.")] = "",
    ) -> ToolResult:
        """Propose how you would go about the goal, before doing anything with an effect; the person decides."""
        fields = {"approach": approach[:_MAX_CHARS], "reasoning": reasoning[:_MAX_CHARS], "status": "proposed"}
        return ToolResult(success=True, operation=PROPOSE, content="Proposed.", metadata=fields)

    @operation(read_only=True, locks=("proposal",), time_limit_seconds=10.0)
    async def ask_user(
        self, question: Annotated[str, BeforeValidator(flat), Field(description="All of it.", min_length=1)]
    ) -> ToolResult:
        """Ask the person what you must know before you can propose. Only for what cannot be found out otherwise."""
        return ToolResult(success=True, operation=ASK, content="Asked.", metadata={"question": question[:_MAX_CHARS]})


def proposed_by(call: Understood) -> Proposed | None:
    """The proposal or question of a call; a final answer is a proposal that was `said`. None for any other call."""
    if call.spec is None or call.error:
        return None
    if call.spec.name == PROPOSE:
        approach = _text(call.arguments, "approach")
        return Proposed(approach=approach, reasoning=_text(call.arguments, "reasoning")) if approach else None
    if call.spec.name == ASK:
        question = _text(call.arguments, "question")
        return Proposed(question=question) if question else None
    if call.spec is FINAL_ANSWER:
        answer = _text(call.arguments, *ANSWER_KEYS)
        return Proposed(approach=answer, said=True) if answer else None
    return None


def proposed_among(calls: Sequence[Understood]) -> Proposed | None:
    """The first proposal of a reply: an approach before a question, and a question before a final answer."""
    proposals = [proposed for call in calls if (proposed := proposed_by(call)) is not None]
    return min(proposals, key=lambda proposed: (proposed.said, bool(proposed.question)), default=None)


def has_call_markup(text: str) -> bool:
    """Whether a text contains the beginning of a call that could not be parsed."""
    return any(not mark["thought"] for mark in OPENING.finditer(text[:_MAX_CHARS]))


def _text(arguments: Mapping[str, object], *keys: str) -> str:
    for key in keys:
        if text := flat(arguments.get(key))[:_MAX_CHARS]:
            return text
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalGate:
    """An `ApprovalGate` for one request of a plan session: before the decision, or after it.

    `waiting` are the ids of the calls that the decision is about; `answer` is the person's text about them. `examine`
    finds the proposal or question in a text.
    """

    approved: bool
    toolbox: Toolbox
    examine: Callable[[str], Awaitable[Proposed | None]]
    waiting: Collection[str] = field(default_factory=frozenset[str])
    answer: str = ""

    async def review(self, calls: Sequence[ToolCall], *, step: int, truncated: bool = False) -> Sequence[Ruling]:
        """One ruling for each call; a reply that was cut off proposes nothing."""
        return [await self._ruling(self.toolbox.understand(call, truncated=truncated)) for call in calls]

    async def _ruling(self, understood: Understood) -> Ruling:
        waiting = understood.call.call_id in self.waiting
        name = understood.spec.name if understood.spec is not None else ""
        if self.approved:
            if name == ASK:
                return Ruling(verdict=CallVerdict.REFUSE, text=NOT_NOW)
            if name != PROPOSE:
                return Ruling()
            return Ruling(text=APPROVED) if waiting else Ruling(verdict=CallVerdict.REFUSE, text=SETTLED)
        if (proposed := proposed_by(understood)) is not None:
            if waiting:
                return Ruling(text=self.answer, verdict=CallVerdict.GO if name == ASK else CallVerdict.REFUSE)
            if proposed.said and await self.examine(proposed.approach) is None:
                return Ruling(verdict=CallVerdict.REFUSE, text=PROPOSE_NOW)
            return Ruling(verdict=CallVerdict.WAIT)
        if understood.spec is not None and has_effect(understood.spec):
            return Ruling(verdict=CallVerdict.REFUSE, text=NOT_THIS if waiting else TOO_EARLY)
        return Ruling()


def has_effect(spec: OperationSpec) -> bool:
    """Whether an operation can change anything."""
    return not spec.read_only or spec.executes
