"""An index of memories in one SQLite file: words by FTS5 (BM25), vectors by sqlite-vec."""

from __future__ import annotations

# ruff: noqa: S608
# Statements are only built from names and numbers of this module; every value is bound.
from array import array
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.memory_index import (
    bounded,
    check_dimension,
    check_search,
    dumped,
    indexed,
    loaded,
    query_words,
    storable,
    unit,
)
from swe_ai_fleet.extensions.knowledge.ranking import MemoryMatch
from swe_ai_fleet.extensions.knowledge.sqlite_file import TOKENIZER, SqliteConnection, SqliteFile, Value

# A place (tenant, namespace, kind) limits nearly every search; as one number, it is also stored beside the vectors.
_SCHEMA = f"""
CREATE TABLE place (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL,
    UNIQUE (tenant, namespace, kind)
) STRICT;
CREATE TABLE memory (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, place INTEGER NOT NULL, created_at TEXT NOT NULL,
    payload TEXT NOT NULL
) STRICT;
CREATE INDEX memory_by_age ON memory (place, created_at, key);
CREATE TABLE label (
    name TEXT NOT NULL, value TEXT NOT NULL, memory INTEGER NOT NULL, PRIMARY KEY (name, value, memory)
) STRICT, WITHOUT ROWID;
CREATE INDEX label_by_memory ON label (memory);
CREATE TABLE space (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL, position INTEGER NOT NULL
) STRICT;
CREATE VIRTUAL TABLE words USING fts5 (content, tokenize = '{" ".join(TOKENIZER)}');
INSERT INTO words (words, rank) VALUES ('secure-delete', 1);
CREATE VIRTUAL TABLE word_use USING fts5vocab (words, row);
"""
# The signs of the numbers have their own table, which every search reads completely.
_SPACE = """
CREATE TABLE signs_{0} (memory INTEGER PRIMARY KEY, place INTEGER NOT NULL, signs BLOB NOT NULL) STRICT;
CREATE TABLE vector_{0} (memory INTEGER PRIMARY KEY, vector BLOB NOT NULL) STRICT;
"""
_USES = "SELECT doc FROM word_use WHERE term = ?"
_VERSION = 1
_CANDIDATES = 1_000
"""The least number of memories compared exactly with a vector."""


