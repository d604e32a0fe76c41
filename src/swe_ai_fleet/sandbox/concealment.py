"""Concealment of packages, programs and node modules that the host has installed for itself.

A session sees the system's toolchains without these, so a repository's commands find only what its environment has.
Programs of ours that must work inside a sandbox find the fleet's own code there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.errors import PreconditionFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of this host and its read-only path in a sandbox. Without a sandbox only `outside` exists."""

    outside: str
    inside: str


@cache
def code() -> Place:
    """The fleet's own package."""
    return Place(outside=str(Path(__file__).parents[1]), inside="/run/fleet/swe_ai_fleet")


def packages() -> Place:
    """The parsers, copied away from other installed packages; they are on nobody's path.

    Raises PreconditionFailed where there is no directory of this user's own for the copy.
    """
    place = runtime_directory() / f"parsers-{_identity()}"
    if not place.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".parsers-", dir=place.parent))
        for parser in _parsers():
            shutil.copytree(parser, draft / parser.name)
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)  # another process was first
    return Place(outside=str(place), inside="/run/fleet/packages")


@cache
def _parsers() -> tuple[Path, ...]:
    """The directories of the parsers' packages, with their metadata, which has their versions in its name."""
    spec = find_spec("tree_sitter")
    if spec is None or spec.origin is None:
        return ()
    return tuple(sorted(path for path in Path(spec.origin).parents[1].glob("tree_sitter*") if path.is_dir()))


@cache
def _identity() -> str:
    return hashlib.sha256(os.fsencode("\n".join(map(str, _parsers())))).hexdigest()[:16]


