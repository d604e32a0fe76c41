"""Test runs on commits: clean clones, limits, repetitions, and results kept by content.

What ran once on a tree, in an environment, by a command, is not run again.
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
_KEPT = 64
_MAX_BYTES = 900_000
"""Of a stored run, compressed; NATS takes messages of 1 MiB."""
_STORE_SECONDS = 5.0
"""Whoever waits for a run waits no longer for it to be stored; a store that is away tries for minutes."""
_ALL = Selection()
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteSubject:
    """A commit with its environment: what tests run on. `name` tells its clones from others'."""

    name: str
    repository: PinnedRepository
    environment: Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A test command.

    `strict` marks a check that the caller named: its exit code decides. `seconds` limit the whole run. Where `argv` is
    empty, `line` runs in a shell.
    """

    name: str
    argv: tuple[str, ...] = ()
    line: str = ""
    directory: str = "."
    seconds: float = 600.0
    strict: bool = False
    required: bool = True
    expected_exit_code: int = 0


def run_key(tenant: str, environment: Environment, suite: Suite, selection: Selection, repetition: int = 0) -> str:
    """Equal where a run comes to the same: tenant, tree, environment, network, command, limit, selection, repetition,
    and the fleet's own code that runs tests.

    The key is made of digests only, so that it may stand in a subject.
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
    """`ports.Baselines` by what ran already."""

    def __init__(self, runs: TestRuns, suites: Callable[[Task, Environment], Sequence[Suite]]) -> None:
        self._runs = runs
        self._suites = suites

    async def known(self, task: Task, environment: Environment) -> TestRun | None:
        """The first run with tests that somebody made of the untouched commit; None while there is none."""
        for suite in self._suites(task, environment):
            run = await self._runs.find(run_key(task.tenant, environment, suite, Selection()))
            if run is not None and run.reported:
                return run
        return None


@dataclass(slots=True)
class _Shared:
    task: asyncio.Task[TestRun]
    waiting: int = 0


class TestRuns:
    """Runs that are known to this process, and to the others by `store`. Used within one event loop.

    Args:
        store: Shared with the other processes of the fleet; None: nothing is shared.
    """

    __test__ = False

    def __init__(self, store: KeyValue | None = None) -> None:
        self._store = store
        self._known: OrderedDict[str, TestRun] = OrderedDict()
        self._running: dict[tuple[str, str], _Shared] = {}

    async def find(self, key: str) -> TestRun | None:
        """The run under a key, if anybody has made it. A store that does not answer has none."""
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if self._store is None:
            return None
        try:
            entry = await self._store.get(key)
            kept_run = from_json(TestRun, zlib.decompress(entry.value)) if entry is not None else None
        except (FleetError, ValueError, zlib.error) as error:
            _log.warning("evidence.test_run_not_read", reason=str(error)[:200])
            return None
        if kept_run is not None:
            self._keep(key, kept_run)
        return kept_run

    async def of(self, execution_id: str, key: str, run: Callable[[], Awaitable[TestRun]]) -> TestRun:
        """The run under a key: known, being made for the same execution, or made now.

        It goes on while anybody waits for it. Raises what `run` raises; only a run that reported tests is kept.
        """
        if (known_run := await self.find(key)) is not None:
            return known_run
        # The clone belongs to the execution: when that is over, nobody else may be looking at it.
        name = (execution_id, key)
        shared = self._running.get(name)
        if shared is None:
            shared = self._running[name] = _Shared(asyncio.create_task(self._run_and_keep(key, run)))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self._running.pop(name, None)
                shared.task.cancel()
                # Its clone is gone when this returns, however it ended; the awaited result was given above.
                await asyncio.gather(shared.task, return_exceptions=True)

    async def _run_and_keep(self, key: str, run: Callable[[], Awaitable[TestRun]]) -> TestRun:
        run_made = await run()
        if run_made.reported:
            self._keep(key, run_made)
            await self._store_run(key, run_made)
        return run_made

    def _keep(self, key: str, run: TestRun) -> None:
        self._known[key] = run
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)

    async def _store_run(self, key: str, run: TestRun) -> None:
        if self._store is None:
            return
        data = await asyncio.to_thread(_packed, run)
        try:
            if len(data) <= _MAX_BYTES:
                async with asyncio.timeout(_STORE_SECONDS):
                    await self._store.put(key, data)
        except (FleetError, TimeoutError) as error:
            # It is known here; the others make their own.
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
"""A test whose usual time is known gets at least this much."""
FIRST_SECONDS = 60.0
"""What a test gets of which nothing is known."""
_LANGUAGES = {"pytest": "python", "unittest": "python", "npm": "javascript", "go": "go", "cargo": "rust"}
_HANG_FACTOR = 8
"""So many times its usual time a test may take."""


@dataclass(frozen=True, slots=True)
class NoRun:
    """Why there is no test run."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class SuiteBench:
    """Runs suites for one execution; `owner` tells the clones of this piece of evidence from those of others."""

    execution_id: str
    workspaces: WorkspaceProvider
    runs: TestRuns
    owner: str = ""

    def clone(self, name: str, subject: SuiteSubject) -> AbstractAsyncContextManager[Clone]:
        """A clean clone of a subject."""
        # Short enough for an id, whatever the candidate is called.
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
        """The suite on a subject, from what ran already or in a clean clone; or why there is no run.

        Args:
            selection: Which tests; all where it is left out.
            before: A run that tells how long tests take.
            repetition: 0 for the first run; a higher number never is the same as an earlier one.
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
    """One run of a suite in a workspace. Raises ToolFailure where its runner is missing or can't be given this."""
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
    files = {test.partition("::")[0] for test in before.results}
    return Selection() if any(is_compiled(path, files) for path in ours) else Selection(paths=ours)


def files_of(tests: Sequence[str], files: CloneFiles) -> tuple[str, ...]:
    """The files of tests, to run whole: what upsets a test is often its neighbour; for Go's, the packages.

    None where ids name no files, or name tests that are not run with their file.
    """
    selected: dict[str, None] = {}
    module = go_module(files.text("go.mod"))
    for test in tests:
        path, mark, _ = test.partition("::")
        if module and (path == module or path.startswith(f"{module}/")):
            selected[path] = None
            continue
        there = (name for name in ([path] if mark else python_files(test)) if name and files.has(name))
        if (file := next(there, "")) == "" or file.startswith("-") or test.endswith(DOCUMENTATION):
            return ()
        selected[file] = None
    return tuple(selected)
