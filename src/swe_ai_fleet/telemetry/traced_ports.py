"""Spans around what an execution asks of others: its fleet, its repositories, the result bus."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import TypeVar

from opentelemetry.trace import SpanKind

from swe_ai_fleet.domain.candidate import (
    Assignment,
    Candidate,
    CheckAssignment,
    CheckReport,
    Delivered,
    DeriveAssignment,
    JudgeAssignment,
    ReviewAssignment,
)
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.integration import Exported, Merge, MergeRequest
from swe_ai_fleet.domain.node_work import Answer, AnswerAssignment, OperateAssignment
from swe_ai_fleet.domain.review import Critique, Vote
from swe_ai_fleet.domain.subtask import Derivation
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.ports import Clone, Fleet, Repositories, ResultBus
from swe_ai_fleet.telemetry.phases import phase
from swe_ai_fleet.telemetry.tracing import Tracing, stamp

A = TypeVar(
    "A",
    Assignment,
    CheckAssignment,
    ReviewAssignment,
    JudgeAssignment,
    DeriveAssignment,
    AnswerAssignment,
    OperateAssignment,
)


class TracedFleet:
    """A `Fleet`; what goes to it belongs to a phase of its execution, and carries the span on to another process."""

    def __init__(self, fleet: Fleet, tracing: Tracing) -> None:
        self._fleet = fleet
        self._tracing = tracing

    async def run(self, assignment: Assignment) -> Candidate:
        """As the fleet does."""
        with self._call("draft" if assignment.revision is None else "revise", "run", assignment) as sent:
            return await self._fleet.run(sent)

    async def check(self, assignment: CheckAssignment) -> CheckReport:
        """As the fleet does."""
        with self._call("check", "check", assignment) as sent:
            return await self._fleet.check(sent)

    async def review(self, assignment: ReviewAssignment) -> Critique:
        """As the fleet does."""
        with self._call("review", "review", assignment) as sent:
            return await self._fleet.review(sent)

    async def judge(self, assignment: JudgeAssignment) -> tuple[Vote, ...]:
        """As the fleet does."""
        with self._call("judge", "judge", assignment) as sent:
            return await self._fleet.judge(sent)

    async def derive(self, assignment: DeriveAssignment) -> Derivation:
        """As the fleet does."""
        with self._call("derive", "derive", assignment) as sent:
            return await self._fleet.derive(sent)

    async def answer(self, assignment: AnswerAssignment) -> Answer:
        """As the fleet does."""
        with self._call("nodes", "answer", assignment) as sent:
            return await self._fleet.answer(sent)

    async def operate(self, assignment: OperateAssignment) -> ToolResult:
        """As the fleet does."""
        with self._call("nodes", "operate", assignment) as sent:
            return await self._fleet.operate(sent)

    @contextmanager
    def _call(self, stage: str, verb: str, assignment: A) -> Generator[A]:
        attributes = {
            "rpc.system": "ray",
            "fleet.tenant": assignment.task.tenant,
            "fleet.task_id": assignment.task.task_id,
            "fleet.execution_id": assignment.execution_id,
            "fleet.agent_id": getattr(assignment, "agent_id", ""),
        }
        with phase(stage), self._tracing.span(f"ray {verb}", attributes, kind=SpanKind.CLIENT):
            traceparent = stamp().get("traceparent", "")
            yield replace(assignment, task=replace(assignment.task, traceparent=traceparent))


class TracedRepositories:
    """`Repositories` whose slow ways have spans."""

    def __init__(self, repositories: Repositories, tracing: Tracing) -> None:
        self._inner = repositories
        self._tracing = tracing

    async def pin(self, tenant: str, repo: RepoRef) -> PinnedRepository:
        """As they do."""
        with self._tracing.span("pin repository", {"fleet.tenant": tenant}):
            return await self._inner.pin(tenant, repo)

    async def environment(self, repository: PinnedRepository, spec: EnvironmentSpec) -> Environment:
        """As they do."""
        with self._tracing.span("environment", {}):
            return await self._inner.environment(repository, spec)

    def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AbstractAsyncContextManager[Clone]:
        """As they do."""
        return self._inner.open(execution_id, name, repository, environment)

    async def deliver(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, delivery: Delivery
    ) -> Delivered:
        """As they do."""
        with self._tracing.span("apply", {"fleet.execution_id": execution_id, "fleet.patch_bytes": len(patch)}):
            return await self._inner.deliver(execution_id, repository, patch, delivery)

    async def release(self, execution_id: str) -> None:
        """As they do."""
        await self._inner.release(execution_id)

    async def merge(self, request: MergeRequest) -> Merge:
        """As they do."""
        with self._tracing.span("merge", {}):
            return await self._inner.merge(request)

    async def publish(
        self, execution_id: str, repository: PinnedRepository, since: str, delivery: Delivery
    ) -> Delivered:
        """As they do."""
        with self._tracing.span("apply", {"fleet.execution_id": execution_id}):
            return await self._inner.publish(execution_id, repository, since, delivery)

    async def export(self, repository: PinnedRepository, base: str, branch: str, *, since: str = "") -> Exported:
        """As they do."""
        return await self._inner.export(repository, base, branch, since=since)


class TracedResults:
    """A `ResultBus` whose messages belong to the span that they are published in."""

    def __init__(self, results: ResultBus, tracing: Tracing) -> None:
        self._results = results
        self._tracing = tracing

    async def publish(self, *, tenant: str, task_id: str, execution_id: str, agent_id: str, payload: bytes) -> bool:
        """As the bus does."""
        attributes = {
            "messaging.system": "nats",
            "messaging.operation.type": "send",
            "messaging.destination.name": "agent.results",
            "messaging.message.body.size": len(payload),
            "fleet.tenant": tenant,
            "fleet.task_id": task_id,
            "fleet.execution_id": execution_id,
        }
        with self._tracing.span("send agent.results", attributes, kind=SpanKind.PRODUCER):
            return await self._results.publish(
                tenant=tenant, task_id=task_id, execution_id=execution_id, agent_id=agent_id, payload=payload
            )
