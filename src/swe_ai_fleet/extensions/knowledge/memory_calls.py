"""The calls about memories, and about outcomes of work."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from google.protobuf.message import Message

from fleet.context.v1 import context_pb2 as pb
from fleet.context.v1.context_pb2_grpc import ContextServiceServicer
from services.auth import caller_of, tenant
from services.errors import Context
from swe_ai_fleet.contract import from_enum, from_message, to_message
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed, fields_named
from swe_ai_fleet.domain.memory import MAX_MEMORY_CHARS, Memory, MemoryKind, MemoryScope, WorkOutcome, goal_type
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.text import check_length, now, well_formed, without_login
from swe_ai_fleet.extensions.knowledge.recommending import Question
from swe_ai_fleet.extensions.knowledge.tracker import LearningTracker
from swe_ai_fleet.ports import Memories, SecretMask

M = TypeVar("M", bound=Message)

MAX_REPLY_BYTES = 3 * 1024 * 1024
"""A default gRPC client refuses replies of 4 MiB."""
UNNAMED = "unnamed"
"""The name of callers that do not give one."""
_SOURCE = re.compile(r"(agent|execution):[A-Za-z0-9][A-Za-z0-9._/-]{0,149}")


def source_of(source: str, caller: str) -> str:
    """The source of a memory: the one that the caller gives, if it is valid, and the caller. Raises InvalidRequest.

    The caller is always part of it: only memories that the fleet made itself have an execution as their only source.
    """
    if source and not _SOURCE.fullmatch(source):
        raise InvalidRequest(f"{source[:64]!r} is not a source", field="source", hint="agent:<id> or execution:<id>")
    by = f"caller:{caller or UNNAMED}"
    return f"{source}, {by}" if source else by


def foreign(execution_id: str, *, field: str) -> str:
    """The id, if it cannot be that of an execution of this fleet. Raises PreconditionFailed.

    The fleet's own ids are UUIDs of version 5, which callers can compute before an execution starts.
    """
    try:
        parsed = uuid.UUID(execution_id)
    except ValueError:
        return execution_id
    if parsed.version == 5:
        raise PreconditionFailed(
            f"{execution_id[:64]} is an execution of this fleet, which records it itself when it ends",
            field=field,
            hint="for work outside of the fleet use an id that is not a UUID version 5",
        )
    return execution_id


def fitting(messages: Iterable[M], room: int = MAX_REPLY_BYTES) -> list[M]:
    """The first messages, as many as fit into `room` bytes."""
    fit: list[M] = []
    for message in messages:
        room -= message.ByteSize() + 16
        if room < 0:
            break
        fit.append(message)
    return fit


def fields_within(message: str, **renamed: str) -> AbstractContextManager[None]:
    """Inside, faults name fields as in the request, where they are fields of its field `message`.

    `renamed` are fields with another place or name in the request.
    """
    return fields_named(lambda head: renamed.get(head, f"{message}.{head}") if head else "")


DEFAULT_RECALLED = 3


@dataclass(frozen=True, kw_only=True)
class ContextCalls(ContextServiceServicer):
    """The base of the service's RPCs.

    Attributes:
        check_room: Raises ResourceExhausted if a tenant may not store so many more bytes.
    """

    check_room: Callable[[str, int], Awaitable[object]]

    async def check(self, request: Message) -> None:
        """Check that the tenant may store the content of a request. Raises ResourceExhausted, Unavailable."""
        await self.check_room(tenant(), request.ByteSize())


@dataclass(frozen=True, kw_only=True)
class MemoryCalls(ContextCalls):
    """The RPCs about memory.

    Attributes:
        memories: The long-term memories.
        mask: Hides secrets in them; ids are digests of masked texts.
    """

    memories: Memories
    mask: SecretMask

    async def AddInteraction(self, request: pb.AddInteractionRequest, context: Context) -> pb.AddInteractionResponse:
        await self.check(request)
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
            source=source_of(request.source, caller_of(context)),
        )
        new = await self.memories.remember(memory)
        return pb.AddInteractionResponse(memory_id=memory.memory_id, already_existed=not new)

    async def AddFact(self, request: pb.AddFactRequest, context: Context) -> pb.AddFactResponse:
        await self.check(request)
        memory = Memory(
            tenant=tenant(),
            namespace=request.namespace,
            text=self._masked(request.text, field="text"),
            kind=from_enum(MemoryKind, pb.MemoryKind, request.kind) or MemoryKind.FACT,
            metadata=dict(request.metadata),
            source=source_of(request.source, caller_of(context)),
        )
        new = await self.memories.remember(memory)
        return pb.AddFactResponse(memory_id=memory.memory_id, already_existed=not new)

    async def Recall(self, request: pb.RecallRequest, context: Context) -> pb.RecallResponse:
        recalled = await self.memories.recall(
            request.query,
            _scope(request),
            limit=request.limit or DEFAULT_RECALLED,
        )
        return pb.RecallResponse(recollections=fitting(to_message(pb.Recollection, each) for each in recalled))

    async def ClearMemory(self, request: pb.ClearMemoryRequest, context: Context) -> pb.ClearMemoryResponse:
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
class LearningCalls(ContextCalls):
    """The RPCs about learning.

    Attributes:
        outcomes: Stores outcomes, and recommends.
    """

    outcomes: LearningTracker

    async def RecordOutcome(self, request: pb.RecordOutcomeRequest, context: Context) -> pb.RecordOutcomeResponse:
        await self.check(request)
        match request.WhichOneof("said"):
            case "outcome":
                with fields_within("outcome"):
                    outcome = await self.outcomes.record(_outcome(request.outcome, caller_of(context)))
            case "rating":
                with fields_within("rating"):
                    rating = request.rating
                    outcome = await self.outcomes.rate(
                        tenant(),
                        rating.subject_id,
                        rating.rating,
                        by=caller_of(context),
                        comment=rating.comment if rating.HasField("comment") else None,
                    )
            case _:
                raise InvalidRequest("nothing to record", field="outcome", hint="set outcome or rating")
        return pb.RecordOutcomeResponse(outcome=to_message(pb.Outcome, outcome))

    async def GetOutcome(self, request: pb.GetOutcomeRequest, context: Context) -> pb.GetOutcomeResponse:
        outcome = await self.outcomes.get(tenant(), request.subject_id)
        return pb.GetOutcomeResponse(outcome=to_message(pb.Outcome, outcome))

    async def RecommendApproach(
        self, request: pb.RecommendApproachRequest, context: Context
    ) -> pb.RecommendApproachResponse:
        if not request.goal.strip():
            raise InvalidRequest("no goal given", field="goal", hint="describe what you want to do")
        role = from_enum(Role, pb.Role, request.role) or ""
        question = from_message(Question, request, now=now(), role=role, repository=without_login(request.repository))
        return to_message(pb.RecommendApproachResponse, await self.outcomes.recommend(question, tenant()))


def _outcome(message: pb.Outcome, caller: str) -> WorkOutcome:
    """An outcome from a caller. Raises InvalidRequest, naming the field inside of it."""
    foreign(message.subject_id, field="subject_id")
    kind = message.goal_type or goal_type(message.goal)
    outcome = from_message(WorkOutcome, message, tenant=tenant(), goal_type=kind)
    return replace(
        outcome,
        repository=without_login(outcome.repository),
        rated_by=caller if outcome.rating else "",
        ended_at=outcome.ended_at or now(),
    )
