"""The disk usage of a workspace, and the end of commands that exceed its limit."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOOK_SECONDS = 0.1
# A look at the free space costs two system calls; measuring walks the trees. It may take at most this share of the
# time: where free space shrinks, and where it does not (others may free as much as this workspace takes).
_ALARMED_SHARE = 0.05
_CALM_SHARE = 0.01
_CALM_SECONDS = 1.0
_MEASURE_AT_MOST_SECONDS = 20.0
# Names and inodes take space as well: a million empty files count.
_BYTES_PER_ENTRY = 512
_BLOCK_BYTES = 512
# Each level of directories without permissions takes a descriptor.
_CLOSED_LEVELS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Bytes on the disk. `complete` is False if a directory could not be read."""

    bytes: int
    complete: bool = True


class DiskWatch:
    """Measures the directories of one workspace against a limit; it belongs to one event loop.

    It checks the free space of their file systems often, which is cheap. It measures when the free space has shrunk by
    more than the workspace may still write, and periodically.
    """

    def __init__(self, directories: Iterable[Path], limit: int) -> None:
        self._directories = tuple(directories)
        # A path on each file system; strings, since they are used with every command.
        self._paths = tuple({_device(path): str(path) for path in self._directories}.values())
        self.limit = limit
        self.usage = DiskUsage(bytes=0)
        self._free = self._free_now()
        self._measured_at = 0.0
        self._cost = 0.0
        self._measuring = asyncio.Lock()

    @property
    def exceeded(self) -> bool:
        """Whether the last measurement was over the limit."""
        return self.usage.bytes > self.limit

    @property
    def shrunk(self) -> bool:
        """Whether the file systems lost more than the workspace could still write at the last measurement."""
        return self._free - self._free_now() > max(0, self.limit - self.usage.bytes)

    @property
    def due(self) -> bool:
        """Whether it is time to measure again."""
        since = time.monotonic() - self._measured_at
        if since * _ALARMED_SHARE < self._cost:
            return False
        return self.exceeded or self.shrunk or since > max(_CALM_SECONDS, self._cost / _CALM_SHARE)

    def note(self, outcome: str) -> bytes:
        """A note for a command's stderr about the exceeded limit and the `outcome` for the command."""
        used, limit = (f"{count / 1024**2:,.1f} MiB" for count in (self.usage.bytes, self.limit))
        holds = f"the workspace with its home and /tmp holds {used} of {limit} allowed"
        return f"\n[disk limit: {holds}; {outcome}]\n".encode()

    async def measure(self, open_by: Callable[[], Iterable[int]] = tuple) -> DiskUsage:
        """Measure now, in a thread; unlinked files that the processes `open_by` (ids) hold open count too."""
        async with self._measuring:
            free, suspicious, started = self._free_now(), self.shrunk, time.monotonic()
            usage = await asyncio.to_thread(measure, self._directories)
            nameless = await asyncio.to_thread(lambda: _nameless(open_by()))
            usage = DiskUsage(bytes=usage.bytes + nameless, complete=usage.complete)
            if not usage.complete and suspicious:
                # Unreadable directories count as much as the file system lost.
                usage = DiskUsage(bytes=usage.bytes + max(0, self._free - free), complete=False)
            self.usage, self._free = usage, free
            self._measured_at = time.monotonic()
            self._cost = self._measured_at - started
            return usage

    def _free_now(self) -> int:
        free: dict[int, int] = {}
        for path in self._paths:
            with suppress(OSError):
                status = os.statvfs(path)
                free[status.f_fsid] = status.f_bavail * status.f_frsize
        return sum(free.values())


def _device(directory: Path) -> object:
    """The directory's file system; a missing directory counts as a file system of its own."""
    try:
        return directory.stat().st_dev
    except OSError:
        return directory


