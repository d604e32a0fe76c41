"""Plan sessions as messages of `fleet.planning.v1`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import cast

from fleet.planning.v1 import planning_pb2 as pb
from swe_ai_fleet.agents.plan_session import (
    Approved,
    AwaitingApproval,
    PlanFailed,
    PlanResult,
    PlanSession,
    Rejected,
    SessionCard,
    ToolCallMade,
)
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.tools.secrets import well_formed

MAX_CALLS_BYTES = 2 * 1024 * 1024
"""Of the calls of one reply; the oldest are left out."""


def proposal_message(answer: AwaitingApproval | PlanFailed) -> pb.ExecutePlanResponse:
    """What came of a goal."""
    if isinstance(answer, PlanFailed):
        return pb.ExecutePlanResponse(
            status=answer.status, session_id=answer.session_id, error=well_formed(answer.error)
        )
    return pb.ExecutePlanResponse(
        status=answer.status,
        session_id=answer.session_id,
        goal=well_formed(answer.goal),
        approach=well_formed(answer.approach),
        reasoning=well_formed(answer.reasoning),
        memory_results=_memory_message(answer.memory_results),
        proposal=answer.proposal,
    )


def decision_message(answer: Approved | AwaitingApproval | Rejected | PlanFailed) -> pb.ApproveApproachResponse:
    """What came of a decision."""
    match answer:
        case Approved() | Rejected():
            return pb.ApproveApproachResponse(
                status=answer.status, session_id=answer.session_id, message=well_formed(answer.message)
            )
        case PlanFailed():
            return pb.ApproveApproachResponse(
                status=answer.status, session_id=answer.session_id, error=well_formed(answer.error)
            )
        case AwaitingApproval():
            return pb.ApproveApproachResponse(
                status=answer.status,
                session_id=answer.session_id,
                message="The approach was adjusted; it waits for a decision.",
                goal=well_formed(answer.goal),
                approach=well_formed(answer.approach),
                reasoning=well_formed(answer.reasoning),
                memory_results=_memory_message(answer.memory_results),
                proposal=answer.proposal,
            )


def result_message(result: PlanResult) -> pb.ContinuePlanResponse:
    """What came of an approved plan."""
    return pb.ContinuePlanResponse(
        status=result.status,
        session_id=result.session_id,
        goal=well_formed(result.goal),
        final_plan=well_formed(result.final_plan),
        results=well_formed(result.results),
        tool_calls_made=_call_messages(result.tool_calls_made),
        iterations=result.iterations,
        stop_reason=result.stop_reason or "",
        usage=_usage_message(result.usage),
        error=well_formed(result.error),
    )


def session_message(session: PlanSession, mask: SecretMask, *, working: bool) -> pb.PlanSession:
    """A session, whole."""
    memory = AwaitingApproval.of(session).memory_results
    message = card_message(session.card)
    message.goal, message.approach = well_formed(session.goal), well_formed(session.approach)
    message.reasoning, message.results = well_formed(session.reasoning), well_formed(session.answer)
    message.error, message.working = well_formed(session.error), working
    message.repository, message.ref = well_formed(session.repository), well_formed(session.ref)
    message.memory_results.CopyFrom(_memory_message(memory))
    message.tool_calls_made.extend(_call_messages(session.calls_made(mask)))
    return message


def card_message(card: SessionCard) -> pb.PlanSession:
    """A session as it stands in lists."""
    return pb.PlanSession(
        session_id=card.session_id,
        goal=well_formed(card.goal),
        selected_entities=card.selected_entities,
        status=card.status,
        approach=well_formed(card.approach),
        results=well_formed(card.answer),
        iterations=card.iterations,
        stop_reason=card.stop_reason or "",
        usage=_usage_message(card.usage),
        error=well_formed(card.error),
        proposals=card.proposals,
        started_at_ms=_milliseconds(card.started_at),
        updated_at_ms=_milliseconds(card.updated_at),
    )


def _memory_message(results: Mapping[str, object]) -> pb.MemoryResults:
    message = pb.MemoryResults(
        coverage=cast("float", results["coverage"]),
        content=_text(results["content"]),
        gaps=_texts(results["gaps"]),
        sources=_texts(results["sources"]),
    )
    if isinstance(found := results.get("research"), Mapping):
        research = cast("Mapping[str, object]", found)
        message.research.CopyFrom(
            pb.Research(
                summary=_text(research["summary"]),
                sources=_texts(research["sources"]),
                data_points=_texts(research["data_points"]),
                coverage=cast("float", research["coverage"]),
                error=_text(research["error"]),
            )
        )
    return message


def _call_messages(calls: tuple[ToolCallMade, ...]) -> list[pb.ToolCallMade]:
    room, messages = MAX_CALLS_BYTES, list[pb.ToolCallMade]()
    for call in reversed(calls):
        message = pb.ToolCallMade(
            step=call.step,
            tool=well_formed(call.tool),
            arguments=well_formed(call.arguments),
            success=call.success,
            outcome=call.outcome,
            result=well_formed(call.result),
        )
        room -= message.ByteSize()
        if room < 0:
            break
        messages.append(message)
    return messages[::-1]


def _usage_message(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        model_calls=usage.model_calls,
        tool_calls=usage.tool_calls,
        cost=usage.cost,
        duration_ms=usage.duration_ms,
    )


def _text(value: object) -> str:
    return well_formed(str(value))


def _texts(values: object) -> list[str]:
    return [_text(value) for value in cast("Iterable[object]", values)]


def _milliseconds(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000) if at else 0
