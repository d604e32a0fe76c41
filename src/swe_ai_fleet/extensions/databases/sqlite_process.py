"""One SQLite statement in its own process: `python -I -S` runs this file, which imports the standard library only.

It reads a request as JSON from standard input and writes the answer as JSON to standard output. A call of one of
SQLite's functions cannot be interrupted, so `sqlite.py` kills the process at the time limit; limits of memory, CPU and
file size are set here, and hold even if the parent dies.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import sys
import time
from contextlib import closing
from typing import NamedTuple

_STEPS_BETWEEN_CHECKS = 1_000
_HEAP_SHARE = 0.75
"""The share of the memory limit for SQLite itself; beyond it, a statement ends with a plain error."""
_GRACE_SECONDS = 5

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_NEVER = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT})
_WORDS_OF_PRAGMAS = (
    "table_info table_xinfo table_list index_list index_info index_xinfo foreign_key_list foreign_key_check "
    "integrity_check quick_check user_version schema_version page_count page_size encoding compile_options"
)
_PRAGMAS = frozenset(_WORDS_OF_PRAGMAS.split())
_PRAGMAS_WITH_ARGUMENT = _PRAGMAS - {"user_version", "schema_version", "page_size", "encoding"}
_FUNCTIONS_REFUSED = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


class StatementRequest(NamedTuple):
    """The request, as `sqlite.py` writes it."""

    file: str
    uri: str
    sql: str
    params: list[str | int | float | bool | None]
    plan: bool
    read_only: bool
    timeout_seconds: float
    max_rows: int
    cell_chars: int
    result_chars: int
    value_bytes: int
    file_bytes: int
    memory_bytes: int


def main() -> None:
    """Answer one request: `columns` and `rows` with `changed`, or `error`, or `timeout`."""
    request = StatementRequest(**json.load(sys.stdin))
    _bound(request)
    deadline = time.monotonic() + request.timeout_seconds
    try:
        answer = _run(request, deadline)
    except MemoryError:
        answer = {"error": f"out of memory: a statement may take {request.memory_bytes // 2**20} MiB"}
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        answer = {"timeout": True} if time.monotonic() > deadline else {"error": str(error)}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()


def _bound(request: StatementRequest) -> None:
    seconds = int(request.timeout_seconds) + _GRACE_SECONDS
    signal.alarm(seconds)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: request.memory_bytes,
        resource.RLIMIT_FSIZE: _size(request.file) + 2 * request.file_bytes,
    }
    for limit, most in limits.items():
        _, ceiling = resource.getrlimit(limit)
        most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
        resource.setrlimit(limit, (most, most))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - importing pathlib would take longer than the query
    except OSError:
        return 0


def _run(request: StatementRequest, deadline: float) -> dict[str, object]:
    # After SIGTERM, the statement ends between two steps and is rolled back.
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    with closing(
        sqlite3.connect(request.uri, uri=True, isolation_level=None, timeout=5.0, cached_statements=0)
    ) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, request.value_bytes)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.execute(f"PRAGMA hard_heap_limit = {int(request.memory_bytes * _HEAP_SHARE)}")
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA foreign_keys = ON")
        if request.read_only:
            database.execute("PRAGMA query_only = ON")
        else:
            (page_size,) = database.execute("PRAGMA page_size").fetchone()
            database.execute(f"PRAGMA max_page_count = {request.file_bytes // page_size}")
        database.set_progress_handler(lambda: bool(ended) or time.monotonic() > deadline, _STEPS_BETWEEN_CHECKS)
        database.execute("BEGIN" if request.read_only else "BEGIN IMMEDIATE")
        changes = database.total_changes
        database.set_authorizer((_planner if request.plan else _reader) if request.read_only else _writer)
        answer = _collect(database.execute(request.sql, tuple(request.params)), request)
        database.set_authorizer(None)
        if not request.read_only:
            database.execute("COMMIT")
            answer["changed"] = database.total_changes - changes
        return answer


def _collect(cursor: sqlite3.Cursor, request: StatementRequest) -> dict[str, object]:
    """The rows, with one more than are kept, so that the parent sees that there are more; a change runs to its end."""
    if cursor.description is None:
        return {"columns": None, "rows": []}
    most, room = request.max_rows, request.result_chars
    rows: list[list[object]] = []
    for row in cursor:
        if len(rows) <= most and room >= 0:
            rows.append([_as_json(value, request.cell_chars) for value in row])
            room -= sum(3 + min(_least(value), request.cell_chars) for value in row)
        elif request.read_only:
            break
    return {"columns": [name for name, *_ in cursor.description], "rows": rows}


def _as_json(value: object, chars: int) -> object:
    """A value as JSON: texts and bytes as their beginning and size."""
    if isinstance(value, bytes):
        return {"bytes": value[: chars * 4].hex(), "size": len(value)}
    if isinstance(value, str):
        return {"text": value[: chars + 1], "size": len(value)}
    return value


def _least(value: object) -> int:
    """The least number of characters of a value in a table."""
    return len(value) // 4 if isinstance(value, bytes) else len(value) if isinstance(value, str) else 0


def _planner(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    # The plan of a change changes nothing, and the connection stays read-only.
    changes = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
    return sqlite3.SQLITE_OK if action in changes else _reader(action, first, second, database, trigger)


def _reader(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    return _verdict(action in _READING, action, first, second)


def _writer(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    return _verdict(action not in _NEVER, action, first, second)


def _verdict(allowed: bool, action: int, first: str | None, second: str | None) -> int:
    """Pragmas and functions are allowed or denied by name, all else by action."""
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = (first or "").lower() in (_PRAGMAS if second is None else _PRAGMAS_WITH_ARGUMENT)
    elif action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS_REFUSED:
        allowed = False
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


if __name__ == "__main__":
    main()
