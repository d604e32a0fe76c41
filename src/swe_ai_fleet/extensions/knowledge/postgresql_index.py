"""An index of memories in PostgreSQL: words by its full text search with BM25, vectors by pgvector."""

from __future__ import annotations

# ruff: noqa: S608
# Statements are only built from names and numbers of this module; every value is bound.
import asyncio
import json
import math
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.memory import Memory, MemoryScope
from swe_ai_fleet.extensions.knowledge.memory_index import (
    bounded,
    check_dimension,
    check_search,
    dumped,
    indexed_words,
    loaded,
    query_words,
    storable,
    unit,
)
from swe_ai_fleet.extensions.knowledge.postgresql_database import DatabaseConnections, prepare, schema_of, space_table
from swe_ai_fleet.extensions.knowledge.ranking import MemoryMatch

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.rows import TupleRow

_PUT = """
INSERT INTO memory (key, tenant, namespace, kind, labels, created_at, payload, words)
VALUES (%s, %s, %s, %s, %s::jsonb, %s, %s, to_tsvector('words', %s))
ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, labels = excluded.labels, created_at = excluded.created_at,
    payload = excluded.payload, words = excluded.words
"""
_REMOVE = """
DELETE FROM memory
WHERE id IN (SELECT id FROM memory WHERE key = ANY(%s) ORDER BY key FOR UPDATE)
"""
_USES = """
SELECT lexeme, (SELECT count(*) FROM memory WHERE words @@ plainto_tsquery('simple', lexeme))
FROM unnest(to_tsvector('words', %s))
"""
# BM25 (Robertson and Zaragoza 2009) of the matching memories, k1 = 1.2, b = 0.75; of at most 20,000, which limits the
# time for a word in nearly all memories.
_BY_WORDS = """
WITH wanted AS (SELECT * FROM unnest(%s::text[], %s::float8[]) AS one (lexeme, weight)),
found AS (
    SELECT id, key, words, length(words)::float8 / avg(length(words)) OVER () AS size
    FROM (SELECT id, key, words FROM memory WHERE words @@ %s::tsquery AND {condition} LIMIT 20000) AS read
),
best AS (
    SELECT id, key, sum(weight * cardinality(positions) * 2.2 / (cardinality(positions) + 0.3 + 0.9 * size)) AS score
    FROM found CROSS JOIN LATERAL unnest(words) JOIN wanted USING (lexeme)
    GROUP BY id, key ORDER BY score DESC, key LIMIT %s
)
SELECT payload, score FROM best JOIN memory USING (id) ORDER BY score DESC, best.key
"""
_WORDS_READ = 5_000
"""How many memories are ranked by words, unless that finds too few."""