def runtime_directory() -> Path:
    """A directory that only this user can enter, the same for all of its processes. Raises PreconditionFailed."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    parent = Path(runtime) if runtime else Path(tempfile.gettempdir(), f"fleet-{os.getuid()}")
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PreconditionFailed(
            f"{parent} belongs to another user or is accessible to others", hint=f"remove {parent}"
        )
    return parent


_LIBRARIES = ("usr/lib", "usr/lib64", "usr/local/lib")
_PACKAGES = ("site-packages", "dist-packages")
_LOCAL_PROGRAMS = ("usr/local/bin", "usr/local/sbin")
_SYSTEM_PROGRAMS = ("usr/bin", "usr/sbin")
_MODULES = ("usr/lib/node_modules", "usr/local/lib/node_modules")
_NPM = "npm"
# Scripts that belong to an interpreter itself.
_OWN = ("python", "pydoc", "pdb", "2to3", "idle", "pygettext", "py3", "pyvenv")
# Programs of packages that test, check and install. Each one in /usr/bin costs a session a mount.
_TOOLS = (
    *("pytest", "py.test", "pip", "flake8", "mypy", "ruff", "black", "pylint", "isort", "tox", "nox", "coverage", "uv"),
    *("nose", "poetry", "pdm", "hatch", "pipenv", "virtualenv", "pre-commit", "sphinx-build", "twine", "yapf"),
)
_FIRST_LINE_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class _Findings:
    """The hidden items: packages (shown empty), node modules (only npm is shown), programs by their directories."""

    packages: tuple[Path, ...]
    modules: tuple[Path, ...]
    files: tuple[Path, ...]
    filtered: tuple[tuple[Path, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class StandIns:
    """Stand-ins that sessions see instead of hidden items: prepared once below `home`, read-only inside."""

    home: Path

    def empty(self) -> Path:
        """A directory with nothing in it."""
        return self._directory("empty", (), ())

    def hidden(self) -> Path:
        """A file that nobody can execute."""
        return self._directory("hidden", ("file",), ()) / "file"

    def npm_only(self) -> Path:
        """A directory of node modules with room for npm."""
        return self._directory("modules", (f"{_NPM}/",), ())

    def interpreter(self, program: Path, *, linked: bool = False) -> Path:
        """The names of an interpreter: links to a mount point for its program, or (`linked`) to the program itself."""
        *names, own = interpreter_names(program)
        if linked:
            links = [(name, str(program)) for name in (*names, own)]
            return self._directory("names", (), links)
        return self._directory("python", (own,), [(name, own) for name in names])

    def programs(self, directory: Path, hidden: Collection[str]) -> Path:
        """Links to the programs of a directory, without some of them, in place of that directory."""
        links = [
            # A link keeps its own target, which is relative to the same place.
            (entry.name, str(entry.readlink()) if entry.is_symlink() else f"{shown_at(directory)}/{entry.name}")
            for entry in sorted(directory.iterdir())
            if entry.name not in hidden
        ]
        return self._directory("programs", (), links)

    def _directory(self, name: str, files: Sequence[str], links: Sequence[tuple[str, str]]) -> Path:
        identity = hashlib.sha256(os.fsencode(repr((files, links)))).hexdigest()[:12]
        place = self.home / f"{name}-{identity}"
        if place.is_dir():
            return place
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=self.home))
        draft.chmod(0o755)
        for file in files:
            if file.endswith("/"):
                (draft / file).mkdir()
            else:
                (draft / file).touch(0o444)
        for link, target in links:
            (draft / link).symlink_to(target)
        try:
            draft.rename(place)
        except OSError:
            shutil.rmtree(draft)  # another process was first
        return place


def stand_ins() -> StandIns:
    """The stand-ins of this user. Raises PreconditionFailed where the user has no directory of its own."""
    home = runtime_directory() / "stand-ins"
    home.mkdir(mode=0o700, exist_ok=True)
    return StandIns(home)


def find_concealment(places: StandIns, root: Path = Path("/")) -> tuple[Mount, ...]:
    """The mounts, in order, that hide the packages of the host whose files lie below `root`, which sessions see at `/`.

    They are determined again when the directories in question have changed.
    """
    packages = _packages(root, tuple(_changed(f"{root}/{name}") for name in _LIBRARIES))
    looked_at = (*packages, *(f"{root}/{name}" for name in (*_LOCAL_PROGRAMS, *_SYSTEM_PROGRAMS, *_MODULES)))
    changed = tuple(map(_changed, looked_at))
    mounts = _concealment(places, root, packages, changed)
    if not all(os.path.exists(mount.source) for mount in mounts):  # noqa: PTH110 - hot
        # The directory for temporary files was cleaned up.
        _concealment.cache_clear()
        mounts = _concealment(places, root, packages, changed)
    return mounts


@lru_cache(maxsize=16)
def _concealment(places: StandIns, root: Path, packages: tuple[Path, ...], _: tuple[int, ...]) -> tuple[Mount, ...]:
    findings = _findings(root, packages)

    def inside(path: Path) -> str:
        return f"/{path.relative_to(root)}"

    mounts = [Mount(source=str(places.empty()), target=inside(path)) for path in findings.packages]
    for modules in findings.modules:
        mounts.append(Mount(source=str(places.npm_only()), target=inside(modules)))
        if (modules / _NPM).is_dir():
            mounts.append(Mount(source=str(modules / _NPM), target=inside(modules / _NPM)))
    mounts += [Mount(source=str(places.hidden()), target=inside(file)) for file in findings.files]
    for directory, names in findings.filtered:
        mounts.append(Mount(source=str(directory), target=shown_at(directory)))
        mounts.append(Mount(source=str(places.programs(directory, names)), target=inside(directory)))
    return tuple(mounts)


def interpreter_mounts(places: StandIns, prefix: Path, program: Path) -> tuple[Mount, ...]:
    """An installation of Python without the packages in it, and of its programs the interpreter only."""
    return _interpreter_mounts(places, prefix, program, _changed(prefix / "lib"))


@lru_cache(maxsize=16)
def _interpreter_mounts(places: StandIns, prefix: Path, program: Path, _: int) -> tuple[Mount, ...]:
    mounts = [Mount(source=str(prefix), target=str(prefix))]
    packages = sorted((prefix / "lib").glob("python3.*/site-packages"))
    mounts += [Mount(source=str(places.empty()), target=str(path)) for path in packages]
    mounts.append(Mount(source=str(places.interpreter(program)), target=str(prefix / "bin")))
    return (*mounts, Mount(source=str(program), target=str(program)))


def interpreter_names(program: Path) -> tuple[str, ...]:
    """The names of an interpreter, that of its own file last."""
    return "python", "python3", program.name


def own_interpreter() -> Path:
    """The program of the Python that runs the fleet, not the one of a virtual environment around it."""
    return Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


def interpreter(prefix: Path) -> Path:
    """The program of an installation of Python. Raises PreconditionFailed where there is none."""
    if prefix == Path(sys.base_prefix):
        return own_interpreter()
    programs = sorted(path for path in (prefix / "bin").glob("python3.*") if path.name[8:].isdigit())
    if not programs:
        raise PreconditionFailed(f"there is no Python in {prefix}")
    return programs[0]


def shown_at(directory: Path) -> str:
    """Where a session sees a directory of programs that is filtered at its own place."""
    return f"/run/fleet/programs/{directory.name}"


@lru_cache(maxsize=16)
def _packages(root: Path, _: tuple[int, ...]) -> tuple[Path, ...]:
    libraries = [path for name in _LIBRARIES for path in sorted((root / name).glob("python3*"))]
    return tuple(path for library in libraries for name in _PACKAGES if (path := library / name).is_dir())


def _findings(root: Path, packages: tuple[Path, ...]) -> _Findings:
    filled = tuple(path for path in packages if any(path.iterdir()))
    recorded = frozenset(program for path in filled for program in _recorded(path))
    local = [(root / name, _hidden(root / name, recorded)) for name in _LOCAL_PROGRAMS]
    system = [path for name in _SYSTEM_PROGRAMS for path in _hidden(root / name, recorded)]
    return _Findings(
        packages=filled,
        modules=tuple(path for name in _MODULES if _has_others(path := root / name)),
        files=tuple(path for path in system if path.name.startswith(_TOOLS) or path in recorded),
        filtered=tuple((place, frozenset(path.name for path in hidden)) for place, hidden in local if hidden),
    )


def _changed(path: Path | str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - hot
    except OSError:
        return 0


def _hidden(directory: Path, recorded: Collection[Path]) -> list[Path]:
    """The programs that came with Python packages: scripts for Python, and files that a package's record names."""
    return sorted(path for path in _entries(directory) if path in recorded or _is_script(path))


def _entries(directory: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(directory) as entries:
        yield from (Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False))


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
    """The programs that packages in a directory have installed, by their own records."""
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