class DiskGuard:
    """Watches during one command; `over` is called once when the workspace grows beyond its limit."""

    def __init__(self, watch: DiskWatch, open_by: Callable[[], Iterable[int]], over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._open_by = open_by
        self._over = over
        self._allowed = max(watch.limit, watch.usage.bytes)
        self._task: asyncio.Task[None] | None = None
        self.tripped = False
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        if self._watch.due and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._measure())

    async def _measure(self) -> None:
        usage = await self._watch.measure(self._open_by)
        if usage.bytes > self._allowed and not self.tripped and not self._timer.cancelled():
            self.tripped = True
            self._over()

    def stop(self) -> None:
        """Stop watching; a running measurement finishes, for the next guard."""
        self._timer.cancel()


def measure(directories: Iterable[Path]) -> DiskUsage:
    """The disk usage of the directories, each file once; links are not followed. Incomplete after 20 seconds."""
    return _Measurement().take([str(directory) for directory in directories], _CLOSED_LEVELS)


class _Measurement:
    def __init__(self) -> None:
        self._until = time.monotonic() + _MEASURE_AT_MOST_SECONDS
        self._seen: set[tuple[int, int]] = set()

    def take(self, pending: list[str], levels: int) -> DiskUsage:
        total, complete = 0, True
        while pending:
            path = pending.pop()
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        status = entry.stat(follow_symlinks=False)
                        total += _BYTES_PER_ENTRY
                        if stat.S_ISDIR(status.st_mode):
                            pending.append(entry.path)
                        elif status.st_nlink > 1:
                            key = (status.st_dev, status.st_ino)
                            if key in self._seen:
                                continue
                            self._seen.add(key)
                        total += status.st_blocks * _BLOCK_BYTES
            except PermissionError:
                closed = self._open_up(path, levels)
                total, complete = total + closed.bytes, complete and closed.complete
            except OSError as error:
                # A removed directory is no gap; any other fault is.
                complete = complete and error.errno in (errno.ENOENT, errno.ENOTDIR)
            if time.monotonic() > self._until:
                return DiskUsage(bytes=total, complete=False)
        return DiskUsage(bytes=total, complete=complete)

    def _open_up(self, path: str, levels: int) -> DiskUsage:
        """Measure a directory of our own user that lacks the permission to enter, by granting it for a moment."""
        unknown = DiskUsage(bytes=0, complete=False)
        if not levels:
            return unknown
        try:
            descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return unknown
        try:
            # By descriptor, so that a replacement at the path is not touched.
            directory = Path(f"/proc/self/fd/{descriptor}")
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            directory.chmod(mode | stat.S_IRUSR | stat.S_IXUSR)
            try:
                return self.take([str(directory)], levels - 1)
            finally:
                directory.chmod(mode)
        except OSError:
            return unknown
        finally:
            os.close(descriptor)


def _nameless(pids: Iterable[int]) -> int:
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                status = descriptor.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                sizes[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return sum(sizes.values())


def remove_tree(root: Path, *, ignore_errors: bool = False) -> None:
    """Remove an untrusted directory tree, with locked directories and any depth. Blocking.

    Nothing outside `root` is touched: links are removed, never followed. Raises OSError if something cannot be
    removed, unless `ignore_errors`.
    """
    try:
        while os.path.lexists(root):
            # If two callers remove it at once, parts of it go missing meanwhile.
            with suppress(FileNotFoundError):
                shutil.rmtree(root)
    except (OSError, RecursionError):
        _unlock(root)
        # rm walks without recursion, so that a directory nested a hundred thousand times does not stop it.
        subprocess.run(["rm", "-rf", "--", str(root)], check=False, stdin=subprocess.DEVNULL, capture_output=True)
        if root.exists() and not ignore_errors:
            raise OSError(f"could not remove {root}") from None


def _unlock(root: Path) -> None:
    pending = [root]
    while pending:
        directory = pending.pop()
        # Fails for paths that are too long; rm, which changes directory step by step, reaches those.
        with suppress(OSError):
            if not stat.S_ISDIR(directory.lstat().st_mode):
                continue
            directory.chmod(0o700)
            with os.scandir(directory) as entries:
                pending += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
