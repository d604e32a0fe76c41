"""A connection to an SQLite file, with the functions for vectors."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

Value: TypeAlias = str | int | float | bytes | None

TOKENIZER: tuple[str, ...] = ("porter", "unicode61", "remove_diacritics", "2")
_BUSY_MS = 10_000


class _Cursor(Protocol):
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class _Tokenizer(Protocol):
    def __call__(
        self, utf8: bytes, flags: int, locale: str | None, *, include_offsets: bool, include_colocated: bool
    ) -> list[str]: ...


class _Apsw(Protocol):
    """What is used of `apsw.Connection`."""

    in_transaction: bool

    def execute(self, statements: str, bindings: Sequence[Value] | None = None) -> _Cursor: ...

    def executemany(self, statements: str, sequenceofbindings: Iterable[Sequence[Value]]) -> _Cursor: ...

    def set_busy_timeout(self, milliseconds: int) -> None: ...

    def enable_load_extension(self, enable: bool) -> None: ...

    def load_extension(self, filename: str) -> None: ...

    def fts5_tokenizer(self, name: str, args: list[str] | None = None) -> _Tokenizer: ...

    def close(self) -> None: ...


class Connection:
    """One connection, for one thread at a time; every statement is carried out to its end."""

    def __init__(self, path: Path) -> None:
        import apsw
        import sqlite_vec

        self._connection = cast("_Apsw", apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE))
        self._connection.set_busy_timeout(_BUSY_MS)
        # A foreign file must not get functions called by what its schema says.
        self.rows("PRAGMA trusted_schema = OFF")
        self.rows("PRAGMA cache_size = -32768")
        self._connection.enable_load_extension(True)
        self._connection.load_extension(sqlite_vec.loadable_path())
        self._connection.enable_load_extension(False)
        name, *arguments = TOKENIZER
        self._tokenizer = self._connection.fts5_tokenizer(name, arguments)

    def rows(self, statements: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """What a statement yields."""
        return self._connection.execute(statements, values or None).fetchall()

    def many(self, statement: str, rows: Iterable[Sequence[Value]]) -> None:
        """The same statement for each row of values."""
        self._connection.executemany(statement, rows).fetchall()

    def tokens(self, text: str) -> list[str]:
        """What FTS5 makes of a text."""
        import apsw

        flags = apsw.FTS5_TOKENIZE_QUERY
        return self._tokenizer(text.encode(), flags, None, include_offsets=False, include_colocated=False)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All or nothing; waits for the other writers first."""
        self.rows("BEGIN IMMEDIATE")
        try:
            yield
            self.rows("COMMIT")
        finally:
            if self._connection.in_transaction:
                self.rows("ROLLBACK")

    def close(self) -> None:
        """End it."""
        self._connection.close()
