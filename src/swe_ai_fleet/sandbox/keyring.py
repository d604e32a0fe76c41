"""The session keyring of the kernel, which every process inherits: sandboxes get an empty one."""

from __future__ import annotations

import ctypes
import os
import threading

_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_threads = threading.local()


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
