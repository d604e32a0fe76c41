"""Parses files in a child process: if the parser crashes or hangs, only that file is lost."""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from .listing import Reader, SourceFile, blob_digest
from .tags import NOTHING, FileTags, dump, extract, load

_FILE_SECONDS = 10.0
_MAX_MEMORY = 2 * 1024**3
_MAX_ANSWER = 4 * 1024 * 1024
_CHUNK = 1 << 16


def parse_files(
    root: str, files: Sequence[SourceFile], *, seconds: float
) -> Iterator[tuple[SourceFile, FileTags | None, bool]]:
    """Yield (file, tags, whether the content still has the file's digest) in order, for at most `seconds`.

    A file whose parser crashes or takes longer than 10 s has no definitions; the tags of an unreadable file are None.
    Cache tags under a digest only if the content still has it. Raises RuntimeError if the program itself fails.
    """
    deadline, index = time.monotonic() + seconds, 0
    while index < len(files) and time.monotonic() < deadline:
        with _Child(root, files[index:]) as child:
            while index < len(files):
                seconds_left = deadline - time.monotonic()
                answer = child.next(min(seconds_left, _FILE_SECONDS)) if seconds_left > 0 else None
                if answer is None and deadline - time.monotonic() <= 0:
                    return
                file, index = files[index], index + 1
                if answer is None:
                    yield file, NOTHING, True
                    break  # the next file needs a new child
                if answer[:1] == b"?":
                    raise RuntimeError(answer[1:].decode("utf-8", "replace")[:500])
                same, text = answer[:1] == b"=", answer[1:].decode("utf-8", "replace")
                yield file, load(text), same


class _Child:
    """A process that writes one line per file.

    It is `=tags`, `!tags` if the content does not have the file's digest, `-` if there is no content, or `?error` for a
    fault of the program.
    """

    def __init__(self, root: str, files: Sequence[SourceFile]) -> None:
        self._output, write = os.pipe()
        self._pending = b""
        self._process = os.fork()
        if self._process == 0:
            # Whatever happens, the child must not return into the parent's code.
            try:
                os.close(self._output)
                _serve(root, files, write)
            finally:
                os._exit(0)
        os.close(write)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._output)
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)

    def next(self, seconds: float) -> bytes | None:
        """The next line; None if the child is dead, takes too long, or writes too much."""
        deadline = time.monotonic() + seconds
        while (at := self._pending.find(b"\n")) < 0:
            if len(self._pending) > _MAX_ANSWER:
                return None
            ready, _, _ = select.select([self._output], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._output, _CHUNK) if ready else b""
            if not chunk:
                return None
            self._pending += chunk
        line, self._pending = self._pending[:at], self._pending[at + 1 :]
        return line


def _serve(root: str, files: Sequence[SourceFile], write: int) -> None:
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    with Reader(root) as reader, open(write, "wb", buffering=0) as output:
        for file in files:
            data = reader.read(file.path)
            answer = b"-" if data is None else _answer(file, data)
            rest = memoryview(answer + b"\n")
            while rest:
                rest = rest[output.write(rest) or 0 :]


def _answer(file: SourceFile, data: bytes) -> bytes:
    try:
        tags = extract(file.language, data)
    except MemoryError:
        tags = NOTHING
    except Exception as error:  # noqa: BLE001  (the edge of the process: the parent raises it)
        return f"?{type(error).__name__}: {error}".replace("\n", " ").encode("utf-8", "replace")
    mark = b"=" if blob_digest(data, like=file.digest) == file.digest else b"!"
    return mark + dump(tags).encode("utf-8", "replace")


_MAX_BYTES = 64 * 1024 * 1024


class TagCache:
    """Tags by language and digest, one per line of a file that is emptied when it becomes too large.

    Args:
        path: The file, created with its directory; None: nothing is cached.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, keys: Collection[str]) -> dict[str, FileTags]:
        """The cached tags of these keys."""
        wanted, cached = frozenset(keys), dict[str, FileTags]()
        with suppress(OSError), self._opened(os.O_RDONLY) as file:
            for line in file if os.fstat(file.fileno()).st_size <= 2 * _MAX_BYTES else ():
                key, _, text = line.partition("\t")
                if key in wanted and (tags := load(text)) is not None:
                    cached[key] = tags
        return cached

    def put(self, tags: Mapping[str, FileTags]) -> None:
        """Add tags to the cache."""
        with suppress(OSError), self._opened(os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            if os.fstat(file.fileno()).st_size > _MAX_BYTES:
                file.truncate(0)
            file.writelines(f"{key}\t{dump(tags_of_file)}\n" for key, tags_of_file in tags.items())

    def _opened(self, flags: int) -> TextIO:
        """The opened file; links are refused."""
        if self._path is None:
            raise FileNotFoundError("there is no cache")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        mode = "a" if flags & os.O_APPEND else "r"
        return open(descriptor, mode, encoding="utf-8", errors="replace", newline="\n")  # noqa: PTH123
