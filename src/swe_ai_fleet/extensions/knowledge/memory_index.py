"""The index that memories are searched in, an SQLite file or PostgreSQL, and the preparation of texts for both."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import Memory, MemoryKind, MemoryScope
from swe_ai_fleet.extensions.knowledge.ranking import SAY_NOTHING, MemoryMatch

FILE_NAME = "memory-index.db"
MAX_INDEXED_CHARS = 100_000
MAX_QUERY_CHARS = 8_000
MAX_QUERY_WORDS = 32

_WORD = re.compile(r"[^\W_]+")
_IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
# Scripts written without spaces: their words are found by pairs of letters.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
MAX_DIMENSION = 8_192
# The most matches of a search; lists of a scope have no limit.
MAX_MATCHES = 10_000


class MemoryIndex(Protocol):
    """An index of memories; it can be rebuilt from its source.

    Vectors belong to a space, the name of their embedder (empty: none): only vectors of the same space are compared.
    """

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Store memories, with their vectors of this space; None keeps an earlier vector.

        `position` is how far the source was read (0: unchanged), stored for the space together with the memories.
        Raises InvalidRequest, Unavailable.
        """
        ...

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Remove memories with their words and their vectors of all spaces. Raises Unavailable."""
        ...

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[MemoryMatch, ...]:
        """The memories that fit either the words (BM25) or the vector of this space (cosine), best first.

        Raises InvalidRequest, Unavailable.
        """
        ...

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """The memories of a scope, the newest first. Raises Unavailable."""
        ...

    async def position(self, space: str) -> int:
        """How far the source was read with vectors of that space (empty: of any); 0 for a new index."""
        ...


@asynccontextmanager
async def open_memory_index(where: str, home: Path, *, source: str = "") -> AsyncGenerator[MemoryIndex]:
    """The index of memories that the setting `memory_store` names, open within the context.

    Args:
        where: Empty (a file under `home`) or `postgresql://…`.
        home: The directory of the file.
        source: The identity of the source of the memories, lower-case letters and digits; in a database of several
            fleets, each source has its own schema.

    Raises InvalidRequest for any other `where`, PreconditionFailed if a package is missing or the file or schema is no
    index, Unavailable.
    """
    scheme, _, rest = where.partition(":")
    if not where:
        from swe_ai_fleet.extensions.knowledge.sqlite_index import SqliteMemoryIndex

        async with SqliteMemoryIndex.open(home / FILE_NAME) as index:
            yield index
    elif scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from swe_ai_fleet.extensions.knowledge.postgresql_index import PostgresqlMemoryIndex

        async with PostgresqlMemoryIndex.open(where, source=source) as index:
            yield index
    else:
        # Not quoted: the setting may contain a password.
        raise InvalidRequest(
            "memory_store is not a valid place for memories",
            field="memory_store",
            hint="leave it empty for a file of the fleet, or use postgresql://user:password@host/database",
        )


def indexed(text: str) -> str:
    """The text to index: with the parts of its words, without case and diacritics (`Déjà`: `deja`)."""
    text = text[:MAX_INDEXED_CHARS]
    return _folded(f"{text} {parts(text)}")


def parts(text: str) -> str:
    """Words that a tokenizer does not find: the parts of names in camel case, pairs of letters of unspaced scripts."""
    words: list[str] = []
    for word in _WORD.findall(text):
        if word.isascii():
            pieces = _IDENTIFIER_PART.findall(word)
            words.extend(pieces if len(pieces) > 1 else ())
        for run in _UNSPACED.findall(word):
            words.extend(run[start : start + 2] for start in range(len(run) - 1))
    return " ".join(words)


def indexed_words(text: str) -> str:
    """The words of `indexed`: letters and digits only."""
    return " ".join(_WORD.findall(indexed(text)))


def query_words(text: str) -> tuple[str, ...]:
    """The words to search for, letters and digits only, distinct, at most 32.

    Stop words are among them only if there are no others.
    """
    words = dict.fromkeys(_WORD.findall(indexed(text[:MAX_QUERY_CHARS])))
    telling = [word for word in words if word not in SAY_NOTHING]
    return tuple(telling or words)[:MAX_QUERY_WORDS]


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text).casefold()
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def dumped(memory: Memory) -> str:
    """The memory as JSON in ASCII."""
    return json.dumps(
        {
            "namespace": memory.namespace,
            "text": memory.text,
            "kind": memory.kind.value,
            "tenant": memory.tenant,
            "metadata": dict(memory.metadata),
            "source": memory.source,
            "created_at": memory.created_at,
        },
        separators=(",", ":"),
    )


def loaded(payload: str) -> Memory:
    """The memory from its JSON."""
    values = json.loads(payload)
    return Memory(**values | {"kind": MemoryKind(values["kind"])})


def storable(text: str) -> str:
    """The text in a form that every database accepts, for columns that are only compared."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def unit(vector: Sequence[float]) -> list[float]:
    """The vector with length 1; empty for a zero vector. Raises InvalidRequest for an invalid vector."""
    if len(vector) > MAX_DIMENSION:
        raise InvalidRequest(
            f"a vector has at most {MAX_DIMENSION} numbers; this one has {len(vector)}", field="vector"
        )
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise InvalidRequest("a vector must contain finite numbers only", field="vector")
    return [number / length for number in vector] if length else []


def check_dimension(space: str, dimension: int, vector: Sequence[float]) -> None:
    """Check the length of a vector against its space's (0: no vectors yet). Raises InvalidRequest."""
    if dimension and len(vector) != dimension:
        raise InvalidRequest(
            f"the vectors of {space!r} have {dimension} numbers; this one has {len(vector)}",
            field="vector",
            hint="an embedder with other dimensions needs another name",
        )


def check_search(words: str, vector: Sequence[float]) -> None:
    """Check that only one of both is given. Raises InvalidRequest."""
    if words and len(vector):
        raise InvalidRequest("search by words or by a vector, one at a time", field="vector")


def bounded(limit: int) -> int:
    """The limit of a search, from 0 to `MAX_MATCHES`."""
    return max(0, min(limit, MAX_MATCHES))
