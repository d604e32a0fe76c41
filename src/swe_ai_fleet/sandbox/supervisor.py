"""Makes the connections and the listeners of a session that has no network of its own.

It runs in the session's keeper (see landlock_launcher.py), imports nothing of the fleet, and is loaded with the first
call that needs it. A command's own sockets can neither connect nor listen. For each call the supervisor copies the
address, checks the copy, connects a new socket, and replaces the command's descriptor by it once the connection is
known to be allowed: changes that the command's threads make to the address or the descriptor meanwhile have no effect.
A socket is made to listen when it is bound, so `listen` itself has nothing to do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_RECEIVE, _ANSWER, _VALID, _PLACE = 0xC050_2100, 0xC018_2101, 0x4008_2102, 0x4018_2103
# struct seccomp_notif: id, thread, flags, then the call: number, machine, instruction pointer, arguments.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_AT_DESCRIPTOR = 1
_LONGEST_ADDRESS = 128
_HIGHEST_POINTER = 1 << 63
_BACKLOG = 4096
# Below the second after which the kernel resends a first packet that found the backlog full.
_CONNECT_MS = 500
_REMEMBERED = 4096
# Each bound port is one less for the connections of the whole machine.
_MOST_PORTS = 1024

_V4, _V6, _MAPPED = "127.0.0.1", "::1", "::ffff:127.0.0.1"
# The addresses to try for a host, in order: a server that asked for any address of both families is bound to one only.
_REACHED = {_V4: (_V4, _V6), _V6: (_V6, _MAPPED), _MAPPED: (_MAPPED, _V6)}
_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
_V6_ANY, _V6_LOOPBACK = bytes(16), bytes(15) + b"\x01"

_SOCK_DIAG = 4
_BY_FAMILY, _REQUEST = 20, 1
# Two headers, the family, the protocol, the states; then port, address and cookie of the socket.
_QUESTION = struct.Struct("=IHHII BBxxI 2s2x16s16x4x8s")
_ANY_COOKIE = b"\xff" * 8
_LISTENING = 10
_KIND_AT, _STATE_AT, _INODE_AT = 4, 17, 84


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call whose thread waits for the answer; `pointer` and `length` locate the socket address in its memory."""

    id: int
    thread: int
    number: int
    descriptor: int
    pointer: int
    length: int

    @property
    def process(self) -> Path:
        return Path(f"/proc/{self.thread}")


