"""A model's view of a change by a rubric, item by item, each with a quote that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.prompting import Fence, evidence
from swe_ai_fleet.agents.sub_agents.structured_output import Shape, Text, opening, reply_in_shape
from swe_ai_fleet.domain.assignment import CheckAssignment
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import CheckReport, Perspective
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.json_values import is_mapping, is_object
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.truncation import beginning

MAX_SECONDS = 180.0
MAX_DIFF_CHARS = 60_000
MAX_EVIDENCE_CHARS = 6_000
_TASK_CHARS = 16_000
_CHARS_PER_TOKEN = 3
_DIFF_SHARE = 0.5


def _number(value: object) -> object:
    """An item's number, which models also write as `Item 2` or `2.`."""
    if isinstance(value, str):
        digits = "".join(letter if letter.isdigit() else " " for letter in value[:20]).split()
        return int(digits[0]) if digits else value
    return value


def _entries(value: object) -> object:
    """Entries under their numbers, which models write as an object too."""
    if is_mapping(value):
        pairs = value.items()
        return [{"item": key, **part} for key, part in pairs if is_object(part)]
    return value


class ItemShape(Shape):
    item: Annotated[int, BeforeValidator(_number)] = Field(description="The item's number.")
    verdict: Text = Field(description="met, partly or not.")
    quote: Text = Field(default="", description="The exact lines of the change that show it; empty where it is not.")
    file: Text = Field(default="", description="The file that the quote stands in.")
    reason: Text = Field(default="", description="Why, in one sentence.")


class RubricShape(Shape):
    items: Annotated[list[ItemShape], BeforeValidator(_entries)] = Field(description="One entry for each item.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemVerdict:
    """What the model says of one item, from 1; `verdict` is its own word. Untrusted text."""

    item: int
    verdict: str
    quote: str = ""
    file: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricOpinion:
    """A model's answer, and what it cost. Without an answer `error` says why."""

    verdicts: tuple[ItemVerdict, ...] = ()
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class RubricJudge:
    """Asks the task's first model profile, once for a candidate."""

    equipment: Equipment

    async def opinion(
        self, assignment: CheckAssignment, items: Sequence[str], diff: str, report: CheckReport
    ) -> RubricOpinion:
        """What the model says of each item. Faults of the model and unusable answers are opinions with an error.

        Args:
            assignment: Whose candidate it is.
            items: What the change is held against.
            diff: The change.
            report: What other checks said.
        """
        task, mask = assignment.task, self.equipment.mask
        trail = AuditTrail(execution_id=assignment.execution_id, agent_id=f"rubric-{assignment.candidate_id}")
        budget = Budget(Limits(timeout_seconds=MAX_SECONDS))
        name = ""
        try:
            model = self.equipment.model(task, Perspective(model_profile=next(iter(task.profiles), "")), trail)
            capabilities = await model.probe()
            name = capabilities.model
            budget.begin(self.equipment.price(name))
            room = round(capabilities.max_model_len * _CHARS_PER_TOKEN * _DIFF_SHARE) or MAX_DIFF_CHARS
            digest = assignment.patch.digest if assignment.patch else ""
            fence = Fence(mask, task.execution_id, assignment.candidate_id, digest)
            numbered = "\n".join(f"{number}. {mask(item)}" for number, item in enumerate(items, start=1))
            sections = (
                ("Task", beginning(mask(task.description), min(_TASK_CHARS, room // 4))),
                ("Items", numbered),
                ("The change", fence(diff, min(MAX_DIFF_CHARS, room))),
                ("What the checks said", evidence(report, fence, min(MAX_EVIDENCE_CHARS, room // 4))),
            )
            messages = opening("rubric", sections, count=len(items), warning=fence.warning)
            answer = await reply_in_shape(model, messages, RubricShape, budget=budget, check=_check)
        except FleetError as error:
            return RubricOpinion(model=name, usage=budget.total(), error=mask(error.message))
        verdicts = tuple(
            ItemVerdict(item=item.item, verdict=item.verdict, quote=item.quote, file=item.file, reason=item.reason)
            for item in answer.items
        )
        return RubricOpinion(verdicts=verdicts, model=name, usage=budget.total())


def _check(answer: RubricShape) -> str:
    return "" if answer.items else "the list of items is empty"
