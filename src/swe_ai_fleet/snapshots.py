"""Snapshots of projections, in a bucket that the replicas of a service share; and values of a process on disk.

The key of a snapshot has the digest of the folding code, so that another version reads the log from its start. It has
two slots of parts and a head, which is written last: a writer that is killed leaves the previous snapshot intact. The
bucket keeps values no longer than the log keeps events, so that no event after a snapshot can be gone.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

import structlog

from swe_ai_fleet import domain
from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.errors import Fenced
from swe_ai_fleet.ports import KeyValue

EXECUTION_SNAPSHOTS = "agent-snapshots"
CONTEXT_SNAPSHOTS = "context-snapshots"
"""A bucket of its own: other services must not be able to write the state of the context service."""
KEPT_SECONDS = 7 * 86_400.0
PAUSE_SECONDS = 900.0
LEAST_CHANGES = 10_000
PART_BYTES = 512 * 1024
Dump = Callable[[], Iterable[bytes]]
Load = Callable[[Iterator[bytes]], None]
_SLOTS = ("a", "b")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The head of a snapshot; `claimed` is when a replica last started to write one, in seconds since 1970."""

    claimed: float = 0.0
    slot: str = ""
    position: int = 0
    parts: int = 0
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """The snapshots of one log.

    Attributes:
        bucket: The bucket that stores them.
        origin: Identifies this log, as opposed to a new one under the same name.
        pause: Seconds between two snapshots of one name, by any replica.
        least: The least number of new changes for a snapshot; fewer are read from the log as quickly.
        clock: Seconds since 1970.
    """

    bucket: KeyValue
    origin: str
    pause: float = PAUSE_SECONDS
    least: int = LEAST_CHANGES
    clock: Callable[[], float] = field(default=time.time)

    def of(self, name: str, *folds: ModuleType, dump: Dump, load: Load) -> Snapshot:
        """The snapshot of a projection that these modules fold.

        Args:
            name: The projection's name, as part of a key.
            folds: The modules whose sources, with those of the domain, identify the version of the snapshot.
            dump: The state as lines. Lines that are made later, in a thread, may include changes after the position of
                the call, so taking in a change twice must have no effect.
            load: Replaces the projection's state by these lines, in a thread; raises ValueError.
        """
        version = hashlib.sha256(f"{self.origin} {_sources(*folds)}".encode()).hexdigest()[:24]
        return Snapshot(store=self, key=f"{name}.{version}", dump=dump, load=load)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The snapshot of one projection, as a `Follower` uses it. Made by `Snapshots.of`."""

    store: Snapshots
    key: str
    dump: Dump
    load: Load

    async def restore(self) -> int:
        """Load the last snapshot into the projection; returns its position, 0 where there is no usable one.

        A damaged snapshot is logged and ignored. Raises Unavailable.
        """
        head, _ = await self._head()
        if not head.slot:
            return 0
        pieces = [await self.store.bucket.get(f"{self.key}.{head.slot}.{number}") for number in range(head.parts)]
        parts = [part.value if part is not None else b"" for part in pieces]
        try:
            digest = hashlib.sha256()
            for part in parts:
                digest.update(part)
            if digest.hexdigest() != head.sha256:
                raise ValueError("its parts are not those that its head names")
            await asyncio.to_thread(self.load, _lines(parts))
        except (ValueError, zlib.error) as fault:
            _log.warning("snapshot.ignored", name=self.key, reason=str(fault)[:300])
            self.load(iter(()))
            return 0
        _log.info("snapshot.restored", name=self.key, position=head.position, bytes=sum(map(len, parts)))
        return head.position

    async def save(self, position: Callable[[], int]) -> bool:
        """Store the projection's current state; False where another replica does so now, or just did.

        Raises ResourceExhausted, Unavailable.
        """
        bucket, now = self.store.bucket, self.store.clock
        head, revision = await self._head()
        if head.claimed > now() - 0.9 * self.store.pause or head.position > position():
            return False
        slot, number, digest = _SLOTS[head.slot == _SLOTS[0]], 0, hashlib.sha256()
        try:
            claim = to_json(replace(head, claimed=now()))
            revision = await bucket.put(f"{self.key}.head", claim, revision=revision)
            at, parts = position(), _parts(self.dump())
            while part := await asyncio.to_thread(next, parts, b""):
                digest.update(part)
                await bucket.put(f"{self.key}.{slot}.{number}", part)
                number += 1
            head = _Head(claimed=now(), slot=slot, position=at, parts=number, sha256=digest.hexdigest())
            await bucket.put(f"{self.key}.head", to_json(head), revision=revision)
        except Fenced:
            if await self.is_gone():
                # The snapshot was erased meanwhile: the parts written since then must go, too.
                for written in range(number):
                    await bucket.delete(f"{self.key}.{slot}.{written}")
            return False
        return True

    async def is_gone(self) -> bool:
        """Whether there is no snapshot, as after an erasure. Raises Unavailable."""
        return (await self._head())[1] == 0

    async def _head(self) -> tuple[_Head, int]:
        entry = await self.store.bucket.get(f"{self.key}.head")
        return (_Head(), 0) if entry is None else (from_json(_Head, entry.value), entry.revision)


def _parts(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines compressed, in parts that fit into a message."""
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
    """A digest of the sources of these modules, this one and the domain."""
    files = [Path(__file__), *(Path(str(module.__file__)) for module in modules)]
    digest = hashlib.sha256()
    for file in sorted({*files, *Path(str(domain.__file__)).parent.rglob("*.py")}):
        digest.update(file.read_bytes())
    return digest.hexdigest()


