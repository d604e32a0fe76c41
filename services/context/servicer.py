"""The RPCs of `fleet.context.v1.ContextService`: who calls, and which part answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from google.protobuf.message import Message

from fleet.context.v1 import context_pb2 as pb
from fleet.context.v1.context_pb2_grpc import ContextServiceServicer
from services.auth import caller_of, tenant
from services.context.graph import GraphCalls
from services.context.memory import LearningCalls, MemoryCalls
from services.errors import Context


async def _room_for_all(_: str, __: int) -> None:
    """Accepts everything, without a limit of what tenants store."""


class ContextServicer(ContextServiceServicer):
    """Serves project knowledge, memories, and recommendations from experience.

    Args:
        graph: Answers the calls about stories and work.
        memory: Answers the calls about memories.
        learning: Answers the calls about outcomes.
        check_room: Raises ResourceExhausted where a tenant may not store so many bytes more.
    """

    def __init__(
        self,
        *,
        graph: GraphCalls,
        memory: MemoryCalls,
        learning: LearningCalls,
        check_room: Callable[[str, int], Awaitable[object]] = _room_for_all,
    ) -> None:
        self._graph = graph
        self._memory = memory
        self._learning = learning
        self._check_room = check_room

    async def GetContext(self, request: pb.GetContextRequest, context: Context) -> pb.GetContextResponse:
        return await self._graph.get_context(request)

    async def UpdateContext(self, request: pb.UpdateContextRequest, context: Context) -> pb.UpdateContextResponse:
        await self._room(request)
        return await self._graph.update(request)

    async def RehydrateSession(
        self, request: pb.RehydrateSessionRequest, context: Context
    ) -> pb.RehydrateSessionResponse:
        return await self._graph.rehydrate(request)

    async def ValidateScope(self, request: pb.ValidateScopeRequest, context: Context) -> pb.ValidateScopeResponse:
        return await self._graph.validate_scope(request)

    async def CreateStory(self, request: pb.CreateStoryRequest, context: Context) -> pb.CreateStoryResponse:
        await self._room(request)
        return await self._graph.create_story(request)

    async def CreateTask(self, request: pb.CreateTaskRequest, context: Context) -> pb.CreateTaskResponse:
        await self._room(request)
        return await self._graph.create_task(request)

    async def AddProjectDecision(
        self, request: pb.AddProjectDecisionRequest, context: Context
    ) -> pb.AddProjectDecisionResponse:
        await self._room(request)
        return await self._graph.add_decision(request, caller_of(context))

    async def TransitionPhase(self, request: pb.TransitionPhaseRequest, context: Context) -> pb.TransitionPhaseResponse:
        await self._room(request)
        return await self._graph.change_phase(request, caller_of(context))

    async def ListStories(self, request: pb.ListStoriesRequest, context: Context) -> pb.ListStoriesResponse:
        return await self._graph.stories(request)

    async def GetGraphRelationships(
        self, request: pb.GetGraphRelationshipsRequest, context: Context
    ) -> pb.GetGraphRelationshipsResponse:
        return await self._graph.relationships(request)

    async def RecordOperations(
        self, request: pb.RecordOperationsRequest, context: Context
    ) -> pb.RecordOperationsResponse:
        await self._room(request)
        return await self._graph.record(request)

    async def AddInteraction(self, request: pb.AddInteractionRequest, context: Context) -> pb.AddInteractionResponse:
        await self._room(request)
        return await self._memory.add_interaction(request, caller_of(context))

    async def AddFact(self, request: pb.AddFactRequest, context: Context) -> pb.AddFactResponse:
        await self._room(request)
        return await self._memory.add_fact(request, caller_of(context))

    async def Recall(self, request: pb.RecallRequest, context: Context) -> pb.RecallResponse:
        return await self._memory.recall(request)

    async def ClearMemory(self, request: pb.ClearMemoryRequest, context: Context) -> pb.ClearMemoryResponse:
        return await self._memory.clear(request)

    async def RecordOutcome(self, request: pb.RecordOutcomeRequest, context: Context) -> pb.RecordOutcomeResponse:
        await self._room(request)
        return await self._learning.record(request, caller_of(context))

    async def GetOutcome(self, request: pb.GetOutcomeRequest, context: Context) -> pb.GetOutcomeResponse:
        return await self._learning.get(request)

    async def RecommendApproach(
        self, request: pb.RecommendApproachRequest, context: Context
    ) -> pb.RecommendApproachResponse:
        return await self._learning.recommend(request)

    async def _room(self, request: Message) -> None:
        """Whether the tenant may store what a request adds. Raises ResourceExhausted, Unavailable."""
        await self._check_room(tenant(), request.ByteSize())
