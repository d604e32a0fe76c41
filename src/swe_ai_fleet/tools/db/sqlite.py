"""SQLite: files of the workspace through a private copy, files of the settings in place, both under an authorizer.

SQLite follows links and opens side files (`-wal`, `-journal`) by name, which would reopen every race that `tools.paths`
closes. So a file of the workspace is read there, worked on in a private directory, and after a change put back in one
step, unless somebody changed it meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

from swe_ai_fleet.tools.db.results import Collector, Rows
from swe_ai_fleet.tools.failure import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import MissingPath, Tree, shown

Value = str | int | float | bool | None
T = TypeVar("T")

MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
_STEPS_BETWEEN_CHECKS = 1_000

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_NEVER = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT})
_WORDS_OF_PRAGMAS = (
    "table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check "
    "integrity_check quick_check user_version schema_version page_count page_size encoding compile_options"
)
_PRAGMAS = frozenset(_WORDS_OF_PRAGMAS.split())
_PRAGMAS_WITH_ARGUMENT = _PRAGMAS - {"user_version", "schema_version", "page_size", "encoding"}
_FUNCTIONS_REFUSED = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})
_EXPLAIN = "EXPLAIN QUERY PLAN "
_SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name"


class Stop:
    """The moment at which a statement must end: its time limit, or when nobody waits for it any more."""

    def __init__(self, timeout_seconds: float) -> None:
        self._deadline = time.monotonic() + timeout_seconds
        self._called_off = threading.Event()

    def call_off(self) -> None:
        self._called_off.set()

    def due(self) -> bool:
        return self._called_off.is_set() or time.monotonic() > self._deadline


async def query_file(
    tree: Tree, path: str, sql: str, params: Sequence[Value], *, read_only: bool, max_rows: int, timeout_seconds: float
) -> Rows:
    """Run one statement on a file of the workspace; a missing one is created when writing is allowed."""

    def work(stop: Stop) -> Rows:
        with tempfile.TemporaryDirectory(prefix="fleet-sqlite-") as directory:
            copy = Path(directory) / "copy.db"
            before = _copy(tree, path, copy, read_only=read_only)
            found = _run(f"{copy.as_uri()}?mode=rw", sql, params, stop, read_only=read_only, max_rows=max_rows)
            if not read_only:
                _put_back(tree, path, copy, before)
            return found

    return await _in_thread(work, timeout_seconds)


async def query_url(
    url: str, sql: str, params: Sequence[Value], *, read_only: bool, max_rows: int, timeout_seconds: float
) -> Rows:
    """Run one statement on the file that a connection of the settings names (`sqlite:///path`)."""
    uri = f"file:{quote('/' + urlsplit(url).path.lstrip('/'))}?mode={'ro' if read_only else 'rw'}"
    return await _in_thread(
        lambda stop: _run(uri, sql, params, stop, read_only=read_only, max_rows=max_rows), timeout_seconds
    )


def schema_statement() -> str:
    """The statement that lists tables, views, indexes and triggers as they were created."""
    return _SCHEMA


def explain_statement(sql: str) -> str:
    """The statement that shows how another would be run, without running it."""
    return f"{_EXPLAIN}{sql}"


async def _in_thread(work: Callable[[Stop], T], timeout_seconds: float) -> T:
    """Run it in a thread that is over when this returns, be it by a time limit or a cancel."""
    stop = Stop(timeout_seconds)
    running = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.call_off()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # nobody is there to hear it
        raise


def _copy(tree: Tree, path: str, copy: Path, *, read_only: bool) -> str:
    """Lay a private copy of a database and its log; the digest of the file, empty where there is none."""
    try:
        content = tree.read(path, limit=MAX_FILE_BYTES)
    except MissingPath:
        if read_only:
            raise
        copy.touch(0o600)
        return ""
    copy.write_bytes(content.data)
    for ending in ("-wal", "-journal"):
        if not tree.size(content.path + ending):
            continue
        if not read_only:
            raise ToolFailure(f"{shown(path)} is open elsewhere or was not closed: there is a {ending} file beside it")
        side = tree.read(content.path + ending, limit=MAX_FILE_BYTES)
        copy.with_name(copy.name + ending).write_bytes(side.data)
    return hashlib.sha256(content.data).hexdigest()


def _put_back(tree: Tree, path: str, copy: Path, before: str) -> None:
    data = copy.read_bytes()
    if hashlib.sha256(data).hexdigest() == before:
        return
    try:
        now = hashlib.sha256(tree.read(path, limit=MAX_FILE_BYTES).data).hexdigest()
    except MissingPath:
        now = ""
    if now != before:
        raise ToolFailure(f"{shown(path)} was changed by somebody else meanwhile; nothing was written: try again")
    tree.write(path, data, limit=MAX_FILE_BYTES)


def _run(uri: str, sql: str, params: Sequence[Value], stop: Stop, *, read_only: bool, max_rows: int) -> Rows:
    try:
        with closing(
            sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, cached_statements=0)
        ) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA foreign_keys = ON")
            if read_only:
                database.execute("PRAGMA query_only = ON")
            else:
                (page_size,) = database.execute("PRAGMA page_size").fetchone()
                database.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // page_size}")
            database.set_progress_handler(stop.due, _STEPS_BETWEEN_CHECKS)
            database.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
            changes = database.total_changes
            database.set_authorizer(_authorizer(sql) if read_only else _writer)
            found = _collect(database.execute(sql, tuple(params)), max_rows, drain=not read_only)
            database.set_authorizer(None)
            if read_only:
                return found
            database.execute("COMMIT")
            changed = database.total_changes - changes
            said = "" if found.columns else f"Done: {changed} rows changed."
            return Rows(
                columns=found.columns, rows=found.rows, complete=found.complete, said=said, facts={"affected": changed}
            )
    except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
        if stop.due():
            raise TimeoutError from None
        raise _failure(str(error)) from None


def _collect(cursor: sqlite3.Cursor, max_rows: int, *, drain: bool) -> Rows:
    if cursor.description is None:
        return Rows()
    collector = Collector([name for name, *_ in cursor.description], max_rows)
    for row in cursor:
        if not collector.add(row) and not drain:
            break
    return collector.rows()


def _failure(said: str) -> ToolFailure:
    if "not authorized" in said or "prohibited" in said or "readonly database" in said:
        return ToolRefusal(
            f"SQLite: {said}: this call may not do that. With read_only=true only reading is allowed; ATTACH, "
            "transactions and most PRAGMAs never are"
        )
    return ToolFailure(f"SQLite: {said}")


def _authorizer(sql: str) -> Callable[[int, str | None, str | None, str | None, str | None], int]:
    return _planner if sql.startswith(_EXPLAIN) else _reader


def _planner(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    # A plan of a change changes nothing; that the connection may only read holds as ever.
    changes = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
    return sqlite3.SQLITE_OK if action in changes else _reader(action, first, second, database, trigger)


def _reader(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        return _pragma(first, second)
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS_REFUSED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _writer(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        return _pragma(first, second)
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS_REFUSED:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_DENY if action in _NEVER else sqlite3.SQLITE_OK


def _pragma(name: str | None, argument: str | None) -> int:
    known = _PRAGMAS if argument is None else _PRAGMAS_WITH_ARGUMENT
    return sqlite3.SQLITE_OK if (name or "").lower() in known else sqlite3.SQLITE_DENY
