"""Test runs on commits: clean clones, limits, repetitions, and a cache of results.

A command that ran once on a tree in an environment is not run again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.command import CheckSpec
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.task import PinnedRepository, Task
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.orchestrator.evidence.relevance import python_files
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles, is_compiled, language_of
from swe_ai_fleet.orchestrator.recipes import tenant_key
from swe_ai_fleet.ports import Clone, KeyValue, Workspace, WorkspaceProvider
from swe_ai_fleet.tools.tests.compiled import DOCUMENTATION, go_module
from swe_ai_fleet.tools.tests.plan import Selection
from swe_ai_fleet.tools.tests.planning import SuitePlanner
from swe_ai_fleet.tools.tests.running import TestLimits, own_digest, run_tests
from swe_ai_fleet.tools.tests.scripts import ShellLine, framework_of, read_shell_line

TEST_RUNS_BUCKET = "agent-test-runs"
TEST_RUNS_KEPT_SECONDS = 5 * 86_400.0
TEST_RUNS_BYTES = 512 * 1024 * 1024
_MAX_RUNS = 64
_MAX_BYTES = 900_000
"""The most bytes of a stored run, compressed; NATS accepts messages up to 1 MiB."""
_STORE_SECONDS = 5.0
"""The longest that a run waits to be stored; an unavailable store would retry for minutes."""
_ALL = Selection()
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSubject:
    """A commit with its environment, on which tests run. `name` distinguishes its clones from others."""

    name: str
    repository: PinnedRepository
    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A test command.

    `strict` marks a check of the caller's: its exit code decides. `seconds` limits the whole run. Without `argv` the
    `line` runs in a shell.
    """

    name: str
    argv: tuple[str, ...] = ()
    line: str = ""
    directory: str = "."
    seconds: float = 600.0
    strict: bool = False
    required: bool = True
    expected_exit_code: int = 0


def suites_of(task: Task, environment: Environment) -> tuple[Suite, ...]:
    """The suites of a task: its own checks, or the repository's tests where it has none."""
    directory = task.repo.subdirectory or "."
    if task.constraints.checks:
        return tuple(
            Suite(
                name=check.name or check.command,
                line=check.command,
                directory=directory,
                seconds=check.timeout_seconds,
                strict=True,
                required=check.required,
                expected_exit_code=check.expected_exit_code,
            )
            for check in task.constraints.checks
        )
    if not environment.test_command:
        return ()
    return (Suite(name="tests", argv=environment.test_command, directory=directory, seconds=TEST_SECONDS),)


