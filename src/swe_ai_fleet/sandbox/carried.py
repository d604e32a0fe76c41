"""The fleet's own shell, Python and git for roots that are not this host's: with their loader and libraries, read-only.

A container image may have no Python, another C library, or none. So these programs are copied once, each started by the
copy of their loader, which looks for libraries in the copies and at no file of the image.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.sandbox.concealment import Place, code, own_interpreter, runtime_directory

INSIDE = "/run/fleet"
_INSIDE = f"{INSIDE}/own"
RUNNER = (f"{_INSIDE}/first", "--library-path", f"{_INSIDE}/lib", f"{_INSIDE}/sh")
"""The shell whose process nobody inside can trace or look into: its loader cannot be read."""
PYTHON = (f"{_INSIDE}/ld", "--library-path", f"{_INSIDE}/lib", f"{_INSIDE}/bin/python3")
PROGRAMS = f"{_INSIDE}/programs"
"""The directory for the end of PATH: git, for images without one."""
_GIT = f"""\
#!/bin/sh
GIT_EXEC_PATH={PROGRAMS} GIT_TEMPLATE_DIR= exec {_INSIDE}/ld --library-path {_INSIDE}/lib {_INSIDE}/bin/git "$@"
"""
_LOADER = re.compile(rb"(/[\w./+-]*/ld[\w.-]*\.so[\w.]*)\0")
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)", re.M)
# The files of a root that a loader reads of itself, each with a name of the same length that is not there.
_OF_THE_ROOT = {b"/etc/ld.so.preload": b"/run/fleet/preload", b"/etc/ld.so.cache": b"/run/fleet/cache"}
_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "config-*", "*.a")
)
_FORMAT = "1"


def carried(shell: str) -> Place:
    """The copies, made with the first call. Raises PreconditionFailed where programs here are of no usual kind."""
    place = runtime_directory() / f"carried-{_identity(shell)}"
    if not place.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=".carried-", dir=place.parent))
        try:
            _copy(shell, draft)
            draft.chmod(0o755)
            draft.rename(place)
        except OSError:
            if not place.is_dir():
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # another process was first
    return Place(outside=str(place), inside=_INSIDE)


def carry(shell: str, target: Path) -> None:
    """Fill a directory with what a container of an image is to see at `INSIDE`: the copies, and the fleet's code."""
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
