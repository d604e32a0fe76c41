"""Ways out of a sandbox by sockets, for test_sockets.py: `python -c THIS NAME TARGETS`, run by a command.

TARGETS (JSON) says what of the host listens where. What was reached is printed as a JSON list; it stays empty where
nothing was. A script of its own: the sandbox shows it nothing of the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]
CONNECT_NUMBER = {"x86_64": 42, "aarch64": 203}[platform.machine()]
ROUNDS = 500
TOLD: dict[str, Any] = {}
REACHED: list[str] = []


def attempt(name: str, act: Callable[[], object]) -> None:
    """Note what got through; a refusal may be of any kind."""
    try:
        if act() is not False:
            REACHED.append(name)
    except OSError:
        pass


def connect(family: int, address: Any, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(family, kind) as client:
        client.settimeout(5)
        client.connect(address)


def spellings() -> None:
    for host in ("127.0.0.1", "0.0.0.0", "127.0.0.2"):
        attempt(host, lambda host=host: connect(socket.AF_INET, (host, TOLD["port"])))
    for host in ("::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::ffff:127.0.0.2"):
        attempt(host, lambda host=host: connect(socket.AF_INET6, (host, TOLD["port"])))


def far_away() -> None:
    """Private addresses and metadata services: the refusal is at once, and nothing has been sent."""
    for family, host in (
        *((socket.AF_INET, host) for host in ("169.254.169.254", "10.0.0.1", "192.168.0.1", "8.8.8.8", "224.0.0.1")),
        *((socket.AF_INET6, host) for host in ("fd00:ec2::254", "fe80::1", "64:ff9b::7f00:1", "2002:7f00:1::")),
    ):
        try:
            connect(family, (host, 80))
        except OSError as error:
            if error.errno != errno.ENETUNREACH:
                REACHED.append(f"{host}: {error}")
        else:
            REACHED.append(host)


def sending() -> None:
    """Connections made by what sends, and datagrams, which need none."""
    fast, there = 0x2000_0000, ("127.0.0.1", TOLD["port"])

    def by_option() -> None:
        with socket.socket() as client:
            client.setsockopt(socket.IPPROTO_TCP, 30, 1)
            client.connect(there)
            client.send(b"x")

    def several() -> None:
        with socket.socket() as client:
            held, word = ctypes.create_string_buffer(_name(*there), 16), ctypes.create_string_buffer(b"x", 1)
            part = (ctypes.c_uint64 * 2)(ctypes.addressof(word), 1)
            message = (ctypes.c_uint64 * 8)(ctypes.addressof(held), 16, ctypes.addressof(part), 1, 0, 0, 0, 0)
            if LIBC.sendmmsg(client.fileno(), message, 1, fast) < 1:
                raise OSError(ctypes.get_errno(), "")

    attempt("sendto", lambda: socket.socket().sendto(b"x", fast, there))
    attempt("sendmsg", lambda: socket.socket().sendmsg([b"x"], (), fast, there))
    attempt("sendmmsg", several)
    attempt("fast open by option", by_option)
    attempt("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", there))
    attempt("udp, IPv6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"x", ("::1", there[1])))
    attempt("mptcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(there))
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        for name in (TOLD["datagrams"], f"\0{TOLD['token']}-d"):
            label = f"{name.lstrip(chr(0)).rpartition('/')[2]} of kind {int(kind)}"
            attempt(f"pair to {label}", lambda kind=kind, name=name: _pair(kind).sendto(b"x", name))
            attempt(f"pair to {label}, connected", lambda kind=kind, name=name: _pair(kind).connect(name))
            attempt(f"to {label}", lambda kind=kind, name=name: connect(socket.AF_UNIX, name, kind))


def _pair(kind: int) -> socket.socket:
    return socket.socketpair(socket.AF_UNIX, kind)[0]


def unix() -> None:
    """Sockets of the host by path, in whatever way the path is spelled, and by abstract name."""
    path = TOLD["unix"]
    os.symlink(path, "link")
    os.symlink(os.path.dirname(path), "directory")
    for name in (path, "link", "directory/s", os.path.relpath(path), f"/proc/self/root{path}", "/proc/self/cwd/link"):
        attempt(name, lambda name=name: connect(socket.AF_UNIX, name))
        attempt(f"sequenced {name}", lambda name=name: connect(socket.AF_UNIX, name, socket.SOCK_SEQPACKET))
    attempt("hard link", lambda: (os.link(path, "hard"), connect(socket.AF_UNIX, "hard")))
    attempt("abstract", lambda: connect(socket.AF_UNIX, f"\0{TOLD['token']}"))
    for name in (f"{os.path.dirname(path)}/new", "directory/new", "/tmp/new", "/dev/shm/new", f"\0{TOLD['token']}-new"):
        attempt(f"listening at {name}", lambda name=name: socket.socket(socket.AF_UNIX).bind(name))


def supervisor() -> None:
    """The process that makes the connections: killing it, looking into it, or taking its place."""
    keeper = os.getppid()
    while keeper > 1 and b"landlock_launcher" not in _arguments(keeper):
        with open(f"/proc/{keeper}/stat") as stat:
            keeper = int(stat.read().rpartition(")")[2].split()[1])
    # Without one: what started this process.
    keeper = keeper if keeper > 1 else os.getppid()
    attempt("signal", lambda: os.kill(keeper, 0))
    attempt("memory", lambda: open(f"/proc/{keeper}/mem", "rb").close())
    for number in range(10):
        attempt("descriptors", lambda number=number: os.readlink(f"/proc/{keeper}/fd/{number}"))
    attempt("trace", lambda: LIBC.ptrace(0x4206, keeper, 0, 0) == 0)
    attempt("taking a descriptor", lambda: LIBC.syscall(438, os.pidfd_open(keeper), 0, 0) >= 0)
    attempt("another supervisor", second_supervisor)


def _arguments(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as words:
        return words.read()


def second_supervisor() -> bool:
    """A filter of one's own, whose listener would be asked in the place of the fleet's, and could let calls go on."""
    program = struct.pack(
        "=HBBI HBBI HBBI HBBI", 0x20, 0, 0, 0, 0x15, 0, 1, CONNECT_NUMBER, 6, 0, 0, 0x7FC0_0000, 6, 0, 0, 0x7FFF_0000
    )
    held = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    described = Program(4, ctypes.cast(held, ctypes.c_void_p))
    LIBC.prctl(38, 1, 0, 0, 0)
    if LIBC.syscall(SECCOMP, 1, 8, ctypes.byref(described)) < 0:
        raise OSError(ctypes.get_errno(), "")
    return True


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """A server of this process's own; its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _name(host: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


