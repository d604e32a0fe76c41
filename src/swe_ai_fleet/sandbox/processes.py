"""What /proc says about running processes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def children(pid: int) -> list[int]:
    """The children of all threads of a process; empty when it is gone."""
    found: list[int] = []
    with suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, parents before their children."""
    found: list[int] = []
    pending = children(pid)
    while pending:
        found += pending
        pending = [grandchild for child in pending for grandchild in children(child)]
    return found


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
    found: list[int] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == session:
            continue
        with suppress(OSError, IndexError):
            # The fields behind the command's name, which may itself hold blanks and parentheses.
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] == b"Z":
                continue
            if int(fields[3]) == session or marker in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def arguments(pid: int) -> bytes:
    """The command line of a process, its words ended by NUL; empty when it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""


def by_argument(argument: str) -> list[int]:
    """Live processes with this argument on their command line."""
    pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if argument.encode() in arguments(pid).split(b"\0")]
