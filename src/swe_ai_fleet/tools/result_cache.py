"""Answers to identical read-only calls: of one run for as long as nothing was written, of one tenant for a while."""

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
"""Of a result's metadata: for how long this one is good, where that is less than its operation declares."""
_STILL = frozenset({"workspace"})
_LARGEST_SHARE = 8
_ENTRY_BYTES = 512
_KNOWN_QUESTIONS = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    result: ToolResult
    stored_at: float
    good_until: float
    bytes: int


class SharedResults:
    """Results that may be given again for a while, to any run of the same tenant; the least recently used go first.

    Used within one event loop. What is kept was masked before.

    Args:
        max_bytes: Of all results together; one that takes more than an eighth is not kept.
        clock: Seconds that only grow.
    """

    def __init__(self, *, max_bytes: int = SHARED_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes = 0
        self.clock = clock
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> tuple[ToolResult, float] | None:
        """A result that is still good, and when it was stored."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self.clock() >= entry.good_until:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry.result, entry.stored_at

    def put(self, key: bytes, result: ToolResult, *, seconds: float) -> None:
        """Keep a result for so long, in place of an earlier one; 0 seconds only forget that."""
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
    """One call on its way past the cache: what is known of it, and what is to be known from now on."""

    def __init__(self, keep: Callable[[ToolResult], None] | None = None, result: ToolResult | None = None) -> None:
        self.result = result
        self._keep = keep

    def keep(self, result: ToolResult) -> None:
        """Learn from the masked result of a call that was carried out."""
        if self._keep is not None and self.result is None:
            self._keep(result)


class ResultCache:
    """What the identical read-only calls of one run, sub-agents included, are answered from.

    A result is good until something is written: the workspace's revision moves, or a writing call begins. Nothing is
    kept or answered while one is under way. Once a call may have left something behind that goes on writing (a
    container, a server of the run's own, a call that was given up), nothing is kept any more. What comes from outside
    (`network`) is not kept that way but for the `cache_seconds` that its operation declares, also for other runs of
    the tenant, and says how old it is; a write to the outside, and asking again after any write, makes the call anew.

    Only successes are kept, and nothing of an operation that locks something of its own, such as the user it asks.

    Args:
        tenant: Whose results these are.
        shared: Where results for other runs are kept; None: they stay in this run.
        max_bytes: Of what is kept for this run alone; 0: nothing is kept at all.
        outside: Whether results from outside are also kept until something is written, however long that takes.
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
        """Around the effect of one call with checked arguments; `revision` is the workspace's."""
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
        known_to_last = self._outside if spec.network else spec.locks <= _STILL
        is_valid = known_to_last and not self._writing and not self._unsettled
        if not (is_valid or lasts):
            return Lookup()
        if is_valid and (hit := self._own.get(key)) is not None:
            return Lookup(result=replace(hit[0], cached=True))
        if lasts and self._asked.get(key, state) == state and (hit := store.get(key)) is not None:
            result, stored_at = hit
            if stored_at > self._written_outside_at:
                self._ask(key, state)
                return Lookup(result=_aged(result, store.clock() - stored_at))

        def keep(result: ToolResult) -> None:
            if not result.success:
                return
            unwritten = state == self._state and state[1] == self._writes
            if is_valid and unwritten:
                self._own.put(key, result, seconds=float("inf"))
            if lasts and unwritten:
                self._ask(key, state)
                store.put(key, result, seconds=_seconds(spec, result))

        return Lookup(keep)

    def _ask(self, key: bytes, state: tuple[int, int]) -> None:
        """Remember that the run has this answer: wanting it again after a write is wanting a new one."""
        self._asked[key] = state
        self._asked.move_to_end(key)
        if len(self._asked) > _KNOWN_QUESTIONS:
            self._asked.popitem(last=False)

    def _settle(self, toolkit: CalledToolkit, result: ToolResult, *, settled: bool) -> None:
        given_up = result.outcome in (Outcome.TIMEOUT, Outcome.CANCELLED)
        self._unsettled = self._unsettled or toolkit.lasting or (given_up and not settled)


def _key(tenant: str, scope: str, name: str, arguments: Mapping[str, object]) -> bytes:
    canonical = json.dumps([tenant, scope, name, arguments], sort_keys=True, default=repr)
    return hashlib.sha256(canonical.encode()).digest()


def _seconds(spec: OperationSpec, result: ToolResult) -> float:
    """For how long a result is good: what its operation declares, or less where the result says so itself."""
    own = result.metadata.get(FRESH_SECONDS)
    return min(spec.cache_seconds, own) if isinstance(own, int | float) else spec.cache_seconds


def _aged(result: ToolResult, seconds: float) -> ToolResult:
    age = f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'} old"
    return replace(result, cached=True, content=f"(from the cache, {age})\n{result.content}")


def _weight(result: ToolResult) -> int:
    metadata = json.dumps(result.metadata, default=repr, ensure_ascii=False)
    return _ENTRY_BYTES + sys.getsizeof(result.content) + 2 * sys.getsizeof(metadata)
