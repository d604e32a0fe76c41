"""Values on disk that a process need not hold in memory, by key and by labels."""

from __future__ import annotations

import base64
import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from swe_ai_fleet.codec import from_json, to_json

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


class Shelf(Generic[T]):
    """A file without a name, gone with the process; about 8 MiB of it are in memory. Values are domain values.

    Of a label the values are found in the order of their `sort`, then of their keys, the greatest first.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._file.executescript(_SCHEMA)

    def put(self, key: str, value: T, *, sort: str, labels: Iterable[str], weight: int = 0) -> None:
        """Store a value in the place of the one that was there."""
        self._file.execute("DELETE FROM item WHERE key = ?", (key,))
        packed = zlib.compress(to_json(value), 1)
        self._file.execute(_PUT, (key, sort, json.dumps(list(labels)), weight, packed))

    def get(self, key: str) -> T | None:
        """The value of a key, None where there is none."""
        row = self._file.execute("SELECT value FROM item WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._value(row[0])

    def keys_from(self, prefix: str) -> list[str]:
        """The keys that begin so, in their order."""
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
        """How many values a label has, and the sum of their weights."""
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
        """Remove what has a smaller `sort`."""
        self._file.execute("DELETE FROM item WHERE sort < ?", (sort,))

    def lines(self) -> Iterator[bytes]:
        """All of it as lines of JSON. What is put meanwhile may be among them or not; nothing else is missing."""
        last = 0
        wanted = "SELECT rowid, key, sort, labels, weight, value FROM item WHERE rowid > ? ORDER BY rowid LIMIT ?"
        while rows := self._file.execute(wanted, (last, _BATCH)).fetchall():
            for _, *fields, value in rows:
                yield json.dumps([*fields, base64.b64encode(value).decode()]).encode()
            last = rows[-1][0]

    def load(self, lines: Iterable[bytes]) -> None:
        """Hold exactly what these lines say. Raises ValueError."""
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
