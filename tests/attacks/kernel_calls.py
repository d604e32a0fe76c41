"""A script for inside and outside of a sandbox: makes the system calls it is told of, and prints what each came to.

`0` stands for a call that was carried out, anything else for the number of the error.
"""

import ctypes
import errno
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable

X86 = os.uname().machine == "x86_64"
LIBC = ctypes.CDLL(None, use_errno=True)


def call(on_x86: int, on_arm: int, *arguments: object) -> int:
    number = on_x86 if X86 else on_arm
    if number < 0:
        raise OSError(errno.ENOSYS, "this machine has no such call")
    values = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def socket_of(family: int, kind: int, protocol: int = 0) -> None:
    socket.socket(family, kind, protocol).close()


def new_file(mode: int, how: str) -> None:
    """Make a file of a mode that has a bit of S_ISUID or S_ISGID, in one of the ways that there are."""
    here, name, creating = -100, f"{how}-{mode:o}", os.O_CREAT | os.O_WRONLY
    path = name.encode()
    os.umask(0)
    descriptor = os.open(name, creating, 0o644) if "chmod" in how else -1
    made = call(
        *{
            "chmod": (90, -1, path, mode),
            "fchmod": (91, 52, descriptor, mode),
            "fchmodat": (268, 53, here, path, mode),
            "fchmodat2": (452, 452, here, path, mode, 0),
            "open": (2, -1, path, creating, mode),
            "openat": (257, 56, here, path, creating, mode),
            "openat2": (437, 437, here, path, (ctypes.c_uint64 * 3)(creating, mode, 0), 24),
            "creat": (85, -1, path, mode),
            "mknod": (133, -1, path, 0o100000 | mode, 0),
            "mknodat": (259, 33, here, path, 0o100000 | mode, 0),
            "nameless": (257, 56, here, b".", os.O_TMPFILE | os.O_WRONLY, mode),
        }[how]
    )
    if how == "nameless":
        os.link(f"/proc/self/fd/{made}", name, follow_symlinks=True)


def other_machine() -> None:
    """getpid as a program of 32 bits makes it; what refuses it kills the process."""
    if not X86:
        raise OSError(errno.ENOSYS, "only this machine has another kind of call")
    child = os.fork()
    if not child:
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        os._exit(0 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise OSError(errno.EPERM, "")
    if status:
        raise OSError(errno.ENOSYS, "")


def remote_bytes(pid: int) -> None:
    """Read a page of another process's memory by descriptor, the kind of access that needs the right to trace it."""
    with open(f"/proc/{pid}/maps") as maps:
        start = int(maps.readline().partition("-")[0] or "0", 16)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.read(16)


PERF = (ctypes.c_uint64 * 16)(1 | 128 << 32, 9)
MAP = (ctypes.c_uint32 * 16)(2, 4, 8, 1)
CALLS = {
    "keyctl": lambda: call(250, 219, 0, -3, 0),
    "add_key": lambda: call(248, 217, b"user", b"fleet-attack", b"x", 1, -2),
    "request_key": lambda: call(249, 218, b"user", os.environ.get("KEY", "").encode(), None, 0),
    "bpf": lambda: call(321, 280, 0, MAP, 64),
    "userfaultfd": lambda: call(323, 282, 0),
    "io_uring": lambda: call(425, 425, 1, ctypes.create_string_buffer(256)),
    "perf_event_open": lambda: call(298, 241, PERF, 0, -1, -1, 0),
    "open_by_handle_at": lambda: call(304, 265, os.open(".", os.O_RDONLY), ctypes.create_string_buffer(64), 0),
    "vsock": lambda: socket_of(40, socket.SOCK_STREAM),
    "alg": lambda: socket_of(38, socket.SOCK_SEQPACKET),
    "packet": lambda: socket_of(17, socket.SOCK_RAW),
    "netfilter": lambda: socket_of(16, socket.SOCK_RAW, 12),
    "unshare": lambda: LIBC.unshare(0x10000000) and call(272, 97, 0x10000000),
    "32-bit": other_machine,
    "trace 1": lambda: call(101, 117, 0x4206, 1, 0, 0),
    "memory of 1": lambda: remote_bytes(1),
    "descriptors of 1": lambda: os.readlink("/proc/1/fd/0"),
}
SET_ID = ("chmod", "fchmod", "fchmodat", "fchmodat2", "open", "openat", "openat2", "creat", "mknod", "mknodat")


def attempt(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or errno.EPERM
    except ValueError:
        return errno.EPERM
    return 0


if __name__ == "__main__":
    answers = {}
    for name in sys.argv[1:]:
        answers[name] = attempt(CALLS[name])
    if not sys.argv[1:]:
        for way in (*SET_ID, "nameless"):
            for bits in (0o4755, 0o2755, 0o6777):
                answers[f"{way}-{bits:o}"] = attempt(lambda way=way, bits=bits: new_file(bits, way))
    print(json.dumps(answers))
