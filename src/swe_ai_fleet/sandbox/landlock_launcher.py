"""Confines itself by Landlock and a system call filter, without any namespace, and becomes a session.

A standalone script (`python -I -S landlock_launcher.py PLAN ARGV...`): it imports nothing of the fleet except
supervisor.py, with a session's first socket. It splits into two processes. The keeper stays in a Landlock domain that
holds only this session, adopts the processes that the session's commands leave, makes their connections (see
supervisor.py), and at the end kills everything in the domain. The other process applies the rules to itself and becomes
ARGV.
"""

from __future__ import annotations

import _socket
import _thread
import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn, cast

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_RULE_PATH_BENEATH = 1
_READ = 1 | 4 | 8
_SCOPE_SIGNAL = 2
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_AMBIENT_RAISE = 2
_AMBIENT_CLEAR_ALL = 4
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
# While the supervisor handles a call, only a fatal signal interrupts it (since Linux 5.19).
_WAIT_KILLABLE = 1 << 5
_CAPABILITY_VERSION = 0x2008_0522
_LAST_CAPABILITY = 63
_NO_SETUID_FIXUP = 4
_FAILED = 125
_COMING_AND_GOING = 8
_MOST_PROCESSES = 1 << 22
_PASSED = struct.Struct("=i")


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _checked(result: int, action: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return result


def _control(option: int, *arguments: int) -> None:
    values = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _checked(_LIBC.prctl(option, *values), f"prctl {option}")


def _ruleset(files: int, network: int, scoped: int, size: int) -> int:
    attributes = _RulesetAttributes(files, network, scoped)
    result = _LIBC.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    return _checked(result, "landlock_create_ruleset")


def _allow(ruleset: int, path: str, rights: int, file_rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not Path(path).is_dir():
        rights &= file_rights
    rule = _PathBeneath(rights, descriptor)
    _checked(_LIBC.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0), f"landlock rule {path}")
    os.close(descriptor)


def _parts_of_the_image() -> list[str]:
    """The image's own files and directories (the image is the root): neither mounts nor above a mount; no links."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    parts: list[str] = []
    pending = ["/"]
    while pending:
        for entry in os.scandir(pending.pop()):
            if any(mount.startswith(f"{entry.path}/") for mount in mounts) and not entry.is_symlink():
                pending.append(entry.path)
            elif entry.path not in mounts and not entry.is_symlink():
                parts.append(entry.path)
    return parts


def _enter(ruleset: int) -> None:
    _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _shed(uid: int, gid: int, capabilities: int) -> None:
    """Become the user `uid`, if this process is another one, with these capabilities only."""
    if uid != os.getuid():
        for capability in range(_LAST_CAPABILITY + 1):
            if not capabilities >> capability & 1:
                _LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)
        # Otherwise access(2) would answer as if there were no capabilities, and git relies on its answer.
        _control(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(capabilities, capabilities, capabilities, 0, 0, 0)
    _checked(_LIBC.capset(header, data), "capset")
    _LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        if capabilities >> capability & 1:
            _control(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability)


def _limit_processes(uid: int, more: int) -> None:
    """Let the user have `more` processes than now; the kernel counts all of a user's processes on the machine."""
    count = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                count += len(list((entry / "task").iterdir()))
        except OSError:
            continue
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # In a container, processes of the same user in other containers count too, but are not listed in /proc.
    if not _sees_the_kernel() and not _is_room(count + _COMING_AND_GOING, hard):
        low, high = count, 2 * count + _COMING_AND_GOING
        while high < _MOST_PROCESSES and not _is_room(high, hard):
            low, high = high, 2 * high
        while high - low > _COMING_AND_GOING:
            middle = (low + high) // 2
            low, high = (low, middle) if _is_room(middle, hard) else (middle, high)
        count = high
    most = count + more
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _sees_the_kernel() -> bool:
    try:
        return Path("/proc/2/comm").read_text() == "kthreadd\n"
    except OSError:
        return False


def _is_room(limit: int, hard: int) -> bool:
    """Whether the user could start another process if the limit were `limit`."""
    if 0 <= hard < limit:
        return True
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
    try:
        child = os.fork()
    except BlockingIOError:
        return False
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def _filter_calls(program: bytes, *, supervised: bool) -> int | None:
    """Apply the filter to this process and its future children; the descriptor that tells a supervisor of calls.

    None: not `supervised`, or the container's own filter has a supervisor and the kernel allows only one.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    described = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    number = _SECCOMP[os.uname().machine]
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER) if supervised else ():
        listener = _LIBC.syscall(number, _SET_MODE_FILTER, flags, ctypes.byref(described))
        if listener >= 0:
            return int(listener)
        if ctypes.get_errno() not in (errno.EINVAL, errno.EBUSY):
            break
    _checked(_LIBC.syscall(number, _SET_MODE_FILTER, 0, ctypes.byref(described)), "seccomp")
    return None


def _supervise(channel: _socket.socket, supervision: dict[str, object]) -> None:
    """Answer the session's calls; when this returns the listener is closed, and all later calls are refused."""
    _, passed, _, _ = channel.recvmsg(1, _socket.CMSG_SPACE(_PASSED.size))
    channel.close()
    if not passed:
        return
    (listener,) = _PASSED.unpack(passed[0][2])
    try:
        # Only at the first call: most sessions make none, and these imports take time and memory.
        from select import select

        select((listener,), (), ())
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location("supervisor", Path(__file__).with_name("supervisor.py"))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.Supervisor(listener, **supervision).serve()
    finally:
        os.close(listener)


def _require_isolation(outsider: int) -> None:
    """Raise OSError if signals reach a process outside the domain: later, one is sent to every process."""
    try:
        os.kill(outsider, 0)
    except PermissionError:
        return
    raise OSError(0, "Landlock does not keep signals inside here")


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (thread / "children").read_text().split())
    except OSError:
        return pids
    return pids


