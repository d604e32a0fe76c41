"""Starts sessions in the container of a task's image, as the agent's container beside it requests.

It is that container's only program (`python -I -S container_helper.py SOCKET`, run by the fleet's own Python; it
imports nothing of the fleet) and runs none of the image's programs itself: it starts landlock_launcher.py, which
confines itself before it becomes a shell. The agent listens, so nothing has to be writable here. Each connection brings
one request: the argv, with the descriptors 1, 2, 3, 4 and 6 of a runner. The helper answers with the process id, and
with the exit code at the end; it ends the process when the connection is closed.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

_LONGEST = 200_000
_RETRY_SECONDS = 0.05
_DESCRIPTORS = (1, 2, 3, 4, 6)
_FREE = 10
_FAILED = 125
_VARIABLES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def serve(path: str) -> NoReturn:
    """Connect, describe the image, and serve requests, for ever."""
    # Children that serve a request are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    about = {"variables": dict(os.environ), "shell": "bash" if any(map(os.path.exists, _SHELLS)) else "sh"}
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            request, descriptors = b"", list[int]()
            try:
                connection.connect(path)
                connection.send(json.dumps(about).encode("utf-8", "replace"))
                request, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, len(_DESCRIPTORS))
            except (FileNotFoundError, ConnectionError):
                time.sleep(_RETRY_SECONDS)
            if request and os.fork() == 0:
                _run(connection, json.loads(request), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _run(connection: socket.socket, argv: list[str], descriptors: list[int]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        try:
            _become(argv, descriptors)
        finally:
            os._exit(_FAILED)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(b"%d" % child)
    ending = os.pidfd_open(child)
    waiting: list[int] = [connection.fileno()]
    # The agent's first message says that it has opened the process; until then it must not be reaped.
    if connection.recv(1):
        waiting.append(ending)
    while ending not in select.select(waiting, (), ())[0]:
        os.kill(child, signal.SIGTERM)
        waiting = [ending]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        connection.send(b"%d" % (code if code >= 0 else 128 - code))
    finally:
        os._exit(0)


def _become(argv: list[str], descriptors: list[int]) -> None:
    os.setsid()
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FREE) for descriptor in descriptors]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for copy, descriptor in zip(copies, _DESCRIPTORS, strict=True):
        os.dup2(copy, descriptor)
    os.chdir("/")
    # Python ignores them, and exec keeps ignored signals ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], argv, _VARIABLES)  # noqa: S606  (no shell is wanted)


if __name__ == "__main__":
    serve(sys.argv[1])
