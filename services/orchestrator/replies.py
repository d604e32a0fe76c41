"""Replies about executions: results, pages of executions, and events with the models' live text.

A reply is small enough for every client: texts and lists that do not fit are cut, and patches stay references.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.orchestrator import responses
from services.orchestrator.requests import subtask_results
from services.orchestrator.responses import audit_heads
from services.pages import DEFAULT_PAGE_SIZE, key_of, page_token
from swe_ai_fleet.contract import from_enum, to_enum, to_message
from swe_ai_fleet.domain.approval import ApprovalRequest
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.event import ExecutionStatus, ModelReplied, StoredEvent, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import parsed
from swe_ai_fleet.domain.message import TextDelta
from swe_ai_fleet.domain.task import ApprovalPolicy, Role
from swe_ai_fleet.domain.text import iso_time
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.ports import BlobStore, EventLog

MAX_REPLY_BYTES = 3 * 1024 * 1024
MAX_INLINE_PATCH_BYTES = 256 * 1024
# Ids and digests have at most 128 characters, so they are never cut.
_CUTS = ((16_000, 1_000), (4_000, 200), (1_000, 50), (200, 10), (128, 3))
_OVERHEAD_BYTES = 16
WatchLive = Callable[[str, str], AsyncGenerator[TextDelta, None]]
"""Live text by tenant and execution."""


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Makes the replies that contain patches and operations."""

    log: EventLog
    blobs: BlobStore

    async def deliberation(self, state: ExecutionState) -> pb.DeliberateResponse:
        candidates = await self.candidates(state, room=MAX_REPLY_BYTES)
        return pb.DeliberateResponse(
            task_id=state.task.task_id,
            results=candidates,
            winner_id=responses.winner_agent(state),
            **_ending(state),
        )

    async def judgement(self, state: ExecutionState) -> pb.JudgePatchesResponse:
        """The reply to JudgePatches."""
        return pb.JudgePatchesResponse(
            task_id=state.task.task_id,
            execution_id=state.execution_id,
            status=to_enum(pb.DeliberationStatus, state.status),
            results=await self.candidates(state, room=MAX_REPLY_BYTES),
            winner_id=state.winner_id,
            baseline=responses.baseline(state),
            examination=responses.examination(state),
            duration_ms=state.duration_ms,
            error_message=state.error[: responses.MAX_ERROR_CHARS],
        )

    async def orchestration(self, state: ExecutionState) -> pb.OrchestrateResponse:
        # The winner is in the reply twice.
        candidates = await self.candidates(state, room=MAX_REPLY_BYTES // 2)
        winner = next(
            (candidate for candidate in candidates if state.winner_id and candidate.candidate_id == state.winner_id),
            None,
        )
        return pb.OrchestrateResponse(
            winner=winner,
            candidates=candidates,
            commit_sha=state.delivered.commit_sha if state.delivered else "",
            branch=state.delivered.branch if state.delivered else "",
            subtasks=subtask_results(state),
            **_ending(state),
        )

    async def candidates(self, state: ExecutionState, *, room: int) -> list[pb.DeliberationResult]:
        """The candidates, best first, with as many patches and operations as fit into `room` bytes."""
        results = responses.results(state)
        remaining = room - fit(results, room)
        operations = remaining // 4
        for result in results:
            remaining -= await self.inline_patch(state, result, room=remaining - operations)
        if results:
            await self._add_operations(state, results, share=remaining // len(results))
        return results

    def superseded(self, state: ExecutionState, *, room: int) -> list[pb.DeliberationResult]:
        """The dropped and revised candidates, newest first, as many as fit into `room` bytes."""
        results = [responses.result(state, candidate, None) for candidate in reversed(responses.superseded(state))]
        while results and fit(results, room) > room:
            results.pop()
        return results

    async def partial(self, state: ExecutionState, candidate_id: str) -> pb.DeliberationResult:
        """One candidate in its current state, with its patch."""
        ranked = next((entry for entry in state.ranking if entry.candidate_id == candidate_id), None)
        result = responses.result(state, state.candidates[candidate_id], ranked)
        room = MAX_REPLY_BYTES // 4
        await self.inline_patch(state, result, room=room - fit([result], room))
        return result

    async def inline_patch(self, state: ExecutionState, result: pb.DeliberationResult, *, room: int) -> int:
        """Replace the reference to the patch by the patch, if it is small enough and stored. Returns the bytes used."""
        ref = state.candidates[result.candidate_id].artifacts.patch
        if ref is None or ref.size > min(MAX_INLINE_PATCH_BYTES, room - _OVERHEAD_BYTES):
            return 0
        try:
            result.patch.text = await self.blobs.get(ref)
        except NotFound:
            return 0
        return ref.size + _OVERHEAD_BYTES

    async def _add_operations(self, state: ExecutionState, results: list[pb.DeliberationResult], *, share: int) -> None:
        """Add each agent's operations in order, up to `share` bytes for each agent."""
        waiting = {state.candidates[result.candidate_id].agent_id: result for result in results}
        room = dict.fromkeys(waiting, share)
        steps: dict[str, int] = {}
        async with aclosing(self.log.read(state.task.tenant, state.execution_id)) as events:
            async for stored in events:
                agent_id, body = stored.event.agent_id, stored.event.body
                if isinstance(body, ModelReplied):
                    steps[agent_id] = body.step
                elif isinstance(body, ToolFinished) and agent_id in waiting:
                    operation = responses.operation(stored, body, steps.get(agent_id, 0))
                    room[agent_id] -= operation.ByteSize() + _OVERHEAD_BYTES
                    if room[agent_id] < 0:
                        del waiting[agent_id]
                    else:
                        waiting[agent_id].operations.append(operation)


def pending(state: ExecutionState, *, room: int) -> list[pb.PendingApproval]:
    """The approvals that an execution waits for, their texts cut until all fit into `room` bytes."""
    approvals = [_pending(request, state.execution_id) for request in state.pending]
    fit(approvals, room)
    return approvals


def _pending(request: ApprovalRequest, execution_id: str) -> pb.PendingApproval:
    approval = to_message(pb.PendingApproval, request, operation=None, whole_diff=None)
    if request.policy is not ApprovalPolicy.PLAN:
        approval.operation.operation = request.call.name
        approval.operation.call_id = request.call.call_id
        approval.operation.step = request.step
        approval.operation.params.CopyFrom(_arguments(request.call.arguments))
    if request.diff_ref is not None:
        approval.whole_diff.CopyFrom(responses.artifact(request.diff_ref, execution_id, f"{request.agent_id}.diff"))
    return approval


def _arguments(text: str) -> struct_pb2.Struct:
    """The arguments that a model wrote; masked and maybe cut, so not always valid JSON."""
    try:
        return parsed(json_format.Parse, text, struct_pb2.Struct())
    except (json_format.ParseError, ValueError):
        arguments = struct_pb2.Struct()
        arguments.fields["raw"].string_value = text
        return arguments


def metadata(state: ExecutionState) -> dict[str, str]:
    """Facts for people that have no field in the reply. `patch` and `bundle` are digests for GetArtifact."""
    facts = {"execution_id": state.execution_id, "base_commit": state.repository.commit}
    if state.asked_approval is not None:
        facts["approval"] = f"{state.task.approval}: the tenant's rules ask for more than {state.asked_approval}"
    if state.error:
        facts["error"] = state.error[: responses.MAX_ERROR_CHARS]
    if state.ranking:
        facts["ranking"] = state.ranking[0].reason[: responses.MAX_ERROR_CHARS]
    branch = state.delivered or state.integration
    if branch is not None and branch.bundle is not None:
        facts["bundle"] = branch.bundle.digest
    if state.delivered is not None and state.delivered.patch is not None:
        facts["patch"] = state.delivered.patch.digest
    return facts


def fit(messages: Sequence[Message], room: int) -> int:
    """Cut long texts and lists, in the last messages first, more and more until all fit. Returns the remaining size."""
    sizes = [message.ByteSize() + _OVERHEAD_BYTES for message in messages]
    for characters, entries in _CUTS:
        for index in reversed(range(len(messages))):
            if sum(sizes) <= room:
                return sum(sizes)
            _cut(messages[index], characters, entries)
            sizes[index] = messages[index].ByteSize() + _OVERHEAD_BYTES
    return sum(sizes)


def _ending(state: ExecutionState) -> dict[str, Any]:
    """The fields about the end of an execution that both replies have."""
    return {
        "execution_id": state.execution_id,
        "duration_ms": state.duration_ms,
        "metadata": metadata(state),
        "status": to_enum(pb.DeliberationStatus, state.status),
        "audit_head": state.audit_head,
        "audit_heads": audit_heads(state),
        "usage": responses.total_usage(state),
        "expenses": responses.expense_messages(state),
        **responses.verdict(state),
    }


def _cut(message: Message, characters: int, entries: int) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            texts = cast("dict[str, str]", value)
            for key in list(texts):
                texts[key] = _shortened(texts[key], characters)
        elif field.is_repeated:
            items = cast("list[Any]", value)
            del items[entries:]
            for index, item in enumerate(items):
                if isinstance(item, Message):
                    _cut(item, characters, entries)
                elif isinstance(item, str):
                    items[index] = _shortened(item, characters)
        elif isinstance(value, Message):
            _cut(value, characters, entries)
        elif isinstance(value, str):
            setattr(message, field.name, _shortened(value, characters))


def _shortened(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def page(
    projection: Projection, request: pb.ListExecutionsRequest, tenant: str, spent: Callable[[str, str], Usage]
) -> pb.ListExecutionsResponse:
    """The requested page of a tenant's executions, newest first; shorter if it would be too large.

    `spent` returns, by tenant and execution, the usage so far of one that has not ended. Raises InvalidRequest.
    """
    filters = [
        request.task_id,
        request.role,
        sorted(request.statuses),
        request.created_after_ms,
        request.created_before_ms,
        request.text,
    ]
    last = cast("tuple[str, str] | None", key_of(request.page_token, filters, str, str) or None)
    reply, size, shown = pb.ListExecutionsResponse(), 0, ("", "")
    for state in _select(projection, request, tenant, last):
        execution = responses.execution_message(state)
        if not state.status.terminal:
            execution.usage.CopyFrom(to_message(pb.Usage, spent(tenant, state.execution_id)))
        size += execution.ByteSize() + 16
        full = len(reply.executions) == (request.page_size or DEFAULT_PAGE_SIZE) or size > MAX_REPLY_BYTES
        if full and reply.executions:
            reply.next_page_token = page_token(filters, shown)
            break
        reply.executions.append(execution)
        shown = (state.started_at, state.execution_id)
    return reply


def _select(
    projection: Projection, request: pb.ListExecutionsRequest, tenant: str, behind: tuple[str, str] | None
) -> Iterator[ExecutionState]:
    statuses: set[ExecutionStatus] = set()
    for number, value in enumerate(request.statuses):
        status = from_enum(ExecutionStatus, pb.DeliberationStatus, value)
        if status is None:
            raise InvalidRequest("no execution has this status", field=f"statuses[{number}]")
        statuses.add(status)
    words = request.text.casefold().split()
    states = projection.select(
        tenant,
        task_id=request.task_id,
        role=from_enum(Role, pb.Role, request.role),
        statuses=frozenset(statuses),
        created_after=iso_time(request.created_after_ms),
        created_before=iso_time(request.created_before_ms),
        behind=behind,
    )
    for state in states:
        texts = (responses.title(state.task), state.task.description, state.task.task_id, state.repository.location)
        text = "\n".join(texts).casefold()
        if all(word in text for word in words):
            yield state


async def with_live_text(
    events: AsyncIterator[StoredEvent], live: AsyncGenerator[TextDelta, None]
) -> AsyncGenerator[StoredEvent | TextDelta, None]:
    """Events and live text as they arrive, until the events end. Errors of the events are raised."""
    async with aclosing(live) as texts:
        sources: dict[asyncio.Future[StoredEvent | TextDelta | None], AsyncIterator[StoredEvent | TextDelta]] = {}

        def request_next(source: AsyncIterator[StoredEvent | TextDelta]) -> None:
            sources[asyncio.ensure_future(anext(source, None))] = source

        request_next(events)
        request_next(texts)
        try:
            while True:
                done, _ = await asyncio.wait(sources, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    source, value = sources.pop(task), task.result()
                    if value is None:
                        if source is events:
                            return
                        continue
                    yield value
                    request_next(source)
        finally:
            for task in sources:
                task.cancel()
            await asyncio.gather(*sources, return_exceptions=True)
