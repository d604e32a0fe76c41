"""The tags of contents that were parsed before, in a file in the home of the workspace.

Each workspace has a cache of its own, so nobody reads or poisons another's; it vanishes with the workspace. Commands of
the workspace can write it too: what comes out is checked, and a broken one is done without.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from .tags import FileTags, dump, load

MAX_BYTES = 64 * 1024 * 1024
_VERSION = 1
_BUSY_SECONDS = 2.0
_AT_ONCE = 500


class TagCache:
    """Tags by language and digest; the oldest contents that no file has any more go first.

    Args:
        path: The file; it and its directory are created. None keeps nothing.
    """

    def __init__(self, path: Path | None, *, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def get(self, keys: Sequence[str]) -> dict[str, FileTags]:
        """The tags that are known."""
        tags_known: dict[str, FileTags] = {}
        with suppress(sqlite3.Error, OSError), closing(self._open()) as database:
            for first in range(0, len(keys), _AT_ONCE):
                some = keys[first : first + _AT_ONCE]
                marks = ",".join("?" * len(some))
                rows: Iterable[tuple[object, object]] = database.execute(
                    f"SELECT key, tags FROM tags WHERE key IN ({marks})",  # noqa: S608
                    some,
                )
                for key, text in rows:
                    tags = load(text) if isinstance(text, str) else None
                    if tags is not None:
                        tags_known[str(key)] = tags
        return tags_known

    def put(self, tags: Mapping[str, FileTags], *, keep: Iterable[str] = ()) -> None:
        """Remember tags; where that makes the cache too large, all but those of `keep` and the youngest go."""
        with suppress(sqlite3.Error, OSError), closing(self._open()) as database, database:
            rows = [(key, dump(tags_of_file)) for key, tags_of_file in tags.items()]
            database.executemany("INSERT OR REPLACE INTO tags (key, tags) VALUES (?, ?)", rows)
            ((size,),) = database.execute("SELECT coalesce(sum(length(tags)), 0) FROM tags")
            if size > self._max_bytes:
                self._shrink(database, int(size), {*keep, *tags})

    def _shrink(self, database: sqlite3.Connection, size: int, keep: set[str]) -> None:
        rows = list(database.execute("SELECT rowid, key, length(tags) FROM tags ORDER BY rowid"))
        for wanted in (False, True):
            for number, key, length in rows:
                if size <= self._max_bytes * 3 // 4:
                    return
                if (key in keep) == wanted:
                    database.execute("DELETE FROM tags WHERE rowid = ?", (number,))
                    size -= length

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            raise FileNotFoundError("nothing is kept")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(self._path) and not stat.S_ISREG(self._path.lstat().st_mode):
            raise FileExistsError("somebody put another thing in its place")
        try:
            return self._prepared()
        except sqlite3.OperationalError:  # locked, or the disk is full
            raise
        except sqlite3.DatabaseError:
            self._path.unlink()
            return self._prepared()

    def _prepared(self) -> sqlite3.Connection:
        database = sqlite3.connect(str(self._path), timeout=_BUSY_SECONDS)
        try:
            ((version,),) = database.execute("PRAGMA user_version")
            if version != _VERSION:
                database.execute("DROP TABLE IF EXISTS tags")
                database.execute("CREATE TABLE tags (key TEXT UNIQUE NOT NULL, tags TEXT NOT NULL)")
                database.execute(f"PRAGMA user_version = {_VERSION}")
            # It can be made again: what a crash loses is no loss.
            database.execute("PRAGMA synchronous = OFF")
        except BaseException:
            database.close()
            raise
        return database