T = TypeVar("T")
_BATCH = 200
_SCHEMA = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -8192; PRAGMA secure_delete = ON;
CREATE TABLE item (key TEXT PRIMARY KEY, sort TEXT, labels TEXT, weight INTEGER, value BLOB);
CREATE INDEX by_age ON item (sort);
CREATE TABLE label (label TEXT, sort TEXT, key TEXT, weight INTEGER, PRIMARY KEY (label, sort, key)) WITHOUT ROWID;
CREATE TRIGGER put AFTER INSERT ON item BEGIN
  INSERT INTO label SELECT value, new.sort, new.key, new.weight FROM json_each(new.labels);
END;
CREATE TRIGGER gone AFTER DELETE ON item BEGIN
  DELETE FROM label WHERE (label, sort, key) IN (SELECT value, old.sort, old.key FROM json_each(old.labels));
END;
"""
_PUT = "INSERT INTO item VALUES (?, ?, ?, ?, ?)"
_NEWEST = """
SELECT label.sort, label.key, value FROM label JOIN item USING (key)
WHERE label = ? AND label.sort >= ? AND (label.sort, label.key) < (?, ?)
ORDER BY label.sort DESC, label.key DESC LIMIT ?
"""
LAST = "\U0010ffff"


class Archive(Generic[T]):
    """Domain values in an anonymous file, which is gone with the process; about 8 MiB of it are in memory.

    The values of a label are in the order of their `sort`, then of their keys, the greatest first.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._file.executescript(_SCHEMA)

    def put(self, key: str, value: T, *, sort: str, labels: Iterable[str], weight: int = 0) -> None:
        """Store a value, replacing the one under the same key."""
        self._file.execute("DELETE FROM item WHERE key = ?", (key,))
        packed = zlib.compress(to_json(value), 1)
        self._file.execute(_PUT, (key, sort, json.dumps(list(labels)), weight, packed))

    def get(self, key: str) -> T | None:
        """The value of a key, None where there is none."""
        row = self._file.execute("SELECT value FROM item WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._value(row[0])

    def keys_from(self, prefix: str) -> list[str]:
        """The keys with this prefix, in order."""
        rows = self._file.execute(
            "SELECT key FROM item WHERE key >= ? AND key < ? ORDER BY key", (prefix, prefix + LAST)
        )
        return [key for (key,) in rows]

    def newest(
        self, label: str, *, since: str = "", before: tuple[str, str] = (LAST, ""), limit: int = -1
    ) -> Iterator[T]:
        """The values of a label from a `sort` on, before a pair of `sort` and key; at most `limit` (negative: all)."""
        while limit:
            size = _BATCH if limit < 0 else min(limit, _BATCH)
            rows = self._file.execute(_NEWEST, (label, since, *before, size)).fetchall()
            for sort, key, value in rows:
                before = (sort, key)
                yield self._value(value)
            if len(rows) < size:
                return
            limit -= len(rows) if limit > 0 else 0

    def total(self, label: str) -> tuple[int, int]:
        """The number of values of a label, and the sum of their weights."""
        return self._file.execute(
            "SELECT count(*), coalesce(sum(weight), 0) FROM label WHERE label = ?", (label,)
        ).fetchone()

    def drop(self, key: str) -> bool:
        """Remove a value; False where there is none."""
        return self._file.execute("DELETE FROM item WHERE key = ?", (key,)).rowcount > 0

    def clear(self) -> None:
        """Remove everything."""
        self._file.execute("DELETE FROM item")

    def drop_before(self, sort: str) -> None:
        """Remove all values with a smaller `sort`."""
        self._file.execute("DELETE FROM item WHERE sort < ?", (sort,))

    def lines(self) -> Iterator[bytes]:
        """All values as lines of JSON. Values that are put meanwhile may or may not be included."""
        last = 0
        query = "SELECT rowid, key, sort, labels, weight, value FROM item WHERE rowid > ? ORDER BY rowid LIMIT ?"
        while rows := self._file.execute(query, (last, _BATCH)).fetchall():
            for _, *fields, value in rows:
                yield json.dumps([*fields, base64.b64encode(value).decode()]).encode()
            last = rows[-1][0]

    def load(self, lines: Iterable[bytes]) -> None:
        """Replace all values by those of these lines. Raises ValueError."""
        self._file.execute("BEGIN")
        try:
            self._file.execute("DELETE FROM item")
            for line in lines:
                *fields, value = json.loads(line)
                self._file.execute(_PUT, (*fields, base64.b64decode(value)))
        finally:
            self._file.execute("COMMIT")

    def _value(self, stored: bytes) -> T:
        return from_json(self._kind, zlib.decompress(stored))