class SqliteMemoryIndex:
    """A `MemoryIndex` in a file.

    Vectors are first compared by the signs of their numbers (Hamming distance), the best of them exactly: with at most
    `_CANDIDATES` memories in a scope, the result is exact. A search first uses the rarest words, which occur in at most
    `words_read` memories together, and all words only if these find too few. Changes are on the disk on return; removed
    data is overwritten.
    """

    def __init__(self, file: SqliteFile, *, words_read: int = 10_000) -> None:
        self._file = file
        self._words_read = words_read

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, *, words_read: int = 10_000) -> AsyncGenerator[SqliteMemoryIndex]:
        """The index in this file, which is created if it does not exist.

        Args:
            path: The file; SQLite creates two more beside it.
            words_read: How many memories are ranked by words, unless that finds too few.

        Raises PreconditionFailed for a damaged or foreign file, Unavailable while other processes keep it locked.
        """
        async with SqliteFile(path, schema=_SCHEMA, version=_VERSION) as file:
            yield cls(file, words_read=words_read)

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Store memories, their vectors and the position in one transaction.

        Raises InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable.
        """

        def work(connection: SqliteConnection) -> None:
            number, dimension = _space(connection, space)
            for memory, vector in memories:
                row = _store(connection, memory)
                direction = unit(vector) if vector is not None else []
                if direction:
                    check_dimension(space, dimension, direction)
                    if not dimension:
                        dimension = len(direction)
                        connection.rows(_SPACE.format(number))
                        connection.rows("UPDATE space SET dimension = ? WHERE id = ?", (dimension, number))
                    _store_vector(connection, number, row, direction)
            _advance(connection, number, position)

        await self._file.write(work)

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Remove memories with their words and their vectors of all spaces. Raises as `put` does."""

        def work(connection: SqliteConnection) -> None:
            number, _ = _space(connection, space)
            spaces = connection.rows("SELECT id FROM space WHERE dimension > 0")
            tables = ["label", *(f"{table}_{space}" for (space,) in spaces for table in ("signs", "vector"))]
            for memory_id in memory_ids:
                for row in connection.rows("DELETE FROM memory WHERE key = ? RETURNING id", (memory_id,)):
                    connection.rows("DELETE FROM words WHERE rowid = ?", row)
                    for table in tables:
                        connection.rows(f"DELETE FROM {table} WHERE memory = ?", row)
            _advance(connection, number, position)

        await self._file.write(work)
        if memory_ids:
            await self._file.settle()

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[MemoryMatch, ...]:
        """The memories that fit best, by words or by a vector. Raises InvalidRequest, PreconditionFailed, Unavailable.

        The score of words is FTS5's BM25, that of a vector the cosine.
        """
        check_search(words, vector)
        limit, direction, terms = bounded(limit), unit(vector), query_words(words)
        if not limit or not (direction or terms):
            return ()

        def work(connection: SqliteConnection) -> tuple[MemoryMatch, ...]:
            if terms:
                rows = _by_words(connection, scope, terms, limit, self._words_read)
            else:
                rows = _by_vector(connection, scope, space, direction, limit, max(_CANDIDATES, 4 * limit))
            return tuple(MemoryMatch(memory=loaded(payload), score=score) for payload, score in rows)

        return await self._file.read(work)

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """The memories of a scope, the newest first. Raises PreconditionFailed, Unavailable."""
        condition, values = _within(scope)
        # The inner query reads only the index, the outer one only the returned memories.
        newest = f"SELECT id FROM memory WHERE {condition} ORDER BY created_at DESC, key LIMIT ?"
        statement = f"SELECT payload FROM memory WHERE id IN ({newest}) ORDER BY created_at DESC, key"
        bound = (*values, max(0, limit))
        return await self._file.read(
            lambda connection: tuple(loaded(payload) for (payload,) in connection.rows(statement, bound))
        )

    async def position(self, space: str) -> int:
        """The position of the source with vectors of that space (empty: of any). Raises as `listed` does."""
        statement = "SELECT max(position) FROM space WHERE ? IN ('', name)"
        rows = await self._file.read(lambda connection: connection.rows(statement, (storable(space),)))
        return rows[0][0] or 0


def _space(connection: SqliteConnection, space: str) -> tuple[int, int]:
    """(id, dimension) of a space; the dimension is 0 while it has no vectors."""
    connection.rows("INSERT OR IGNORE INTO space (name, dimension, position) VALUES (?, 0, 0)", (storable(space),))
    [(number, dimension)] = connection.rows("SELECT id, dimension FROM space WHERE name = ?", (storable(space),))
    return number, dimension


def _advance(connection: SqliteConnection, number: int, position: int) -> None:
    if position:
        connection.rows("UPDATE space SET position = ? WHERE id = ?", (position, number))


def _store(connection: SqliteConnection, memory: Memory) -> tuple[int, int]:
    """(id, place) of the memory, which is inserted or replaced."""
    where = (storable(memory.tenant), storable(memory.namespace), memory.kind.value)
    connection.rows("INSERT OR IGNORE INTO place (tenant, namespace, kind) VALUES (?, ?, ?)", where)
    [(place,)] = connection.rows("SELECT id FROM place WHERE tenant = ? AND namespace = ? AND kind = ?", where)
    [(number,)] = connection.rows(
        "INSERT INTO memory (key, place, created_at, payload) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
        "SET place = excluded.place, created_at = excluded.created_at, payload = excluded.payload RETURNING id",
        (memory.memory_id, place, storable(memory.created_at), dumped(memory)),
    )
    connection.rows("DELETE FROM words WHERE rowid = ?", (number,))
    connection.rows("INSERT INTO words (rowid, content) VALUES (?, ?)", (number, indexed(memory.text)))
    connection.rows("DELETE FROM label WHERE memory = ?", (number,))
    labels = [(storable(name), storable(value), number) for name, value in memory.metadata.items()]
    connection.many("INSERT OR IGNORE INTO label (name, value, memory) VALUES (?, ?, ?)", labels)
    for (space,) in connection.rows("SELECT id FROM space WHERE dimension > 0"):
        connection.rows(f"UPDATE signs_{space} SET place = ? WHERE memory = ? AND place <> ?", (place, number, place))
    return number, place


