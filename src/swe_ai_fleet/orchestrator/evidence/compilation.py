"""Whether what a patch changes can be compiled at all, where that costs little and tests might not show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import cast

from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.orchestrator.evidence.clone_files import CloneFiles
from swe_ai_fleet.orchestrator.evidence.lint import CleanClone
from swe_ai_fleet.orchestrator.evidence.patch import Patch
from swe_ai_fleet.ports import Clone

_SECONDS = 120.0
_GO_SECONDS = 600.0
_MAX_FILES = 500
_NO_CODE = frozenset({"fixtures", "testdata", "templates", "data", "snapshots"})
_MAX_PROBLEMS = 20
# A file that did not compile before either is left out.
_PROGRAM = """
import json, subprocess, sys
def fault(code, name):
    try:
        compile(code, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return "%s:%s: %s" % (name, error.lineno or 0, error.msg)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return "%s: %s" % (name, error)
found = []
for name in sys.argv[2:]:
    try:
        with open(name, "rb") as file:
            said = fault(file.read(), name)
    except OSError:
        continue
    if said:
        before = subprocess.run(["git", "show", sys.argv[1] + ":" + name], capture_output=True)
        if before.returncode or not fault(before.stdout, name):
            found.append(said)
print(json.dumps(found))
"""


async def compile_faults(
    patch: Patch, files: CloneFiles, clean_clone: CleanClone, *, base_commit: str
) -> tuple[str, ...]:
    """What no longer compiles, by file and line: changed Python files, and Go modules that were sound before.

    `base_commit` is the commit without the patch, whose objects the clone has. Rust, and what a package's script
    builds, is left to the tests.
    """
    python = [path for path in patch.paths if path.endswith(".py") and not _NO_CODE & set(PurePosixPath(path).parts)]
    found = await _python(files.clone, base_commit, python[:_MAX_FILES]) if python else ()
    if any(file.path.endswith((".go", "go.mod")) for file in patch.files):
        found = (*found, *await _go(files, clean_clone))
    return found[:_MAX_PROBLEMS]


async def _python(clone: Clone, base_commit: str, paths: Sequence[str]) -> tuple[str, ...]:
    argv = ("python3", "-I", "-W", "ignore", "-c", _PROGRAM, base_commit, *paths)
    result = await clone.run(Command(argv=argv, timeout_seconds=_SECONDS))
    if not result.ok:
        return ()  # no such interpreter, or none of its time: the tests will say more
    try:
        said: object = json.loads(result.stdout.text())
    except ValueError:
        return ()
    return tuple(str(fault)[:500] for fault in cast("list[object]", said)) if isinstance(said, list) else ()


async def _go(files: CloneFiles, clean_clone: CleanClone) -> tuple[str, ...]:
    modules = sorted(
        str(PurePosixPath(path).parent) for path in await files.paths() if PurePosixPath(path).name == "go.mod"
    )
    broken = [(module, said) for module in modules[:10] if (said := await _built(files.clone, module))]
    if not broken:
        return ()
    async with clean_clone("build-base") as base:
        return tuple([line for module, said in broken if not await _built(base, module) for line in said])


async def _built(clone: Clone, module: str) -> tuple[str, ...]:
    """What the compiler says against a module; nothing where it is sound, or Go is not there."""
    if not (clone.root / module).is_dir():
        return ()
    command = Command(
        argv=("go", "build", "-o", "/dev/null", "./..."), cwd=module, timeout_seconds=_GO_SECONDS, merge_stderr=True
    )
    result = await clone.run(command)
    if result.ok or result.exit_code == 127 or result.timed_out:
        return ()
    lines = [line[:500] for line in result.stdout.text().splitlines() if line.strip() and not line.startswith("#")]
    return tuple(lines[:_MAX_PROBLEMS]) or (f"go build ends with exit code {result.exit_code}",)
