"""The list of the zoo, `projects.toml`: which projects, and what their tests say where they are run by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LIST = Path(__file__).with_name("projects.toml")

Kind = Literal["pypi", "npm", "debian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the untouched project's tests say by hand, without a network and without the fleet.

    Attributes:
        passed: How many pass.
        failed: How many fail or cannot be collected.
        tolerance: By how many either may differ, where runners count in other ways.
        by_exit_code: Whether the command tells nothing but that it ends well.
        cause: Why they cannot be run, or why some fail: named in the report. With neither passed nor failed: why there
            is no baseline.
    """

    passed: int = 0
    failed: int = 0
    tolerance: int = 0
    by_exit_code: bool = False
    cause: str = ""

    @property
    def runs(self) -> bool:
        return bool(self.passed or self.failed or self.by_exit_code)

    def __str__(self) -> str:
        if self.by_exit_code:
            return "exit code 0"
        return f"{self.passed} pass, {self.failed} fail" if self.runs else self.cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One published package that becomes a repository.

    Attributes:
        digest: Of the archive: SHA-256 in hexadecimal, or npm's `sha512-…`.
        file: The archive's name, for a Debian source package that of its original tarball.
        drop: Files of the archive that the project's own repository does not have.
        lock: The lock file that is made with the real tool, as published packages have none; empty: none.
        add: Files that the repository has and the archive lacks, by path.
        pools: Whether changes are judged; without them only environment and baseline are.
    """

    name: str
    kind: Kind
    package: str
    version: str
    digest: str
    file: str
    build: str
    runner: str
    expected: Expected
    drop: tuple[str, ...] = ()
    lock: str = ""
    add: Mapping[str, str]
    pools: bool = True


def projects(only: Sequence[str] = (), path: Path = LIST) -> tuple[Project, ...]:
    """The list, or those of it that are named. Raises LookupError for a name that it does not have."""
    rows = tomllib.loads(path.read_text())["project"]
    found = {row["name"]: _project(row) for row in rows}
    if unknown := [name for name in only if name not in found]:
        raise LookupError(f"{path.name} has no project {', '.join(unknown)}")
    return tuple(found[name] for name in only or found)


def _project(row: Mapping[str, Any]) -> Project:
    expected = {name: row[name] for name in ("passed", "failed", "tolerance", "by_exit_code", "cause") if name in row}
    rest = {name: value for name, value in row.items() if name not in expected}
    rest |= {"drop": tuple(row.get("drop", ())), "add": row.get("add", {}), "package": row.get("package", row["name"])}
    return Project(expected=Expected(**expected), **rest)
