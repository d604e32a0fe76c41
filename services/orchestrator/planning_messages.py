"""Plan sessions as messages of `fleet.planning.v1`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from swe_ai_fleet.contract import to_message
from swe_ai_fleet.domain.text import well_formed
from swe_ai_fleet.ports import SecretMask

MAX_CALLS_BYTES = 2 * 1024 * 1024
"""Of the calls of one reply; the oldest are left out."""
_NOT_IN_LISTS = ("reasoning", "memory_results", "tool_calls_made", "working", "repository", "ref")


def proposal_message(answer: AwaitingApproval | PlanFailed) -> pb.ExecutePlanResponse:
    """What came of a goal."""
    if isinstance(answer, PlanFailed):
        return pb.ExecutePlanResponse(
            status=answer.status, session_id=answer.session_id, error=well_formed(answer.error)
        )
    memory = _memory_message(answer.memory_results)
    return to_message(pb.ExecutePlanResponse, answer, memory_results=memory, error=None)


def decision_message(answer: Approved | AwaitingApproval | Rejected | PlanFailed) -> pb.ApproveApproachResponse:
    """What came of a decision."""
    if isinstance(answer, AwaitingApproval):
        message, memory = "The approach was adjusted; it waits for a decision.", _memory_message(answer.memory_results)
        return to_message(pb.ApproveApproachResponse, answer, message=message, memory_results=memory, error=None)
    reply = pb.ApproveApproachResponse(status=answer.status, session_id=answer.session_id)
    if isinstance(answer, PlanFailed):
        reply.error = well_formed(answer.error)
    else:
        reply.message = well_formed(answer.message)
    return reply


def result_message(result: PlanResult) -> pb.ContinuePlanResponse:
    """What came of an approved plan."""
    return to_message(pb.ContinuePlanResponse, result, tool_calls_made=_call_messages(result.tool_calls_made))


def session_message(session: PlanSession, mask: SecretMask, *, working: bool) -> pb.PlanSession:
    """A session, whole."""
    return to_message(
        pb.PlanSession,
        session,
        memory_results=_memory_message(AwaitingApproval.of(session).memory_results),
        tool_calls_made=_call_messages(session.calls_made(mask)),
        iterations=session.card.iterations,
        working=working,
    )


def card_message(card: SessionCard) -> pb.PlanSession:
    """A session as it stands in lists."""
    return to_message(pb.PlanSession, card, **dict.fromkeys(_NOT_IN_LISTS))


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
        message = to_message(pb.ToolCallMade, call)
        room -= message.ByteSize()
        if room < 0:
            break
        messages.append(message)
    return messages[::-1]


def _text(value: object) -> str:
    return well_formed(str(value))


def _texts(values: object) -> list[str]:
    return [_text(value) for value in cast("Iterable[object]", values)]
