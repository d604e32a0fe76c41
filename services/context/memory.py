"""The calls about memories, and about outcomes of work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.context.v1 import context_pb2 as pb
from services.auth import tenant
from services.context.requests import fields_within, fitting, foreign, source_of
from swe_ai_fleet.contract import from_enum, from_message, to_message
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, Memory, MemoryKind, MemoryScope, Outcome, goal_type
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import check_length, now, well_formed, without_login
from swe_ai_fleet.learning.recommending import Question
from swe_ai_fleet.learning.tracker import LearningTracker
from swe_ai_fleet.ports import Memories, SecretMask

DEFAULT_RECALLED = 3


@dataclass(frozen=True, kw_only=True)
class MemoryCalls:
    """Answers the four calls about memory.

    Attributes:
        memories: The long-term memories.
        mask: Hides secrets in them: ids are made of masked words.
    """

    memories: Memories
    mask: SecretMask

    async def add_interaction(self, request: pb.AddInteractionRequest, caller: str) -> pb.AddInteractionResponse:
        if not request.user.strip() and not request.assistant.strip():
            raise InvalidRequest("the message is empty", field="user", hint="set user, assistant or both")
        messages = (("User", request.user), ("Assistant", request.assistant))
        text = "\n".join(f"{speaker}: {words.strip()}" for speaker, words in messages if words.strip())
        memory = Memory(
            tenant=tenant(),
            namespace=request.namespace,
            text=self._masked(text, field="assistant" if request.assistant else "user"),
            kind=MemoryKind.INTERACTION,
            metadata=dict(request.metadata),
            source=source_of(request.source, caller),
        )
        new = await self.memories.remember(memory)
        return pb.AddInteractionResponse(memory_id=memory.memory_id, already_existed=not new)

    async def add_fact(self, request: pb.AddFactRequest, caller: str) -> pb.AddFactResponse:
        memory = Memory(
            tenant=tenant(),
            namespace=request.namespace,
            text=self._masked(request.text, field="text"),
            kind=from_enum(MemoryKind, pb.MemoryKind, request.kind) or MemoryKind.FACT,
            metadata=dict(request.metadata),
            source=source_of(request.source, caller),
        )
        new = await self.memories.remember(memory)
        return pb.AddFactResponse(memory_id=memory.memory_id, already_existed=not new)

    async def recall(self, request: pb.RecallRequest) -> pb.RecallResponse:
        recalled = await self.memories.recall(
            request.query,
            _scope(request),
            limit=request.limit or DEFAULT_RECALLED,
        )
        return pb.RecallResponse(recollections=fitting(to_message(pb.Recollection, each) for each in recalled))

    async def clear(self, request: pb.ClearMemoryRequest) -> pb.ClearMemoryResponse:
        if not request.namespaces and not request.everywhere:
            raise InvalidRequest("no namespace given", field="namespaces", hint="or say everywhere")
        if request.namespaces and request.everywhere:
            raise InvalidRequest("namespaces, and everywhere", field="everywhere", hint="one of the two")
        return pb.ClearMemoryResponse(removed=await self.memories.forget(_scope(request), tuple(request.memory_ids)))

    def _masked(self, text: str, *, field: str) -> str:
        return self.mask(well_formed(check_length(text, MAX_MEMORY_CHARS, field=field))).strip()[:MAX_MEMORY_CHARS]


def _scope(request: pb.RecallRequest | pb.ClearMemoryRequest) -> MemoryScope:
    return from_message(MemoryScope, request, tenant=tenant())


@dataclass(frozen=True, kw_only=True)
class LearningCalls:
    """Answers the calls about learning.

    Attributes:
        outcomes: Stores outcomes, and recommends.
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
            raise InvalidRequest("no goal given", field="goal", hint="describe what you want to do")
        role = from_enum(Role, pb.Role, request.role) or ""
        question = from_message(Question, request, now=now(), role=role, repository=without_login(request.repository))
        return to_message(pb.RecommendApproachResponse, await self.outcomes.recommend(question, tenant()))


def _outcome(message: pb.Outcome, caller: str) -> Outcome:
    """An outcome from a caller. Raises InvalidRequest, naming the field inside of it."""
    foreign(message.subject_id, field="subject_id")
    kind = message.goal_type or goal_type(message.goal)
    outcome = from_message(Outcome, message, tenant=tenant(), goal_type=kind)
    return replace(
        outcome,
        repository=without_login(outcome.repository),
        rated_by=caller if outcome.rating else "",
        ended_at=outcome.ended_at or now(),
    )
