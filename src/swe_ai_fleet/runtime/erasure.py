"""Erases the stored data of executions, callers, tenants and memories, and enforces tenants' retention.

Each execution gets a tombstone first, the one event that stays: from then on every service answers that it is erased.
Data that an interrupted erasure left is erased with the tenant's next one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.holdings import ErasureScope
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.context import NO_STORY, Change, KnowledgeErased
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    ExecutionClaimed,
    ExecutionErased,
    ResultPublished,
    StoredEvent,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.memory import MEMORIES_BUCKET, OUTCOMES_BUCKET, WorkOutcome
from swe_ai_fleet.domain.task import UPLOAD
from swe_ai_fleet.domain.text import counted, now
from swe_ai_fleet.extension_registry import extensions
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.execution_context import IN_PROCESS
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.projection import over
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET
from swe_ai_fleet.runtime import fleet_view
from swe_ai_fleet.runtime.installation.nats_accounts import HOSTS_BUCKET
from swe_ai_fleet.runtime.replicas import LEASES_BUCKET
from swe_ai_fleet.snapshots import CONTEXT_SNAPSHOTS, EXECUTION_SNAPSHOTS

_SETTLING_SECONDS = 60.0
_AT_ONCE = 500
"""Executions per step: all get tombstones before data is erased, so an interrupted step can be resumed."""
_LOOK_SECONDS = 3_600.0
_log = structlog.get_logger(__name__)

Kind = Literal["execution_id", "caller", "tenant", "memories", "retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """A request to erase data of a tenant; tombstones record `by` whom and for which `reason`.

    `name` is the execution's id, the caller's or the tenant's name; `cancel`: running executions are cancelled, else
    refused. Retention erases executions that ended `before` (ISO 8601, UTC), and those whose events are `gone` already.
    """

    tenant: str
    kind: Kind
    name: str = ""
    memory_ids: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    by: str
    reason: str
    dry_run: bool = False
    cancel: bool = False
    before: str = ""
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What was (or would be) erased: executions, messages and bytes by store. `record_id` has the tombstone."""

    record_id: str
    execution_ids: tuple[str, ...]
    stores: Mapping[str, tuple[int, int]]


class NodeCaches(Protocol):
    """Files on nodes, such as clones and uploads."""

    async def forget(self, tenant: str, executions: Sequence[str], uploads: Sequence[str], *, whole: bool) -> None:
        """Remove the files of ended executions and uploads; `whole`: of the tenant. Raises Unavailable."""
        ...


