"""What this machine has for environments: interpreters, toolchains, our own pip."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.environments.interpreters import Machine, PythonVersion

_NAME = re.compile(r"python3\.(\d{1,2})")
_OLDEST: PythonVersion = (3, 7)
_TOOLCHAINS = ("node", "npm", "go", "cargo", "gcc", "make")
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreters:
    """The machine as detection sees it, and where each interpreter is installed; `identity` changes with any of it."""

    machine: Machine
    prefixes: Mapping[PythonVersion, Path]
    identity: str


def find_interpreters(surroundings: Mapping[str, str]) -> Interpreters:
    """Look at this machine; files are looked at, no program is run. Blocking.

    Beside what is on PATH, the neighbours of the fleet's own interpreter are found (pyenv keeps one directory for each
    version), and uv's.
    """
    default = (sys.version_info.major, sys.version_info.minor)
    own = Path(sys.base_prefix, "bin", f"python{default[0]}.{default[1]}")
    programs: dict[PythonVersion, Path] = {default: own}
    for directory in _directories(surroundings):
        for program in sorted(directory.glob("python3.*"), reverse=True):
            match = _NAME.fullmatch(program.name)
            version: PythonVersion = (3, int(match[1])) if match else (0, 0)
            if version >= _OLDEST and version not in programs and (real := _interpreter(program, version)):
                programs[version] = real
    found = {name: place for name in _TOOLCHAINS if (place := shutil.which(name, path=":".join(_SYSTEM_PATH)))}
    pip_requires, pip_version = _pip()
    machine = Machine(
        default=default,
        pythons={version: str(program) for version, program in programs.items()},
        pip_requires=pip_requires,
        programs=frozenset(found),
    )
    marks = [_mark(Path(place)) for place in (*programs.values(), *found.values())]
    identity = hashlib.sha256("\n".join((pip_version, *marks)).encode()).hexdigest()[:16]
    prefixes = {version: program.parent.parent for version, program in programs.items()}
    return Interpreters(machine=machine, prefixes=prefixes, identity=identity)


def _directories(surroundings: Mapping[str, str]) -> Iterable[Path]:
    home = surroundings.get("HOME", "")
    roots = [Path(sys.base_prefix).parent]
    roots += [Path(home, place) for place in (".pyenv/versions", ".local/share/uv/python") if home]
    if uv := surroundings.get("UV_PYTHON_INSTALL_DIR"):
        roots.append(Path(uv))
    for root in roots:
        # Newer patch releases first: the first one found of each version is taken.
        yield from sorted((path for path in root.glob("*/bin") if root.name != "usr"), key=_release, reverse=True)
    path = surroundings.get("PATH", os.defpath).split(":")
    yield from map(Path, dict.fromkeys((*filter(os.path.isabs, path), "/usr/local/bin", "/usr/bin")))


def _release(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.parent.name)[:3])


def _interpreter(program: Path, version: PythonVersion) -> Path | None:
    """The program itself, where it is one with its standard library beside it, and no script that starts another."""
    try:
        real = program.resolve(strict=True)
        with real.open("rb") as file:
            is_program = file.read(4) == b"\x7fELF"
        library = real.parent.parent / "lib" / f"python{version[0]}.{version[1]}"
        return real if is_program and (library / "os.py").is_file() else None
    except OSError:
        return None


def _pip() -> tuple[str, str]:
    try:
        pip = importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        return "", ""
    return pip.metadata["Requires-Python"] or "", pip.version


def _mark(program: Path) -> str:
    try:
        status = program.stat()
    except OSError:
        return str(program)
    return f"{program} {program.resolve()} {status.st_size} {status.st_mtime_ns}"
