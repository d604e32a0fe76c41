"""Cached results of identical read-only calls: within a run until a write, within a tenant for a limited time."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from swe_ai_fleet.domain.tool import OperationSpec, Outcome, ToolResult
from swe_ai_fleet.tools.definition import CalledToolkit

RUN_BYTES = 8 * 1024 * 1024
SHARED_BYTES = 32 * 1024 * 1024
FRESH_SECONDS = "cache_seconds"
"""The key, in a result's metadata, of its lifetime in seconds where that is below the operation's `cache_seconds`."""
# Resources that change only by a run's own writes.
_WORKSPACE_ONLY = frozenset({"workspace"})
_LARGEST_SHARE = 8
_ENTRY_BYTES = 512
_MAX_ASKED = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    result: ToolResult
    stored_at: float
    expires_at: float
    bytes: int


class SharedResults:
    """Masked results that any run of the same tenant may reuse for a while; evicts the least recently used.

    Used within one event loop.

    Args:
        max_bytes: The size of all results together; a result larger than an eighth of it is not stored.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, max_bytes: int = SHARED_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes = 0
        self.clock = clock
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> tuple[ToolResult, float] | None:
        """A result that has not expired, and when it was stored."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self.clock() >= entry.expires_at:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.result, entry.stored_at

    def put(self, key: bytes, result: ToolResult, *, seconds: float) -> None:
        """Store a result for so long, replacing an earlier one; with 0 seconds only remove the earlier one."""
        self._drop(key)
        size = _weight(result)
        if seconds <= 0 or size * _LARGEST_SHARE > self._max_bytes:
            return
        now = self.clock()
        self._entries[key] = _Entry(result, now, now + seconds, size)
        self.bytes += size
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.bytes


class Lookup:
    """The cache's part in one call: a cached `result`, or `keep` for the result of a call that was run."""

    def __init__(self, keep: Callable[[ToolResult], None] | None = None, result: ToolResult | None = None) -> None:
        self.result = result
        self._keep = keep

    def keep(self, result: ToolResult) -> None:
        """Take note of the masked result of a call that was run."""
        if self._keep is not None and self.result is None:
            self._keep(result)


class ResultCache:
    """Answers identical read-only calls of one run, sub-agents included.

    A result is valid until something is written: the workspace's revision changes, or a writing call begins. While a
    writing call runs, nothing is stored or answered. Once a call may have left something that keeps writing (a
    container, a server, a call that was cancelled), nothing is stored any more. Results from outside (`network`) are
    instead stored for the `cache_seconds` of their operation, also for other runs of the tenant, and state their age;
    after a write to the outside, or if the run asks again after any write, the call is made anew.

    Only successes are stored, and none of an operation that locks something other than the workspace, such as the user.

    Args:
        tenant: The tenant of the run.
        shared: The store for results that other runs may reuse; None: they stay in this run.
        max_bytes: The size of the results of this run alone; 0 disables the cache.
        outside: Whether results from outside are also valid until something is written, however long that takes.
    """

    def __init__(
        self,
        *,
        tenant: str = "",
        shared: SharedResults | None = None,
        max_bytes: int = RUN_BYTES,
        outside: bool = False,
    ) -> None:
        self._tenant = tenant
        self._own = SharedResults(max_bytes=max_bytes)
        clock = time.monotonic if shared is None else shared.clock
        self._lasting = SharedResults(max_bytes=max_bytes, clock=clock)
        self._shared = self._lasting if shared is None else shared
        self._enabled = max_bytes > 0
        self._outside = outside
        self._state: tuple[int, int] = (0, 0)
        self._writes = 0
        self._writing = 0
        self._unsettled = False
        self._written_outside_at = float("-inf")
        self._asked: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    @contextmanager
    def call(
        self, spec: OperationSpec, toolkit: CalledToolkit, arguments: Mapping[str, object], *, revision: int
    ) -> Generator[Lookup]:
        """The context in which a call with checked arguments runs; `revision` is the workspace's."""
        if not self._enabled:
            yield Lookup()
        elif spec.read_only and not spec.executes:
            yield self._lookup(spec, toolkit, arguments, revision)
        else:
            self._writes += 1
            self._writing += 1
            self._own.clear()
            settled = spec.executes and not toolkit.lasting
            try:
                yield Lookup(lambda result: self._settle(toolkit, result, settled=settled))
            except BaseException:
                self._unsettled = self._unsettled or not settled
                raise
            finally:
                self._writing -= 1
                if spec.network:
                    self._written_outside_at = self._lasting.clock()

    def _lookup(
        self, spec: OperationSpec, toolkit: CalledToolkit, arguments: Mapping[str, object], revision: int
    ) -> Lookup:
        state = (revision, self._writes)
        if state != self._state:
            self._state = state
            self._own.clear()
        lasts = spec.cache_seconds > 0
        scope = toolkit.shared_scope(spec) if lasts else None
        store = self._lasting if scope is None else self._shared
        key = _key(self._tenant, scope or "", spec.name, arguments)
        changes_by_writes_only = self._outside if spec.network else spec.locks <= _WORKSPACE_ONLY
        is_valid = changes_by_writes_only and not self._writing and not self._unsettled
        if not (is_valid or lasts):
            return Lookup()
        if is_valid and (hit := self._own.get(key)) is not None:
            return Lookup(result=replace(hit[0], cached=True))
        if lasts and self._asked.get(key, state) == state and (hit := store.get(key)) is not None:
            result, stored_at = hit
            if stored_at > self._written_outside_at:
                self._remember(key, state)
                return Lookup(result=_aged(result, store.clock() - stored_at))

        def keep(result: ToolResult) -> None:
            if not result.success:
                return
            unwritten = state == self._state and state[1] == self._writes
            if is_valid and unwritten:
                self._own.put(key, result, seconds=float("inf"))
            if lasts and unwritten:
                self._remember(key, state)
                store.put(key, result, seconds=_seconds(spec, result))

        return Lookup(keep)

    def _remember(self, key: bytes, state: tuple[int, int]) -> None:
        """Remember that the run has this answer: if it asks again after a write, it wants a new one."""
        self._asked[key] = state
        self._asked.move_to_end(key)
        if len(self._asked) > _MAX_ASKED:
            self._asked.popitem(last=False)

    def _settle(self, toolkit: CalledToolkit, result: ToolResult, *, settled: bool) -> None:
        given_up = result.outcome in (Outcome.TIMEOUT, Outcome.CANCELLED)
        self._unsettled = self._unsettled or toolkit.lasting or (given_up and not settled)


def _key(tenant: str, scope: str, name: str, arguments: Mapping[str, object]) -> bytes:
    canonical = json.dumps([tenant, scope, name, arguments], sort_keys=True, default=repr)
    return hashlib.sha256(canonical.encode()).digest()


def _seconds(spec: OperationSpec, result: ToolResult) -> float:
    """A result's lifetime: its operation's `cache_seconds`, or less if the result's metadata say so."""
    own = result.metadata.get(FRESH_SECONDS)
    return min(spec.cache_seconds, own) if isinstance(own, int | float) else spec.cache_seconds


def _aged(result: ToolResult, seconds: float) -> ToolResult:
    age = f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'} old"
    return replace(result, cached=True, content=f"(from the cache, {age})\n{result.content}")


def _weight(result: ToolResult) -> int:
    metadata = json.dumps(result.metadata, default=repr, ensure_ascii=False)
    return _ENTRY_BYTES + sys.getsizeof(result.content) + 2 * sys.getsizeof(metadata)