@dataclass(kw_only=True)
class Erasures:
    """Erases in NATS (`log`) and on `nodes`, one erasure after the other."""

    executions: Executions
    log: JetStream
    nodes: Sequence[NodeCaches]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def erase(self, erasure: Erasure) -> Erased:
        """Erase, and return once all data is gone. Idempotent; a repetition finishes an interrupted erasure.

        Raises InvalidRequest, NotFound (with `field`), PreconditionFailed (something runs: `field="cancel"`),
        Unavailable.
        """
        targets = await self._targets(erasure)
        ids = tuple(sorted(state.execution_id for state in targets))
        erasing = self.log.erasing(_bucket_owners(), by_task=_task_buckets(), memories=MEMORIES_BUCKET)
        items, sizes = Counter[str](), Counter[str]()

        async def erase(scope: ErasureScope) -> None:
            for store, (number, size) in (await erasing.erase(scope, dry_run=erasure.dry_run)).items():
                items[store] += number
                sizes[store] += size

        if not erasure.dry_run:
            await self._settle(erasure, [state.execution_id for state in targets if not over(state)])
        async with self._turn:
            step = len(targets) if erasure.kind == "tenant" else _AT_ONCE
            for start in range(0, max(len(targets), 1), max(step, 1)):
                some = targets[start : start + step]
                # A session has the text of all its executions, and is erased with the first of them.
                sessions = frozenset(state.task.task_id for state in some if state.task.kind in IN_PROCESS)
                if erasure.dry_run:
                    await erase(replace(self._scope(erasure, some), tasks=sessions))
                    continue
                # Before the tombstone, which names no task: a repeated erasure could not find the session.
                if sessions:
                    await erase(ErasureScope(tenant=erasure.tenant, tasks=sessions))
                for state in some:
                    await self._bury(erasure, state)
                scope = self._scope(erasure, some)
                await erase(scope)
                if erasure.kind != "memories":
                    await self._forget(scope)
            if not erasure.dry_run and erasure.kind != "memories":
                # A process that is writing one finds its head gone. Projections save new ones without the erased data.
                await erasing.clear(EXECUTION_SNAPSHOTS, CONTEXT_SNAPSHOTS)
            record_id = "" if erasure.dry_run else await self._record(erasure)
        _log.info("erasure.done", kind=erasure.kind, tenant=erasure.tenant, executions=len(ids), record_id=record_id)
        return Erased(
            record_id=record_id, execution_ids=ids, stores={item: (items[item], sizes[item]) for item in items}
        )

    async def _targets(self, erasure: Erasure) -> list[ExecutionState]:
        """The executions to erase, with their sub-executions."""
        states = list(self.executions.projection.select(erasure.tenant))
        targets: list[ExecutionState] = []
        match erasure.kind:
            case "execution_id":
                state, tombstone = await self.executions.stored(erasure.tenant, erasure.name)
                if state is None and tombstone is None:
                    raise NotFound(f"no execution {erasure.name[:64]!r}", field="execution_id")
                targets = [state] if state is not None else []
            case "caller":
                targets = [state for state in states if state.task.caller == erasure.name]
            case "tenant" if erasure.name != erasure.tenant:
                hint = f"{erasure.tenant!r} is; a tenant is erased by its own admins, or in its name"
                raise InvalidRequest("the name is not that of your tenant", field="tenant", hint=hint)
            case "tenant":
                targets = states
            case "retention":
                ended = (state for state in states if over(state) and not state.task.parent_execution_id)
                targets = [state for state in ended if state.finished_at < erasure.before]
            case "memories":
                pass
        names = {state.execution_id for state in targets}
        while parts := [s for s in states if s.task.parent_execution_id in names and s.execution_id not in names]:
            targets += parts
            names.update(state.execution_id for state in parts)
        return targets

    async def _settle(self, erasure: Erasure, running: Collection[str]) -> None:
        """Cancel executions, and wait until their results are published: nothing is written after that."""
        if running and not erasure.cancel:
            raise PreconditionFailed(
                f"{counted(len(running), 'execution')} still running: {', '.join(sorted(running)[:5])}",
                field="cancel",
                hint="wait for the end, or cancel with the erasure: `--cancel`",
            )
        for execution_id in running:
            await self.executions.cancel(erasure.tenant, execution_id, "to be erased")
            own_events = self.log.read(erasure.tenant, execution_id, agent_id=EXECUTION_SUBJECT, follow=True)
            try:
                async with asyncio.timeout(_SETTLING_SECONDS), aclosing(own_events) as events:
                    async for stored in events:
                        if isinstance(stored.event.body, ResultPublished):
                            break
            except TimeoutError:
                raise Unavailable(f"{execution_id} was cancelled and has not ended yet", hint="erase again") from None

    def _scope(self, erasure: Erasure, targets: Sequence[ExecutionState]) -> ErasureScope:
        if erasure.kind == "memories":
            return ErasureScope(tenant=erasure.tenant, memories=erasure.memory_ids, namespaces=erasure.namespaces)
        projection, ids = self.executions.projection, frozenset(state.execution_id for state in targets)
        still_used = {_upload(state) for state in projection.select(erasure.tenant) if state.execution_id not in ids}
        return ErasureScope(
            tenant=erasure.tenant,
            # Together with the rest of an interrupted erasure.
            executions=ids | erasure.gone | frozenset(projection.erased(erasure.tenant)[-_AT_ONCE:]),
            uploads=frozenset(map(_upload, targets)) - still_used - {""},
            caller=erasure.name if erasure.kind == "caller" else "",
            everything=erasure.kind == "tenant",
        )

    async def _bury(self, erasure: Erasure, state: ExecutionState) -> None:
        """Append an execution's tombstone to its events, with the hashes of its audit."""
        chains, generation = AuditChains(), state.generation
        try:
            async with aclosing(self.log.read(erasure.tenant, state.execution_id)) as events:
                async for stored in events:
                    chains.take(stored)
                    if isinstance(stored.event.body, ExecutionClaimed):
                        generation = max(generation, stored.event.body.generation)
        except (PreconditionFailed, NotFound) as fault:
            chains.unreadable(EXECUTION_SUBJECT, fault.message[:200])
        await self._tombstone(erasure, state.execution_id, chains=chains, generation=generation + 1)

    async def _record(self, erasure: Erasure) -> str:
        """The id of the log with the tombstone; a new one where it belongs to no single execution."""
        if erasure.kind in ("execution_id", "retention"):
            return erasure.name
        record_id = str(uuid.uuid4())
        await self._tombstone(erasure, record_id, chains=AuditChains(), generation=1)
        return record_id

    async def _tombstone(self, erasure: Erasure, execution_id: str, *, chains: AuditChains, generation: int) -> None:
        body = ExecutionErased(
            scope=erasure.kind.removesuffix("_id"),
            by=erasure.by,
            reason=erasure.reason,
            chains=tuple(chains.redacted(verdict.agent_id, verdict.run) for verdict in chains.verdicts()),
        )
        writer = Writer(tenant=erasure.tenant, execution_id=execution_id, task_id="", generation=generation)
        async with self.log.journal(writer) as journal:
            event = await journal.append(body)
        # This process's projection forgets now, not only when the event arrives.
        self.executions.projection.erase(StoredEvent(sequence=0, event=event))

    async def _forget(self, scope: ErasureScope) -> None:
        """Have context services erase their memory, and nodes their files."""
        for execution_id in ("",) if scope.everything else sorted(scope.executions):
            body = KnowledgeErased(execution_id=execution_id)
            change = Change(tenant=scope.tenant, story_id=NO_STORY, version=0, at=now(), body=body)
            await self.log.changes().append(change)
        for node in self.nodes:
            await node.forget(scope.tenant, sorted(scope.executions), sorted(scope.uploads), whole=scope.everything)

    async def keep(self, leads: Callable[[], bool]) -> None:
        """Enforce retention until cancelled, on the leading replica. Faults are logged; the next round retries."""
        while True:
            for tenant in sorted(self.executions.projection.tenants()) if leads() else ():
                try:
                    await self.retain(tenant)
                except FleetError as error:
                    _log.warning("retention.failed", tenant=tenant, reason=error.message)
            await asyncio.sleep(_LOOK_SECONDS)

    async def retain(self, tenant: str, at: datetime | None = None) -> None:
        """Erase executions that ended longer ago than their tenant keeps them. Raises Unavailable."""
        if not (days := self.executions.rules(tenant).retention_days):
            return
        before = ((at or datetime.now(UTC)) - timedelta(days=days)).isoformat()
        # Outcomes are kept longer than the events they were made of.
        entries = await (await self.log.bucket(OUTCOMES_BUCKET)).entries(f"{tenant}.")
        old = (
            outcome
            for outcome in (from_json(WorkOutcome, entry.value) for entry in entries)
            if outcome.ended_at < before
        )
        ids = {state.execution_id for state in self.executions.projection.select(tenant)}
        subjects_gone = frozenset(outcome.subject_id for outcome in old if outcome.subject_id.count("-") == 4) - ids
        reason = f"kept for {counted(days, 'day')}"
        erasure = Erasure(
            tenant=tenant, kind="retention", by="retention", reason=reason, before=before, gone=subjects_gone
        )
        if subjects_gone or await self._targets(erasure):
            await self.erase(erasure)