@contextlib.contextmanager
def meanwhile(act: Callable[[int], object]) -> Iterator[None]:
    """Run `act` again and again in a thread."""
    ended = threading.Event()

    def go_on() -> None:
        turn = 0
        while not ended.is_set():
            act(turn)
            turn += 1

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def flipped_address() -> None:
    """The address changes while it is looked at."""
    with serving() as own:
        names = (_name("127.0.0.1", own), _name("127.0.0.1", TOLD["port"]))
        held = ctypes.create_string_buffer(names[0], 16)
        before = struct.unpack("!H", names[1][2:4])[0]
        connected = 0
        with meanwhile(lambda turn: ctypes.memmove(held, names[turn % 2], 16)):
            for _ in range(ROUNDS):
                client = socket.socket()
                if LIBC.connect(client.fileno(), held, 16) == 0:
                    connected += 1
                    if client.getpeername()[1] == before:
                        REACHED.append("the other address")
                client.close()
        if not connected:
            sys.exit("it never came to its own server either")


def swapped_descriptor() -> None:
    """The descriptor becomes another socket while the call is looked at."""

    def swap(number: int) -> None:
        with socket.socket() as spare:
            os.dup2(spare.fileno(), number)
        # Swapped without a pause, what was reached would be gone before anybody asks for it.
        time.sleep(0.0002)

    with serving() as own:
        target = socket.socket()
        number, name = target.fileno(), ctypes.create_string_buffer(_name("127.0.0.1", own), 16)
        other = ctypes.create_string_buffer(_name("127.0.0.1", TOLD["port"]), 16)
        with meanwhile(lambda _: swap(number)):
            for turn in range(ROUNDS):
                LIBC.connect(number, other if turn % 2 else name, 16)
                with contextlib.suppress(OSError):
                    if target.getpeername()[1] == TOLD["port"]:
                        REACHED.append("the other address")


def listening_elsewhere() -> None:
    """A listener at all interfaces, by races over address and descriptor, or without an address."""
    held = ctypes.create_string_buffer(_name("127.0.0.1", 0), 16)
    names = (_name("127.0.0.1", 0), _name("0.0.0.0", 0))
    kept: list[socket.socket] = []
    with meanwhile(lambda turn: ctypes.memmove(held, names[turn % 2], 16)):
        for _ in range(150):
            server = socket.socket()
            if LIBC.bind(server.fileno(), held, 16) == 0:
                server.listen()
                kept.append(server)
    unbound = socket.socket()
    for _ in range(150):
        server = socket.socket()
        number = server.fileno()
        LIBC.bind(number, ctypes.create_string_buffer(names[0], 16), 16)
        with meanwhile(lambda _, number=number: os.dup2(unbound.fileno(), number)):
            LIBC.listen(number, 5)
        kept.append(server)
    kept.append(socket.socket())
    for server in kept:
        LIBC.listen(server.fileno(), 5)
    mine = {str(os.fstat(server.fileno()).st_ino) for server in (*kept, unbound)}
    for table, loopback in (("tcp", "0100007F"), ("tcp6", "0" * 24 + "01000000")):
        with open(f"/proc/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in mine and not fields[1].startswith(loopback):
                    REACHED.append(fields[1])


def sharing() -> None:
    """The port of a listener of the host's that lets others of its user share it, as gRPC's servers do."""

    def share() -> None:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", TOLD["shared"]))
        server.listen()

    attempt("shared", share)
    for port in (TOLD["port"], TOLD["reserved"]):
        attempt("bound as well", lambda port=port: socket.create_server(("127.0.0.1", port)))


def crowd() -> None:
    """Many processes that ask without end, and some that die while they wait; one more is answered all the same."""
    children: list[int] = []
    with serving() as own:
        for number in range(20):
            child = os.fork()
            if not child:
                while True:
                    with contextlib.suppress(OSError), socket.socket() as client:
                        client.connect(("127.0.0.1", TOLD["port"] if number % 2 else own))
            children.append(child)
        for _ in range(30):
            child = os.fork()
            if not child:
                with contextlib.suppress(OSError):
                    connect(socket.AF_INET, ("127.0.0.1", TOLD["port"]))
                os._exit(0)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for _ in range(20):
            socket.create_connection(("127.0.0.1", own), 20).close()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        socket.create_connection(("127.0.0.1", own), 20).close()


if __name__ == "__main__":
    TOLD.update(json.loads(sys.argv[2]))
    globals()[sys.argv[1]]()
    print(json.dumps(REACHED))
