"""Sessions in container images: the fleet's own programs inside, and the container of an image beside the fleet's.

A container image may have no Python, another C library, or none. So the fleet's shell, Python and git are copied once.
Each is started by a copy of its loader, which finds libraries among the copies and reads no file of the image.

On nodes without namespaces the image is a container of the same Pod, which shares the workspace, the home and /tmp at
the same paths. See container_helper.py for the other end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from swe_ai_fleet.domain.environment import ImageRoot
from swe_ai_fleet.domain.errors import PreconditionFailed, Unavailable
from swe_ai_fleet.domain.json_values import json_object, mapping, string
from swe_ai_fleet.sandbox.concealment import MountedDirectory, code, made_once, own_interpreter, runtime_directory

INSIDE = "/run/fleet"
_INSIDE = f"{INSIDE}/own"
RUNNER = (f"{_INSIDE}/first", "--library-path", f"{_INSIDE}/lib", f"{_INSIDE}/sh")
"""The shell. Commands can neither trace nor inspect its process, because its loader is not readable."""
PYTHON = (f"{_INSIDE}/ld", "--library-path", f"{_INSIDE}/lib", f"{_INSIDE}/bin/python3")
PROGRAMS = f"{_INSIDE}/programs"
"""The directory to append to PATH: it holds git, for images without one."""
_GIT = f"""\
#!/bin/sh
GIT_EXEC_PATH={PROGRAMS} GIT_TEMPLATE_DIR= exec {_INSIDE}/ld --library-path {_INSIDE}/lib {_INSIDE}/bin/git "$@"
"""
_LOADER = re.compile(rb"(/[\w./+-]*/ld[\w.-]*\.so[\w.]*)\0")
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)", re.M)
# The files of the root that a loader always reads, each replaced by a path of the same length that does not exist.
_OF_THE_ROOT = {b"/etc/ld.so.preload": b"/run/fleet/preload", b"/etc/ld.so.cache": b"/run/fleet/cache"}
_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "config-*", "*.a")
)
_FORMAT = "1"


def carried(shell: str) -> MountedDirectory:
    """The copies, made with the first call. Raises PreconditionFailed if Python names no dynamic loader."""
    copies = made_once(runtime_directory() / f"carried-{_identity(shell)}", lambda draft: _copy(shell, draft))
    return MountedDirectory(outside=str(copies), inside=_INSIDE)


def carry(shell: str, target: Path) -> None:
    """Fill a directory that an image's container mounts at `INSIDE`: with the copies and the fleet's code."""
    (target / "own").mkdir()
    _copy(shell, target / "own")
    shutil.copytree(code().outside, target / Path(code().inside).name, ignore=shutil.ignore_patterns("__pycache__"))


@cache
def _identity(shell: str) -> str:
    programs = [str(own_interpreter()), shell, shutil.which("git") or ""]
    marks = [f"{name} {Path(name).stat().st_mtime_ns}" for name in programs if name]
    return sha256("\n".join([_FORMAT, sys.version, *marks]).encode()).hexdigest()[:16]


def _copy(shell: str, draft: Path) -> None:
    python, library = own_interpreter(), f"python{sys.version_info.major}.{sys.version_info.minor}"
    programs, libraries = draft / "bin", draft / "lib"
    for directory in (programs, libraries, draft / "programs"):
        directory.mkdir()
    shutil.copyfile(shell, draft / "sh")
    shutil.copyfile(python, programs / "python3")
    git = shutil.which("git")
    if git:
        shutil.copyfile(git, programs / "git")
        (draft / "programs/git").write_text(_GIT)
        (draft / "programs/git").chmod(0o755)
    shutil.copytree(Path(sys.base_prefix, "lib", library), libraries / library, ignore=_LEFT_OUT)
    loader = _loader(python)
    modules = [str(path) for path in Path(sys.base_prefix, "lib", library, "lib-dynload").glob("*.so")]
    for program in (str(python), shell, *([git] if git else []), *modules):
        listed = subprocess.run([loader, "--list", program], check=False, capture_output=True, text=True)
        for name, path in _NEEDED.findall(listed.stdout):
            if not (libraries / name).exists():
                shutil.copyfile(path, libraries / name)
    data = Path(loader).read_bytes()
    for name, other in _OF_THE_ROOT.items():
        data = data.replace(name, other)
    for name, mode in (("ld", 0o755), ("first", 0o111)):
        (draft / name).write_bytes(data)
        (draft / name).chmod(mode)


def _loader(program: Path) -> str:
    with program.open("rb") as file:
        match = _LOADER.search(file.read(64 * 1024))
    if match is None:
        raise PreconditionFailed(f"{program} names no loader, so it cannot run in a container image")
    return match[1].decode()


_LONGEST = 200_000
_SECONDS = 60.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that the container's runtime and Kubernetes add to the image's own.
_NOT_OF_THE_IMAGE = re.compile(r"HOSTNAME|KUBERNETES_.*|FLEET_.*")
_KILLED = b"137"


class ImageContainer:
    """Listens at `path` for the helper in the other container. The socket is made with the first session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener: socket.socket | None = None

    async def root(self, image: str) -> ImageRoot:
        """The image as commands find it: its variables and its shell; the workspace is at its own path only.

        Raises Unavailable.
        """
        connection, about = await self.connected()
        connection.close()
        description = json_object(about.decode("utf-8", "replace"))
        variables = {
            name: string(value)
            for name, value in mapping(description.get("variables")).items()
            if _NAME.fullmatch(name) and not _NOT_OF_THE_IMAGE.fullmatch(name)
        }
        shell, digest = string(description.get("shell")), image.rpartition("@")[2]
        return ImageRoot(digest=digest, path="", user=os.geteuid(), shell=shell, variables=variables)

    async def connected(self) -> tuple[socket.socket, bytes]:
        """A connection for one process, and the helper's description of the image (JSON). Raises Unavailable."""
        if self._listener is None:
            self._path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.setblocking(False)
            self._listener.bind(str(self._path))
            self._listener.listen()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_SECONDS):
                while True:
                    connection, _ = await loop.sock_accept(self._listener)
                    connection.setblocking(False)
                    about = await loop.sock_recv(connection, _LONGEST)
                    if about and not _is_over(connection):
                        return connection, about
                    # The container ended while its connection waited to be accepted.
                    connection.close()
        except TimeoutError:
            raise Unavailable(f"the container of the image did not answer within {_SECONDS:.0f} s") from None


def _is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


class ContainerProcess:
    """A process of the other container, with the part of `subprocess.Popen` that a session uses."""

    def __init__(self, connection: socket.socket, argv: Sequence[str], descriptors: Sequence[int]) -> None:
        self._connection = connection
        connection.settimeout(_SECONDS)
        try:
            socket.send_fds(connection, [json.dumps(argv).encode()], descriptors)
            self.pid = int(connection.recv(_LONGEST) or b"0")
            if not self.pid:
                raise OSError("the container of the image is gone")
            self.descriptor = os.pidfd_open(self.pid)
            connection.send(b".")
        except BaseException:
            connection.close()
            raise

    def poll(self) -> int:
        """The exit code, as a shell would report it. Call it only once the process has ended."""
        with self._connection as connection:
            try:
                return int(connection.recv(_LONGEST) or _KILLED)
            except OSError:
                return int(_KILLED)

    def terminate(self) -> None:
        """Have the helper send it SIGTERM, upon which it ends its whole session."""
        self._connection.shutdown(socket.SHUT_WR)
