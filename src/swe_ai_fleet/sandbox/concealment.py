"""Conceals the packages, programs and node modules that are installed on the host.

A session sees the system's toolchains without these, so a repository's commands find only the packages of its
environment. The fleet's own programs that run inside a sandbox find the fleet's code there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.errors import PreconditionFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedDirectory:
    """A directory of this host and its read-only path in a sandbox. Unconfined programs use `outside`."""

    outside: str
    inside: str


@cache
def code() -> MountedDirectory:
    """The fleet's own package."""
    return MountedDirectory(outside=str(Path(__file__).parents[1]), inside="/run/fleet/swe_ai_fleet")


def packages() -> MountedDirectory:
    """A copy of the tree-sitter parsers without other installed packages; it is on no command's path.

    Raises PreconditionFailed if this user has no private directory for the copy.
    """

    def copy(draft: Path) -> None:
        for parser in _parsers():
            shutil.copytree(parser, draft / parser.name)

    directory = made_once(runtime_directory() / f"parsers-{_identity()}", copy)
    return MountedDirectory(outside=str(directory), inside="/run/fleet/packages")


@cache
def _parsers() -> tuple[Path, ...]:
    """The directories of the parsers' packages and of their metadata, whose names hold the versions."""
    spec = find_spec("tree_sitter")
    if spec is None or spec.origin is None:
        return ()
    return tuple(sorted(path for path in Path(spec.origin).parents[1].glob("tree_sitter*") if path.is_dir()))


@cache
def _identity() -> str:
    return hashlib.sha256(os.fsencode("\n".join(map(str, _parsers())))).hexdigest()[:16]


def made_once(directory: Path, fill: Callable[[Path], None]) -> Path:
    """The directory, made and filled if it is missing; another process may do so at the same time. Blocking."""
    if not directory.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        try:
            draft.chmod(0o755)
            fill(draft)
            draft.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return directory


def runtime_directory() -> Path:
    """A directory that only this user can enter, shared by the user's processes. Raises PreconditionFailed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    parent = Path(runtime) if runtime else Path(tempfile.gettempdir(), f"fleet-{os.getuid()}")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PreconditionFailed(
            f"{parent} belongs to another user or is accessible to others", hint=f"remove {parent}"
        )
    return parent


_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
_PACKAGES = ("site-packages", "dist-packages")
_LOCAL_PROGRAMS = ("/usr/local/bin", "/usr/local/sbin")
_SYSTEM_PROGRAMS = ("/usr/bin", "/usr/sbin")
_MODULES = ("/usr/lib/node_modules", "/usr/local/lib/node_modules")
_NPM = "npm"
# Scripts that belong to an interpreter itself.
_OWN = ("python", "pydoc", "pdb", "2to3", "idle", "pygettext", "py3", "pyvenv")
# Programs of packages that test, check and install. Hiding one in /usr/bin costs a session a mount.
_TOOLS = (
    *("pytest", "py.test", "pip", "flake8", "mypy", "ruff", "black", "pylint", "isort", "tox", "nox", "coverage", "uv"),
    *("nose", "poetry", "pdm", "hatch", "pipenv", "virtualenv", "pre-commit", "sphinx-build", "twine", "yapf"),
)
_FIRST_LINE_BYTES = 128


@dataclass(frozen=True, slots=True)
class StandIns:
    """Files and directories that sessions see in place of hidden ones: made once below `home`, read-only inside."""

    home: Path

    def empty(self) -> Path:
        """An empty directory."""
        return self._directory("empty", (), ())

    def hidden(self) -> Path:
        """A file that nobody can execute."""
        return self._directory("hidden", ("file",), ()) / "file"

    def npm_only(self) -> Path:
        """A directory of node modules with a mount point for npm alone."""
        return self._directory("modules", (f"{_NPM}/",), ())

    def interpreter(self, program: Path, *, linked: bool = False) -> Path:
        """Links with an interpreter's names, to a mount point for its program, or (`linked`) to the program itself."""
        names = ("python", "python3")
        if linked:
            return self._directory("names", (), [(name, str(program)) for name in (*names, program.name)])
        return self._directory("python", (program.name,), [(name, program.name) for name in names])

    def programs(self, directory: Path, hidden: Collection[str]) -> Path:
        """A directory of links to the programs of `directory`, except the hidden ones."""
        links = [
            # A link keeps its target, which is relative to the path where these links are mounted.
            (entry.name, str(entry.readlink()) if entry.is_symlink() else f"{shown_at(directory)}/{entry.name}")
            for entry in sorted(directory.iterdir())
            if entry.name not in hidden
        ]
        return self._directory("programs", (), links)

    def _directory(self, name: str, files: Sequence[str], links: Sequence[tuple[str, str]]) -> Path:
        identity = hashlib.sha256(os.fsencode(repr((files, links)))).hexdigest()[:12]

        def fill(draft: Path) -> None:
            for file in files:
                if file.endswith("/"):
                    (draft / file).mkdir()
                else:
                    (draft / file).touch(0o444)
            for link, target in links:
                (draft / link).symlink_to(target)

        return made_once(self.home / f"{name}-{identity}", fill)


