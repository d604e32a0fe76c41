"""The projection of all executions: a cache folded from the log, rebuilt whenever this process starts.

It says which executions this process may drive: the log has their owners, and leases say which replicas are alive.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.context import GatheredContext
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import (
    Event,
    ExecutionErased,
    ExecutionFinished,
    ExecutionStatus,
    NodeUpdated,
    StoredEvent,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance
from swe_ai_fleet.domain.task import Role, TaskKind
from swe_ai_fleet.following import Follower
from swe_ai_fleet.ports import EventLog
from swe_ai_fleet.snapshots import LAST, Archive, Snapshots

_CLEANUPS = 200
"""How often old executions are dropped within the time that the log keeps events."""
_MAX_ERASED = 50_000


def over(state: ExecutionState) -> bool:
    """Whether nothing is left to do: the execution has ended and its result is published."""
    return state.status.terminal and state.result_published


def claimable(state: ExecutionState, alive: Collection[str], me: str) -> bool:
    """Whether this replica may try to claim an execution that it does not drive at the moment.

    Something is left to do, and no other replica does it: the log has no owner, or one without a lease, or this replica
    itself (an earlier drive of its own failed). A replica that has lost its own lease claims nothing, since the others
    would take it over again.

    The state and the set may be out of date. That costs a refused claim and never an execution: the claim is appended
    with the generation after `state.generation` behind the subject's last event, so of all replicas that try one
    succeeds, and the previous driver is fenced from that moment on. (Gray and Cheriton, Leases, SOSP 1989; the
    generation is a fencing token, as in Burrows, The Chubby Lock Service, OSDI 2006.)
    """
    if over(state) or me not in alive:
        return False
    return state.owner == me or state.owner not in alive


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An execution, and the sequence of its `ExecutionFinished`."""

    state: ExecutionState
    end: int = 0


