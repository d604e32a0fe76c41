"""The calls about how work went."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.context.v1 import context_pb2 as pb
from services.auth import tenant
from services.context.bounds import fields_within, foreign
from swe_ai_fleet.contract import from_enum, from_message, to_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.goal import goal_type
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.outcome import Outcome
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import without_login
from swe_ai_fleet.learning.recommending import Question
from swe_ai_fleet.learning.tracker import LearningTracker


@dataclass(frozen=True, kw_only=True)
class LearningCalls:
    """Carries out the calls about learning.

    Attributes:
        outcomes: Keeps them, and recommends.
    """

    outcomes: LearningTracker

    async def record(self, request: pb.RecordOutcomeRequest, caller: str) -> pb.RecordOutcomeResponse:
        match request.WhichOneof("said"):
            case "outcome":
                with fields_within("outcome"):
                    outcome = await self.outcomes.record(_outcome(request.outcome, caller))
            case "rating":
                with fields_within("rating"):
                    rating = request.rating
                    outcome = await self.outcomes.rate(
                        tenant(),
                        rating.subject_id,
                        rating.rating,
                        by=caller,
                        comment=rating.comment if rating.HasField("comment") else None,
                    )
            case _:
                raise InvalidRequest("nothing to record", field="outcome", hint="set outcome or rating")
        return pb.RecordOutcomeResponse(outcome=to_message(pb.Outcome, outcome))

    async def get(self, request: pb.GetOutcomeRequest) -> pb.GetOutcomeResponse:
        outcome = await self.outcomes.get(tenant(), request.subject_id)
        return pb.GetOutcomeResponse(outcome=to_message(pb.Outcome, outcome))

    async def recommend(self, request: pb.RecommendApproachRequest) -> pb.RecommendApproachResponse:
        if not request.goal.strip():
            raise InvalidRequest("no goal given", field="goal", hint="what is wanted, in words")
        role = from_enum(Role, pb.Role, request.role) or ""
        question = from_message(Question, request, now=now(), role=role, repository=without_login(request.repository))
        return to_message(pb.RecommendApproachResponse, await self.outcomes.recommend(question, tenant()))


def _outcome(message: pb.Outcome, caller: str) -> Outcome:
    """An outcome as a caller tells it. Raises InvalidRequest, naming the field inside of it."""
    foreign(message.subject_id, field="subject_id")
    given = message.goal_type or goal_type(message.goal)
    outcome = from_message(Outcome, message, tenant=tenant(), goal_type=given)
    return replace(
        outcome,
        repository=without_login(outcome.repository),
        rated_by=caller if outcome.rating else "",
        ended_at=outcome.ended_at or now(),
    )