def run_key(tenant: str, environment: Environment, suite: Suite, selection: Selection, repetition: int = 0) -> str:
    """The cache key of a run: tenant, tree, environment, network, command, limit, selection, repetition, and the
    fleet's own code that runs tests.

    The key consists of digests only, so that it is valid in a subject.
    """
    facts = [
        *(own_digest(), environment.tree, environment.key),
        *(sorted(environment.variables.items()), environment.path, repr(environment.network)),
        *(suite.argv, suite.line, suite.directory, suite.seconds),
        *(selection.paths, selection.keyword, selection.deselect, repetition),
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return f"{tenant_key(tenant)}.{digest}"


class KnownBaselines:
    """`ports.Baselines` from the cache of test runs."""

    def __init__(self, runs: TestRuns) -> None:
        self._runs = runs

    async def known(self, task: Task, environment: Environment) -> TestRun | None:
        """The first cached run of the untouched commit that reported tests; None while there is none."""
        for suite in suites_of(task, environment):
            run = await self._runs.find(run_key(task.tenant, environment, suite, Selection()))
            if run is not None and run.reported:
                return run
        return None


@dataclass(slots=True)
class _Shared:
    task: asyncio.Task[TestRun]
    waiting: int = 0


class TestRuns:
    """A cache of test runs in this process, and in `store` for the other processes. Used within one event loop.

    Args:
        store: Shared with the other processes of the fleet; None: nothing is shared.
    """

    __test__ = False

    def __init__(self, store: KeyValue | None = None) -> None:
        self._store = store
        self._cached: OrderedDict[str, TestRun] = OrderedDict()
        self._running: dict[tuple[str, str], _Shared] = {}

    async def find(self, key: str) -> TestRun | None:
        """The run under a key, if it was made already. A store that does not answer counts as empty."""
        if key in self._cached:
            self._cached.move_to_end(key)
            return self._cached[key]
        if self._store is None:
            return None
        try:
            entry = await self._store.get(key)
            run = from_json(TestRun, zlib.decompress(entry.value)) if entry is not None else None
        except (FleetError, ValueError, zlib.error) as error:
            _log.warning("evidence.test_run_not_read", reason=str(error)[:200])
            return None
        if run is not None:
            self._keep(key, run)
        return run

    async def of(self, execution_id: str, key: str, make: Callable[[], Awaitable[TestRun]]) -> TestRun:
        """The run under a key: cached, being made for the same execution, or made now.

        It continues while anyone waits for it. Raises what `make` raises; only a run that reported tests is cached.
        """
        if (run := await self.find(key)) is not None:
            return run
        # The clone belongs to the execution and is removed at its end, so no other execution may wait for the run.
        name = (execution_id, key)
        shared = self._running.get(name)
        if shared is None:
            shared = self._running[name] = _Shared(asyncio.create_task(self._make_and_keep(key, make)))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self._running.pop(name, None)
                shared.task.cancel()
                # The clone must be gone when this returns; waiters have the result or the fault already.
                await asyncio.gather(shared.task, return_exceptions=True)

    async def _make_and_keep(self, key: str, make: Callable[[], Awaitable[TestRun]]) -> TestRun:
        run = await make()
        if run.reported:
            self._keep(key, run)
            await self._store_run(key, run)
        return run

    def _keep(self, key: str, run: TestRun) -> None:
        self._cached[key] = run
        while len(self._cached) > _MAX_RUNS:
            self._cached.popitem(last=False)

    async def _store_run(self, key: str, run: TestRun) -> None:
        if self._store is None:
            return
        data = await asyncio.to_thread(_packed, run)
        try:
            if len(data) <= _MAX_BYTES:
                async with asyncio.timeout(_STORE_SECONDS):
                    await self._store.put(key, data)
        except (FleetError, TimeoutError) as error:
            # The run is cached here; other processes make their own.
            _log.warning("evidence.test_run_not_stored", reason=str(error)[:200] or f"not within {_STORE_SECONDS:g} s")


def _packed(run: TestRun) -> bytes:
    data = zlib.compress(to_json(run))
    if len(data) > _MAX_BYTES:
        results = {
            name: replace(result, traceback="", message=result.message[:200]) for name, result in run.results.items()
        }
        data = zlib.compress(to_json(replace(run, results=results, output="")))
    return data


TEST_SECONDS = CheckSpec(name="", command="").timeout_seconds
FLOOR_SECONDS = 30.0
"""The least time limit of a test whose usual time is known."""
FIRST_SECONDS = 60.0
"""The time limit of a test whose usual time is not known."""
_LANGUAGES = {"pytest": "python", "unittest": "python", "npm": "javascript", "go": "go", "cargo": "rust"}
_HANG_FACTOR = 8
"""A test may take this multiple of its usual time."""


@dataclass(frozen=True, slots=True)
class NoRun:
    """Why there is no test run."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class SuiteBench:
    """Runs suites for one execution; `owner` distinguishes the clones of one candidate's evidence from others."""

    execution_id: str
    workspaces: WorkspaceProvider
    runs: TestRuns
    owner: str = ""

    def clone(self, name: str, subject: SuiteSubject) -> AbstractAsyncContextManager[Clone]:
        """A clean clone of a subject."""
        # Short enough for an id, however long the candidate's id is.
        name = "-".join(filter(None, (name, self.owner)))[:128].rstrip(".-")
        return self.workspaces.open(self.execution_id, name, subject.repository, subject.environment)

    async def attempt(
        self,
        subject: SuiteSubject,
        suite: Suite,
        selection: Selection = _ALL,
        *,
        before: TestRun | None = None,
        repetition: int = 0,
    ) -> TestRun | NoRun:
        """The suite on a subject, from the cache or in a clean clone; or why there is no run.

        Args:
            selection: Which tests; by default all.
            repetition: 0 for the first run; each higher number is a further run, not the cached one.
        """

        async def make() -> TestRun:
            async with self.clone(f"{subject.name}{repetition or ''}", subject) as clone:
                return await _run(clone, suite, selection, before)

        key = run_key(subject.repository.tenant, subject.environment, suite, selection, repetition)
        try:
            return await self.runs.of(self.execution_id, key, make)
        except (FleetError, OSError) as error:
            return NoRun(str(error))


async def _run(workspace: Workspace, suite: Suite, selection: Selection, before: TestRun | None) -> TestRun:
    """One run of a suite in a workspace. Raises ToolFailure where its runner is missing or does not support this."""
    durations: Mapping[str, float] = {}
    if before is not None:
        usual = {name: _HANG_FACTOR * result.duration_ms / 1000 for name, result in before.results.items()}
        durations = {name: seconds for name, seconds in usual.items() if seconds > FLOOR_SECONDS}
    test_seconds = FLOOR_SECONDS if before is not None and before.reported else FIRST_SECONDS
    planner = SuitePlanner(workspace=workspace, known_seconds=durations)
    if suite.argv:
        plan = await planner.plan(suite.argv, selection, suite.directory)
    else:
        plan = await planner.line(suite.line, selection, suite.directory)
    return await run_tests(workspace, plan, TestLimits(whole=suite.seconds, test=test_seconds, known=durations))


def _understands(suite: Suite, path: str) -> bool:
    """Whether a suite's runner accepts a file of this language (pytest no Go); an unknown runner may accept any."""
    read = read_shell_line(suite.line) if suite.line else None
    language = _LANGUAGES.get(framework_of(read.argv if isinstance(read, ShellLine) else suite.argv))
    return language is None or language_of(path) == language


def selected(suite: Suite, paths: Sequence[str], before: TestRun) -> Selection:
    """Those of some test files that a suite's runner accepts; everything where it runs their compiled form."""
    accepted = tuple(path for path in paths if _understands(suite, path))
    files = {test.partition("::")[0] for test in before.results}
    return Selection() if any(is_compiled(path, files) for path in accepted) else Selection(paths=accepted)


def files_of(tests: Sequence[str], files: CloneFiles) -> tuple[str, ...]:
    """The files of tests, to be run whole, since tests are often disturbed by their neighbours; for Go the packages.

    Empty where ids name no files, or tests that are not run with their file.
    """
    selected: dict[str, None] = {}
    module = go_module(files.text("go.mod"))
    for test in tests:
        path, mark, _ = test.partition("::")
        if module and (path == module or path.startswith(f"{module}/")):
            selected[path] = None
            continue
        existing = (name for name in ([path] if mark else python_files(test)) if name and files.has(name))
        if (file := next(existing, "")) == "" or file.startswith("-") or test.endswith(DOCUMENTATION):
            return ()
        selected[file] = None
    return tuple(selected)
