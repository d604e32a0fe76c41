"""The RPCs of `fleet.orchestrator.v1.OrchestratorService`: convert, call, convert back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from google.protobuf.message import Message

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from fleet.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceServicer
from services.auth import caller_of, principal, tenant
from services.errors import Context, NotAvailable
from services.orchestrator import requests, responses
from services.orchestrator.fleet_status import CouncilCalls, FleetStatuses, active_councils, shown_to
from services.orchestrator.metrics import Metrics
from services.orchestrator.planning import answer_planning_event
from services.orchestrator.replies import MAX_REPLY_BYTES, Replies, WatchLive, metadata, page, pending, with_live_text
from services.orchestrator.task_context import TaskContexts
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.contract import to_enum, to_message
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.errors import InvalidRequest, NotFound
from swe_ai_fleet.domain.event import ExecutionFinished, ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.fleet_status import Component, ComponentState
from swe_ai_fleet.domain.message import TextDelta
from swe_ai_fleet.domain.task import Role, Task, TaskKind
from swe_ai_fleet.domain.text import check_identifier, milliseconds, now
from swe_ai_fleet.orchestrator.acceptance import Store, Submission
from swe_ai_fleet.orchestrator.derivations import Derivations, PlanningEvents
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.projection import Projection
from swe_ai_fleet.ports import BlobStore, EventLog
from swe_ai_fleet.runtime.audit_keys import PublicKeys
from swe_ai_fleet.runtime.erasure import Erasure, Erasures
from swe_ai_fleet.watching.progress import Progress

CHUNK_BYTES = 256 * 1024
_DIGEST = re.compile(r"[0-9a-f]{64}")
Update = TypeVar("Update", pb.DeliberationUpdate, pb.OrchestrationUpdate)


@dataclass(kw_only=True, eq=False)
class OrchestratorServicer(OrchestratorServiceServicer):
    """Serves the RPCs. A cancelled call stops only the caller's wait; the execution continues.

    Attributes:
        contexts: None: no context service is configured.
    """

    executions: Executions
    blobs: BlobStore
    log: EventLog
    components: Callable[[], Awaitable[Sequence[Component]]]
    watch_live: WatchLive
    planning: PlanningEvents
    councils: CouncilCalls
    derivations: Derivations
    contexts: TaskContexts | None
    metrics: Metrics
    fleet: FleetStatuses
    uploads: Uploads
    erasures: Erasures
    audit_keys: PublicKeys

    def __post_init__(self) -> None:
        self._replies = Replies(log=self.log, blobs=self.blobs)
        self._started_at = time.monotonic()

    async def Deliberate(self, request: pb.DeliberateRequest, context: Context) -> pb.DeliberateResponse:
        submission = await self._submit(request, requests.deliberation_task(request), context)
        state = await self.executions.wait(tenant(), submission.execution_id)
        return await self._replies.deliberation(state)

    async def StreamDeliberation(
        self, request: pb.DeliberateRequest, context: Context
    ) -> AsyncIterator[pb.DeliberationUpdate]:
        submission = await self._submit(request, requests.deliberation_task(request), context)
        updates = self._updates(submission.execution_id, pb.DeliberationUpdate, self._replies.deliberation)
        async with aclosing(updates):
            async for update in updates:
                yield update

    async def Orchestrate(self, request: pb.OrchestrateRequest, context: Context) -> pb.OrchestrateResponse:
        submission = await self._submit(request, requests.orchestration_task(request), context)
        state = await self.executions.wait(tenant(), submission.execution_id)
        return await self._replies.orchestration(state)

    async def StreamOrchestration(
        self, request: pb.OrchestrateRequest, context: Context
    ) -> AsyncIterator[pb.OrchestrationUpdate]:
        submission = await self._submit(request, requests.orchestration_task(request), context)
        updates = self._updates(submission.execution_id, pb.OrchestrationUpdate, self._replies.orchestration)
        async with aclosing(updates):
            async for update in updates:
                yield update

    async def SubmitTask(self, request: pb.SubmitTaskRequest, context: Context) -> pb.SubmitTaskResponse:
        if request.WhichOneof("task") == "judge":
            task_id, submission = request.judge.task_id, await self._judge(request, request.judge, context)
        else:
            with requests.fields_of(request):
                task = requests.submitted_task(request)
            task_id, submission = task.task_id, await self._submit(request, task, context)
        state = self.executions.projection.get(tenant(), submission.execution_id)
        return pb.SubmitTaskResponse(
            execution_id=submission.execution_id,
            task_id=task_id,
            status=to_enum(pb.DeliberationStatus, state.status if state else ExecutionStatus.PENDING),
            already_existed=submission.existed,
            approval=to_enum(pb.ApprovalPolicy, state.task.approval if state else None),
        )

    async def JudgePatches(self, request: pb.JudgePatchesRequest, context: Context) -> pb.JudgePatchesResponse:
        submission = await self._judge(request, request, context)
        return await self._replies.judgement(await self.executions.wait(tenant(), submission.execution_id))

    async def DeliverCandidate(
        self, request: pb.DeliverCandidateRequest, context: Context
    ) -> pb.DeliverCandidateResponse:
        delivery = requests.hand_delivery(request, principal().name)
        delivered = await self.executions.deliver(tenant(), request.execution_id, delivery)
        return pb.DeliverCandidateResponse(
            execution_id=request.execution_id, commit_sha=delivered.commit_sha, branch=delivered.branch
        )

    async def Erase(self, request: pb.EraseRequest, context: Context) -> pb.EraseResponse:
        kind, named = request.WhichOneof("what") or "execution_id", request.memories
        if not (getattr(request, kind) if kind != "memories" else named.memory_ids or named.namespaces):
            hint = "set one of execution_id, caller, tenant and memories"
            raise InvalidRequest("nothing to erase is named", field=kind, hint=hint)
        erasure = Erasure(
            tenant=tenant(),
            kind=kind,
            name=getattr(request, kind) if kind != "memories" else "",
            memory_ids=frozenset(named.memory_ids),
            namespaces=frozenset(named.namespaces),
            by=principal().name or caller_of(context),
            reason=request.reason,
            dry_run=request.dry_run,
            cancel=request.cancel,
        )
        erased = await self.erasures.erase(erasure)
        stores = [pb.ErasedStore(store=name, items=n, bytes=size) for name, (n, size) in erased.stores.items()]
        return pb.EraseResponse(record_id=erased.record_id, execution_ids=erased.execution_ids, stores=stores)

    async def GetDeliberationResult(
        self, request: pb.GetDeliberationResultRequest, context: Context
    ) -> pb.GetDeliberationResultResponse:
        task_id = check_identifier(request.task_id, field="task_id")
        try:
            state = await self.executions.latest(tenant(), task_id, TaskKind.DELIBERATE)
        except NotFound:
            state = await self.executions.latest(tenant(), task_id)
        duration = state.duration_ms if state.finished_at else milliseconds(now()) - milliseconds(state.started_at)
        return pb.GetDeliberationResultResponse(
            task_id=state.task.task_id,
            status=to_enum(pb.DeliberationStatus, state.status),
            results=await self._replies.candidates(state, room=MAX_REPLY_BYTES),
            winner_id=responses.winner_agent(state),
            duration_ms=max(duration, 0),
            error_message=state.error[: responses.MAX_ERROR_CHARS],
            metadata=metadata(state),
            **responses.verdict(state),
        )

    async def GetArtifact(
        self, request: pb.GetArtifactRequest, context: Context
    ) -> AsyncIterator[pb.GetArtifactResponse]:
        execution_id = request.execution_id
        if not _DIGEST.fullmatch(request.digest):
            raise InvalidRequest("not a SHA-256 digest", field="digest", hint="64 lower-case hexadecimal digits")
        name = f"{tenant()}/{execution_id}/{request.digest}"
        try:
            data = await self.blobs.get(BlobRef(name=name, digest=request.digest, size=0))
        except NotFound:
            raise NotFound(f"the execution stored no {request.digest}", field="digest") from None
        if request.offset_bytes > len(data):
            raise InvalidRequest(
                f"offset_bytes is {request.offset_bytes}", field="offset_bytes", hint=f"at most {len(data)}"
            )
        ref = BlobRef(name=name, digest=request.digest, size=len(data))
        yield pb.GetArtifactResponse(artifact=responses.artifact(ref, execution_id))
        for offset in range(request.offset_bytes, len(data), CHUNK_BYTES):
            yield pb.GetArtifactResponse(chunk=data[offset : offset + CHUNK_BYTES])

    async def GetExecution(self, request: pb.GetExecutionRequest, context: Context) -> pb.GetExecutionResponse:
        state = await self.executions.get(tenant(), request.execution_id)
        execution = responses.execution_message(state, whole=True)
        execution.pending_approvals.extend(pending(state, room=MAX_REPLY_BYTES // 2))
        execution.superseded.extend(self._replies.superseded(state, room=(MAX_REPLY_BYTES - execution.ByteSize()) // 4))
        execution.results.extend(await self._replies.candidates(state, room=MAX_REPLY_BYTES - execution.ByteSize()))
        keys = [pb.AuditKey(key_id=name, public_key=raw) for name, raw in self.audit_keys.keys.items()]
        return pb.GetExecutionResponse(execution=execution, audit_keys=keys)

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        # In a thread, because executions that have ended are read from a file.
        return await asyncio.to_thread(page, self.executions.projection, request, tenant(), self.metrics.meter.running)

    async def StreamExecution(
        self, request: pb.StreamExecutionRequest, context: Context
    ) -> AsyncIterator[pb.ExecutionEvent]:
        execution_id = request.execution_id
        events = self.executions.watch(tenant(), execution_id, request.from_sequence)
        async with aclosing(events):
            if not request.include_text:
                async for stored in events:
                    yield responses.event(stored)
                return
            async with aclosing(with_live_text(events, self.watch_live(tenant(), execution_id))) as both:
                async for message in both:
                    yield (
                        responses.text_delta(execution_id, message)
                        if isinstance(message, TextDelta)
                        else responses.event(message)
                    )

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        execution_id = request.execution_id
        before = await self.executions.get(tenant(), execution_id)
        after = await self.executions.cancel(tenant(), execution_id, request.reason)
        stopped = after.status is ExecutionStatus.CANCELLED and not before.status.terminal
        return pb.CancelExecutionResponse(
            execution_id=execution_id, status=to_enum(pb.DeliberationStatus, after.status), already_ended=not stopped
        )

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        components = await self.components()
        states = {component.state for component in components}
        reply = pb.GetStatusResponse(
            status="unhealthy"
            if ComponentState.DOWN in states
            else "degraded"
            if ComponentState.DEGRADED in states
            else "healthy",
            uptime_seconds=int(time.monotonic() - self._started_at),
            stats=_stats(self.executions.projection, tenant()) if request.include_stats else None,
            components=[to_message(pb.ComponentStatus, shown_to(principal(), component)) for component in components],
        )
        if request.include_stats:
            reply.stats.active_councils = await active_councils(self.councils)
        if request.include_fleet:
            await self.fleet.fill(reply)
        return reply

    async def UploadRepository(
        self, request_iterator: AsyncIterator[pb.UploadRepositoryRequest], context: Context
    ) -> pb.RepoRef:
        return await self.uploads.receive(request_iterator)

    async def ResolveApproval(self, request: pb.ResolveApprovalRequest, context: Context) -> pb.ResolveApprovalResponse:
        execution_id = request.execution_id
        resolution = requests.resolution(request, context)
        state = await self.executions.resolve(tenant(), execution_id, resolution, by=principal().name)
        return pb.ResolveApprovalResponse(
            execution_id=execution_id,
            status=to_enum(pb.DeliberationStatus, state.status),
            pending_approvals=len(state.pending),
        )

    async def RegisterAgent(self, request: pb.RegisterAgentRequest, context: Context) -> pb.RegisterAgentResponse:
        return await self.councils.register(request)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        return await self.fleet.drain(request)

    async def UnregisterAgent(self, request: pb.UnregisterAgentRequest, context: Context) -> pb.UnregisterAgentResponse:
        return await self.councils.unregister(request)

    async def CreateCouncil(self, request: pb.CreateCouncilRequest, context: Context) -> pb.CreateCouncilResponse:
        return await self.councils.create(request)

    async def ListCouncils(self, request: pb.ListCouncilsRequest, context: Context) -> pb.ListCouncilsResponse:
        return await self.councils.list(request)

    async def DeleteCouncil(self, request: pb.DeleteCouncilRequest, context: Context) -> pb.DeleteCouncilResponse:
        return await self.councils.delete(request)

    async def ProcessPlanningEvent(
        self, request: pb.ProcessPlanningEventRequest, context: Context
    ) -> pb.ProcessPlanningEventResponse:
        return await answer_planning_event(self.planning, request, context)

    async def DeriveSubtasks(self, request: pb.DeriveSubtasksRequest, context: Context) -> pb.DeriveSubtasksResponse:
        plan = replace(requests.derivation_request(request), tenant=tenant())
        return requests.derivation_response(plan, await self.derivations.derive(plan))

    async def GetTaskContext(self, request: pb.GetTaskContextRequest, context: Context) -> pb.GetTaskContextResponse:
        if self.contexts is None:
            raise NotAvailable("no context service is configured", hint="the event run_started has an agent's messages")
        return await self.contexts.get(request)

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        return await self.metrics.get(request)

    async def _submit(self, request: Message, task: Task, context: Context, store: Store | None = None) -> Submission:
        task = replace(task, tenant=tenant(), caller=caller_of(context))
        with requests.fields_of(request):
            return await self.executions.submit(task, store=store)

    async def _judge(self, request: Message, judge: pb.JudgePatchesRequest, context: Context) -> Submission:
        with requests.fields_of(request):
            task = replace(requests.judge_task(judge), tenant=tenant())
        task = requests.with_patches(task, judge.patches)
        return await self._submit(
            request, task, context, lambda: requests.store_patches(task, judge.patches, self.blobs)
        )

    async def _updates(
        self, execution_id: str, kind: type[Update], final: Callable[[ExecutionState], Awaitable[Any]]
    ) -> AsyncGenerator[Update, None]:
        """An update for every event; the last one has the result that `final` makes of the final state."""
        progress = Progress()
        async with aclosing(self.executions.watch(tenant(), execution_id)) as events:
            async for stored in events:
                progress.follow(stored)
                update = kind(
                    status=to_enum(pb.DeliberationStatus, progress.state.status),
                    progress_percent=progress.percent,
                    current_step=progress.step,
                    current_agent=progress.agent_id,
                    sequence=stored.sequence,
                    event=responses.event(stored),
                )
                if progress.candidate_id:
                    update.partial_result.CopyFrom(await self._replies.partial(progress.state, progress.candidate_id))
                if isinstance(stored.event.body, ExecutionFinished):
                    update.final.CopyFrom(await final(progress.state))
                yield update


def _stats(projection: Projection, tenant: str) -> pb.OrchestratorStats:
    deliberations, ended, seconds = projection.total(tenant, kind=TaskKind.DELIBERATE)
    roles = {str(role): projection.total(tenant, role=role)[0] for role in Role}
    return pb.OrchestratorStats(
        total_deliberations=deliberations,
        total_orchestrations=projection.total(tenant, kind=TaskKind.ORCHESTRATE)[0],
        avg_deliberation_time_ms=seconds / ended if ended else 0.0,
        role_counts={role: count for role, count in roles.items() if count},
    )