def stand_ins() -> StandIns:
    """The stand-ins of this user. Raises PreconditionFailed if the user has no private directory."""
    home = runtime_directory() / "stand-ins"
    home.mkdir(mode=0o700, exist_ok=True)
    return StandIns(home)


def find_concealment(replacements: StandIns) -> tuple[Mount, ...]:
    """The mounts, in order, that hide the host's packages; cached until one of the directories concerned changes."""
    packages = _packages(tuple(map(_changed, _LIBRARIES)))
    changed = tuple(map(_changed, (*packages, *_LOCAL_PROGRAMS, *_SYSTEM_PROGRAMS, *_MODULES)))
    mounts = _concealment(replacements, packages, changed)
    if not all(os.path.exists(mount.source) for mount in mounts):  # noqa: PTH110 - hot
        # The directory for temporary files was cleaned up.
        _concealment.cache_clear()
        mounts = _concealment(replacements, packages, changed)
    return mounts


@lru_cache(maxsize=16)
def _concealment(replacements: StandIns, packages: tuple[Path, ...], _: tuple[int, ...]) -> tuple[Mount, ...]:
    filled = tuple(path for path in packages if any(path.iterdir()))
    recorded = frozenset(program for path in filled for program in _recorded(path))
    mounts = [Mount(source=str(replacements.empty()), target=str(path)) for path in filled]
    for modules in filter(_has_others, map(Path, _MODULES)):
        mounts.append(Mount(source=str(replacements.npm_only()), target=str(modules)))
        if (modules / _NPM).is_dir():
            mounts.append(Mount(source=str(modules / _NPM), target=str(modules / _NPM)))
    system = (path for name in _SYSTEM_PROGRAMS for path in _hidden(Path(name), recorded))
    programs = (path for path in system if path.name.startswith(_TOOLS) or path in recorded)
    mounts += [Mount(source=str(replacements.hidden()), target=str(path)) for path in programs]
    for directory in map(Path, _LOCAL_PROGRAMS):
        if hidden := frozenset(path.name for path in _hidden(directory, recorded)):
            mounts.append(Mount(source=str(directory), target=shown_at(directory)))
            mounts.append(Mount(source=str(replacements.programs(directory, hidden)), target=str(directory)))
    return tuple(mounts)


def interpreter_mounts(replacements: StandIns, prefix: Path, program: Path) -> tuple[Mount, ...]:
    """The mounts of a Python installation without its packages, and with the interpreter as its only program."""
    return _interpreter_mounts(replacements, prefix, program, _changed(prefix / "lib"))


@lru_cache(maxsize=16)
def _interpreter_mounts(replacements: StandIns, prefix: Path, program: Path, _: int) -> tuple[Mount, ...]:
    mounts = [Mount(source=str(prefix), target=str(prefix))]
    packages = sorted((prefix / "lib").glob("python3.*/site-packages"))
    mounts += [Mount(source=str(replacements.empty()), target=str(path)) for path in packages]
    mounts.append(Mount(source=str(replacements.interpreter(program)), target=str(prefix / "bin")))
    return (*mounts, Mount(source=str(program), target=str(program)))


