"""Processes of this machine: their data in /proc, the processes in a directory, their inheritance.

Those in a directory can be stopped, all of them, while the fleet reads what they write. Every process inherits the
session keyring of the kernel, so sandboxes get an empty one.
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
# Processes that fork meanwhile take some rounds. A process that cannot be stopped by then hangs in the kernel.
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
    """Whether no thread of a process runs or will without a signal: stopped, traced, dead, or gone."""
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"TtZX":
                    return False
    except (FileNotFoundError, ProcessLookupError):
        return True
    return True


def send_signal(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each; those already gone are fine."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def stragglers(session: int, marker: bytes) -> list[int]:
    """Live processes of a Unix session, its leader aside, and those with `marker` in their environment."""
    pids: list[int] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == session:
            continue
        with suppress(OSError, IndexError):
            # The fields behind the command's name, which may itself hold blanks and parentheses.
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
    """The processes of all workspaces and confined programs over one directory that this process has started.

    They are stopped by signals, not by a freezer of control groups: a group that stays frozen after the fleet's death
    cannot be killed, and few machines let one be made. Sandboxes die with the fleet, stopped or not.
    """

    _of_directories: ClassVar[WeakValueDictionary[Path, Occupants]] = WeakValueDictionary()

    def __init__(self) -> None:
        self.ever = False
        """Whether anybody has run here; once true it stays so for as long as somebody holds this object."""
        self._trees: set[Callable[[], list[int]]] = set()

    @classmethod
    def of(cls, directory: Path) -> Occupants:
        """Those of a directory, an absolute path without links; one object for as long as somebody holds it."""
        return cls._of_directories.setdefault(directory, cls())

    @contextmanager
    def present(self, tree: Callable[[], list[int]]) -> Generator[None]:
        """Count the processes that `tree` names, which may be stopped, for as long as the context lasts."""
        self.ever = True
        self._trees.add(tree)
        try:
            yield
        finally:
            self._trees.discard(tree)

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Stop all processes for as long as the context lasts; they resume however it ends.

        A process that was stopped before stays stopped. Processes that cannot be stopped within half a second run on:
        code inside must not rely on the absence of writers.
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
        """Stop those that run, adding their descriptors; whether there were any, or others have come meanwhile."""
        pids = self._pids()
        running = [pid for pid in pids if not stands_still(pid)]
        for pid in running:
            if pid not in stopped:
                with suppress(ProcessLookupError):
                    stopped[pid] = os.pidfd_open(pid)
        # Asked again: a number that still names somebody here named the same process when its descriptor was opened, or
        # a dead one; and whoever was seen standing still may have forked just before.
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
    """A process that leads a group (and session) of its own; the options are `asyncio.create_subprocess_exec`'s.

    A cancellation while it starts kills the whole group. asyncio itself kills the leader alone: the first process of
    a namespace that bubblewrap has just made would wait for it for ever, and asyncio for the pipes that it holds.

    Raises OSError where there is no such program.
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
    """Give this thread, and what it starts from now on, a new and empty session keyring; once for each thread.

    The keys of whoever started the fleet (of a login, Kerberos tickets) are thereby out of reach of what runs in
    sandboxes, also for the kernel's own requests. A kernel without keyrings has nothing to leave; in a container that
    refuses the call the keyring is the container's own.
    """
    if getattr(_threads, "left", False):
        return
    _threads.left = True
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, _JOIN_SESSION_KEYRING, None)


def prepare_for_processes() -> None:
    """Let this process start many others: to be called once at a process edge.

    The soft limit of open files becomes the hard one, since a session takes eight of them; commands in a sandbox have
    a limit of their own. asyncio waits for children in the event loop: before Python 3.12 it starts a thread for each,
    and before Linux 5.3 it still does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.version_info < (3, 12):
        with suppress(OSError):
            os.close(os.pidfd_open(os.getpid()))
            asyncio.set_child_watcher(_child_watcher())  # pyrefly: ignore[deprecated]


def _child_watcher() -> asyncio.AbstractChildWatcher:
    """Serves whichever event loop starts a process; Python's own knows one. Python 3.14 has no watchers any more."""

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
                    # Somebody else has waited for it: the same number as asyncio's own watchers.
                    code = _UNKNOWN_EXIT
                callback(pid, code, *args)

            loop.add_reader(descriptor, ended)

    return ChildWatcher()
