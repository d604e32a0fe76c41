"""What is known of a source that tells its changes for ever: kept up in the background, and never stale in silence.

Other work that goes on in the background for as long as a context lasts.
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
    """Work that goes on beside the context and is cancelled at its end; yields its tasks.

    Nobody waits for them, so that a fault is logged when it ends one, as `fault` with what it is `about`.
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
            # Of a task that had not begun.
            coroutine.close()


@dataclass(eq=False)
class Follower(Generic[Change]):
    """Takes in what a source tells, in its order.

    A source that fails is asked again, from behind what was taken in. A bug ends the following; it is logged at once.
    `check` tells of either.

    Attributes:
        name: What is followed, for people: `the log of changes`.
        changes: What the source tells from a position on, without an end; None once everything older is told.
        take: Takes a change in and says at which position it stands.
        hint: What to do where following has ended.
        snapshot: Where a state that was saved is taken from at the start, and saved now and then; None: nowhere.
        position: Up to where changes were taken in.
    """

    name: str
    changes: Callable[[int], AsyncGenerator[Change | None, None]]
    take: Callable[[Change], int]
    _: KW_ONLY
    hint: str
    snapshot: Snapshot | None = None
    position: int = 0
    _untold: int = 0
    _saved: bool = False
    _caught_up: asyncio.Event = field(default_factory=asyncio.Event)
    _fault: Exception | None = None
    _task: asyncio.Task[None] | None = None

    @property
    def caught_up(self) -> bool:
        """Whether everything is taken in that was stored at the start."""
        return self._caught_up.is_set()

    async def start(self) -> None:
        """Take in what is stored, then follow in the background. Raises what the source raises until then."""
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
        """Take in what is stored and follow, all in the background, however often the source fails."""
        self._task = asyncio.create_task(self._follow(patient=True), name=self.name)

    async def wait_caught_up(self) -> None:
        """Wait until everything is taken in that was stored at the start."""
        await self._caught_up.wait()

    async def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        """Raises Unavailable where what is known would grow old unnoticed."""
        ended = self._task is None or self._task.done()
        if self._fault is not None or ended:
            state, hint = ("any more", self.hint) if ended else ("now", "it retries automatically")
            fault = f": {self._fault}" if self._fault is not None else ""
            raise Unavailable(f"{self.name} is not followed {state}{fault}", hint=hint) from self._fault

    async def _save(self, snapshot: Snapshot) -> None:
        while True:
            await asyncio.sleep(snapshot.store.pause)
            try:
                if self._untold < snapshot.store.least and not (self._saved and await snapshot.is_gone()):
                    continue
                self._untold = 0
                self._saved |= await snapshot.save(lambda: self.position)
            except FleetError as error:
                # Without one the next start takes longer, which is all.
                _log.warning("snapshot.not_saved", source=self.name, reason=error.message)

    async def _follow(self, *, patient: bool = False) -> None:
        async with in_background(*([self._save(self.snapshot)] if self.snapshot else []), name=self.name):
            await self._read(patient=patient)

    async def _read(self, *, patient: bool) -> None:
        pauses, begun = waits(), self.snapshot is None
        while True:
            try:
                if not begun and self.snapshot is not None:
                    self.position, begun = await self.snapshot.restore(), True
                    self._saved = self.position > 0
                async with aclosing(self.changes(self.position + 1)) as changes:
                    async for change in changes:
                        pauses, self._fault = waits(), None
                        if change is None:
                            self._caught_up.set()
                        else:
                            self.position = self.take(change)
                            self._untold += 1
                            if self._untold % _SLICE == 0:
                                # A long log does not hold the loop up while it is read.
                                await asyncio.sleep(0)
                raise Unavailable(f"{self.name} has ended")
            except FleetError as error:
                self._fault = error
                if not (self._caught_up.is_set() or patient):
                    raise
                _log.warning("following.source_unavailable", source=self.name, reason=error.message)
                await asyncio.sleep(next(pauses))
            except Exception as error:
                self._fault = error
                # Nobody waits for this task, so it is told here.
                _log.exception("following.ended", source=self.name)
                raise


_TRIES = 20
_PAUSE_SECONDS = 0.05


async def rewritten(
    store: KeyValue, key: str, change: Callable[[KeyValueEntry | None], bytes | None], *, name: str
) -> KeyValueEntry | None:
    """What stands there after a change; None where there is nothing.

    Args:
        store: Where the value is kept.
        key: Its name there.
        change: The new value, made of what stands there; None leaves that as it is.
        name: What it is, for people: `the outcome of 'e-1'`.

    Raises what `change` raises, and Unavailable, also where others change it all the time.
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
