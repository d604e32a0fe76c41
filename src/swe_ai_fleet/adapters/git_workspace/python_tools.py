"""pytest, ruff and pip for repositories that bring none: the fleet's own, copied where a sandbox can see them."""

from __future__ import annotations

import asyncio
import compileall
import hashlib
import importlib.metadata
import shutil
import sys
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import appearing, finished
from swe_ai_fleet.adapters.git_workspace.locks import locked

_DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli")
_PROGRAMS = ("ruff",)
_INSTALLER = "pip"


class PythonTools:
    """The copies, below `home`, one directory for each set of versions."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready: Path | None = None

    @property
    def requires_python(self) -> str:
        """The Python that our pytest asks for, as a specifier."""
        return next((item.metadata["Requires-Python"] or "" for item in _installed("pytest")), "")

    async def directory(self) -> Path:
        """What to show read-only: `python/` for PYTHONPATH, `bin/` for PATH, `pip/` (empty where we have no pip)."""
        if self._ready is not None:
            return self._ready
        found = [
            distribution for name in (*_DISTRIBUTIONS, *_PROGRAMS, _INSTALLER) for distribution in _installed(name)
        ]
        versions = "\n".join(f"{item.name} {item.version}" for item in found) + sys.version
        target = self._home / f"python-{hashlib.sha256(versions.encode()).hexdigest()[:16]}"
        self._home.mkdir(parents=True, exist_ok=True)
        async with locked(self._home / ".lock"):
            if not target.is_dir():
                async with appearing(target) as draft:
                    await finished(asyncio.to_thread(_copy, found, draft))
        self._ready = target
        return self._ready


def _installed(name: str) -> list[importlib.metadata.Distribution]:
    try:
        return [importlib.metadata.distribution(name)]
    except importlib.metadata.PackageNotFoundError:
        return []


def _copy(distributions: list[importlib.metadata.Distribution], draft: Path) -> None:
    packages, programs, installer = draft / "python", draft / "bin", draft / "pip"
    made = {packages, programs, installer}
    for directory in made:
        directory.mkdir()
    for distribution in distributions:
        name = distribution.name  # reads its metadata, each time
        for file in distribution.files or ():
            source = Path(str(file.locate()))
            if not source.is_file():
                continue
            if ".." not in file.parts and name not in _PROGRAMS:
                target = (installer if name == _INSTALLER else packages).joinpath(*file.parts)
                if target.parent not in made:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    made.add(target.parent)
                shutil.copy2(source, target)
            elif source.name in _PROGRAMS:
                shutil.copy2(source, programs / source.name)
    # What came without compiled files: a sandbox cannot write there, and every test run would compile pytest again.
    compileall.compile_dir(packages, quiet=2)
    compileall.compile_dir(installer, quiet=2)