class PostgresqlMemoryIndex:
    """A `MemoryIndex` in a database that several fleets may share.

    Vectors are compared one by one, without an approximate index: a search is limited to a tenant and mostly to a few
    namespaces, while such an index (HNSW) filters only after it has found the nearest vectors, and could miss these. A
    search first uses the rarest words, which occur in at most `_WORDS_READ` memories together, and all words only if
    these find too few.
    """

    def __init__(self, sessions: DatabaseConnections) -> None:
        self._sessions = sessions

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, source: str = "") -> AsyncGenerator[PostgresqlMemoryIndex]:
        """The index in this database, in its own schema, which is created if it does not exist.

        Args:
            url: The URL of the database.
            source: The identity of the source of the memories, up to 32 lower-case letters and digits; each source has
                its own schema.

        Raises PreconditionFailed (no driver, no pgvector, no permission to create it), InvalidRequest, Unavailable.
        """
        try:
            import psycopg  # noqa: F401
        except ImportError:
            raise PreconditionFailed(
                "PostgreSQL needs its driver", field="memory_store", hint="pip install 'swe-ai-fleet[db]'"
            ) from None
        schema = schema_of(source)
        sessions = DatabaseConnections(url, schema)
        try:
            async with sessions.transaction() as connection:
                await prepare(connection, schema)
            yield cls(sessions)
        finally:
            await sessions.close()

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Store memories, their vectors and the position in one transaction.

        Raises InvalidRequest, PreconditionFailed, ResourceExhausted, Unavailable.
        """
        rows, directions = await asyncio.to_thread(_columns, memories)
        async with self._sessions.transaction() as connection:
            number, dimension = await _space(connection, space)
            for _, direction in directions:
                check_dimension(space, dimension, direction)
                dimension = dimension or len(direction)
            if directions:
                # Before the inserts: creating a table waits for the inserts of others, who must not wait for ours.
                await space_table(connection, number, dimension)
            async with connection.cursor() as cursor:
                if rows:
                    await cursor.executemany(_PUT, rows)
                if directions:
                    await cursor.executemany(
                        f"INSERT INTO vector_{number} (memory, vector) "
                        f"SELECT id, %s::vector FROM memory WHERE key = %s "
                        "ON CONFLICT (memory) DO UPDATE SET vector = excluded.vector".encode(),
                        [(_vector(direction), key) for key, direction in directions],
                    )
            await _advance(connection, number, position)

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Remove memories with their words and their vectors of all spaces. Raises as `put` does."""
        async with self._sessions.transaction() as connection:
            number, _ = await _space(connection, space)
            await connection.execute(_REMOVE.encode(), ([storable(id_) for id_ in memory_ids],))
            await _advance(connection, number, position)

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[MemoryMatch, ...]:
        """The memories that fit best, by words or by a vector. Raises InvalidRequest, PreconditionFailed, Unavailable.

        The score of words is BM25, that of a vector the cosine.
        """
        check_search(words, vector)
        limit, direction, terms = bounded(limit), unit(vector), query_words(words)
        if not limit or not (direction or terms):
            return ()
        async with self._sessions.transaction() as connection:
            if terms:
                rows = await _by_words(connection, scope, terms, limit)
            else:
                rows = await _by_vector(connection, scope, space, direction, limit)
        return await asyncio.to_thread(
            lambda: tuple(MemoryMatch(memory=loaded(payload), score=score) for payload, score in rows)
        )

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """The memories of a scope, the newest first. Raises PreconditionFailed, Unavailable."""
        condition, values = _within(scope)
        statement = f"SELECT payload FROM memory WHERE {condition} ORDER BY created_at DESC, key LIMIT %s"
        async with self._sessions.transaction() as connection:
            rows = await (await connection.execute(statement.encode(), (*values, max(0, limit)))).fetchall()
        return await asyncio.to_thread(lambda: tuple(loaded(payload) for (payload,) in rows))

    async def position(self, space: str) -> int:
        """The position of the source with vectors of that space (empty: of any). Raises as `listed` does."""
        statement = "SELECT coalesce(max(position), 0) FROM space WHERE %s IN ('', name)"
        async with self._sessions.transaction() as connection:
            rows = await (await connection.execute(statement.encode(), (storable(space),))).fetchall()
        return rows[0][0]


async def _space(connection: AsyncConnection[TupleRow], space: str) -> tuple[int, int]:
    """(id, dimension) of a space, locked until the transaction's end; the dimension is 0 while it has no vectors."""
    await connection.execute(b"INSERT INTO space (name) VALUES (%s) ON CONFLICT DO NOTHING", (storable(space),))
    statement = "SELECT id, dimension FROM space WHERE name = %s FOR UPDATE"
    [(number, dimension)] = await (await connection.execute(statement.encode(), (storable(space),))).fetchall()
    return number, dimension


async def _advance(connection: AsyncConnection[TupleRow], number: int, position: int) -> None:
    if position:
        await connection.execute(b"UPDATE space SET position = %s WHERE id = %s", (position, number))


