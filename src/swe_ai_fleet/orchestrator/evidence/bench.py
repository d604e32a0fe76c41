"""Where tests are run on commits: clean clones, limits, repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.task import CheckSpec
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.orchestrator.evidence.clone_files import CloneFiles
from swe_ai_fleet.orchestrator.evidence.comparison import python_files
from swe_ai_fleet.orchestrator.evidence.source_files import is_compiled, language_of
from swe_ai_fleet.orchestrator.evidence.test_runs import Subject, Suite, TestRuns, run_key
from swe_ai_fleet.ports import Clone, Workspace, WorkspaceProvider
from swe_ai_fleet.tools.tests.planning import Planned, Planner
from swe_ai_fleet.tools.tests.runners.cargo import DOCUMENTATION
from swe_ai_fleet.tools.tests.runners.frameworks import framework_of
from swe_ai_fleet.tools.tests.runners.go import go_module
from swe_ai_fleet.tools.tests.runners.plan import Selection
from swe_ai_fleet.tools.tests.runners.shell_lines import ShellLine, read_shell_line
from swe_ai_fleet.tools.tests.running import TestLimits, run_tests

TEST_SECONDS = CheckSpec(name="", command="").timeout_seconds
FLOOR_SECONDS = 30.0
"""A test whose usual time is known gets at least this much."""
FIRST_SECONDS = 60.0
"""What a test gets of which nothing is known."""
_LANGUAGES = {"pytest": "python", "unittest": "python", "npm": "javascript", "go": "go", "cargo": "rust"}
_PATIENCE = 8
"""So many times its usual time a test may take."""


@dataclass(frozen=True, slots=True)
class NoRun:
    """Why there is no test run."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Runs suites for one execution.

    Attributes:
        execution_id: Whose clones they are.
        workspaces: Opens clones.
        runs: What ran already.
        owner: Tells the clones of this piece of evidence from those of others.
    """

    execution_id: str
    workspaces: WorkspaceProvider
    runs: TestRuns
    owner: str = ""

    def clone(self, name: str, subject: Subject) -> AbstractAsyncContextManager[Clone]:
        """A clean clone of a subject."""
        # Short enough for an id, whatever the candidate is called.
        name = "-".join(filter(None, (name, self.owner)))[:128].rstrip(".-")
        return self.workspaces.open(self.execution_id, name, subject.repository, subject.environment)

    async def run(
        self,
        subject: Subject,
        suite: Suite,
        selection: Selection | None = None,
        *,
        before: TestRun | None = None,
        repetition: int = 0,
    ) -> TestRun:
        """The suite on a subject, from what ran already or in a clean clone.

        Args:
            selection: Which tests; all where it is left out.
            before: A run that tells how long tests take.
            repetition: 0 for the first run; a higher number never is the same as an earlier one.

        Raises ToolFailure where the runner is missing or cannot be given the selection, and what opening raises.
        """
        selection = selection or Selection()

        async def make() -> TestRun:
            async with self.clone(f"{subject.name}{repetition or ''}", subject) as clone:
                return await run_suite(clone, suite, selection, before)

        key = run_key(subject.repository.tenant, subject.environment, suite, selection, repetition)
        return await self.runs.of(self.execution_id, key, make)

    async def attempt(
        self,
        subject: Subject,
        suite: Suite,
        selection: Selection | None = None,
        *,
        before: TestRun | None = None,
        repetition: int = 0,
    ) -> TestRun | NoRun:
        """A run as `run` makes it, or why there is none."""
        try:
            return await self.run(subject, suite, selection, before=before, repetition=repetition)
        except (FleetError, OSError) as error:
            return NoRun(str(error))


async def run_suite(workspace: Workspace, suite: Suite, selection: Selection, before: TestRun | None = None) -> TestRun:
    """One run of a suite in a workspace. Raises ToolFailure where its runner is missing or can't be given this."""
    limits = _limits(suite, before)
    planned = await _planned(workspace, suite, selection, limits)
    return await run_tests(workspace, planned.plan, limits, inventory=planned.inventory)


async def _planned(workspace: Workspace, suite: Suite, selection: Selection, limits: TestLimits) -> Planned:
    planner = Planner(workspace=workspace, known_seconds=limits.known)
    if suite.argv:
        return await planner.plan(suite.argv, selection, suite.directory)
    return await planner.line(suite.line, selection, suite.directory)


def _limits(suite: Suite, before: TestRun | None) -> TestLimits:
    known: Mapping[str, float] = {}
    if before is not None:
        known = {
            name: _PATIENCE * result.duration_ms / 1000
            for name, result in before.results.items()
            if _PATIENCE * result.duration_ms / 1000 > FLOOR_SECONDS
        }
    usual = FLOOR_SECONDS if before is not None and before.reported else FIRST_SECONDS
    return TestLimits(whole=suite.seconds, test=usual, known=known)


def _understands(suite: Suite, path: str) -> bool:
    """Whether a suite's runner may be given a file: pytest takes no Go. Of an unknown one nobody knows."""
    read = read_shell_line(suite.line) if suite.line else None
    language = _LANGUAGES.get(framework_of(read.argv if isinstance(read, ShellLine) else suite.argv))
    return language is None or language_of(path) == language


def selected(suite: Suite, paths: Sequence[str], before: TestRun) -> Selection:
    """Some test files for a suite's runner; everything where it is given what a build makes of them instead.

    Args:
        before: A run that tells which files it is given.
    """
    ours = tuple(path for path in paths if _understands(suite, path))
    given = {test.partition("::")[0] for test in before.results}
    return Selection() if any(is_compiled(path, given) for path in ours) else Selection(paths=ours)


def files_of(tests: Sequence[str], files: CloneFiles) -> tuple[str, ...]:
    """The files of tests, to run whole: what upsets a test is often its neighbour; for Go's, the packages.

    None where ids name no files, or name tests that are not run with their file.
    """
    found: dict[str, None] = {}
    module = go_module(files.text("go.mod"))
    for test in tests:
        path, mark, _ = test.partition("::")
        if module and (path == module or path.startswith(f"{module}/")):
            found[path] = None
            continue
        there = (name for name in ([path] if mark else python_files(test)) if name and files.has(name))
        if (file := next(there, "")) == "" or file.startswith("-") or test.endswith(DOCUMENTATION):
            return ()
        found[file] = None
    return tuple(found)
