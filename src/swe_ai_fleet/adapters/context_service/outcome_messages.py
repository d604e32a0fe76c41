"""Outcomes and recommendations on the wire of `fleet.context.v1`, in both directions."""

from __future__ import annotations

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.adapters.context_service.messages import ROLES, usage, usage_message
from swe_ai_fleet.domain.moment import iso_time, milliseconds
from swe_ai_fleet.domain.outcome import Advice, Option, Outcome, Recommendation
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.learning.recommending import Question


def outcome_message(outcome: Outcome) -> pb.Outcome:
    return pb.Outcome(
        subject_id=outcome.subject_id,
        goal=outcome.goal,
        goal_type=outcome.goal_type,
        role=outcome.role,
        repository=outcome.repository,
        approach=outcome.approach,
        council=outcome.council,
        model=outcome.model,
        model_profile=outcome.model_profile,
        agents=outcome.agents,
        agents_used=outcome.agents_used,
        rounds=outcome.rounds,
        memory_share=outcome.memory_share,
        research_share=outcome.research_share,
        tool_share=outcome.tool_share,
        success=outcome.success,
        status=outcome.status,
        evidence=outcome.evidence,
        usage=usage_message(outcome.usage),
        duration_ms=outcome.duration_ms,
        rating=outcome.rating,
        rated_by=outcome.rated_by,
        ended_at_ms=milliseconds(outcome.ended_at),
        metadata=outcome.metadata,
        comment=outcome.comment,
    )


def outcome(message: pb.Outcome, *, tenant: str) -> Outcome:
    return Outcome(
        subject_id=message.subject_id,
        tenant=tenant,
        goal=message.goal,
        goal_type=message.goal_type,
        role=message.role,
        repository=message.repository,
        approach=message.approach,
        council=message.council,
        model=message.model,
        model_profile=message.model_profile,
        agents=message.agents,
        agents_used=tuple(message.agents_used),
        rounds=message.rounds,
        memory_share=message.memory_share,
        research_share=message.research_share,
        tool_share=message.tool_share,
        success=message.success,
        status=message.status,
        evidence=message.evidence,
        usage=usage(message.usage),
        duration_ms=message.duration_ms,
        rating=message.rating,
        rated_by=message.rated_by,
        ended_at=iso_time(message.ended_at_ms),
        metadata=dict(message.metadata),
        comment=message.comment,
    )


def recommendation_request(question: Question) -> pb.RecommendApproachRequest:
    return pb.RecommendApproachRequest(
        goal=question.goal,
        role=ROLES[Role.parse(question.role)] if question.role else pb.ROLE_UNSPECIFIED,
        repository=question.repository,
        councils=question.councils,
        model_profiles=question.model_profiles,
        agents=question.agents,
        approaches=question.approaches,
        seed=question.seed,
    )


def recommendation_message(recommendation: Recommendation) -> pb.RecommendApproachResponse:
    return pb.RecommendApproachResponse(
        goal_type=recommendation.goal_type,
        council=_advice_message(recommendation.council),
        model_profile=_advice_message(recommendation.model_profile),
        agents=_advice_message(recommendation.agents),
        approach=_advice_message(recommendation.approach),
        outcomes=recommendation.outcomes,
    )


def recommendation(message: pb.RecommendApproachResponse) -> Recommendation:
    return Recommendation(
        goal_type=message.goal_type,
        council=_advice(message.council),
        model_profile=_advice(message.model_profile),
        agents=_advice(message.agents),
        approach=_advice(message.approach),
        outcomes=message.outcomes,
    )


def _advice_message(advice: Advice) -> pb.Advice:
    options = [
        pb.Option(
            value=option.value,
            tried=option.tried,
            expected=option.expected,
            low=option.low,
            high=option.high,
            best=option.best,
        )
        for option in advice.options
    ]
    return pb.Advice(choice=advice.choice, value=advice.value, options=options, reason=advice.reason)


def _advice(message: pb.Advice) -> Advice:
    options = tuple(
        Option(
            value=option.value,
            tried=option.tried,
            expected=option.expected,
            low=option.low,
            high=option.high,
            best=option.best,
        )
        for option in message.options
    )
    return Advice(choice=message.choice, value=message.value, options=options, reason=message.reason)
