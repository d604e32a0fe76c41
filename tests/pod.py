"""Runs a program as a container of a Pod would: as root `python -B pod.py PLAN ARGV…`, PLAN being JSON.

User 10001 without capabilities, new privileges or a writable root, under a seccomp profile that libseccomp compiles.
With `user_namespace` (`hostUsers: false`) its ids are those of a range of the host's; `masked` is /proc as container
runtimes show it (no `procMount: Unmasked`). Bubblewrap stands for the runtime; cgroups and networks are the host's.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

_USER, _FIRST, _RANGE = 10001, 1 << 20, 1 << 16
_NEW_USER, _NEW_MOUNTS = 0x1000_0000, 0x0002_0000
_ACTIONS = {"SCMP_ACT_ALLOW": 0x7FFF_0000, "SCMP_ACT_ERRNO": 0x0005_0000}
_COMPARISONS = {"SCMP_CMP_NE": 1, "SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}
_READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_HIDDEN = ("kcore", "keys", "latency_stats", "timer_list", "sched_debug")
POD = Path(__file__)


class _Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


def compiled(profile: dict[str, Any], target: int) -> None:
    """Write a profile of the OCI's as a program for the kernel. Raises OSError for a rule that libseccomp refuses."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    filtered = ctypes.c_void_p(library.seccomp_init(_ACTIONS[profile["defaultAction"]] | profile["defaultErrnoRet"]))
    for rule in profile["syscalls"]:
        arguments = [
            _Argument(one["index"], _COMPARISONS[one["op"]], one["value"], one.get("valueTwo", 0))
            for one in rule.get("args", ())
        ]
        action = _ACTIONS[rule["action"]] | rule.get("errnoRet", 1 if "ERRNO" in rule["action"] else 0)
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            # As runtimes do it, calls that this machine or library does not know are passed over.
            if number >= 0 and library.seccomp_rule_add_array(
                filtered, ctypes.c_uint32(action), number, len(arguments), (_Argument * len(arguments))(*arguments)
            ):
                raise OSError(f"libseccomp refuses the rule for {name}")
    if library.seccomp_export_bpf(filtered, target):
        raise OSError("libseccomp exports no program")


def _enter_user_namespace() -> None:
    """As root of a namespace of its own, whose ids are a range of the host's."""
    library = ctypes.CDLL(None, use_errno=True)
    ready, mapped = os.pipe(), os.pipe()
    inside = os.getpid()
    if not os.fork():
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{inside}/{name}").write_text(f"0 {_FIRST} {_RANGE}\n")
        os.write(mapped[1], b"x")
        os._exit(0)
    if library.unshare(_NEW_USER):
        raise OSError(ctypes.get_errno(), "no user namespace is to be had")
    os.write(ready[1], b"x")
    os.read(mapped[0], 1)
    os.wait()
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def main(plan: dict[str, Any], argv: list[str]) -> NoReturn:
    program = os.fdopen(os.memfd_create("profile"), "r+b")
    compiled(json.loads(Path(plan["seccomp"]).read_text()), program.fileno())
    program.seek(0)
    os.set_inheritable(program.fileno(), True)
    own = plan["user_namespace"]
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "no mounts of its own are to be had")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    # Some lie below directories that only root may enter.
    staged = Path("/mnt")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", staged], check=True)
    places = {place: str(staged / str(number)) for number, place in enumerate((*plan["readable"], *plan["writable"]))}
    for place in plan["writable"]:
        os.chown(place, *[_USER + (_FIRST if own else 0)] * 2)
    for place, elsewhere in places.items():
        Path(elsewhere).mkdir()
        subprocess.run(["mount", "--bind", place, elsewhere], check=True)
    if own:
        _enter_user_namespace()
    arguments = ["bwrap", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--proc", "/proc"]
    for name in (*_READ_ONLY, *_HIDDEN) if plan["masked"] else ():
        if Path("/proc", name).exists():
            shown = f"/proc/{name}" if name in _READ_ONLY else "/dev/null"
            arguments += ["--ro-bind", shown, f"/proc/{name}"]
    for name in ("/usr", "/etc", "/sys", "/bin", "/sbin", "/lib", "/lib64"):
        arguments += ["--ro-bind-try", name, name]
    arguments += ["--dev", "/dev", "--tmpfs", "/dev/shm", "--chmod", "1777", "/dev/shm"]
    arguments += ["--tmpfs", "/tmp", "--chmod", "1777", "/tmp"]
    parents = {str(parent) for place in places for parent in Path(place).parents}
    for place in sorted(parents - {"/", "/tmp"}):
        arguments += ["--perms", "0755", "--dir", place]
    for place, elsewhere in places.items():
        arguments += ["--bind" if place in plan["writable"] else "--ro-bind", elsewhere, place]
    arguments += ["--remount-ro", "/", "--clearenv", "--cap-drop", "ALL"]
    for name, value in plan["variables"].items():
        arguments += ["--setenv", name, value]
    for name in ("SETUID", "SETGID", "SETPCAP"):
        arguments += ["--cap-add", f"CAP_{name}"]
    arguments += ["--seccomp", str(program.fileno()), "--"]
    arguments += ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups", "--bounding-set=-all"]
    arguments += ["--inh-caps=-all", "--no-new-privs"]
    os.execvp(arguments[0], [*arguments, *argv])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
