"""The filter of system calls for the kernel, for both isolation levels."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_AT_LEAST = 0x35
_JUMP_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06
_ALLOW = 0x7FFF_0000
_KILL_PROCESS = 0x8000_0000
_ERRNO = 0x0005_0000
_ASK_SUPERVISOR = 0x7FC0_0000

# Offsets in `struct seccomp_data`; arguments have 64 bits, the low half first on both machines.
_NUMBER = 0
_MACHINE = 4
_FIRST_ARGUMENT = 16
_X32_BIT = 0x4000_0000

_NEW_NAMESPACES = 0x7E02_0080
_DEVICE_TYPES = (0x2000, 0x6000)
_TYPE_MASK = 0xF000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_STREAM, _SEQUENCED, _TYPE_OF_SOCKET = 1, 5, 0xF
_TCP = 6
# This flag of a send connects without a call of `connect`.
_MSG_FASTOPEN = 0x2000_0000
_SOL_SOCKET, _SO_REUSEPORT = 1, 15
# Mode bits: who executes the file becomes its owner, or a member of its group.
_SET_ID = 0o6000
# O_CREAT, and O_TMPFILE without O_DIRECTORY: with either, `open` takes a mode.
_CREATES = 0o100 | 0o20000000
# Pushing characters into a terminal, which another process then reads as typed.
_TERMINAL_REQUESTS = (0x5412, 0x541C)

# (x86-64, AArch64); None: the machine has no such call.
_Numbers = tuple[int | None, int | None]
# Calls that reach beyond a sandbox, or deep into the kernel, and that builds and tests do not need.
_FORBIDDEN: dict[str, _Numbers] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioperm": (173, None), "iopl": (172, None), "kcmp": (312, 272),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39),
    "userfaultfd": (323, 282), "vhangup": (153, 58),
}  # fmt: skip
# With namespaces, these calls reach only processes of the sandbox itself.
_SHARED: dict[str, _Numbers] = {
    "mq_open": (240, 180), "msgget": (68, 186), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "semget": (64, 190), "shmat": (30, 196), "shmget": (29, 194),
}  # fmt: skip
# Refused as if the file system had no extended attributes.
_UNSUPPORTED: dict[str, _Numbers] = {
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463), "removexattrat": (466, 466),
}  # fmt: skip
_SOCKET: _Numbers = (41, 198)
_SOCKETPAIR: _Numbers = (53, 199)
_CONNECT: _Numbers = (42, 203)
_BIND: _Numbers = (49, 200)
_LISTEN: _Numbers = (50, 201)
_SETSOCKOPT: _Numbers = (54, 208)
# (call, position of its flags)
_SENDS: tuple[tuple[_Numbers, int], ...] = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3))
_CLONE: _Numbers = (56, 220)
_CLONE3: _Numbers = (435, 435)
_UNSHARE: _Numbers = (272, 97)
_IOCTL: _Numbers = (16, 29)
_OPENAT2: _Numbers = (437, 437)
# (call, position of its flags), the mode follows them; then (call, position of the mode).
_OPENS: tuple[tuple[_Numbers, int], ...] = (((257, 56), 2), ((2, None), 1))
_MODES: tuple[tuple[_Numbers, int], ...] = (
    ((90, None), 1), ((91, 52), 1), ((268, 53), 2), ((452, 452), 2), ((85, None), 1)
)  # fmt: skip
_MKNOD: _Numbers = (133, None)
_MKNODAT: _Numbers = (259, 33)
_INOTIFY: _Numbers = (254, 27)
_UTIMENSAT: _Numbers = (280, 88)
# (call, position of its times); without times, a process with write permission may touch a file.
_UTIMES: tuple[tuple[_Numbers, int], ...] = (((132, None), 1), ((235, None), 1), ((261, None), 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    audit: int
    column: int
    x32: bool


_MACHINES = {
    "x86_64": _Machine(audit=0xC000_003E, column=0, x32=True),
    "aarch64": _Machine(audit=0xC000_00B7, column=1, x32=False),
}

_Instruction = tuple[int, int, int, int]


def machine_known(machine: str) -> bool:
    """Whether there is a filter for a machine as `os.uname()` names it."""
    return machine in _MACHINES


def supervised_calls(machine: str) -> tuple[int, int, int]:
    """The numbers of `connect`, `bind` and `listen`, which a supervisor answers."""
    column = _MACHINES[machine].column
    connect, bind, listen = _numbers((_CONNECT, _BIND, _LISTEN), column)
    return connect, bind, listen


def seccomp_filter(machine: str, *, namespaces: bool, overrides: bool = False, supervised: bool = False) -> bytes:
    """The program for the kernel, a sequence of `struct sock_filter`.

    System calls of another machine kill the process; forbidden ones return EPERM. With `namespaces` commands may use
    sockets that stay inside the sandbox, trace each other and share memory by name. Without, they have socket pairs
    only (EACCES for others), or, `supervised`, also TCP and unix streams: a supervisor makes each connection and
    listener, because a filter cannot see addresses. These calls return ENOSYS where no supervisor runs. `overrides`
    is for commands that may open files of other owners: it also forbids inotify and changes of times.
    """
    machine_calls = _MACHINES[machine]
    column = machine_calls.column
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_EQUAL, 1, 0, machine_calls.audit),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine_calls.x32:
        program += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    # The most frequent calls first.
    for call, position in _OPENS:
        creating = [_argument(position), (_JUMP_ANY_BIT, 0, 3, _CREATES), *_without_set_id(position + 1)]
        program += _when(call, column, creating)
    for call, position in _MODES:
        program += _when(call, column, _without_set_id(position))
    program += _refuse(_numbers(_FORBIDDEN.values(), column), errno.EPERM)
    # A filter cannot read their arguments, which lie in memory; programs fall back to `clone` and `openat`.
    program += _refuse(_numbers([_CLONE3, _OPENAT2], column), errno.ENOSYS)
    for call in (_CLONE, _UNSHARE):
        program += _when(call, column, [_argument(0), (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), _answer(errno.EPERM)])
    for request in _TERMINAL_REQUESTS:
        program += _when(_IOCTL, column, [_argument(1), (_JUMP_EQUAL, 0, 1, request), _answer(errno.EPERM)])
    for call, position in ((_MKNOD, 1), (_MKNODAT, 2)):
        kind: list[_Instruction] = [*_without_set_id(position), (_AND, 0, 0, _TYPE_MASK)]
        for device in _DEVICE_TYPES:
            kind += [(_JUMP_EQUAL, 0, 1, device), _answer(errno.EPERM)]
        program += _when(call, column, kind)
    if namespaces:
        program += _when(_SOCKETPAIR, column, [_argument(0), (_JUMP_EQUAL, 1, 0, _AF_UNIX), _answer(errno.EACCES)])
        program += _when(_SOCKET, column, _families())
    else:
        program += _refuse(_numbers(_SHARED.values(), column), errno.EPERM)
        program += _refuse(_numbers(_UNSUPPORTED.values(), column), errno.EOPNOTSUPP)
        program += _when(_SOCKETPAIR, column, _pairs())
        program += _supervised(column) if supervised else _refuse(_numbers([_SOCKET], column), errno.EACCES)
    if overrides:
        program += _refuse(_numbers([_INOTIFY], column), errno.EACCES)
        for call, position in _UTIMES:
            program += _when(call, column, [*_unless_null(position, 1), _answer(errno.EPERM)])
        # Without a path the call uses a descriptor, whose file was opened under the rules.
        by_path: list[_Instruction] = [
            *_unless_null(2, 5),
            _argument(1),
            (_JUMP_EQUAL, 0, 2, 0),
            _upper_half(1),
            (_JUMP_EQUAL, 1, 0, 0),
            _answer(errno.EPERM),
        ]
        program += _when(_UTIMENSAT, column, by_path)
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def filter_file() -> str | None:
    """The path by which this process's children read the filter of a sandbox with namespaces, while this process lives.

    None for a machine that has no filter.
    """
    return f"/proc/{os.getpid()}/fd/{_descriptor()}" if machine_known(os.uname().machine) else None


@cache
def _descriptor() -> int:
    descriptor = os.memfd_create("fleet-filter", os.MFD_CLOEXEC)
    os.write(descriptor, seccomp_filter(os.uname().machine, namespaces=True))
    return descriptor


def _families() -> list[_Instruction]:
    """Allow unix sockets, IP sockets of the sandbox's own network, and netlink queries about that network.

    Other families reach other machines, or parts of the kernel without namespaces; they answer as if the kernel lacked
    them.
    """
    return [
        _argument(0),
        (_JUMP_EQUAL, 7, 0, _AF_UNIX),
        (_JUMP_EQUAL, 6, 0, _AF_INET),
        (_JUMP_EQUAL, 5, 0, _AF_INET6),
        (_JUMP_EQUAL, 1, 0, _AF_NETLINK),
        _answer(errno.EAFNOSUPPORT),
        _argument(2),
        (_JUMP_EQUAL, 1, 0, _NETLINK_ROUTE),
        _answer(errno.EPROTONOSUPPORT),
    ]


def _pairs() -> list[_Instruction]:
    """Allow pairs of unix streams; one end of a datagram pair could send to any socket of the host by its name."""
    return [
        _argument(0),
        (_JUMP_EQUAL, 0, 4, _AF_UNIX),
        _argument(1),
        (_AND, 0, 0, _TYPE_OF_SOCKET),
        (_JUMP_EQUAL, 2, 0, _STREAM),
        (_JUMP_EQUAL, 1, 0, _SEQUENCED),
        _answer(errno.EACCES),
    ]


def _supervised(column: int) -> list[_Instruction]:
    """Allow streams, but leave connect, bind and listen to the supervisor, and refuse to share a port with the host."""
    streams: list[_Instruction] = [
        _argument(1),
        (_AND, 0, 0, _TYPE_OF_SOCKET),
        (_JUMP_EQUAL, 0, 4, _STREAM),
        _argument(0),
        (_JUMP_EQUAL, 7, 0, _AF_UNIX),
        (_JUMP_EQUAL, 2, 0, _AF_INET),
        (_JUMP_EQUAL, 1, 0, _AF_INET6),
        _answer(errno.EACCES),
        _argument(2),
        (_JUMP_EQUAL, 2, 0, 0),
        (_JUMP_EQUAL, 1, 0, _TCP),
        _answer(errno.EPROTONOSUPPORT),
    ]
    reuse: list[_Instruction] = [
        _argument(1),
        (_JUMP_EQUAL, 0, 3, _SOL_SOCKET),
        _argument(2),
        (_JUMP_EQUAL, 0, 1, _SO_REUSEPORT),
        _answer(errno.ENOPROTOOPT),
    ]
    program = [*_when(_SOCKET, column, streams), *_when(_SETSOCKOPT, column, reuse)]
    for call, flags in _SENDS:
        program += _when(
            call, column, [_argument(flags), (_JUMP_ANY_BIT, 0, 1, _MSG_FASTOPEN), _answer(errno.EOPNOTSUPP)]
        )
    for number in _numbers((_CONNECT, _BIND, _LISTEN), column):
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ASK_SUPERVISOR)]
    return program


def _without_set_id(position: int) -> list[_Instruction]:
    """Refuse a set-uid or set-gid mode: mounts inside a sandbox ignore it, but the host's mount of the file does not.

    Afterwards the mode is still loaded.
    """
    return [_argument(position), (_JUMP_ANY_BIT, 0, 1, _SET_ID), _answer(errno.EPERM)]


def _numbers(calls: Iterable[_Numbers], column: int) -> list[int]:
    return [number for call in calls if (number := call[column]) is not None]


def _argument(position: int) -> _Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * position)


def _upper_half(position: int) -> _Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * position + 4)


def _unless_null(position: int, rest: int) -> list[_Instruction]:
    """Run the next `rest` instructions only if a pointer is null."""
    return [_argument(position), (_JUMP_EQUAL, 0, rest + 2, 0), _upper_half(position), (_JUMP_EQUAL, 0, rest, 0)]


def _answer(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _refuse(numbers: list[int], answer: int) -> list[_Instruction]:
    program: list[_Instruction] = []
    for number in numbers:
        program += [(_JUMP_EQUAL, 0, 1, number), _answer(answer)]
    return program


def _when(call: _Numbers, column: int, body: list[_Instruction]) -> list[_Instruction]:
    """Run `body` for one call only; after it the number of the call is loaded again."""
    number = call[column]
    if number is None:
        return []
    return [(_JUMP_EQUAL, 0, len(body), number), *body, (_LOAD, 0, 0, _NUMBER)]
