"""Following a stream in the background, with faults that readers notice; and changes of shared values in a store.

Also other background work that lasts as long as a context.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, repeat
from typing import Generic, TypeVar

import structlog

from swe_ai_fleet.domain.errors import Fenced, FleetError, Unavailable
from swe_ai_fleet.ports import KeyValue, KeyValueEntry
from swe_ai_fleet.snapshots import Snapshot

Change = TypeVar("Change")

_SLICE = 32
PAUSES = (0.1, 0.5, 2.0, 5.0, 15.0, 30.0)

_log = structlog.get_logger(__name__)


def waits(seconds: Sequence[float] = PAUSES) -> Iterator[float]:
    """Seconds before each further attempt; the last one again and again."""
    return chain(seconds, repeat(seconds[-1]))


@asynccontextmanager
async def in_background(
    *work: Coroutine[object, object, object], name: str, fault: str = "background work has ended", **about: object
) -> AsyncGenerator[tuple[asyncio.Task[None], ...]]:
    """Background work that is cancelled at the end of the context; yields its tasks.

    Nothing waits for the tasks, so a fault that ends one is logged, as `fault` with the fields in `about`.
    """

    async def logged(work: Coroutine[object, object, object]) -> None:
        try:
            await work
        except Exception:
            _log.exception(fault, task=name, **about)
            raise

    tasks = tuple(asyncio.create_task(logged(coroutine), name=name) for coroutine in work)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for coroutine in work:
            # A task that was cancelled before it started leaves its coroutine open.
            coroutine.close()


@dataclass(eq=False)
class Follower(Generic[Change]):
    """Follows a stream: takes in its changes in their order.

    After a fault of the source it reads on after the last change taken in. A bug ends the following; it is logged at
    once. `check` raises in both cases.

    Attributes:
        name: The name of the stream for people: `the log of changes`.
        changes: The changes from a position on, without an end; None once all stored ones were yielded.
        take: Takes in a change and returns its position.
        hint: What to do if following has ended.
        snapshot: Restores the state at the start, and saves it from time to time; None: the stream is read whole.
        position: The position of the last change that was taken in.
    """

    name: str
    changes: Callable[[int], AsyncGenerator[Change | None, None]]
    take: Callable[[Change], int]
    _: KW_ONLY
    hint: str
    snapshot: Snapshot | None = None
    position: int = 0
    _unsaved: int = 0
    _saved: bool = False
    _caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    _fault: Exception | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def caught_up(self) -> bool:
        """Whether all changes that were stored at the start are taken in."""
        return self._caught_up.is_set()

    async def start(self) -> None:
        """Take in all stored changes, then follow in the background. Raises what the source raises until then."""
        self._task = asyncio.create_task(self._follow(), name=self.name)
        waiting = asyncio.create_task(self._caught_up.wait())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                await self._task
        except BaseException:
            await self.stop()
            raise
        finally:
            waiting.cancel()

    def begin(self) -> None:
        """Take in all stored changes and follow, all in the background, retrying for ever if the source fails."""
        self._task = asyncio.create_task(self._follow(retry_start=True), name=self.name)

    async def wait_caught_up(self) -> None:
        """Wait until all changes that were stored at the start are taken in."""
        await self._caught_up.wait()

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        """Raises Unavailable where the state may be out of date, because following has failed or ended."""
        ended = self._task is None or self._task.done()
        if self._fault is not None or ended:
            state, hint = ("any more", self.hint) if ended else ("now", "it retries automatically")
            fault = f": {self._fault}" if self._fault is not None else ""
            raise Unavailable(f"{self.name} is not followed {state}{fault}", hint=hint) from self._fault

    async def _save(self, snapshot: Snapshot) -> None:
        while True:
            await asyncio.sleep(snapshot.store.pause)
            try:
                if self._unsaved < snapshot.store.least and not (self._saved and await snapshot.is_gone()):
                    continue
                self._unsaved = 0
                self._saved |= await snapshot.save(lambda: self.position)
            except FleetError as error:
                # Without a snapshot the next start only takes longer.
                _log.warning("snapshot.not_saved", source=self.name, reason=error.message)

    async def _follow(self, *, retry_start: bool = False) -> None:
        async with in_background(*([self._save(self.snapshot)] if self.snapshot else []), name=self.name):
            await self._read(retry_start=retry_start)

    async def _read(self, *, retry_start: bool) -> None:
        pauses, restored = waits(), self.snapshot is None
        while True:
            try:
                if not restored and self.snapshot is not None:
                    self.position, restored = await self.snapshot.restore(), True
                    self._saved = self.position > 0
                async with aclosing(self.changes(self.position + 1)) as changes:
                    async for change in changes:
                        pauses, self._fault = waits(), None
                        if change is None:
                            self._caught_up.set()
                        else:
                            self.position = self.take(change)
                            self._unsaved += 1
                            if self._unsaved % _SLICE == 0:
                                # Reading a long log must not block the event loop.
                                await asyncio.sleep(0)
                raise Unavailable(f"{self.name} has ended")
            except FleetError as error:
                self._fault = error
                if not (self._caught_up.is_set() or retry_start):
                    raise
                _log.warning("following.source_unavailable", source=self.name, reason=error.message)
                await asyncio.sleep(next(pauses))
            except Exception as error:
                self._fault = error
                # Nothing waits for this task, so the fault is logged here.
                _log.exception("following.ended", source=self.name)
                raise


_TRIES = 20
_PAUSE_SECONDS = 0.05


async def rewritten(
    store: KeyValue, key: str, change: Callable[[KeyValueEntry | None], bytes | None], *, name: str
) -> KeyValueEntry | None:
    """Change a stored value, again after concurrent changes; returns the entry afterwards, None where there is none.

    Args:
        store: The store of the value.
        key: Its key.
        change: Makes the new value from the current entry; None leaves it as it is.
        name: The name of the value for people: `the outcome of 'e-1'`.

    Raises what `change` raises, and Unavailable, also where others keep changing the value.
    """
    for _ in range(_TRIES):
        entry = await store.get(key)
        value = change(entry)
        if value is None:
            return entry
        try:
            revision = await store.put(key, value, revision=entry.revision if entry else 0)
        except Fenced:
            await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS))  # noqa: S311 (jitter, not a secret)
        else:
            return KeyValueEntry(key=key, value=value, revision=revision)
    raise Unavailable(f"{name} is being changed too often", hint="try again")