async def _by_words(
    connection: AsyncConnection[TupleRow], scope: MemoryScope, terms: Sequence[str], limit: int
) -> list[TupleRow]:
    rows = await (await connection.execute(_USES.encode(), (" ".join(terms),))).fetchall()
    uses = sorted((count, lexeme) for lexeme, count in rows)
    [(total,)] = await (await connection.execute(b"SELECT count(*) FROM memory")).fetchall()
    lexemes = [lexeme for _, lexeme in uses]
    weights = [math.log(1 + (total - count + 0.5) / (count + 0.5)) for count, _ in uses]
    together = list(accumulate(count for count, _ in uses))
    # Words in nearly all memories say little, but nearly all memories would be ranked for them.
    rare = [lexeme for lexeme, read in zip(lexemes, together, strict=True) if read <= _WORDS_READ] or lexemes[:1]
    condition, values = _within(scope)
    statement = _BY_WORDS.format(condition=condition).encode()
    matching_rows: list[TupleRow] = []
    for matching in (rare, lexemes) if len(rare) < len(lexemes) else (lexemes,):
        bound = (lexemes, weights, _any(matching), *values, limit)
        matching_rows = await (await connection.execute(statement, bound)).fetchall()
        if len(matching_rows) == limit:
            break
    return matching_rows


async def _by_vector(
    connection: AsyncConnection[TupleRow], scope: MemoryScope, space: str, direction: list[float], limit: int
) -> list[TupleRow]:
    statement = "SELECT id FROM space WHERE name = %s AND dimension = %s"
    spaces = await (await connection.execute(statement.encode(), (storable(space), len(direction)))).fetchall()
    if not spaces:
        return []
    [(number,)] = spaces
    condition, values = _within(scope)
    # The inner product of unit vectors is their cosine; the operator yields its negative.
    statement = (
        f"WITH best AS (SELECT id, key, -(vector <#> %s::vector) AS score FROM vector_{number} "
        f"JOIN memory ON memory.id = memory WHERE {condition} ORDER BY score DESC, key LIMIT %s) "
        f"SELECT payload, score FROM best JOIN memory USING (id) ORDER BY score DESC, best.key"
    )
    return await (await connection.execute(statement.encode(), (_vector(direction), *values, limit))).fetchall()


def _columns(
    memories: Sequence[tuple[Memory, Sequence[float] | None]],
) -> tuple[list[tuple[str, ...]], list[tuple[str, list[float]]]]:
    """The rows of memories, and the vectors with the memories' ids."""
    # In the same order everywhere, so that two writers of the same memories do not deadlock.
    ordered = sorted(memories, key=lambda pair: pair[0].memory_id)
    directions = [(memory.memory_id, unit(vector)) for memory, vector in ordered if vector is not None]
    return [_row(memory) for memory, _ in ordered], [(key, direction) for key, direction in directions if direction]


def _row(memory: Memory) -> tuple[str, ...]:
    labels = {storable(name): storable(value) for name, value in memory.metadata.items()}
    return (
        memory.memory_id,
        storable(memory.tenant),
        storable(memory.namespace),
        memory.kind.value,
        json.dumps(labels),
        storable(memory.created_at),
        dumped(memory),
        indexed_words(memory.text),
    )


def _within(scope: MemoryScope) -> tuple[str, list[object]]:
    """A condition on memories, and its values."""
    condition, values = "tenant = %s", list[object]((storable(scope.tenant),))
    for column, allowed in (("namespace", scope.namespaces), ("kind", scope.kinds)):
        if allowed:
            condition += f" AND {column} = ANY(%s)"
            values.append([storable(text) for text in allowed])
    if scope.metadata:
        condition += " AND labels @> %s::jsonb"
        values.append(json.dumps({storable(name): storable(value) for name, value in scope.metadata.items()}))
    return condition, values


def _any(lexemes: Sequence[str]) -> str:
    """A tsquery for any of the lexemes; quoted, a lexeme is never read as syntax."""
    quoted = (lexeme.replace("\\", "\\\\").replace("'", "''") for lexeme in lexemes)
    return " | ".join(f"'{lexeme}'" for lexeme in quoted)


def _vector(direction: Sequence[float]) -> str:
    return f"[{','.join(map(repr, direction))}]"
