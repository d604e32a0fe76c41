"""A process between the fleet and a model server: when the fleet ends in any way, the whole server ends, too.

Run as a program by file name, with the standard library only: `vllm_guardian.py PARENT GRACE PROGRAM ARGUMENT …`.
SIGTERM is passed on to the server, which drains; after GRACE seconds, or as soon as the server has ended, all
processes it started are killed, whatever their session. SIGQUIT kills at once. When PARENT is gone nobody waits for
answers, so there is no grace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36
_SWEEP_SECONDS = 10.0


def guard(parent: int, grace: float, argv: list[str]) -> int:
    """Run a program, then kill its descendants; returns its exit status, 128 + N if signal N ended it."""
    _control(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    # The server's orphans become children of this process, so that none is missed.
    _control(_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1

    child: list[int] = []

    def drain(_number: int, _frame: FrameType | None) -> None:
        if not child:
            sys.exit(1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child[0], signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, grace if os.getppid() == parent else 0.001)

    def kill(_number: int, _frame: FrameType | None) -> None:
        for pid in child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    signal.signal(signal.SIGQUIT, kill)
    signal.signal(signal.SIGTERM, drain)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    blocked = {signal.SIGTERM, signal.SIGQUIT}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    process = subprocess.Popen(argv, start_new_session=True, preexec_fn=lambda: _as_child(blocked))
    child.append(process.pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    status = _status_of(process.pid)
    child.clear()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _sweep()
    return status


def _as_child(blocked: set[signal.Signals]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # In case this guardian itself is killed.
    _control(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _status_of(pid: int) -> int:
    """Reap children until the one with this pid has ended; returns its exit status."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _sweep() -> None:
    """Kill remaining children, and the orphans they leave, until there are none."""
    ends_at = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < ends_at:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _control(option: int, value: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(option, value)


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
