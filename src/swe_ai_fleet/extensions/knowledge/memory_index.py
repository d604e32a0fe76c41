"""Where memories are searched, an SQLite file or PostgreSQL: memories, texts and questions as both take them."""

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
# Scripts that are written without spaces: their words are found by pairs of letters.
_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
MAX_DIMENSION = 8_192
# Of a search; what a scope holds is listed whole.
MAX_MATCHES = 10_000


class MemoryIndex(Protocol):
    """Memories as they are searched: a projection that can be made anew from where they are kept.

    Vectors belong to a space, the name of their embedder (empty: none): only those of one space are compared.
    """

    async def put(
        self, memories: Sequence[tuple[Memory, Sequence[float] | None]], *, space: str = "", position: int = 0
    ) -> None:
        """Take memories in, with their vectors of this space where there are any; None leaves what was there.

        `position` is how far their source was read (0: not told), kept for the space together with the memories.
        Raises InvalidRequest, Unavailable.
        """
        ...

    async def remove(self, memory_ids: Collection[str], *, space: str = "", position: int = 0) -> None:
        """Forget memories, words and the vectors of all spaces. Raises Unavailable."""
        ...

    async def search(
        self, scope: MemoryScope, *, words: str = "", vector: Sequence[float] = (), space: str = "", limit: int = 10
    ) -> tuple[MemoryMatch, ...]:
        """The memories that fit best, either the words (BM25) or the vector of this space (cosine), best first.

        Raises InvalidRequest, Unavailable.
        """
        ...

    async def listed(self, scope: MemoryScope, *, limit: int = 1000) -> tuple[Memory, ...]:
        """What a scope holds, the newest first. Raises Unavailable."""
        ...

    async def position(self, space: str) -> int:
        """How far its source was read with vectors of that space (empty: at all), 0 for an index that is to be made."""
        ...


@asynccontextmanager
async def open_memory_index(where: str, home: Path, *, source: str = "") -> AsyncGenerator[MemoryIndex]:
    """The index of memories that the setting `memory_store` names, open within the context.

    Args:
        where: Empty (a file under `home`) or `postgresql://…`.
        home: Where a file of this source's is, if it is to be a file.
        source: What tells the memories that are followed from all others, lower-case letters and digits; in a database
            that several fleets name, each has a part of its own.

    Raises InvalidRequest for anything else, PreconditionFailed where a package is missing or what stands there is no
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
        # What was given may hold a password.
        raise InvalidRequest(
            "memory_store is not a valid place for memories",
            field="memory_store",
            hint="leave it empty for a file of the fleet, or use postgresql://user:password@host/database",
        )


def indexed(text: str) -> str:
    """What an index takes in: the text and the parts of its words, without case and diacritics (`Déjà`: `deja`)."""
    text = text[:MAX_INDEXED_CHARS]
    return _folded(f"{text} {parts(text)}")


def parts(text: str) -> str:
    """What a tokenizer does not see: the parts of names in camel case, pairs of letters of unspaced scripts."""
    words: list[str] = []
    for word in _WORD.findall(text):
        if word.isascii():
            pieces = _IDENTIFIER_PART.findall(word)
            words.extend(pieces if len(pieces) > 1 else ())
        for run in _UNSPACED.findall(word):
            words.extend(run[start : start + 2] for start in range(len(run) - 1))
    return " ".join(words)


def indexed_words(text: str) -> str:
    """`indexed`, letters and digits only."""
    return " ".join(_WORD.findall(indexed(text)))


def query_words(text: str) -> tuple[str, ...]:
    """The words to search for, letters and digits only, distinct, at most 32.

    Words that say nothing are among them only where there are no others.
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
    """The memory as ASCII, whatever its texts hold."""
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
    """The memory that was dumped."""
    values = json.loads(payload)
    return Memory(**values | {"kind": MemoryKind(values["kind"])})


def storable(text: str) -> str:
    """A text that every database takes, for columns that are compared only."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def unit(vector: Sequence[float]) -> list[float]:
    """The vector with length 1; nothing for one that points nowhere. Raises InvalidRequest for what is no vector."""
    if len(vector) > MAX_DIMENSION:
        raise InvalidRequest(
            f"a vector has at most {MAX_DIMENSION} numbers; this one has {len(vector)}", field="vector"
        )
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise InvalidRequest("a vector must contain finite numbers only", field="vector")
    return [number / length for number in vector] if length else []


def check_dimension(space: str, dimension: int, vector: Sequence[float]) -> None:
    """Raises InvalidRequest where the vectors of a space have another length (0: there are none yet)."""
    if dimension and len(vector) != dimension:
        raise InvalidRequest(
            f"the vectors of {space!r} have {dimension} numbers; this one has {len(vector)}",
            field="vector",
            hint="an embedder with other dimensions needs another name",
        )


def check_search(words: str, vector: Sequence[float]) -> None:
    """Raises InvalidRequest where both are given."""
    if words and len(vector):
        raise InvalidRequest("search by words or by a vector, one at a time", field="vector")


def bounded(limit: int) -> int:
    """How many a search finds at most, whatever was asked for."""
    return max(0, min(limit, MAX_MATCHES))
