"""Requests to plan sessions, checked, and the answers to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MAX_ENTITIES, MAX_ENTITY_CHARS
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.extensions.plans.session import PlanSession, ToolCallMade

MAX_GOAL_CHARS = 20_000
MAX_LOCATION_CHARS = 2_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
PlanEnding = Literal["completed", "limit_reached", "error"]


def checked_id(session_id: str) -> str:
    if not _ID.fullmatch(session_id):
        raise InvalidRequest("a session id has letters, digits, _ - and at most 100 characters", field="session_id")
    return session_id


def checked_goal(text: str) -> str:
    if not text.strip():
        raise InvalidRequest("the goal is empty", field="goal")
    return checked_adjustment(text, "goal")


def checked_entities(names: Sequence[str]) -> tuple[str, ...]:
    entities = tuple(name for name in dict.fromkeys(" ".join(well_formed(name).split()) for name in names) if name)
    if len(entities) > MAX_ENTITIES or any(len(name) > MAX_ENTITY_CHARS for name in entities):
        limits = f"at most {MAX_ENTITIES} of {MAX_ENTITY_CHARS} characters each"
        raise InvalidRequest(f"the selected entities; too many or too long: {limits}", field="selected_entities")
    return entities


def checked_repository(repository: str, ref: str) -> tuple[str, str]:
    repository, ref = repository.strip(), ref.strip()
    if ref and not repository:
        raise InvalidRequest("a ref needs a repository", field="repository")
    for name, text in (("repository", repository), ("ref", ref)):
        if len(text) > MAX_LOCATION_CHARS:
            raise InvalidRequest(f"the {name} is too long", field=name, hint=f"at most {MAX_LOCATION_CHARS}")
    if _has_password(repository):
        # The session would show it to everybody who lists sessions.
        raise InvalidRequest("a URL must not carry a password", field="repository", hint="leave it out of the URL")
    return well_formed(repository), well_formed(ref)


def _has_password(location: str) -> bool:
    try:
        return urlsplit(location).password is not None
    except ValueError:
        # Git gets no such URL.
        return False


def checked_decision(decision: str) -> ApprovalDecision:
    try:
        return ApprovalDecision(decision)
    except ValueError:
        decisions = ", ".join(ApprovalDecision)
        raise InvalidRequest(
            f"there is no decision {str(decision)[:40]!r}; there are: {decisions}", field="decision"
        ) from None


def checked_adjustment(text: str, field: str = "adjustment") -> str:
    """The person's text about a proposal, which may be empty. Raises InvalidRequest."""
    if len(text) > MAX_GOAL_CHARS:
        raise InvalidRequest(
            f"the {field} has {len(text)} characters; at most {MAX_GOAL_CHARS} are accepted", field=field
        )
    return well_formed(text.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitingApproval:
    """A proposal that waits for a person, or the `question` of its model in place of a proposal.

    `memory_results` has coverage (percent; None where no entities were selected), content, gaps, sources, research.
    `proposal` is the number of the proposal in the session.
    """

    session_id: str
    goal: str
    approach: str
    reasoning: str
    memory_results: Mapping[str, object]
    proposal: int = 1
    question: str = ""
    status: Literal["awaiting_approval", "awaiting_answer"] = "awaiting_approval"

    @classmethod
    def of(cls, session: PlanSession) -> AwaitingApproval:
        research = to_plain(session.research) if session.research is not None else None
        return cls(
            session_id=session.session_id,
            goal=session.goal,
            approach=session.approach,
            reasoning=session.reasoning,
            memory_results={**to_plain(session.memory), "research": research},
            proposal=session.proposals,
            question=session.question,
            status="awaiting_answer" if session.question else "awaiting_approval",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFailed:
    """The session ended without a proposal."""

    session_id: str
    error: str
    status: Literal["error"] = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved:
    """The approval is recorded; `continue_plan` runs the approach."""

    session_id: str
    message: str = "The approach is approved; continue the plan to carry it out."
    status: Literal["approved"] = "approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRejected:
    """The session has ended; nothing with an effect was done."""

    session_id: str
    message: str
    status: Literal["rejected"] = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """The result of an approved plan. After `limit_reached` there is an answer too; `stop_reason` names the limit.

    `final_plan` is the approved approach, `results` the model's own report of the work.
    """

    status: PlanEnding
    session_id: str
    goal: str
    final_plan: str
    results: str
    tool_calls_made: tuple[ToolCallMade, ...] = ()
    iterations: int = 0
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=Usage)
    error: str = ""

    @classmethod
    def of(cls, session: PlanSession, status: PlanEnding, mask: Callable[[str], str]) -> PlanResult:
        return cls(
            status=status,
            session_id=session.session_id,
            goal=session.goal,
            final_plan=session.approach,
            results=session.answer,
            tool_calls_made=session.calls_made(mask),
            iterations=len(session.own_steps),
            stop_reason=session.stop_reason,
            usage=session.usage,
            error=session.error,
        )


def rejection(reason: str) -> str:
    why = f": {reason}" if reason else ""
    return f"The approach was rejected{why}. Nothing was carried out."
