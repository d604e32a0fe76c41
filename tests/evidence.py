"""Repositories and candidates that evidence is gathered about: real git, real sandbox, real test runners."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace import GitClone, GitWorkspaceProvider
from swe_ai_fleet.domain.assignment import CheckAssignment
from swe_ai_fleet.domain.candidate import CheckReport, CheckResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import Constraints, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.evidence import EvidenceGatherer
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.repositories import git, make_repository, write_files
from swe_ai_fleet.tools.secrets import Secrets
from tests.environments import home_at

APP = """\
seen = []


def add(a, b):
    return a + b


def sub(a, b):
    return a - b


def mul(a, b):
    return a + b
"""
TESTS = """\
import unittest

import app


class Sums(unittest.TestCase):
    def test_add(self):
        self.assertEqual(app.add(1, 2), 3)

    def test_sub(self):
        self.assertEqual(app.sub(3, 2), 1)

    def test_mul(self):
        self.assertEqual(app.mul(2, 3), 6)
"""
FILES = {"app.py": APP, "tests/test_app.py": TESTS, "tests/__init__.py": "", "ruff.toml": 'lint.select = ["F"]\n'}
DIVIDES = APP + "\n\ndef div(a, b):\n    return a // b\n"
MENDED = APP.replace("mul(a, b):\n    return a + b", "mul(a, b):\n    return a * b")
MUL = "tests.test_app.Sums.test_mul"
PYTEST_FILES = {
    "app.py": APP,
    "conftest.py": "",
    "tests/test_app.py": (
        "import app\n\n\ndef test_add():\n    assert app.add(1, 2) == 3\n\n\n"
        "def test_sub():\n    assert app.sub(3, 2) == 1\n\n\ndef test_mul():\n    assert app.mul(2, 3) == 6\n"
    ),
}


DURATION_TASK = (
    "seconds() takes minutes and hours: 2m is 120, 1h is 3600, 1h30m is 5400. Anything else raises ValueError."
)
DURATIONS = 'def seconds(text):\n    return int(text.rstrip("s"))\n'
DURATION_FILES = {
    "durations.py": DURATIONS,
    "tests/test_durations.py": 'import durations\n\n\ndef test_seconds():\n    assert durations.seconds("5s") == 5\n',
}
RIGHT = """\
import re

_UNITS = {"h": 3600, "m": 60, "s": 1}


def seconds(text):
    parts = re.findall(r"([0-9]+)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(text)
    return sum(int(number) * _UNITS[unit] for number, unit in parts)
"""
HALF = """\
def seconds(text):
    return int(text[:-1]) * {"h": 3600, "m": 60, "s": 1}[text[-1]]
"""


SPECIAL = DURATIONS.replace("    return", '    if text == "2m":\n        return 120\n    return')
BOTH = 'assert durations.seconds("1h30m") == 5400'


class CountingProvider(GitWorkspaceProvider):
    """Notes the names of the clones that were opened."""

    opened: list[str]
    baseline_opened: asyncio.Event

    @asynccontextmanager
    async def open(
        self, execution_id: str, name: str, repository: PinnedRepository, environment: Environment
    ) -> AsyncGenerator[GitClone]:
        self.opened.append(name)
        async with super().open(execution_id, name, repository, environment) as clone:
            if name.startswith("baseline"):
                self.baseline_opened.set()
            yield clone


class World:
    """A repository and what gathers evidence about patches to it."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, str],
        level: IsolationLevel | None = None,
        *,
        home: Path | None = None,
    ) -> None:
        self.root = root
        self.repo = make_repository(root / "repo", files)
        sandbox = Sandbox(SandboxPolicy(level=level) if level else SandboxPolicy())
        self.provider = CountingProvider(
            home_at(home or root / "home"), sandbox, allowed_roots=(root,), allow_local_paths=True
        )
        self.provider.opened, self.provider.baseline_opened = [], asyncio.Event()
        self.turn = asyncio.Lock()
        self.log = MemoryLog()
        self.gatherer = EvidenceGatherer(workspaces=self.provider, blobs=self.log, mask=Secrets(["entrusted-value-1"]))
        self.task = Task(
            task_id="t", kind=TaskKind.DELIBERATE, description="Divide.", repo=RepoRef(location=str(self.repo))
        )

    async def pinned(self) -> PinnedRepository:
        return await self.provider.pin("default", self.task.repo)

    async def commit(self, files: Mapping[str, str]) -> str:
        """A commit with these files on a branch of its own."""
        git(self.repo, "switch", "--quiet", "--create", "other")
        write_files(self.repo, files)
        git(self.repo, "commit", "--quiet", "--all", "--message", "Change")
        commit = git(self.repo, "rev-parse", "HEAD")
        await self.provider.pin("default", replace(self.task.repo, ref="other"))
        git(self.repo, "switch", "--quiet", "-")
        return commit

    def patch(self, files: Mapping[str, str | None]) -> bytes:
        """What turns the repository's own files into these."""
        write_files(self.repo, {name: content for name, content in files.items() if content is not None})
        for name, content in files.items():
            if content is None:
                (self.repo / name).unlink()
        git(self.repo, "add", "--all")
        options = ("--cached", "--binary", "--full-index", "--no-renames")
        done = subprocess.run(("git", "diff", *options), cwd=self.repo, check=True, capture_output=True)
        git(self.repo, "reset", "--quiet", "--hard")
        return done.stdout

    async def check(
        self,
        files: Mapping[str, str | None],
        *,
        name: str = "candidate",
        gatherer: EvidenceGatherer | None = None,
        **constraints: object,
    ) -> CheckReport:
        """The evidence about a candidate that leaves these files."""
        task = replace(self.task, constraints=Constraints(**constraints))
        # Patches are made in the work tree, and one that is changed meanwhile is not pinned.
        async with self.turn:
            repository, patch = await self.pinned(), self.patch(files)
        assignment = CheckAssignment(
            execution_id=self.task.execution_id,
            candidate_id=name,
            task=task,
            repository=repository,
            patch=await self.log.put("default", self.task.execution_id, patch, "text/x-diff"),
        )
        return await (gatherer or self.gatherer).gather(assignment)


def named(report: CheckReport, name: str) -> CheckResult:
    return next(result for result in report.results if result.name == name)


def new_tests(**cases: str) -> str:
    head = "import pytest\n\nimport durations\n"
    return head + "".join(f"\n\ndef test_{name}():\n    {body}\n" for name, body in cases.items())