class Projection:
    """Follows the events of executions and of callers to them. Steps of agents are not in it: read the log for those.

    Memory is bounded by the executions that are not over; the others are in a file of this process.

    Args:
        listener: Is called with each event that arrives after the start, once it is in the projection.
        kept_seconds: How long the log keeps events, 0 for ever. An execution that is over is forgotten when its first
            event is gone, since a new projection would not have it either.
        clock: Seconds since 1970.
        snapshots: Where its state is saved; None: the log is read from its start.
    """

    def __init__(
        self,
        log: EventLog,
        listener: Callable[[StoredEvent], None] | None = None,
        *,
        kept_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._next_cleanup = 0.0
        self._listener = listener
        self._open: dict[tuple[str, str], ExecutionState] = {}
        self._over = Archive(_Entry)
        self._ends: dict[tuple[str, str], int] = {}
        self._erased: dict[tuple[str, str], None] = {}
        self._waiting: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)
        self._follower = Follower(
            "the log of executions",
            lambda position: log.heads(from_sequence=position, follow=True),
            self._take,
            hint="restart the orchestrator",
            snapshot=None
            if snapshots is None
            else snapshots.of("executions", sys.modules[__name__], dump=self._dump, load=self._load),
        )

    async def start(self) -> None:
        """Read what is stored, then follow in the background."""
        await self._follower.start()

    async def stop(self) -> None:
        await self._follower.stop()

    def accepted(self, event: Event) -> None:
        """Add an execution at once, before its first event arrives from the log."""
        state = advance(None, StoredEvent(sequence=0, event=event))
        if state is not None and self.get(event.tenant, event.execution_id) is None:
            self._open[event.tenant, event.execution_id] = state

    def get(self, tenant: str, execution_id: str) -> ExecutionState | None:
        state = self._open.get((tenant, execution_id))
        if state is None and (archived := self._over.get(f"{tenant}/{execution_id}")) is not None:
            return archived.state
        return state

    def end_sequence(self, tenant: str, execution_id: str) -> int:
        """The sequence of an execution's `ExecutionFinished`, 0 while it has not ended."""
        end = self._ends.get((tenant, execution_id), 0)
        archived = None if end else self._over.get(f"{tenant}/{execution_id}")
        return archived.end if archived is not None else end

    def erased(self, tenant: str) -> list[str]:
        """The executions of a tenant that were erased, the last 50,000 of all."""
        return [execution_id for name, execution_id in self._erased if name == tenant]

    def tenants(self) -> set[str]:
        """The tenants that have executions."""
        return {tenant for tenant, _ in self._open} | {key.partition("/")[0] for key in self._over.keys_from("")}

    def unfinished(self, tenant: str = "") -> list[ExecutionState]:
        """Executions that have not ended, or whose result may not be published; empty: of all tenants."""
        return [state for (owner, _), state in list(self._open.items()) if tenant in ("", owner)]

    def awaiting_approval(self) -> set[str]:
        """The ids of the executions that wait for a person."""
        return {s.execution_id for s in self.unfinished() if s.status is ExecutionStatus.AWAITING_APPROVAL}

    def latest(self, tenant: str, task_id: str, kind: TaskKind | None) -> ExecutionState | None:
        """The execution of the task's highest attempt; of several kinds the one that started last."""
        states = [state for state in self.select(tenant, task_id=task_id) if kind in (None, state.task.kind)]
        return max(states, key=lambda state: (state.task.attempt, state.started_at), default=None)

    def select(
        self,
        tenant: str,
        *,
        task_id: str = "",
        role: Role | None = None,
        statuses: frozenset[ExecutionStatus] = frozenset(),
        created_after: str = "",
        created_before: str = "",
        behind: tuple[str, str] | None = None,
    ) -> Iterator[ExecutionState]:
        """The matching executions, newest first. Times are ISO 8601, UTC; empty means any.

        With `behind`, the start and the id of an execution, only those after it. May be read in a thread.
        """
        last, last_id = behind or (LAST, "")
        before = (last, f"{tenant}/{last_id}") if last <= (created_before or LAST) else (created_before, "")

        def matches(state: ExecutionState) -> bool:
            return (
                (not task_id or state.task.task_id == task_id)
                and (role is None or state.task.role is role)
                and (not statuses or state.status in statuses)
                and created_after <= state.started_at
                and (state.started_at, f"{tenant}/{state.execution_id}") < before
            )

        # The label with the fewest executions: a task, else a status, else a role.
        labels = [_label(tenant, status=status) for status in statuses] or [_label(tenant, role=role or "")]
        labels = [_label(tenant, task_id=task_id)] if task_id else labels
        newest = (self._over.newest(label, since=created_after, before=before) for label in labels)
        archived = ((entry.state for entry in entries if matches(entry.state)) for entries in newest)
        live = sorted(filter(matches, self.unfinished(tenant)), key=_start_and_id, reverse=True)
        return heapq.merge(live, *archived, key=_start_and_id, reverse=True)

    def over_ids(self) -> set[str]:
        """The ids of the executions of all tenants that are over."""
        return {key.partition("/")[2] for key in self._over.keys_from("")}

    def starting_with(self, tenant: str, prefix: str) -> set[str]:
        """The ids of a tenant's executions that begin with a prefix."""
        over = (key.partition("/")[2] for key in self._over.keys_from(f"{tenant}/{prefix}"))
        return {*over, *(s.execution_id for s in self.unfinished(tenant) if s.execution_id.startswith(prefix))}

    def total(self, tenant: str, *, kind: TaskKind | None = None, role: Role | None = None) -> tuple[int, int, int]:
        """How many executions of a kind or a role there are, how many of them ended, and the total duration (ms)."""
        count, duration_ms = self._over.total(_label(tenant, kind=kind or "", role=role or ""))
        states = [s for s in self.unfinished(tenant) if kind in (None, s.task.kind) and role in (None, s.task.role)]
        ended = [state.duration_ms for state in states if state.status.terminal]
        return count + len(states), count + len(ended), duration_ms + sum(ended)

    async def finished(self, tenant: str, execution_id: str) -> ExecutionState:
        """Wait until an execution has ended; returns its state, without its agents' steps."""
        key = (tenant, execution_id)
        if not self.end_sequence(*key) and key not in self._erased:
            await self._waiting[key].wait()
        if (state := self.get(*key)) is None:
            raise NotFound(f"no execution {execution_id[:64]!r}", field="execution_id")
        return state

    def _forget(self) -> None:
        """From time to time, drop executions that are over and older than the log."""
        now = self._clock()
        if self._kept_seconds and now >= self._next_cleanup:
            self._next_cleanup = now + self._kept_seconds / _CLEANUPS
            self._over.drop_before(datetime.fromtimestamp(now - self._kept_seconds, UTC).isoformat())

    def erase(self, stored: StoredEvent) -> None:
        """Forget an erased execution, and remember only that it was erased."""
        key = (stored.event.tenant, stored.event.execution_id)
        self._open.pop(key, None)
        self._ends.pop(key, None)
        self._over.drop("/".join(key))
        self._erased[key] = None
        if len(self._erased) > _MAX_ERASED:
            del self._erased[next(iter(self._erased))]
        if (waiting := self._waiting.pop(key, None)) is not None:
            waiting.set()

    def _take(self, stored: StoredEvent) -> int:
        self._forget()
        if isinstance(stored.event.body, ExecutionErased):
            self.erase(stored)
        else:
            self._advance(stored)
        if self._follower.caught_up and self._listener is not None:
            self._listener(stored)
        return stored.sequence

    def _advance(self, stored: StoredEvent) -> None:
        key = (stored.event.tenant, stored.event.execution_id)
        state = advance(self.get(*key), _without_node_values(stored))
        end = self.end_sequence(*key) if state is None or state.status.terminal else 0
        if isinstance(stored.event.body, ExecutionFinished):
            self._ends[key] = end = end or stored.sequence
        if state is not None:
            state = _without_texts(state)
            if over(state):
                self._archive(state, end)
            else:
                self._open[key] = state
        if end and (waiting := self._waiting.pop(key, None)) is not None:
            waiting.set()

    def _archive(self, state: ExecutionState, end: int) -> None:
        task, tenant = state.task, state.task.tenant
        labels = (
            _label(tenant),
            _label(tenant, task_id=task.task_id),
            _label(tenant, status=state.status),
            _label(tenant, role=task.role),
            _label(tenant, kind=task.kind),
        )
        entry, key = _Entry(state=state, end=end), f"{tenant}/{state.execution_id}"
        self._over.put(key, entry, sort=state.started_at, labels=labels, weight=state.duration_ms)
        self._open.pop((tenant, state.execution_id), None)
        self._ends.pop((tenant, state.execution_id), None)

    def _dump(self) -> Iterator[bytes]:
        entries = [_Entry(state=state, end=self._ends.get(key, 0)) for key, state in self._open.items()]
        head = json.dumps({"open": len(entries), "erased": list(self._erased)}).encode()
        return chain([head], map(to_json, entries), self._over.lines())

    def _load(self, lines: Iterator[bytes]) -> None:
        head = json.loads(next(lines, b'{"open": 0, "erased": []}'))
        entries = [from_json(_Entry, line) for line in islice(lines, head["open"])]
        self._over.load(lines)
        self._erased = dict.fromkeys((tenant, execution_id) for tenant, execution_id in head["erased"])
        self._open, self._ends = {}, {}
        for entry in entries:
            key = (entry.state.task.tenant, entry.state.execution_id)
            # An execution may be open when the snapshot begins, and over when its lines are read.
            if self._over.get("/".join(key)) is None:
                self._open[key] = entry.state
                if entry.end:
                    self._ends[key] = entry.end


def _start_and_id(state: ExecutionState) -> tuple[str, str]:
    return state.started_at, state.execution_id


def _label(tenant: str, **labels: str) -> str:
    """A label by which a tenant's executions are found: the tenant alone, or with one property."""
    return " ".join([tenant, *(f"{name}={value}" for name, value in labels.items() if value)])


def _without_node_values(stored: StoredEvent) -> StoredEvent:
    """An event without the inputs and output of a node: a run may have thousands, and only its driver needs them."""
    body = stored.event.body
    if not isinstance(body, NodeUpdated):
        return stored
    return replace(stored, event=replace(stored.event, body=replace(body, inputs="", output="")))


def _without_texts(state: ExecutionState) -> ExecutionState:
    """An ended execution without long texts, which the log has: thousands of states are kept in memory."""
    if not state.status.terminal or (state.context is None and state.output is None):
        return state
    context = state.context and GatheredContext(tokens=state.context.tokens, version=state.context.version)
    return replace(state, context=context, output=None)
