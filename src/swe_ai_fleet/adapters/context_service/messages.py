"""Contexts and memories on the wire of `fleet.context.v1`, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.context import ContextBlock, ContextRequest, GatheredContext, Phase
from swe_ai_fleet.domain.memory import Memory, MemoryKind, Recollection
from swe_ai_fleet.domain.moment import iso_time, milliseconds
from swe_ai_fleet.domain.task import Role

K = TypeVar("K")
V = TypeVar("V")

ROLES: Mapping[Role, pb.Role] = {
    Role.DEV: pb.ROLE_DEV,
    Role.QA: pb.ROLE_QA,
    Role.ARCHITECT: pb.ROLE_ARCHITECT,
    Role.DEVOPS: pb.ROLE_DEVOPS,
    Role.DATA: pb.ROLE_DATA,
}
PHASES: Mapping[Phase, pb.Phase] = {
    Phase.PLAN: pb.PHASE_PLAN,
    Phase.DESIGN: pb.PHASE_DESIGN,
    Phase.BUILD: pb.PHASE_BUILD,
    Phase.TEST: pb.PHASE_TEST,
    Phase.REVIEW: pb.PHASE_REVIEW,
    Phase.DONE: pb.PHASE_DONE,
}
KINDS: Mapping[MemoryKind, pb.MemoryKind] = {
    MemoryKind.FACT: pb.MEMORY_KIND_FACT,
    MemoryKind.INTERACTION: pb.MEMORY_KIND_INTERACTION,
    MemoryKind.OUTCOME: pb.MEMORY_KIND_OUTCOME,
}


def named(names: Mapping[K, V], value: V) -> K | None:
    """Whose number that is; None for the number that says nothing."""
    return next((name for name, number in names.items() if number == value), None)


def context_query(request: ContextRequest) -> pb.GetContextRequest:
    return pb.GetContextRequest(
        case_id=request.case_id,
        story_id=request.story_id,
        task_id=request.task_id,
        role=ROLES[request.role] if request.role else pb.ROLE_UNSPECIFIED,
        phase=PHASES[request.phase] if request.phase else pb.PHASE_UNSPECIFIED,
        query=request.query,
        token_budget=request.token_budget,
        include_decisions=request.include_decisions,
        include_history=request.include_history,
        namespaces=request.namespaces,
        entities=request.entities,
    )


def context_request(query: pb.GetContextRequest, *, tenant: str) -> ContextRequest:
    return ContextRequest(
        tenant=tenant,
        case_id=query.case_id,
        story_id=query.story_id,
        task_id=query.task_id,
        role=named(ROLES, query.role),
        phase=named(PHASES, query.phase),
        query=query.query,
        token_budget=query.token_budget,
        include_decisions=query.include_decisions if query.HasField("include_decisions") else True,
        include_history=query.include_history if query.HasField("include_history") else True,
        namespaces=tuple(query.namespaces),
        entities=tuple(query.entities),
    )


def context_reply(context: GatheredContext, *, version: int) -> pb.GetContextResponse:
    return pb.GetContextResponse(
        context_text=context.text,
        blocks=[
            pb.ContextBlock(
                kind=block.kind, title=block.title, text=block.text, tokens=block.tokens, relevance=block.relevance
            )
            for block in context.blocks
        ],
        token_count=context.tokens,
        version_hash=context.version,
        omitted=context.omitted,
        recalled=[recollection_message(one) for one in context.recalled],
        version=version,
    )


def gathered_context(reply: pb.GetContextResponse, *, tenant: str) -> GatheredContext:
    return GatheredContext(
        text=reply.context_text,
        blocks=tuple(
            ContextBlock(
                kind=block.kind, title=block.title, text=block.text, tokens=block.tokens, relevance=block.relevance
            )
            for block in reply.blocks
        ),
        tokens=reply.token_count,
        version=reply.version_hash,
        omitted=tuple(reply.omitted),
        recalled=tuple(recollection(one, tenant=tenant) for one in reply.recalled),
    )


def memory_message(memory: Memory) -> pb.Memory:
    return pb.Memory(
        memory_id=memory.memory_id,
        namespace=memory.namespace,
        text=memory.text,
        kind=KINDS[memory.kind],
        metadata=memory.metadata,
        source=memory.source,
        created_at_ms=milliseconds(memory.created_at),
    )


def recollection_message(found: Recollection) -> pb.Recollection:
    return pb.Recollection(memory=memory_message(found.memory), score=found.score, found_by=found.found_by)


def recollection(message: pb.Recollection, *, tenant: str) -> Recollection:
    told = message.memory
    memory = Memory(
        namespace=told.namespace,
        text=told.text,
        kind=named(KINDS, told.kind) or MemoryKind.FACT,
        tenant=tenant,
        metadata=dict(told.metadata),
        source=told.source,
        created_at=iso_time(told.created_at_ms),
    )
    return Recollection(memory=memory, score=message.score, found_by=message.found_by)


def usage_message(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        model_calls=usage.model_calls,
        tool_calls=usage.tool_calls,
        duration_ms=usage.duration_ms,
        cost=usage.cost,
    )


def usage(message: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        cached_tokens=message.cached_tokens,
        model_calls=message.model_calls,
        tool_calls=message.tool_calls,
        duration_ms=message.duration_ms,
        cost=message.cost,
    )