def own_interpreter() -> Path:
    """The program of the Python that runs the fleet: the installed one, not a virtual environment's link to it."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


def interpreter(prefix: Path) -> Path:
    """The program of a Python installation. Raises PreconditionFailed if there is none."""
    if prefix == Path(sys.base_prefix):
        return own_interpreter()
    programs = sorted(path for path in (prefix / "bin").glob("python3.*") if path.name[8:].isdigit())
    if not programs:
        raise PreconditionFailed(f"there is no Python in {prefix}")
    return programs[0]


def shown_at(directory: Path) -> str:
    """Where a session sees the unfiltered original of a directory of programs."""
    return f"/run/fleet/programs/{directory.name}"


@lru_cache(maxsize=16)
def _packages(_: tuple[int, ...]) -> tuple[Path, ...]:
    libraries = [path for name in _LIBRARIES for path in sorted(Path(name).glob("python3*"))]
    return tuple(path for library in libraries for name in _PACKAGES if (path := library / name).is_dir())


def _changed(path: Path | str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - hot
    except OSError:
        return 0


def _hidden(directory: Path, recorded: Collection[Path]) -> list[Path]:
    """The programs of Python packages: scripts for Python, and files that a package's record names."""
    files: list[Path] = []
    with suppress(OSError), os.scandir(directory) as entries:
        files += (Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False))
    return sorted(path for path in files if path in recorded or _is_script(path))


def _is_script(path: Path) -> bool:
    if path.name.startswith(_OWN):
        return False
    try:
        with path.open("rb") as file:
            line = file.read(_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return False
    return line.startswith(b"#!") and b"python" in line


def _recorded(packages: Path) -> Iterable[Path]:
    """The programs that the packages in a directory have installed, by their RECORD files."""
    for record in packages.glob("*.dist-info/RECORD"):
        try:
            lines = record.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name = line.partition(",")[0]
            if name.startswith("../") and "/bin/" in name:
                yield Path(os.path.normpath(packages / name))


def _has_others(modules: Path) -> bool:
    try:
        return any(entry.name != _NPM for entry in modules.iterdir())
    except OSError:
        return False


# The parts of /etc that programs need, none of them secret. Each mount costs a session's start some 0.2 ms, so small
# files are copied and only directories are mounted. Accounts, hosts and name services are the fleet's own.
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
    "passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost fleet\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def shown_etc() -> tuple[tuple[str, ...], str]:
    """The directories of /etc to mount, and a directory with the other files of /etc that sessions see.

    All sessions share that directory, read-only; when one of the files changes, a new one is made.
    """
    pip = (_PIP_FILE, _PIP_DIRECTORY, *(f"{_PIP_DIRECTORY}/{name}" for name in _listed(f"/etc/{_PIP_DIRECTORY}")))
    changed = tuple(map(_stamp, ("", *_ETC_FILES, *_ETC_DIRECTORIES, *pip)))
    files = _shown_etc(stand_ins().home, changed)
    if not os.path.isdir(files[1]):  # noqa: PTH112 - hot
        # The directory for temporary files was cleaned up.
        _shown_etc.cache_clear()
        files = _shown_etc(stand_ins().home, changed)
    return files


@lru_cache(maxsize=2)
def _shown_etc(home: Path, changed: tuple[tuple[int, ...], ...]) -> tuple[tuple[str, ...], str]:
    directories, files = tuple(etc_directories()), etc_files()
    target = home / f"etc-{hashlib.sha256(repr((changed, directories, files)).encode()).hexdigest()[:16]}"

    def fill(draft: Path) -> None:
        for name in directories:
            (draft / name).mkdir(parents=True)
        for name in files:
            path = Path("/etc", name)
            (draft / name).parent.mkdir(exist_ok=True)
            # A link into /usr stays a link: inside it has the same target.
            is_shown = path.is_symlink() and path.resolve().is_relative_to("/usr")
            shutil.copyfile(path, draft / name, follow_symlinks=not is_shown)
        for name, text in _ACCOUNTS.items():
            (draft / name).write_text(text)

    return directories, str(made_once(target, fill))


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - hot
    except OSError:
        return []


def _stamp(name: str) -> tuple[int, ...]:
    """A value that changes when the content of a file in /etc changes, or the file is replaced."""
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


def _holds_credentials(path: Path) -> bool:
    files = [path] if path.is_file() else [file for file in path.glob("*") if file.is_file()]
    return any(_CREDENTIALS.search(file.read_text(errors="replace")) for file in files)
