"""Starts sessions in the container of a task's image, at the word of the agent's container beside it.

It is that container's only program (`python -I -S container_helper.py SOCKET`, by the fleet's own Python; it imports
nothing of the fleet). Of itself it runs nothing of the image: what it starts is landlock_launcher.py, which confines
itself before it becomes a shell. The agent listens, so nothing here has to be writable: each connection brings one
order, the argv with the descriptors 1, 2, 3, 4 and 6 of a runner. It is told the process's number, and how it ended;
the process ends with the connection.
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
_AGAIN_SECONDS = 0.05
_PLACES = (1, 2, 3, 4, 6)
_FREE = 10
_FAILED = 125
_VARIABLES = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def serve(path: str) -> NoReturn:
    """Connect, say what the image is like, and carry out what is ordered, for ever."""
    # Whoever carries an order out is nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    about = {"variables": dict(os.environ), "shell": "bash" if any(map(os.path.exists, _SHELLS)) else "sh"}
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            order, descriptors = b"", list[int]()
            try:
                connection.connect(path)
                connection.send(json.dumps(about).encode("utf-8", "replace"))
                order, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, len(_PLACES))
            except (FileNotFoundError, ConnectionError):
                time.sleep(_AGAIN_SECONDS)
            if order and os.fork() == 0:
                _run(connection, json.loads(order), descriptors)
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
    # The first word says that the agent has a hold on the process; until then it stays, dead or not.
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
    for descriptor, place in zip(copies, _PLACES, strict=True):
        os.dup2(descriptor, place)
    os.chdir("/")
    # Python ignores them, and what is ignored stays so behind an exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execve(argv[0], argv, _VARIABLES)  # noqa: S606  (what the agent's container names)


if __name__ == "__main__":
    serve(sys.argv[1])
