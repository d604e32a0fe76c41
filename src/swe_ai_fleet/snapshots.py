"""Snapshots of projections, in a bucket that the replicas of a service share.

Each is under the digest of the code that folds, so that another version reads the log from its start. It has two slots
of parts and a head, which is written last: a writer that is killed leaves the snapshot before as it was. The bucket
forgets values no later than the log does events, so no event behind a snapshot is gone before the snapshot is.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType

import structlog

from swe_ai_fleet import domain
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.ports import KeyValue

KEPT_SECONDS = 7 * 86_400.0
PAUSE_SECONDS = 300.0
LEAST_CHANGES = 10_000
PART_BYTES = 512 * 1024
_SLOTS = ("a", "b")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """Where a snapshot lies; `claimed` is when a replica last began to write one, in seconds since 1970."""

    claimed: float = 0.0
    slot: str = ""
    position: int = 0
    parts: int = 0
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Where snapshots of one log are kept.

    Attributes:
        bucket: Where they are.
        origin: What tells this log from one that was made anew under its name.
        pause: Seconds between two of one name, of whichever replica.
        least: So many changes have to be new; fewer are read from the log as quickly.
    """

    bucket: KeyValue
    origin: str
    pause: float = PAUSE_SECONDS
    least: int = LEAST_CHANGES
    clock: Callable[[], float] = field(default=time.time)

    def of(
        self,
        name: str,
        *folds: ModuleType,
        dump: Callable[[], Iterable[bytes]],
        load: Callable[[Iterator[bytes]], None],
        still: bool = False,
    ) -> Snapshot:
        """The snapshot of a projection that these modules fold.

        Args:
            name: Of the projection, as part of a key.
            folds: Whatever they say in another way makes another snapshot, as does the domain.
            dump: The state as lines; called in the event loop, what it returns is read in a thread.
            load: Has the projection hold exactly what these lines say, in a thread; raises ValueError.
            still: Whether nothing may be taken in while the lines are read; else changes that it has change nothing.
        """
        version = hashlib.sha256(f"{self.origin} {_sources(*folds)}".encode()).hexdigest()[:24]
        return Snapshot(self, f"{name}.{version}", dump=dump, load=load, still=still)


class Snapshot:
    """The snapshot of one projection, as a `Follower` uses it. Made by `Snapshots.of`."""

    def __init__(
        self,
        store: Snapshots,
        key: str,
        *,
        dump: Callable[[], Iterable[bytes]],
        load: Callable[[Iterator[bytes]], None],
        still: bool,
    ) -> None:
        self._bucket, self._clock = store.bucket, store.clock
        self._key = key
        self._dump, self._load = dump, load
        self.pause, self.least, self.still = store.pause, store.least, still

    async def restore(self) -> int:
        """Have the projection hold what was saved last; the position of that, 0 where there is nothing of use.

        What is damaged is logged and left aside. Raises Unavailable.
        """
        entry = await self._bucket.get(f"{self._key}.head")
        head = from_json(_Head, entry.value) if entry is not None else _Head()
        if not head.slot:
            return 0
        parts: list[bytes] = []
        for number in range(head.parts):
            part = await self._bucket.get(f"{self._key}.{head.slot}.{number}")
            parts.append(part.value if part is not None else b"")
        try:
            await asyncio.to_thread(self._fill, parts, head.sha256)
        except (ValueError, zlib.error) as fault:
            _log.warning("snapshot.ignored", name=self._key, reason=str(fault)[:300])
            self._load(iter(()))
            return 0
        _log.info("snapshot.restored", name=self._key, position=head.position, bytes=sum(map(len, parts)))
        return head.position

    async def save(self, position: Callable[[], int], quiet: asyncio.Lock) -> bool:
        """Store the projection as it stands; False where another replica does, or just did.

        Where it must not change meanwhile nothing is taken in as long as `quiet` is held; else it may be newer than its
        position, and takes what it has again without effect. Raises ResourceExhausted, Unavailable.
        """
        name = f"{self._key}.head"
        entry = await self._bucket.get(name)
        head = from_json(_Head, entry.value) if entry is not None else _Head()
        if head.claimed > self._clock() - 0.9 * self.pause or head.position > position():
            return False
        slot = _SLOTS[head.slot == _SLOTS[0]]
        try:
            claim = to_json(replace(head, claimed=self._clock()))
            revision = await self._bucket.put(name, claim, revision=entry.revision if entry is not None else 0)
            if self.still:
                async with quiet:
                    at, parts = position(), iter(await asyncio.to_thread(list, _parts(self._dump())))
            else:
                at, parts = position(), _parts(self._dump())
            number, digest = 0, hashlib.sha256()
            while part := await asyncio.to_thread(next, parts, b""):
                digest.update(part)
                await self._bucket.put(f"{self._key}.{slot}.{number}", part)
                number += 1
            head = _Head(claimed=self._clock(), slot=slot, position=at, parts=number, sha256=digest.hexdigest())
            await self._bucket.put(name, to_json(head), revision=revision)
        except Fenced:
            return False
        return True

    def _fill(self, parts: list[bytes], sha256: str) -> None:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        if digest.hexdigest() != sha256:
            raise ValueError("its parts are not those that its head names")
        self._load(_lines(parts))


def _parts(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Compressed, in pieces that fit into a message."""
    packing, packed = zlib.compressobj(1), bytearray()
    for line in lines:
        packed += packing.compress(line + b"\n")
        while len(packed) >= PART_BYTES:
            yield bytes(packed[:PART_BYTES])
            del packed[:PART_BYTES]
    yield bytes(packed + packing.flush())


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    unpacking, rest = zlib.decompressobj(), b""
    for part in parts:
        *lines, rest = (rest + unpacking.decompress(part)).split(b"\n")
        yield from lines


@cache
def _sources(*modules: ModuleType) -> str:
    """A digest of what these modules and the domain say."""
    files = [Path(str(module.__file__)) for module in modules]
    digest = hashlib.sha256()
    for file in sorted({*files, *Path(str(domain.__file__)).parent.rglob("*.py")}):
        digest.update(file.read_bytes())
    return digest.hexdigest()
