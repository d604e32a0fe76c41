"""Lock files, made with the tools that projects make them with: published packages rarely carry one."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from labs.zoo.commands import run

# Lock file -> the package that has the tool (and what it needs beside it), and the command that writes it.
TOOLS: Mapping[str, tuple[str, Sequence[str]]] = MappingProxyType(
    {
        "uv.lock": ("uv==0.9.5", ("uv", "lock")),
        "poetry.lock": ("poetry==2.2.1", ("poetry", "lock", "--no-interaction")),
        # Newer releases of its HTTP cache lack what this pdm imports.
        "pdm.lock": ("pdm==2.25.9 hishel==0.1.5", ("pdm", "lock", "--group", ":all")),
        "Pipfile.lock": ("pipenv==2025.0.4", ("pipenv", "lock", "--dev")),
        "requirements.txt": (
            "uv==0.9.5",
            ("uv", "pip", "compile", "--quiet", "--no-header", "requirements.in", "--output-file", "requirements.txt"),
        ),
        "package-lock.json": ("npm", ("npm", "install", "--package-lock-only", "--ignore-scripts")),
        "pnpm-lock.yaml": ("pnpm@9.15.9", ("pnpm", "install", "--lockfile-only", "--ignore-scripts")),
        "yarn.lock": ("yarn@1.22.22", ("yarn", "install", "--ignore-scripts", "--non-interactive")),
        "Cargo.lock": ("cargo", ("cargo", "generate-lockfile")),
    }
)
_installing = asyncio.Lock()


async def make_lock(name: str, directory: Path, tools: Path) -> Path:
    """Write a lock file for the project in a directory; where it is. Raises Unavailable where its tool fails."""
    package, command = TOOLS[name]
    async with _installing:
        program = await _program(package, command[0], tools)
    # Nothing of the machine's own virtual environment or project: the tools would take it for theirs.
    await run((program, *command[1:]), directory, VIRTUAL_ENV="", PIPENV_IGNORE_VIRTUALENVS="1", CI="1")
    return directory / name


async def _program(package: str, name: str, tools: Path) -> str:
    home = tools / package.replace(" ", "+")
    if "==" in package:
        program = home / "bin" / name
        if not program.exists():
            await run((sys.executable, "-m", "venv", str(home)), Path.cwd())
            await run((str(home / "bin/python"), "-m", "pip", "install", "--quiet", *package.split()), Path.cwd())
        return str(program)
    if "@" in package:
        program = home / "node_modules" / ".bin" / name
        if not program.exists():
            home.mkdir(parents=True, exist_ok=True)
            await run(("npm", "install", "--silent", "--prefix", str(home), package), home)
        return str(program)
    # The programs that the sandbox has: other versions may write a lock that these cannot read.
    return shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") or name
