"""Processes of this machine: their data in /proc, those that run over a directory, and how the fleet starts them.

All processes over a directory can be stopped while the fleet reads their files. Every process inherits the kernel's
session keyring, so sandboxes get an empty one.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_PROC = Path("/proc")
# Processes that keep forking take several rounds. One that is not stopped by then hangs in the kernel.
_STOP_SECONDS = 0.5
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_UNKNOWN_EXIT = 255
_threads = threading.local()


def children(pid: int) -> list[int]:
    """The children of all threads of a process; empty when it is gone."""
    pids: list[int] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                pids += map(int, (thread / "children").read_text().split())
    return pids


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, parents before their children."""
    pids: list[int] = []
    pending = children(pid)
    while pending:
        pids += pending
        pending = [grandchild for child in pending for grandchild in children(child)]
    return pids


def stands_still(pid: int) -> bool:
    """Whether every thread of a process is stopped, traced or dead, or the process is gone."""
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"TtZX":
                    return False
    except (FileNotFoundError, ProcessLookupError):
        return True
    return True


def send_signal(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each process, ignoring those that are gone or not ours."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def stragglers(session: int, marker: bytes) -> list[int]:
    """Live processes of a Unix session, except its leader, and those with `marker` in their environment."""
    pids: list[int] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == session:
            continue
        with suppress(OSError, IndexError):
            # The fields after the command's name, which may itself hold spaces and parentheses.
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            if int(fields[3]) == session or marker in (entry / "environ").read_bytes():
                pids.append(int(entry.name))
    return pids


def arguments(pid: int) -> bytes:
    """The command line of a process, its words ended by NUL; empty when it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""


def by_argument(argument: str) -> list[int]:
    """Live processes with this argument on their command line."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if argument.encode() in arguments(pid).split(b"\0")]


class Occupants:
    """The processes, started by this process, of all workspaces and confined programs over one directory.

    They are stopped by signals, not by the freezer of control groups: a group that is still frozen when the fleet dies
    cannot be killed, and few machines permit a freezer. Sandboxes die with the fleet, stopped or not.
    """

    _of_directories: ClassVar[WeakValueDictionary[Path, Occupants]] = WeakValueDictionary()

    def __init__(self) -> None:
        self.ever = False
        """Whether any process has ever run here, in the lifetime of this object."""
        self._trees: set[Callable[[], list[int]]] = set()

    @classmethod
    def of(cls, directory: Path) -> Occupants:
        """The occupants of a directory (an absolute path without links); one object while a reference to it lives."""
        return cls._of_directories.setdefault(directory, cls())

    @contextmanager
    def present(self, tree: Callable[[], list[int]]) -> Generator[None]:
        """Include the process ids that `tree` returns, for as long as the context lasts."""
        self.ever = True
        self._trees.add(tree)
        try:
            yield
        finally:
            self._trees.discard(tree)

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Stop all processes for as long as the context lasts; they always resume afterwards.

        A process that was already stopped stays stopped. Processes that cannot be stopped within half a second keep
        running: code inside the context must not rely on the absence of writers.
        """
        stopped: dict[int, int] = {}
        give_up = time.monotonic() + _STOP_SECONDS
        try:
            # The kernel does not announce that a process has stopped.
            while self._stop(stopped) and time.monotonic() < give_up:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            yield
        finally:
            for descriptor in stopped.values():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGCONT)
                os.close(descriptor)

    def _stop(self, stopped: dict[int, int]) -> bool:
        """Stop the running processes and add their descriptors; False once there are no running and no new ones."""
        pids = self._pids()
        running = [pid for pid in pids if not stands_still(pid)]
        for pid in running:
            if pid not in stopped:
                with suppress(ProcessLookupError):
                    stopped[pid] = os.pidfd_open(pid)
        # Listed again: an id that is still listed belonged to the same process, or to a dead one, when its descriptor
        # was opened; and a process may have forked just before it stopped.
        now = set(self._pids())
        for pid in now.intersection(running, stopped):
            try:
                signal.pidfd_send_signal(stopped[pid], signal.SIGSTOP)
            except ProcessLookupError:
                os.close(stopped.pop(pid))
        return bool(running) or not now.issubset(pids)

    def _pids(self) -> list[int]:
        return [pid for tree in self._trees for pid in tree()]


async def started_group(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process as the leader of a new group and session; options are those of `create_subprocess_exec`.

    A cancellation while it starts kills the whole group. asyncio would kill only the leader: the first process of a
    namespace that bubblewrap has just made would wait for it for ever, and asyncio for the pipes that it holds.

    Raises OSError if there is no such program.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options, start_new_session=True))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await uninterrupted(_killed(starting))
        raise


async def _killed(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    with suppress(OSError, ValueError):
        process = await starting
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


def leave_session_keyring() -> None:
    """Give this thread, and the processes it starts from now on, a new and empty session keyring; once for each thread.

    Sandboxes then cannot reach the keys of the user who started the fleet (login keys, Kerberos tickets), nor can
    requests that the kernel makes for them. Where the call fails there is no keyring, or it is the container's own.
    """
    if getattr(_threads, "left", False):
        return
    _threads.left = True
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, _JOIN_SESSION_KEYRING, None)


def prepare_for_processes() -> None:
    """Prepare this process for many children; call it once, at a process edge.

    It raises the soft limit of open files to the hard one, since a session takes eight of them; commands in a sandbox
    have a limit of their own. It makes asyncio wait for children in the event loop: before Python 3.12 asyncio starts
    a thread for each child, and before Linux 5.3 it still does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.version_info < (3, 12):
        with suppress(OSError):
            os.close(os.pidfd_open(os.getpid()))
            asyncio.set_child_watcher(_child_watcher())  # pyrefly: ignore[deprecated]


def _child_watcher() -> asyncio.AbstractChildWatcher:
    """A watcher for any number of event loops; Python's own serves one. Python 3.14 has no watchers any more."""

    class ChildWatcher(asyncio.PidfdChildWatcher):
        def is_active(self) -> bool:
            return True

        def add_child_handler(self, pid: int, callback: Callable[..., object], *args: Any) -> None:
            loop, descriptor = asyncio.get_running_loop(), os.pidfd_open(pid)

            def ended() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                try:
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                except ChildProcessError:
                    # Other code has already waited for the process. asyncio's watchers report the same code.
                    code = _UNKNOWN_EXIT
                callback(pid, code, *args)

            loop.add_reader(descriptor, ended)

    return ChildWatcher()
