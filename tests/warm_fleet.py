"""`fleet`, or a program over it, started from a process that has loaded it already: a fork instead of imports.

`python -m tests.warm_fleet --keep DESCRIPTOR` loads it and waits at a listening socket.
`python -I -S tests/warm_fleet.py SOCKET ARGUMENTS…` has it fork, and is then the command, or the program whose path the
first argument is: with its own descriptors, directory, variables, signals and exit code. What is loaded never runs a
command itself, so nothing of one is left for the next.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable

_LOADED_LATER = (
    "cli.run",
    "cli.tools",
    "cli.doctor",
    "cli.environment",
    "cli.recordings",
    "runtime.replay",
    "runtime.tool_enabled_agent",
    "runtime.function_calling_agent",
    "extensions.workflows.executor",
)
"""What commands and programs load only when they need it: up to a second for each of them."""
_NUMBER = struct.Struct("!i")
_NO_CODE = 70
"""What a command ends with that was killed before it could say a code."""


def command(path: str, arguments: list[str]) -> int:
    """Run `fleet` with the arguments; its exit code."""
    order = {"arguments": arguments, "directory": os.getcwd(), "variables": dict(os.environ)}
    said = json.dumps(order).encode()
    told = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, told)
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.connect(path)
        socket.send_fds(keeper, [_NUMBER.pack(len(said))], [0, 1, 2])
        keeper.sendall(said)
        (process,) = _NUMBER.unpack(_received(keeper, _NUMBER.size))
        for number in told:
            signal.signal(number, lambda caught, _: os.kill(process, caught))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, told)
        code = _received(keeper, _NUMBER.size)
    return _NUMBER.unpack(code)[0] if code else _NO_CODE


def _received(connection: socket.socket, size: int) -> bytes:
    """So many bytes; nothing where the other side is gone."""
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return b""
        found += part
    return found


def keep(descriptor: int) -> None:
    """Fork a command for each connection, without an end."""
    import ctypes
    import gc
    import importlib

    from swe_ai_fleet.cli.main import app

    for name in _LOADED_LATER:
        importlib.import_module(f"swe_ai_fleet.{name}")
    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(fileno=descriptor)
    gc.freeze()
    while True:
        connection, _ = listening.accept()
        if os.fork():
            connection.close()
            continue
        listening.close()
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives the tests
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        code = _exit_code(app, _become(connection))
        connection.sendall(_NUMBER.pack(code))
        sys.exit(code)


def _become(connection: socket.socket) -> list[str]:
    """Take on what the caller is; the arguments that it was started with."""
    size, descriptors, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
    order = json.loads(_received(connection, *_NUMBER.unpack(size)))
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    # They look at what they are opened on only then; those of this process were another program's.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["variables"])
    sys.argv = ["fleet", *order["arguments"]]
    connection.sendall(_NUMBER.pack(os.getpid()))
    return order["arguments"]


def _exit_code(app: Callable[..., object], arguments: list[str]) -> int:
    try:
        if arguments and arguments[0].endswith(".py"):
            import runpy

            sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            app(arguments, prog_name="fleet")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        keep(int(sys.argv[2]))
    else:
        # Nothing to tidy up: ending at once is half of what this process would take.
        os._exit(command(sys.argv[1], sys.argv[2:]))