def _bucket_owners() -> Mapping[str, str]:
    """The kinds of the buckets that are special to `Erasing`; those of others begin their keys with a tenant."""
    core = {
        **dict.fromkeys((LEASES_BUCKET, fleet_view.BUCKET, HOSTS_BUCKET), "fleet"),
        **dict.fromkeys((EXECUTION_SNAPSHOTS, CONTEXT_SNAPSHOTS), "fleet"),
        **dict.fromkeys((TEST_RUNS_BUCKET, RECIPES_BUCKET), "cache"),
        **dict.fromkeys((MEMORIES_BUCKET, OUTCOMES_BUCKET), "followed"),
    }
    return {
        **core,
        **{bucket: whose for extension in extensions().values() for bucket, whose in extension.buckets.items()},
    }


def _task_buckets() -> Mapping[str, int]:
    """Buckets whose keys have a task's id behind the tenant, and how many tokens follow it."""
    return {OUTCOMES_BUCKET: 0} | {
        name: n for extension in extensions().values() for name, n in extension.task_buckets.items()
    }


def _upload(state: ExecutionState) -> str:
    """The digest of the upload that an execution works on; empty for another repository."""
    location = state.repository.location
    return location.removeprefix(UPLOAD) if location.startswith(UPLOAD) else ""
