"""The ids of the calls that a plan makes: they say which step of which plan a call belongs to.

A run that goes on elsewhere reads from them how far it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_ID = re.compile(r"p([1-9]\d{0,3})([svaf])([1-9]\d{0,3})t([1-9]\d{0,3})(?:n([0-9a-f]{8}))?")


class Purpose(StrEnum):
    """A step of the plan; a look at what it changed; the question whether it is approved; the answer."""

    STEP = "s"
    VERIFY = "v"
    APPROVE = "a"
    FINISH = "f"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCallId:
    """Call `attempt` for step (or look) `number` of plan `plan`, all counted from 1.

    `nonce` is eight hexadecimal digits of the process that makes the calls, so that what was decided about a call of
    one run is never taken for a decision about another's.
    """

    plan: int
    purpose: Purpose
    number: int = 1
    attempt: int = 1
    nonce: str = ""

    def __str__(self) -> str:
        return f"p{self.plan}{self.purpose}{self.number}t{self.attempt}{self.nonce and 'n' + self.nonce}"

    @classmethod
    def read(cls, text: str) -> PlanCallId | None:
        """What an id says; None where it is no plan's."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        return cls(
            plan=int(found[1]),
            purpose=Purpose(found[2]),
            number=int(found[3]),
            attempt=int(found[4]),
            nonce=found[5] or "",
        )