class Supervisor:
    """Answers the calls that `listener` brings, one after the other, until the session's last process has ended.

    `calls` are the machine's numbers of connect, bind and listen. Unix sockets must lie below `roots`. On loopback it
    connects to ports that it bound for this session and to `proxy` (0: none); it never binds a `reserved` port.
    """

    def __init__(
        self, listener: int, *, calls: Sequence[int], roots: Sequence[str], proxy: int, reserved: Sequence[int]
    ) -> None:
        self._listener = listener
        _, self._bind, self._listen = calls
        self._roots = tuple(roots)
        self._proxy = proxy
        self._reserved = frozenset(reserved)
        self._bound: dict[tuple[str, int], int] = {}
        self._made: deque[int] = deque(maxlen=_REMEMBERED)

    def serve(self) -> None:
        """Return when the last process under the filter is gone."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while any(events & select.POLLIN for _, events in poll.poll()):
            notification = bytearray(_NOTIFICATION.size)
            # The caller may die at any moment.
            with suppress(FileNotFoundError):
                fcntl.ioctl(self._listener, _RECEIVE, notification, True)
                self._answer(notification)

    def _answer(self, notification: bytearray) -> None:
        id_, thread, _, number, _, _, descriptor, pointer, length, *_ = _NOTIFICATION.unpack(notification)
        descriptor, length = descriptor & 0xFFFF_FFFF, length & 0xFFFF_FFFF
        call = _Call(id=id_, thread=thread, number=number, descriptor=descriptor, pointer=pointer, length=length)
        fault = 0
        try:
            self._answer_call(call)
        except OSError as error:
            fault = error.errno or errno.EINVAL
        fcntl.ioctl(self._listener, _ANSWER, struct.pack("=QqiI", id_, 0, -fault, 0))

    def _answer_call(self, call: _Call) -> None:
        inode = _socket_of(call)
        if call.number == self._listen:
            if inode not in self._made:
                raise OSError(errno.EINVAL, "not bound")
            return
        binding = call.number == self._bind
        if binding and inode in self._made:
            raise OSError(errno.EINVAL, "bound already")
        address = self._address(call)
        (family,) = struct.unpack_from("=H", address)
        if family == socket.AF_UNIX:
            made_socket = self._unix(call, address, binding=binding)
        elif family in (socket.AF_INET, socket.AF_INET6):
            hosts, port = _loopback(address, family, binding=binding)
            made_socket = self._bind_port(family, hosts, port) if binding else self._reach(hosts, port)
        else:
            raise OSError(errno.EAFNOSUPPORT, "another family")
        with made_socket:
            self._place(call, made_socket)

    def _address(self, call: _Call) -> bytes:
        """A copy of the call's address; every check uses this copy."""
        if not 2 <= call.length <= _LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "invalid address length")
        memory = os.open(call.process / "mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The thread still waits, so its id was not reused and the opened memory is its own.
            fcntl.ioctl(self._listener, _VALID, struct.pack("=Q", call.id))
            data = os.pread(memory, call.length, call.pointer) if call.pointer < _HIGHEST_POINTER else b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        finally:
            os.close(memory)
        if len(data) < call.length:
            raise OSError(errno.EFAULT, "the address cannot be read completely")
        return data

    def _place(self, call: _Call, made_socket: socket.socket) -> None:
        """Replace the caller's descriptor by a socket, with the descriptor's flags."""
        _, _, flags = (call.process / f"fdinfo/{call.descriptor}").read_text().partition("flags:")
        opened = int(flags.split(maxsplit=1)[0], 8)
        made_socket.setblocking(not opened & os.O_NONBLOCK)
        placing = (call.id, _AT_DESCRIPTOR, made_socket.fileno(), call.descriptor, opened & os.O_CLOEXEC)
        fcntl.ioctl(self._listener, _PLACE, struct.pack("=QIIII", *placing))

    def _reach(self, hosts: Sequence[str], port: int) -> socket.socket:
        for host in hosts:
            if self._is_ours(host, port, _listening(_bare(host), port)):
                connected = _connected(host, port)
                # Another process may have taken the port in between. None: our server ended after the connection.
                now = _listening(_bare(host), port)
                if now is None or self._is_ours(host, port, now):
                    return connected
                connected.close()
        raise OSError(errno.ECONNREFUSED, "no process of this session listens there")

    def _is_ours(self, host: str, port: int, listening: int | None) -> bool:
        """Whether the listening socket (its inode) is this session's or its proxy's."""
        if host != _V6 and port == self._proxy:
            return True
        return listening is not None and self._bound.get((_bare(host), port)) == listening

    def _bind_port(self, family: int, hosts: Sequence[str], port: int) -> socket.socket:
        if port in self._reserved:
            raise OSError(errno.EADDRINUSE, "a port of the fleet")
        if len(self._bound) >= _MOST_PORTS:
            self._bound = {address: inode for address, inode in self._bound.items() if _is_held(*address)}
            if len(self._bound) >= _MOST_PORTS:
                raise OSError(errno.ENOBUFS, "no more ports for this session")
        with _making(family) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                bound.bind((hosts[0], port))
            except OSError as error:
                # A machine may have no loopback of IPv6.
                if error.errno != errno.EADDRNOTAVAIL or hosts[0] == hosts[-1]:
                    raise
                bound.bind((hosts[-1], port))
            bound.listen(_BACKLOG)
            host, port = bound.getsockname()[:2]
            self._bound[_bare(host), port] = self._remember(bound)
        return bound

    def _unix(self, call: _Call, address: bytes, *, binding: bool) -> socket.socket:
        path = address[2:].partition(b"\0")[0]
        if not path:
            raise OSError(errno.ECONNREFUSED, "abstract names are the host's")
        with _opened(call.process / "cwd") as directory, _making(socket.AF_UNIX) as bound:
            if binding:
                # By the same name, which programs can query. Wherever links in it lead, the keeper's own Landlock rules
                # let it make sockets below the roots only.
                os.fchdir(directory)
                bound.bind(path)
                bound.listen(_BACKLOG)
                self._remember(bound)
                return bound
            with _opened(path, directory) as descriptor:
                # Checked and connected by the same descriptor, so that no link can be swapped in between.
                target = Path(f"/proc/self/fd/{descriptor}")
                if not any(target.readlink().is_relative_to(root) for root in self._roots):
                    raise OSError(errno.EACCES, "outside of the writable paths of the session")
                bound.connect(str(target))
        return bound

    def _remember(self, bound: socket.socket) -> int:
        inode = os.fstat(bound.fileno()).st_ino
        self._made.append(inode)
        return inode


def _socket_of(call: _Call) -> int:
    """The inode of the socket behind the caller's descriptor."""
    try:
        kind = str((call.process / f"fd/{call.descriptor}").readlink())
    except FileNotFoundError:
        raise OSError(errno.EBADF, "not open") from None
    if not kind.startswith("socket:["):
        raise OSError(errno.ENOTSOCK, kind)
    return int(kind[len("socket:[") : -1])


def _loopback(address: bytes, family: int, *, binding: bool) -> tuple[tuple[str, ...], int]:
    """The session's own addresses, in order, and the port for a loopback or any address; OSError for all others."""
    start, end, least = (4, 8, 16) if family == socket.AF_INET else (8, 24, 24)
    if len(address) < least:
        raise OSError(errno.EINVAL, "too short")
    (port,) = struct.unpack_from("!H", address, 2)
    host = address[start:end]
    if host == _V6_ANY and binding:
        return (_V6, _MAPPED), port
    bare = host.removeprefix(_MAPPED_PREFIX)
    if host in (_V6_ANY, _V6_LOOPBACK):
        own_host = _V6
    elif len(bare) == 4 and (bare[0] == 127 or not any(bare)):
        own_host = _V4 if family == socket.AF_INET else _MAPPED
    else:
        raise OSError(errno.EADDRNOTAVAIL if binding else errno.ENETUNREACH, "not an address of this session")
    return (own_host,) if binding else _REACHED[own_host], port


def _bare(host: str) -> str:
    return _V4 if host == _MAPPED else host


def _listening(host: str, port: int) -> int | None:
    """The inode of the socket that listens at an address, from the kernel's tables; None without one."""
    family = socket.AF_INET6 if host == _V6 else socket.AF_INET
    question = _QUESTION.pack(
        *(_QUESTION.size, _BY_FAMILY, _REQUEST, 0, 0, family, socket.IPPROTO_TCP, 1 << _LISTENING),
        *(port.to_bytes(2, "big"), socket.inet_pton(family, host), _ANY_COOKIE),
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as tables:
        tables.send(question)
        answer = tables.recv(4096)
    (kind,) = struct.unpack_from("=H", answer, _KIND_AT)
    if kind != _BY_FAMILY or answer[_STATE_AT] != _LISTENING:
        return None
    return int(struct.unpack_from("=I", answer, _INODE_AT)[0])


def _is_held(host: str, port: int) -> bool:
    """Whether a socket, listening or not, still has this address."""
    with _making(socket.AF_INET6 if host == _V6 else socket.AF_INET) as probe, probe:
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _connected(host: str, port: int) -> socket.socket:
    """A socket connected to a loopback address. Raises OSError."""
    with _making(socket.AF_INET if host == _V4 else socket.AF_INET6) as connecting:
        fault = connecting.connect_ex((host, port))
        if fault == errno.EINPROGRESS:
            waiting = select.poll()
            waiting.register(connecting, select.POLLOUT)
            ready = waiting.poll(_CONNECT_MS)
            fault = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else errno.ETIMEDOUT
        if fault:
            raise OSError(fault, os.strerror(fault))
        # Most clients set this before they connect, but on the socket that this one replaces.
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connecting


@contextmanager
def _making(family: int) -> Generator[socket.socket]:
    """A new non-blocking stream socket, which is closed if the context raises."""
    new_socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        yield new_socket
    except BaseException:
        new_socket.close()
        raise


@contextmanager
def _opened(path: Path | bytes, directory: int | None = None) -> Generator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