def _kill_all(scoped: bool) -> None:
    """Kill the session's remaining processes, all of them adopted by this one, and wait until they are gone."""
    while True:
        try:
            if scoped:
                os.kill(-1, signal.SIGKILL)
            else:
                pending = _children(os.getpid())
                while pending:
                    pid = pending.pop()
                    pending += _children(pid)
                    os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            while os.waitpid(-1, 0 if scoped else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _keep(session: int, scoped: bool) -> NoReturn:
    code = 128 + signal.SIGKILL
    waiting = True
    while waiting:
        waiting = signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGCHLD
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == session:
                    code = os.waitstatus_to_exitcode(ended[1])
                    waiting = False
        except ChildProcessError:
            waiting = False
    _kill_all(scoped)
    os._exit(code if code >= 0 else 128 - code)


def main(plan: dict[str, object], argv: list[str]) -> NoReturn:
    """Split into keeper and session, by the plan that landlock.py has made."""
    numbers = {name: value for name, value in plan.items() if isinstance(value, int)}
    rules = cast("list[tuple[str, int]]", plan["rules"])
    parent = os.getppid()
    scoped = bool(numbers["scoped"])
    supervision = cast("dict[str, object] | None", plan["supervision"])
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    # Now, while this process may still open everything.
    files = _ruleset(numbers["files"], numbers["network"], numbers["scoped"], numbers["size"])
    for path, rights in rules:
        _allow(files, path, rights, numbers["file_rights"])
    for path in _parts_of_the_image() if plan["image"] else ():
        _allow(files, path, _READ, numbers["file_rights"])
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    if scoped or supervision:
        # Whatever path a command names, its supervisor can make sockets only below the roots.
        kept_files = _ruleset(numbers["kept_files"], 0, _SCOPE_SIGNAL if scoped else 0, numbers["size"])
        for path in cast("list[str]", supervision["roots"]) if supervision else ():
            _allow(kept_files, path, numbers["kept_files"], numbers["file_rights"])
        _enter(kept_files)
    if scoped:
        _require_isolation(parent)
    _shed(numbers["uid"], numbers["gid"], numbers["capabilities"])
    _limit_processes(numbers["uid"], numbers["processes"])
    _control(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(_FAILED)
    keeper = os.getpid()
    keeper_end, session_end = _socket.socketpair()
    session = os.fork()
    if session:
        for descriptor in (3, 4, 6):
            os.close(descriptor)
        session_end.close()
        if supervision:
            _thread.start_new_thread(_supervise, (keeper_end, supervision))
        _keep(session, scoped)
    keeper_end.close()
    os.setsid()
    _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(_FAILED)
    _enter(files)
    if scoped:
        _require_isolation(keeper)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python ignores them, and exec keeps ignored signals ignored: `yes | head` would end with an error.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    listener = _filter_calls(bytes.fromhex(str(plan["filter"])), supervised=bool(supervision))
    if listener is not None:
        passed = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _PASSED.pack(listener))
        session_end.sendmsg([b"\0"], [passed])
    os.execv(argv[0], argv)  # noqa: S606  (no shell is wanted)


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]), sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_FAILED)
