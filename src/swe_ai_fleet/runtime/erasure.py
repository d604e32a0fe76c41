"""Erases what the fleet keeps of executions, callers, tenants and in memories; enforces for how long tenants keep it.

Each execution gets a tombstone first, the one event that stays: from then on everybody answers that it is erased, and
what an interrupted erasure left goes with the next one of the tenant.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

import structlog

from swe_ai_fleet.adapters.jetstream import JetStream
from swe_ai_fleet.adapters.jetstream.erasing import ErasureScope
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.audit_chains import AuditChains
from swe_ai_fleet.domain.context import NO_STORY, Change, KnowledgeErased
from swe_ai_fleet.domain.errors import (
    AlreadyExists,
    FleetError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from swe_ai_fleet.domain.event import EXECUTION_SUBJECT, ExecutionClaimed, ExecutionErased, ResultPublished, Writer
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.moment import now
from swe_ai_fleet.domain.outcome import Outcome
from swe_ai_fleet.domain.task import UPLOAD
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.extensions import extensions
from swe_ai_fleet.learning.tracker import OUTCOMES_BUCKET
from swe_ai_fleet.memory.shared import MEMORIES_BUCKET
from swe_ai_fleet.orchestrator.evidence.test_runs import TEST_RUNS_BUCKET
from swe_ai_fleet.orchestrator.executions import Executions
from swe_ai_fleet.orchestrator.projection import over
from swe_ai_fleet.orchestrator.recipes import RECIPES_BUCKET
from swe_ai_fleet.runtime import fleet_view, lease_keeper
from swe_ai_fleet.runtime.installation.nats_users import HOSTS_BUCKET

_SETTLING_SECONDS = 60.0
_LOOK_SECONDS = 3_600.0
_log = structlog.get_logger(__name__)

Kind = Literal["execution", "caller", "tenant", "memory", "retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What is to be erased, and why.

    Attributes:
        tenant: Whose it is.
        kind: What it is about.
        name: The execution's id, the caller's or the tenant's name; empty for memories.
        memory_ids: Memories.
        namespaces: Whole namespaces of memories.
        by: Who wants it, for the tombstones.
        reason: Why, for the tombstones.
        dry_run: Only tell what would go.
        cancel: Cancel what still runs; else that is refused.
        before: Of retention, when what is kept ended at the earliest (ISO 8601, UTC).
        gone: Executions whose events are gone already.
    """

    tenant: str
    kind: Kind
    name: str = ""
    memory_ids: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""
    dry_run: bool = False
    cancel: bool = False
    before: str = ""
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What was erased, or would be: executions, and pieces and bytes of each store. `record_id` has the tombstone."""

    record_id: str
    executions: tuple[str, ...]
    stores: Mapping[str, tuple[int, int]]


class Forgets(Protocol):
    """Something that keeps files on nodes."""

    async def forget(self, tenant: str, executions: Sequence[str], uploads: Sequence[str], *, whole: bool) -> None:
        """Remove what is kept of ended executions and uploads; `whole`: of the tenant. Raises Unavailable."""
        ...


@dataclass(kw_only=True)
class Erasures:
    """Erases; several at a time are one after the other.

    Attributes:
        executions: Knows which there are, and is told that they are gone.
        log: Everything that NATS has.
        nodes: What keeps files.
    """

    executions: Executions
    log: JetStream
    nodes: Sequence[Forgets]
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def erase(self, erasure: Erasure) -> Erased:
        """Erase, and return once all is gone, other replicas' memories and nodes' caches too.

        Doing it again changes nothing, and finishes what was interrupted. Raises InvalidRequest, NotFound (with
        `field`), PreconditionFailed (something runs: `field="cancel"`), Unavailable.
        """
        targets = await self._targets(erasure)
        running = [state.execution_id for state in targets if not over(state)]
        if running and not erasure.dry_run:
            if not erasure.cancel:
                raise PreconditionFailed(
                    f"{counted(len(running), 'execution')} still running: {', '.join(running[:5])}",
                    field="cancel",
                    hint="wait for the end, or cancel with the erasure (`fleet erase --cancel`)",
                )
            await asyncio.gather(*(self._ended(erasure, execution_id) for execution_id in running))
        async with self._turn:
            scope = self._scope(erasure, targets)
            erasing = self.log.erasing(_whose(), memories=MEMORIES_BUCKET)
            if erasure.dry_run:
                return Erased(record_id="", executions=_ids(targets), stores=await erasing.count(scope))
            for state in targets:
                await self._bury(erasure, state)
            stores = await erasing.erase(scope)
            if erasure.kind != "memory":
                await self._unlearn(scope, everything=erasure.kind == "tenant")
                about = erasure.tenant, sorted(scope.executions), sorted(scope.uploads)
                for node in self.nodes:
                    await node.forget(*about, whole=scope.everything)
            single = erasure.kind in ("execution", "retention")
            record = erasure.name if single else await self._record(erasure)
            _log.info("erased", kind=erasure.kind, tenant=erasure.tenant, executions=len(targets), record=record)
            return Erased(record_id=record, executions=_ids(targets), stores=stores)

    async def _targets(self, erasure: Erasure) -> list[ExecutionState]:
        """The executions that go, those that a part of one is included."""
        known = self.executions.projection.all(erasure.tenant)
        match erasure.kind:
            case "execution":
                state, tombstone = await self.executions.stored(erasure.tenant, erasure.name)
                if state is None and tombstone is None:
                    raise NotFound(f"no execution {erasure.name[:64]!r}", field="execution_id")
                targets = [state] if state is not None else []
            case "caller":
                targets = [state for state in known if state.task.caller == erasure.name]
            case "tenant":
                if erasure.name != erasure.tenant:
                    raise InvalidRequest(
                        "the name is not that of your tenant",
                        field="tenant",
                        hint=f"{erasure.tenant!r} is; a tenant is erased by its own admins, or in its name",
                    )
                targets = known
            case "retention":
                ended = (state for state in known if over(state) and not state.task.parent_execution_id)
                targets = [state for state in ended if state.finished_at < erasure.before]
            case "memory":
                return []
        names = {state.execution_id for state in targets} | {erasure.name}
        while parts := [s for s in known if s.task.parent_execution_id in names and s.execution_id not in names]:
            targets += parts
            names.update(state.execution_id for state in parts)
        return targets

    async def _ended(self, erasure: Erasure, execution_id: str) -> None:
        """Cancel an execution, and wait until subscribers were told: nothing is written after that."""
        await self.executions.cancel(erasure.tenant, execution_id, "to be erased")
        told = self.log.read(erasure.tenant, execution_id, agent_id=EXECUTION_SUBJECT, follow=True)
        try:
            async with asyncio.timeout(_SETTLING_SECONDS), aclosing(told) as events:
                async for stored in events:
                    if isinstance(stored.event.body, ResultPublished):
                        return
        except TimeoutError:
            raise Unavailable(
                f"execution {execution_id} was cancelled and has not ended yet", hint="erase again"
            ) from None

    def _scope(self, erasure: Erasure, targets: Sequence[ExecutionState]) -> ErasureScope:
        projection, ids = self.executions.projection, frozenset(_ids(targets))
        if erasure.kind == "memory":
            named = frozenset(erasure.memory_ids), frozenset(erasure.namespaces)
            return ErasureScope(tenant=erasure.tenant, memories=named[0], namespaces=named[1])
        kept = {_upload(state) for state in projection.all(erasure.tenant) if state.execution_id not in ids}
        return ErasureScope(
            tenant=erasure.tenant,
            # What an erasure that was interrupted left goes, too.
            executions=ids | frozenset(projection.erased(erasure.tenant)) | erasure.gone,
            uploads=frozenset(map(_upload, targets)) - kept - {""},
            source=erasure.name if erasure.kind == "caller" else "",
            everything=erasure.kind == "tenant",
        )

    async def _bury(self, erasure: Erasure, state: ExecutionState) -> None:
        """Write the tombstone of an execution behind all that it said, with the hashes of its audit."""
        chains, generation = AuditChains(), state.generation
        try:
            async with aclosing(self.log.read(erasure.tenant, state.execution_id)) as events:
                async for stored in events:
                    chains.take(stored)
                    if isinstance(stored.event.body, ExecutionClaimed):
                        generation = max(generation, stored.event.body.generation)
        except (PreconditionFailed, NotFound) as fault:
            chains.unreadable(EXECUTION_SUBJECT, fault.message[:200])
        left = tuple(chains.redacted(verdict.agent_id, verdict.run) for verdict in chains.verdicts())
        body = ExecutionErased(scope=erasure.kind, by=erasure.by, reason=erasure.reason, chains=left)
        writer = Writer(tenant=erasure.tenant, execution_id=state.execution_id, task_id="", generation=generation + 1)
        async with self.log.journal(writer) as journal:
            await journal.append(body)

    async def _unlearn(self, scope: ErasureScope, *, everything: bool) -> None:
        """Have context services forget what they keep in memory, and take no late record."""
        for execution_id in ("",) if everything else sorted(scope.executions):
            body = KnowledgeErased(execution_id=execution_id)
            change = Change(tenant=scope.tenant, story_id=NO_STORY, version=0, at=now(), body=body)
            try:
                await self.log.changes().append(change)
            except AlreadyExists:
                # A record came in between; the next erasure finds it.
                _log.warning("erasure.record_came_late", execution_id=execution_id)

    async def _record(self, erasure: Erasure) -> str:
        """One event more, under an id of its own, where no single execution tells of it."""
        record_id = str(uuid.uuid4())
        body = ExecutionErased(scope=erasure.kind, by=erasure.by, reason=erasure.reason)
        writer = Writer(tenant=erasure.tenant, execution_id=record_id, task_id="")
        async with self.log.journal(writer, fresh=True) as journal:
            await journal.append(body)
        return record_id

    async def keep_all(self, leads: Callable[[], bool]) -> None:
        """Rounds of retention without an end, on the replica that leads."""
        while True:
            await self.keep(leads=leads())
            await asyncio.sleep(_LOOK_SECONDS)

    async def keep(self, *, leads: bool) -> None:
        """One round of retention: erase executions that ended longer ago than their tenants keep them.

        Only the replica that `leads` does. What fails is logged, and tried in the next round.
        """
        tenants = {state.task.tenant for state in self.executions.projection.everything()} if leads else set[str]()
        for tenant in sorted(tenants):
            days = self.executions.rules(tenant).retention_days
            if not days:
                continue
            try:
                await self._keep(tenant, (datetime.now(UTC) - timedelta(days=days)).isoformat(), days)
            except FleetError as error:
                _log.warning("retention.failed", tenant=tenant, reason=error.message)

    async def _keep(self, tenant: str, before: str, days: int) -> None:
        # Outcomes outlast the events that they were made of.
        entries = await (await self.log.bucket(OUTCOMES_BUCKET)).entries(f"{tenant}.")
        outcomes = [from_json(Outcome, entry.value) for entry in entries]
        gone = frozenset(one.subject_id for one in outcomes if one.ended_at < before and self._is_gone(tenant, one))
        reason = f"kept for {counted(days, 'day')}"
        wanted = Erasure(tenant=tenant, kind="retention", by="retention", reason=reason, before=before, gone=gone)
        if gone or await self._targets(wanted):
            await self.erase(wanted)

    def _is_gone(self, tenant: str, outcome: Outcome) -> bool:
        return self.executions.projection.get(tenant, outcome.subject_id) is None and _is_execution(outcome.subject_id)


def _whose() -> Mapping[str, str]:
    """Which buckets are not like those whose keys begin with a tenant."""
    core = {
        **dict.fromkeys((lease_keeper.BUCKET, fleet_view.BUCKET, HOSTS_BUCKET), "fleet"),
        **dict.fromkeys((TEST_RUNS_BUCKET, RECIPES_BUCKET), "cache"),
    }
    return core | {bucket: "fleet" for one in extensions().values() for bucket in one.fleet_buckets}


def _upload(state: ExecutionState) -> str:
    """The digest of the upload that an execution works on; empty where it is none."""
    location = state.repository.location
    return location.removeprefix(UPLOAD) if location.startswith(UPLOAD) else ""


def _is_execution(name: str) -> bool:
    return len(name) == len(str(uuid.NAMESPACE_DNS)) and name.count("-") == 4


def _ids(states: Collection[ExecutionState]) -> tuple[str, ...]:
    return tuple(sorted(state.execution_id for state in states))
