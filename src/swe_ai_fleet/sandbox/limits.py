"""Limits of the fleet's own process."""

from __future__ import annotations

import resource


def raise_file_limit() -> int:
    """Raise this process's soft limit of open files to the hard one and return it; a session takes eight of them.

    To be called once at a process edge. Commands in a sandbox have a limit of their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
