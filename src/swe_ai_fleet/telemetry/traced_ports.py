"""Spans around what an execution asks of others: its fleet, its repositories, the result bus."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

from opentelemetry.trace import SpanKind

from swe_ai_fleet.domain.candidate import Delivered
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errand import (
    Assignment,
    Errand,
    ErrandKind,
    RecordedErrand,
)
from swe_ai_fleet.domain.integration import Exported, Merge, MergeRequest
from swe_ai_fleet.domain.task import Delivery, EnvironmentSpec, PinnedRepository, RepoRef
from swe_ai_fleet.ports import Clone, Fleet, Repositories, ResultBus
from swe_ai_fleet.telemetry.phases import phase
from swe_ai_fleet.telemetry.tracing import Tracing, stamp

T = TypeVar("T")
_PHASES = {
    ErrandKind.RUN: "draft",
    ErrandKind.BASELINE: "check",
    ErrandKind.CHECK: "check",
    ErrandKind.EXAMINE: "check",
    ErrandKind.REVIEW: "review",
    ErrandKind.JUDGE: "judge",
    ErrandKind.SCORE: "judge",
    ErrandKind.DERIVE: "derive",
    ErrandKind.ANSWER: "nodes",
    ErrandKind.OPERATE: "nodes",
}


class TracedFleet:
    """A `Fleet`; what goes to it belongs to a phase of its execution, and carries the span on to another process."""

    def __init__(self, fleet: Fleet, tracing: Tracing) -> None:
        self._fleet = fleet
        self._tracing = tracing

    async def carry_out(self, errand: Errand[T]) -> T:
        """As the fleet does."""
        attributes = {
            "rpc.system": "ray",
            "fleet.tenant": errand.task.tenant,
            "fleet.task_id": errand.task.task_id,
            "fleet.execution_id": errand.execution_id,
            "fleet.agent_id": _agent(errand),
        }
        with phase(_phase(errand)), self._tracing.span(f"ray {errand.kind}", attributes, kind=SpanKind.CLIENT):
            traceparent = stamp().get("traceparent", "")
            return await self._fleet.carry_out(replace(errand, task=replace(errand.task, traceparent=traceparent)))


def _phase(errand: Errand[object]) -> str:
    """The part of its execution that an errand belongs to."""
    revises = isinstance(errand, Assignment) and errand.revision is not None
    return "revise" if revises else _PHASES[errand.kind]


def _agent(errand: Errand[object]) -> str:
    return errand.agent_id if isinstance(errand, RecordedErrand) else ""


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

    async def keep(
        self, execution_id: str, repository: PinnedRepository, patch: bytes, ref: str, message: str
    ) -> Delivered:
        """As they do."""
        return await self._inner.keep(execution_id, repository, patch, ref, message)

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
