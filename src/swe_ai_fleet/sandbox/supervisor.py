"""Makes the connections and the listeners of a session that has no network of its own.

It runs in the session's keeper (see landlock_launcher.py), imports nothing of the fleet, and is loaded with the first
call that wants it. A command's own sockets can neither connect nor listen. The supervisor copies the address that a
call names, decides on the copy, connects a socket of its own making, and puts that into the place of the command's
descriptor once it leads where it should: whatever the command's threads do to address or descriptor meanwhile changes
nothing. A socket listens as soon as it is bound, so that the kernel never listens at a command's word.
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
# Its number, the thread, flags, the call, its machine, where it was made, and its arguments.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_AT_DESCRIPTOR = 1
_LONGEST_ADDRESS = 128
_HIGHEST_POINTER = 1 << 63
_BACKLOG = 4096
# A first packet that found no room is sent again after a second: by then the socket is gone.
_CONNECT_MS = 500
_REMEMBERED = 4096
# Each port that is bound is one less for the connections of the whole machine.
_MOST_PORTS = 1024

_V4, _V6, _MAPPED = "127.0.0.1", "::1", "::ffff:127.0.0.1"
# Where an address leads, in turn: servers that listen to both families' any addresses are bound to one loopback.
_REACHED = {_V4: (_V4, _V6), _V6: (_V6, _MAPPED), _MAPPED: (_MAPPED, _V6)}
_MAPPED_PREFIX = bytes(10) + b"\xff\xff"
_V6_ANY, _V6_LOOPBACK = bytes(16), bytes(15) + b"\x01"

_SOCK_DIAG = 4
_BY_FAMILY, _REQUEST = 20, 1
# Two headers, the family, the protocol, the states; then port, address and cookie of the socket in question.
_QUESTION = struct.Struct("=IHHII BBxxI 2s2x16s16x4x8s")
_ANY_COOKIE = b"\xff" * 8
_LISTENING = 10
_KIND_AT, _STATE_AT, _INODE_AT = 4, 17, 84


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call whose thread waits for the answer; `pointer` and `length` are where its address lies."""

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
    """Answers the calls that `listener` brings, one after the other, until nobody is left to make any.

    `calls` are the machine's numbers of connect, bind and listen. Unix sockets must lie below `roots`. Of loopback's
    ports it connects to those that it bound for this session and to `proxy` (0: none); it never binds a `reserved` one.
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
        """A copy of the address, the only one that is looked at."""
        if not 2 <= call.length <= _LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "invalid address length")
        memory = os.open(call.process / "mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # The thread still waits, so what was opened is its own.
            fcntl.ioctl(self._listener, _VALID, struct.pack("=Q", call.id))
            data = os.pread(memory, call.length, call.pointer) if call.pointer < _HIGHEST_POINTER else b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        finally:
            os.close(memory)
        if len(data) < call.length:
            raise OSError(errno.EFAULT, "not all of it can be read")
        return data

    def _place(self, call: _Call, made_socket: socket.socket) -> None:
        """Put a socket into the place of the caller's descriptor, whose flags it takes over."""
        _, _, flags = (call.process / f"fdinfo/{call.descriptor}").read_text().partition("flags:")
        opened = int(flags.split(maxsplit=1)[0], 8)
        made_socket.setblocking(not opened & os.O_NONBLOCK)
        placing = (call.id, _AT_DESCRIPTOR, made_socket.fileno(), call.descriptor, opened & os.O_CLOEXEC)
        fcntl.ioctl(self._listener, _PLACE, struct.pack("=QIIII", *placing))

    def _reach(self, hosts: Sequence[str], port: int) -> socket.socket:
        for host in hosts:
            if self._is_ours(host, port, _listening(_bare(host), port)):
                connected = _connected(host, port)
                # Another process may have taken the port in between. A server that ends once it is reached is nobody.
                now = _listening(_bare(host), port)
                if now is None or self._is_ours(host, port, now):
                    return connected
                connected.close()
        raise OSError(errno.ECONNREFUSED, "no process of this session listens there")

    def _is_ours(self, host: str, port: int, listening: int | None) -> bool:
        """Whether the socket that listens there is one of this session's, or its proxy's."""
        if host != _V6 and port == self._proxy:
            return True
        return listening is not None and self._bound.get((_bare(host), port)) == listening

    def _bind_port(self, family: int, hosts: Sequence[str], port: int) -> socket.socket:
        if port in self._reserved:
            raise OSError(errno.EADDRINUSE, "a port of the fleet")
        if len(self._bound) >= _MOST_PORTS:
            self._bound = {place: inode for place, inode in self._bound.items() if _is_held(*place)}
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
        with _place_of(call.process / "cwd") as here, _making(socket.AF_UNIX) as bound:
            if binding:
                # By the very name, which programs ask for. The keeper's own rules let it make sockets below the roots
                # only, wherever a link leads.
                os.fchdir(here)
                bound.bind(path)
                bound.listen(_BACKLOG)
                self._remember(bound)
                return bound
            with _place_of(path, here) as place:
                # What was opened is what is connected to, and nobody can change where that lies.
                target = Path(f"/proc/self/fd/{place}")
                if not any(target.readlink().is_relative_to(root) for root in self._roots):
                    raise OSError(errno.EACCES, "outside of the writable paths of the session")
                bound.connect(str(target))
        return bound

    def _remember(self, bound: socket.socket) -> int:
        inode = os.fstat(bound.fileno()).st_ino
        self._made.append(inode)
        return inode


def _socket_of(call: _Call) -> int:
    """The inode of the socket that the caller's descriptor stands for."""
    try:
        kind = str((call.process / f"fd/{call.descriptor}").readlink())
    except FileNotFoundError:
        raise OSError(errno.EBADF, "not open") from None
    if not kind.startswith("socket:["):
        raise OSError(errno.ENOTSOCK, kind)
    return int(kind[len("socket:[") : -1])


def _loopback(address: bytes, family: int, *, binding: bool) -> tuple[tuple[str, ...], int]:
    """Where an address of loopback, or the any address, leads in here, by turns. Raises OSError for all others."""
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
    """The inode of the socket that listens at an address, from the kernel's own tables."""
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
    """Whether some socket still has an address, one that does not listen any more too."""
    with _making(socket.AF_INET6 if host == _V6 else socket.AF_INET) as probe, probe:
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _connected(host: str, port: int) -> socket.socket:
    """A connected socket."""
    with _making(socket.AF_INET if host == _V4 else socket.AF_INET6) as connecting:
        fault = connecting.connect_ex((host, port))
        if fault == errno.EINPROGRESS:
            waiting = select.poll()
            waiting.register(connecting, select.POLLOUT)
            ready = waiting.poll(_CONNECT_MS)
            fault = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else errno.ETIMEDOUT
        if fault:
            raise OSError(fault, os.strerror(fault))
        # Most clients set this before they connect, on the socket that this one replaces.
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connecting


@contextmanager
def _making(family: int) -> Generator[socket.socket]:
    """A new socket, closed again on a fault."""
    new_socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        yield new_socket
    except BaseException:
        new_socket.close()
        raise


@contextmanager
def _place_of(path: Path | bytes, directory: int | None = None) -> Generator[int]:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
