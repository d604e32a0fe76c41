"""SQLite: files of the workspace through a private copy, files of the settings in place, each statement in a process.

SQLite follows links and opens side files (`-wal`, `-journal`) by name, which would reopen every race that
`tools/files/paths.py` closes. So a file of the workspace is copied to a private directory, and written back in one step
after a change, unless another process changed it meanwhile. A statement runs in its own process (`sqlite_process.py`),
which is killed at its time limit, since a call of a built-in function cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlsplit

from swe_ai_fleet.extensions.databases.results import (
    MAX_CELL_CHARS,
    MAX_RESULT_CHARS,
    Beginning,
    Collector,
    QueryBounds,
    Rows,
    Value,
)
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import MissingPath, Tree, quoted

T = TypeVar("T")

MAX_VALUE_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_MEMORY_BYTES = 512 * 1024 * 1024
"""The memory limit of the process that runs a statement."""

_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_CHUNK = 64 * 1024
_ROLLBACK_SECONDS = 0.5
"""How long a cancelled change may take to roll back before its process is killed."""

_PROGRAM = Path(__file__).with_name("sqlite_process.py")
EXPLAIN = "EXPLAIN QUERY PLAN "
SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name"


async def query_file(tree: Tree, path: str, sql: str, params: Sequence[Value], bounds: QueryBounds) -> Rows:
    """Run one statement on a file of the workspace; a missing one is created when writing is allowed."""
    with tempfile.TemporaryDirectory(prefix="fleet-sqlite-") as directory:
        copy = Path(directory) / "copy.db"
        before = await _whole(lambda: _copy(tree, path, copy, read_only=bounds.read_only))
        rows = await _run(copy, "rw", sql, params, bounds)
        if not bounds.read_only:
            await _whole(lambda: _put_back(tree, path, copy, before))
        return rows


async def query_url(url: str, sql: str, params: Sequence[Value], bounds: QueryBounds) -> Rows:
    """Run one statement on the file that a connection of the settings names (`sqlite:///path`)."""
    path = Path("/" + urlsplit(url).path.lstrip("/"))
    return await _run(path, "ro" if bounds.read_only else "rw", sql, params, bounds)


async def _whole(work: Callable[[], T]) -> T:
    """Run it in a thread, and wait for its end even if cancelled."""
    return await uninterrupted(asyncio.to_thread(work))


def _copy(tree: Tree, path: str, copy: Path, *, read_only: bool) -> str:
    """Make a private copy of a database and its log; returns the digest of the file, empty if there is none."""
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
            raise ToolFailure(f"{quoted(path)} is open elsewhere or was not closed: there is a {ending} file beside it")
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
        raise ToolFailure(f"{quoted(path)} was changed by another process meanwhile; nothing was written: try again")
    tree.write(path, data, limit=MAX_FILE_BYTES)


async def _run(file: Path, mode: str, sql: str, params: Sequence[Value], bounds: QueryBounds) -> Rows:
    """Run a statement in a process that has ended when this returns. Raises ToolFailure, TimeoutError."""
    request = {
        "file": str(file),
        "uri": f"file:{quote(str(file))}?mode={mode}",
        "sql": sql,
        "plan": sql.startswith(EXPLAIN),
        "params": list(params),
        **asdict(bounds),
        "cell_chars": MAX_CELL_CHARS,
        "result_chars": MAX_RESULT_CHARS,
        "value_bytes": MAX_VALUE_BYTES,
        "file_bytes": MAX_FILE_BYTES,
        "memory_bytes": MAX_MEMORY_BYTES,
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_PROGRAM)),
            cwd="/",
            env={"LANG": "C.UTF-8", "SQLITE_TMPDIR": tempfile.gettempdir()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailure(f"SQLite: no process for the statement can be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(bounds.timeout_seconds):
            answer = await _exchange(process, json.dumps(request).encode())
            await process.wait()
    finally:
        await uninterrupted(_end(process, gently=not bounds.read_only))
    return _rows(answer, bounds)


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(request)
        await process.stdin.drain()
        process.stdin.close()
    answer = b""
    while chunk := await process.stdout.read(_CHUNK):
        answer += chunk
        if len(answer) > _MAX_ANSWER_BYTES:
            raise ToolFailure("SQLite: the rows are too wide; ask for fewer columns")
    return answer


async def _end(process: asyncio.subprocess.Process, *, gently: bool) -> None:
    """Kill the process if it still runs, and wait for its end."""
    if process.returncode is None and gently:
        with suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_ROLLBACK_SECONDS)
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    # Read to the end: asyncio does not notice the end of a process with unread output.
    while process.stdout is not None and await process.stdout.read(_CHUNK):
        pass
    await process.wait()


def _rows(data: bytes, bounds: QueryBounds) -> Rows:
    try:
        answer: Mapping[str, Any] = json.loads(data)
    except ValueError:
        raise ToolFailure(
            f"SQLite: the statement was stopped before it ended; it may take {MAX_MEMORY_BYTES // 2**20} MiB of memory"
        ) from None
    if "timeout" in answer:
        raise TimeoutError
    if "error" in answer:
        raise _failure(answer["error"])
    columns = answer["columns"]
    facts = {} if bounds.read_only else {"affected": answer["changed"]}
    if columns is None:
        return Rows(summary="" if bounds.read_only else f"Done: {answer['changed']} rows changed.", facts=facts)
    collector = Collector(columns, bounds.max_rows)
    for row in answer["rows"]:
        if not collector.add([_value(cell) for cell in row]):
            break
    return collector.rows(facts=facts)


def _value(cell: object) -> object:
    match cast("object | dict[str, object]", cell):
        case {"bytes": str(start), "size": int(size)}:
            return Beginning(start=bytes.fromhex(start), size=size)
        case {"text": str(start), "size": int(size)}:
            return Beginning(start=start, size=size)
        case _:
            return cell


def _failure(message: str) -> ToolFailure:
    if "not authorized" in message or "prohibited" in message or "readonly database" in message:
        return ToolRefusal(
            f"SQLite: {message}: this call may not do that. With read_only=true only reading is allowed; ATTACH, "
            "transactions and most PRAGMAs never are"
        )
    return ToolFailure(f"SQLite: {message}")
