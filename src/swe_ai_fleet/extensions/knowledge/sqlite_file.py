"""An SQLite file, written by one thread and read by others, so that it never blocks the event loop.

Its connections have functions for vectors.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from swe_ai_fleet.domain.errors import PreconditionFailed, ResourceExhausted, Unavailable

Value: TypeAlias = str | int | float | bytes | None

TOKENIZER: tuple[str, ...] = ("porter", "unicode61", "remove_diacritics", "2")
_BUSY_MS = 10_000
Result = TypeVar("Result")
APPLICATION_ID = 0x464D454D  # "FMEM"
_READERS = 2
_LOST = "move it away: the fleet rebuilds its index from its log; memories that are in this file only are lost"


class _Cursor(Protocol):
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class _Tokenizer(Protocol):
    def __call__(
        self, utf8: bytes, flags: int, locale: str | None, *, include_offsets: bool, include_colocated: bool
    ) -> list[str]: ...


class _Apsw(Protocol):
    """The used part of `apsw.Connection`."""

    in_transaction: bool

    def execute(self, statements: str, bindings: Sequence[Value] | None = None) -> _Cursor: ...

    def executemany(self, statements: str, sequenceofbindings: Iterable[Sequence[Value]]) -> _Cursor: ...

    def set_busy_timeout(self, milliseconds: int) -> None: ...

    def enable_load_extension(self, enable: bool) -> None: ...

    def load_extension(self, filename: str) -> None: ...

    def fts5_tokenizer(self, name: str, args: list[str] | None = None) -> _Tokenizer: ...

    def close(self) -> None: ...


class SqliteConnection:
    """One connection, for one thread at a time; every statement is run to its end."""

    def __init__(self, path: Path) -> None:
        import apsw
        import sqlite_vec

        self._connection = cast("_Apsw", apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE))
        self._connection.set_busy_timeout(_BUSY_MS)
        # The schema of a foreign file must not be able to call functions.
        self.rows("PRAGMA trusted_schema = OFF")
        self.rows("PRAGMA cache_size = -32768")
        self._connection.enable_load_extension(True)
        self._connection.load_extension(sqlite_vec.loadable_path())
        self._connection.enable_load_extension(False)
        name, *arguments = TOKENIZER
        self._tokenizer = self._connection.fts5_tokenizer(name, arguments)

    def rows(self, statements: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self._connection.execute(statements, values or None).fetchall()

    def many(self, statement: str, rows: Iterable[Sequence[Value]]) -> None:
        """Run the statement for each row of values."""
        self._connection.executemany(statement, rows).fetchall()

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text, by FTS5."""
        import apsw

        flags = apsw.FTS5_TOKENIZE_QUERY
        return self._tokenizer(text.encode(), flags, None, include_offsets=False, include_colocated=False)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """A transaction, which waits for other writers first."""
        self.rows("BEGIN IMMEDIATE")
        try:
            yield
            self.rows("COMMIT")
        finally:
            if self._connection.in_transaction:
                self.rows("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SqliteFile:
    """One open file. Several processes may have it open at once: SQLite's locks synchronise them.

    Args:
        path: The file; created if it does not exist, accessible only to its owner.
        schema: The statements that create the tables of a new file.
        version: The version of the schema; a file with another version is refused.
    """

    def __init__(self, path: Path, *, schema: str, version: int) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="memory-writer")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="memory-reader")
        self._writing: SimpleQueue[SqliteConnection] = SimpleQueue()
        self._reading: SimpleQueue[SqliteConnection] = SimpleQueue()

    async def __aenter__(self) -> SqliteFile:
        """Raises PreconditionFailed for a file that is no index or cannot be used, Unavailable."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._open)
        except BaseException:
            await asyncio.to_thread(self._close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    async def write(self, work: Callable[[SqliteConnection], Result]) -> Result:
        """Run `work` in a transaction, which is on the disk when this returns.

        Raises PreconditionFailed, ResourceExhausted, Unavailable.
        """

        def transaction() -> Result:
            with self._borrowed(self._writing) as connection, connection.transaction():
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._writer, transaction)

    async def read(self, work: Callable[[SqliteConnection], Result]) -> Result:
        """Run `work`, which reads with one statement, concurrently with writers.

        Raises PreconditionFailed, Unavailable.
        """

        def reading() -> Result:
            with self._borrowed(self._reading) as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, reading)

    async def settle(self) -> None:
        """Truncate the write-ahead log, which still has erased data, unless a reader uses it."""

        def checkpoint() -> None:
            with self._borrowed(self._writing) as connection:
                connection.rows("PRAGMA wal_checkpoint(TRUNCATE)")

        await asyncio.get_running_loop().run_in_executor(self._writer, checkpoint)

    def _open(self) -> None:
        with _faults(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            writer = SqliteConnection(self._path)
            self._writing.put(writer)
            self._check(writer)
            _write_ahead(writer)
            writer.rows("PRAGMA secure_delete = ON")
            with writer.transaction():
                if not self._check(writer):
                    writer.rows(f"PRAGMA application_id = {APPLICATION_ID}")
                    writer.rows(f"PRAGMA user_version = {self._version}")
                    writer.rows(self._schema)
            for _ in range(_READERS):
                reader = SqliteConnection(self._path)
                self._reading.put(reader)
                reader.rows("PRAGMA query_only = ON")

    def _check(self, connection: SqliteConnection) -> bool:
        """Whether the file is an index; False if it is empty. Raises PreconditionFailed."""
        [(tables,)] = connection.rows("SELECT count(*) FROM sqlite_schema")
        [(application,)] = connection.rows("PRAGMA application_id")
        [(version,)] = connection.rows("PRAGMA user_version")
        if not tables and not application:
            return False
        if application != APPLICATION_ID or version != self._version:
            raise PreconditionFailed(
                f"{self._path} is not a memory index, or it is of another version", field="memory_store", hint=_LOST
            )
        return True

    @contextmanager
    def _borrowed(self, connections: SimpleQueue[SqliteConnection]) -> Generator[SqliteConnection]:
        # There are as many connections as threads that use them.
        connection = connections.get_nowait()
        try:
            with _faults(self._path):
                yield connection
        finally:
            connections.put(connection)

    def _close(self) -> None:
        for pool in (self._writer, self._readers):
            pool.shutdown(cancel_futures=True)
        for connections in (self._reading, self._writing):
            while not connections.empty():
                connections.get_nowait().close()


def _write_ahead(connection: SqliteConnection) -> None:
    """Switch to write-ahead logging, with retries: SQLite does not wait for locks here."""
    import apsw

    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2):
        try:
            connection.rows("PRAGMA journal_mode = WAL")
        except (apsw.BusyError, apsw.LockedError):
            time.sleep(pause)
        else:
            return
    connection.rows("PRAGMA journal_mode = WAL")


@contextmanager
def _faults(path: Path) -> Generator[None]:
    import apsw

    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise Unavailable(f"{path} is locked by another process", field="memory_store") from error
    except apsw.FullError as error:
        raise ResourceExhausted(f"no space is left for {path}", field="memory_store") from error
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        raise PreconditionFailed(
            f"{path} is damaged or not a memory index: {error}", field="memory_store", hint=_LOST
        ) from error
    except (apsw.Error, OSError) as error:
        raise PreconditionFailed(f"{path} cannot be used: {error}", field="memory_store") from error