def _store_vector(connection: SqliteConnection, number: int, row: tuple[int, int], direction: list[float]) -> None:
    connection.rows(f"INSERT OR REPLACE INTO signs_{number} VALUES (?, ?, ?)", (*row, _signs(direction)))
    connection.rows(f"INSERT OR REPLACE INTO vector_{number} VALUES (?, ?)", (row[0], _floats(direction)))


def _by_words(
    connection: SqliteConnection, scope: MemoryScope, terms: Sequence[str], limit: int, words_read: int
) -> list[tuple[str, float]]:
    condition, values = _within(scope, table="memory.")

    def matching(query: str) -> list[tuple[str, float]]:
        # A cross join, so that SQLite reads the words first, in the order of the result.
        return connection.rows(
            "SELECT payload, -rank FROM words CROSS JOIN memory ON memory.id = words.rowid "
            f"WHERE words MATCH ? AND {condition} ORDER BY rank LIMIT ?",
            (query, *values, limit),
        )

    rare = _rare(connection, terms, words_read)
    if len(rare) < len(terms):
        # Words in nearly all memories say little, but FTS5 would rank nearly all memories for them.
        rows = matching(f"({_any(rare)}) AND ({_any(terms)})")
        if len(rows) == limit:
            return rows
    return matching(_any(terms))


def _any(words: Sequence[str]) -> str:
    """A query of FTS5 for any of the words; quoted, a word is never read as syntax."""
    return " OR ".join(f'"{word}"' for word in words)


def _rare(connection: SqliteConnection, words: Sequence[str], words_read: int) -> list[str]:
    """The rarest words, as many as occur in at most `words_read` memories together; at least one."""
    uses: list[tuple[int, str]] = []
    for word in words:
        rows = [row for token in connection.tokens(word) for row in connection.rows(_USES, (token,))]
        uses.append((sum(count for (count,) in rows), word))
    uses.sort()
    together = list(accumulate(count for count, _ in uses))
    return [word for (_, word), total in zip(uses, together, strict=True) if total <= words_read] or [uses[0][1]]


def _by_vector(
    connection: SqliteConnection, scope: MemoryScope, space: str, direction: list[float], limit: int, candidates: int
) -> list[tuple[str, float]]:
    spaces = connection.rows("SELECT id FROM space WHERE name = ? AND dimension = ?", (storable(space), len(direction)))
    if not spaces:
        return []
    [(number,)] = spaces
    condition, values = _within(scope, key="memory")
    return connection.rows(
        f"SELECT payload, 1 - vec_distance_cosine(vector, ?) AS score FROM vector_{number} "
        "JOIN memory ON memory.id = memory WHERE memory IN ("
        f"SELECT memory FROM signs_{number} WHERE {condition} "
        "ORDER BY vec_distance_hamming(vec_bit(signs), vec_bit(?)) LIMIT ?) ORDER BY score DESC, key LIMIT ?",
        (_floats(direction), *values, _signs(direction), candidates, limit),
    )


def _within(scope: MemoryScope, *, table: str = "", key: str = "id") -> tuple[str, list[Value]]:
    """A condition on place and id of memories, and its values."""
    places, values = "tenant = ?", list[Value]((storable(scope.tenant),))
    for column, allowed in (("namespace", scope.namespaces), ("kind", scope.kinds)):
        if allowed:
            places += f" AND {column} IN ({', '.join('?' * len(allowed))})"
            values.extend(map(storable, allowed))
    condition = f"{table}place IN (SELECT id FROM place WHERE {places})"
    for name, value in scope.metadata.items():
        condition += f" AND {table}{key} IN (SELECT memory FROM label WHERE name = ? AND value = ?)"
        values.extend((storable(name), storable(value)))
    return condition, values


def _floats(direction: Sequence[float]) -> bytes:
    return array("f", direction).tobytes()


def _signs(direction: Sequence[float]) -> bytes:
    bits = "".join("1" if number > 0 else "0" for number in direction)
    size = -(-len(bits) // 8)
    return int(bits.ljust(size * 8, "0"), 2).to_bytes(size)
