"""Landlock: the rules for the files of a session on a host that allows no namespaces."""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import concealment, images, jail
from swe_ai_fleet.sandbox.concealment import own_interpreter, stand_ins
from swe_ai_fleet.sandbox.policy import SandboxPolicy
from swe_ai_fleet.sandbox.seccomp import machine_known, seccomp_filter, supervised_calls

SIGNALS_SINCE = 6
"""The version of Landlock that keeps signals and abstract unix sockets inside."""

_CREATE_RULESET = 444
_VERSION_FLAG = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_DEVICES = 1 << 6 | 1 << 11
_FIRST_RIGHTS = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_MAKE_FILE, _REMOVE_FILE, _MAKE_SOCKET = 1 << 8, 1 << 5, 1 << 9
_BY_NAME = _READ_FILE | _WRITE_FILE | _TRUNCATE | _MAKE_FILE | _REMOVE_FILE
_TCP = 3
_SCOPES = 3
_CAPABILITIES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: a session that gave up root opens files that its rules allow, of any owner.
"""

_ETC_FILES = ("group", "host.conf", "hosts", "nsswitch.conf", "passwd")
_DEVICES = ("full", "null", "random", "urandom", "zero")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  (POSIX semaphores have no other place)
_HELPER_PROCESSES = 64
_FIRST_UID = 60_100
_UIDS = 1_000
# A large tree is looked through again after so many times the CPU time that it took.
_HANDOVER_REST = 20
_CHEAP_SECONDS = 0.05
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Each level takes a descriptor; files that the fleet itself writes are not as deep.
_DEEPEST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Landlock:
    """The Landlock of this kernel; `version` is the version of its ABI."""

    version: int

    @classmethod
    def find(cls) -> Landlock | None:
        """The kernel's, or None: it is too old, Landlock is off, or there is no system call filter for the machine."""
        library = ctypes.CDLL(None, use_errno=True)
        version = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
        return cls(version=version) if version > 0 and machine_known(os.uname().machine) else None

    @property
    def keeps_signals(self) -> bool:
        return self.version >= SIGNALS_SINCE

    @property
    def rights(self) -> int:
        """Every file right that this version knows; a session has only those that rules grant."""
        since = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE))
        return _FIRST_RIGHTS | sum(right for version, right in since if self.version >= version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The user of a session. For root it is a separate user for each workspace, otherwise the fleet's own."""

    uid: int
    gid: int
    dropped: bool = False

    @classmethod
    def own(cls) -> Identity:
        """This process's user."""
        return cls(uid=os.geteuid(), gid=os.getegid())

    @classmethod
    def choose(cls) -> Identity:
        """The user for a new workspace."""
        if os.geteuid():
            return cls.own()
        number = _FIRST_UID + (os.getpid() * 64 + next(_numbers)) % _UIDS
        return cls(uid=number, gid=number, dropped=True)


class Handover:
    """Gives directories to the user that commands run as, and back at the end; it does nothing unless run by root.

    Links are never followed, and files with several names keep their owner: another name may lie outside.
    """

    def __init__(self, identity: Identity, directories: Iterable[Path]) -> None:
        self._identity = identity
        self._owners: dict[Path, tuple[int, int]] = {}
        for directory in directories:
            status = directory.stat()
            self._owners[directory] = (status.st_uid, status.st_gid)
        self._given_at = 0.0
        self._cost = 0.0

    @property
    def due(self) -> bool:
        """Whether to look for files that the fleet has written since: always for small trees, rarely for large ones."""
        rested = time.monotonic() - self._given_at >= _HANDOVER_REST * self._cost
        return self._identity.dropped and (self._cost < _CHEAP_SECONDS or rested)

    def give(self) -> None:
        """Give the user all files that are not theirs yet. Raises PreconditionFailed if that is not permitted."""
        if not self._identity.dropped:
            return
        started = time.thread_time()
        try:
            for directory in self._owners:
                _give(directory, self._identity.uid, self._identity.gid)
        except PermissionError as error:
            raise PreconditionFailed(
                f"{error.filename} cannot be given to the ordinary user that commands run as",
                hint="run the fleet as an ordinary user, or install bubblewrap",
            ) from error
        self._given_at = time.monotonic()
        self._cost = time.thread_time() - started

    def take_back(self) -> None:
        """Give everything that still exists back to its former owner."""
        if self._identity.dropped:
            for directory, (uid, gid) in self._owners.items():
                if directory.exists():
                    _give(directory, uid, gid)


def remove_shared_memory(identity: Identity, since: float) -> None:
    """Remove the POSIX shared memory segments that a workspace has left on the host.

    They are those that its own user owns. Where commands run as the fleet's user, they are those that are newer than
    `since` (seconds since the epoch) and that no process has open or mapped.
    """
    used = set[int]() if identity.dropped else _open_shared_memory()
    with suppress(FileNotFoundError), os.scandir(_SHARED_MEMORY) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != identity.uid or not stat.S_ISREG(status.st_mode):
                continue
            if identity.dropped or (status.st_ctime >= since and status.st_ino not in used):
                with suppress(FileNotFoundError):
                    Path(entry.path).unlink()


def _open_shared_memory() -> set[int]:
    """The inodes of the shared memory that processes, if we may inspect them, have open or mapped."""
    inodes: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                fields = line.split(maxsplit=5)
                if len(fields) > 5 and fields[5].startswith(f"{_SHARED_MEMORY}/"):
                    inodes.add(int(fields[4]))
            for descriptor in (process / "fd").iterdir():
                if descriptor.readlink().is_relative_to(_SHARED_MEMORY):
                    inodes.add(descriptor.stat().st_ino)
    return inodes


def require_landlock() -> Landlock:
    """The Landlock of this kernel. Raises PreconditionFailed if there is none."""
    landlock = Landlock.find()
    if landlock is None:
        raise PreconditionFailed("this kernel has no Landlock", hint="boot with lsm=landlock,... (Linux 5.13 or newer)")
    return landlock


_numbers = itertools.count()


def _give(directory: Path, uid: int, gid: int) -> None:
    descriptor = os.open(directory, _DIRECTORY)
    try:
        _give_below(descriptor, uid, gid, _DEEPEST)
    finally:
        os.close(descriptor)


def _give_below(directory: int, uid: int, gid: int, levels: int) -> None:
    # By descriptors: a command may swap a directory for a link meanwhile.
    if os.stat(directory).st_uid != uid:
        os.chown(directory, uid, gid)
    for name in os.listdir(directory):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if levels:
                    below = os.open(name, _DIRECTORY, dir_fd=directory)
                    try:
                        _give_below(below, uid, gid, levels - 1)
                    finally:
                        os.close(below)
            elif status.st_uid != uid and status.st_nlink == 1:
                os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise


def landlock_helper(landlock: Landlock, *, readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    """The argv prefix under which a program of the fleet can open these paths and /usr, and nothing else.

    The program keeps the fleet's user; if that is root, its only capability is access to other owners' files.
    """
    everything = landlock.rights & ~_MAKE_DEVICES & ~_IOCTL_DEVICE
    rules = [(path, _READ) for path in ("/usr", *(f"/{name}" for name in jail.ROOT_LINKS))]
    rules += [(f"/dev/{name}", _READ_FILE | _WRITE_FILE) for name in _DEVICES]
    rules += [(str(path), _READ) for path in readable]
    rules += [(str(path), everything) for path in writable]
    capabilities = _CAPABILITIES if os.geteuid() == 0 else 0
    # The launcher closes the descriptors of a session's runner, so they have to be open.
    opened = ("/bin/sh", "-c", 'exec "$@" 3>/dev/null 4</dev/null 6>/dev/null', "sh")
    # The launcher does not look up names on PATH; env does.
    return [*opened, *_launching(landlock, Identity.own(), rules, capabilities=capabilities), "/usr/bin/env"]


def landlock_arguments(
    landlock: Landlock,
    identity: Identity,
    *,
    runner: Path,
    environment: Environment,
    writable: tuple[Path, ...],
    policy: SandboxPolicy,
    proxy: int,
) -> list[str]:
    """The argv prefix of a session, for the program `runner`.

    Besides the `writable` paths the session reads what `environment` needs. `proxy` is the port of its proxy, 0 without
    one. With an image, start it in the image's container, which has a runner of its own.
    """
    everything = landlock.rights & ~_MAKE_DEVICES & ~_IOCTL_DEVICE
    image = environment.image is not None
    readable = _readable_in_image(environment) if image else _readable(environment)
    rules = [(path, _READ) for path in readable]
    rules += [(f"/dev/{name}", _READ_FILE | _WRITE_FILE) for name in _DEVICES]
    if not image:
        # Its mode lets nobody read the file, but the kernel wants both rights to execute it.
        rules += [(str(runner), _EXECUTE | _READ_FILE)]
    rules += [(str(path), everything) for path in writable]
    # The host's /dev/shm, shared by all workspaces: a name is enough to open a segment, but names are random and the
    # directory cannot be listed.
    rules.append((_SHARED_MEMORY, landlock.rights & _BY_NAME))
    return _launching(
        landlock,
        identity,
        rules,
        capabilities=_CAPABILITIES if identity.dropped else 0,
        max_processes=policy.max_processes,
        # The arguments of supervisor.py: the numbers of calls, the roots of sockets, and the fleet's ports.
        supervision={
            "calls": supervised_calls(os.uname().machine),
            "roots": list(map(os.path.realpath, writable)),
            "proxy": proxy,
            "reserved": sorted(policy.reserved_ports),
        },
        image=image,
    )


def _launching(
    landlock: Landlock,
    identity: Identity,
    rules: list[tuple[str, int]],
    *,
    capabilities: int,
    max_processes: int = _HELPER_PROCESSES,
    supervision: Mapping[str, object] | None = None,
    image: bool = False,
) -> list[str]:
    """The argv of landlock_launcher.py with its plan; the argv of the program it becomes is to follow."""
    version = landlock.version
    plan = {
        "rules": rules,
        "files": landlock.rights,
        "file_rights": _OF_FILES,
        # Without the right to "refer", the keeper's rules would forbid commands to move files between directories.
        "kept_files": landlock.rights & (_MAKE_SOCKET | _REFER) if supervision else 0,
        "network": _TCP if version >= 4 else 0,
        "scoped": _SCOPES if landlock.keeps_signals else 0,
        "size": 24 if landlock.keeps_signals else 16 if version >= 4 else 8,
        "uid": identity.uid,
        "gid": identity.gid,
        "capabilities": capabilities,
        "processes": max_processes,
        "filter": seccomp_filter(
            os.uname().machine,
            namespaces=False,
            overrides=bool(capabilities),
            supervised=supervision is not None,
        ).hex(),
        "supervision": supervision,
        "image": image,
    }
    python, code = (str(own_interpreter()),), concealment.code().outside
    if image:
        python, code = images.PYTHON, concealment.code().inside
    return [*python, "-I", "-S", f"{code}/sandbox/landlock_launcher.py", json.dumps(plan)]


def check_mounts(mounts: Iterable[Mount]) -> None:
    """Raise PreconditionFailed for a mount whose target is not its source."""
    for mount in mounts:
        if mount.source != mount.target:
            raise PreconditionFailed(
                f"without namespaces {mount.source} cannot be shown at {mount.target}",
                hint="install bubblewrap, or build in place",
            )


def _readable(environment: Environment) -> list[str]:
    paths = ["/usr", *(f"/{name}" for name in jail.ROOT_LINKS), "/proc", "/sys/devices/system/cpu"]
    paths += [f"/etc/{name}" for name in (*_ETC_FILES, *concealment.etc_files(), *concealment.etc_directories())]
    paths += map(str, jail.interpreters(environment))
    paths += [concealment.code().outside, concealment.packages().outside]
    paths += [str(stand_ins().interpreter(own_interpreter(), linked=True))]
    paths += [mount.source for mount in environment.mounts]
    return [path for path in dict.fromkeys(paths) if Path(path).parent != Path(path)]


def _readable_in_image(environment: Environment) -> list[str]:
    """The paths that a session in an image's container reads besides the image's files, which its launcher finds."""
    paths = ["/proc", "/sys/devices/system/cpu", "/etc/hosts", images.INSIDE, concealment.packages().outside]
    return [*paths, *(mount.source for mount in environment.mounts)]
