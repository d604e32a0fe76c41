"""The repository's tests and linters, with reports that a model can act on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.test_run import TestOutcome, TestResult, TestRun
from swe_ai_fleet.domain.tool import FOR_PROGRAMS, Outcome, Risk, ToolResult
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.operation import BareDirectory, Toolkit, operation
from swe_ai_fleet.tools.tests.inventory import Inventory
from swe_ai_fleet.tools.tests.linters import configured_linters as configured_linters
from swe_ai_fleet.tools.tests.linting import ChangedLines as ChangedLines
from swe_ai_fleet.tools.tests.linting import LintFinding as LintFinding
from swe_ai_fleet.tools.tests.linting import changed_runs as changed_runs
from swe_ai_fleet.tools.tests.linting import lint
from swe_ai_fleet.tools.tests.linting import parse_annotations as parse_annotations
from swe_ai_fleet.tools.tests.linting import parse_eslint as parse_eslint
from swe_ai_fleet.tools.tests.linting import parse_format as parse_format
from swe_ai_fleet.tools.tests.linting import parse_lines as parse_lines
from swe_ai_fleet.tools.tests.plan import Selection, SuitePlan, checked_keyword, checked_path
from swe_ai_fleet.tools.tests.planning import SuitePlanner, checked_ids, make_plan, plain_keyword, suite_for
from swe_ai_fleet.tools.tests.python import DISCOVER, PYTHON_PYTEST
from swe_ai_fleet.tools.tests.running import TestLimits, run_tests
from swe_ai_fleet.tools.tests.scripts import framework_of, is_pytest, is_unittest

MAX_TESTS_SHOWN = 20
"""Failing tests shown with their traceback; more are named only."""
MAX_TESTS_NAMED = 200
TAIL_CHARS = 4_000
_PYTEST_USAGE_ERROR = 4
_PYTEST_NOTHING_COLLECTED = 5
_EXPECTED = "expected to fail"
"""The beginning of a skipped test's message where it ran and failed as expected (`inside/fleet_pytest.py`)."""
_NOTHING_RUN = "check paths and keyword, or leave them out to run all tests"

Paths = Annotated[list[str], Field(description="Files, directories or ids (tests/test_a.py::test_b); all if empty.")]
Keyword = Annotated[str | None, Field(description="A -k expression for names.")]
Deselect = Annotated[
    list[str],
    Field(description="Ids of tests to leave out, such as one that hangs.", json_schema_extra={FOR_PROGRAMS: True}),
]
FilePaths = Annotated[list[str], Field(description="Files, directories or ids (file::test) to run; all if empty.")]
Name = Annotated[str | None, Field(description="Only tests whose name contains this.")]
Pattern = Annotated[str | None, Field(description="Only tests whose name matches this regular expression.")]
Directory = Annotated[str, Field(description="Where the Makefile lies, relative to the root of the workspace.")]
_SPARE_SECONDS = 15.0


class TestTool(Toolkit):
    """The repository's tests and linters.

    `failed_before` returns the tests that fail on the untouched commit, None if unknown; new failures are shown first.
    """

    __test__ = False
    name: ClassVar[str] = "tests"
    failed_before: Callable[[], Awaitable[Collection[str] | None]] | None = None

    async def call(self, operation: str, arguments: Mapping[str, object], *, call_id: str = "") -> ToolResult:
        if not isinstance(self.workspace, BareDirectory):
            return await super().call(operation, arguments, call_id=call_id)
        # A test run is several commands, which must share one sandbox: they read each other's files.
        async with open_workspace(self.workspace.root) as opened:
            kit = type(self)(opened, self.pipeline)
            kit.failed_before = self.failed_before
            return await kit.call(operation, arguments, call_id=call_id)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def run(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Keyword = None,
        deselect: Deselect = [],  # noqa: B006
    ) -> ToolResult:
        """Run the repository's tests the way it runs them, all or some. Of several projects, paths say which."""
        own = self.workspace.environment.test_command
        argv, directory = own, "."
        if paths or framework_of(own) not in ("pytest", "unittest"):
            suite = await suite_for(await Inventory.take(self.workspace), own, paths)
            argv, directory = suite.argv, suite.directory
        framework = framework_of(argv)
        word = plain_keyword(keyword) if framework == "pytest" else checked_keyword(keyword)
        selection = Selection(paths=tuple(paths), keyword=word, deselect=checked_ids(deselect))
        plan = await SuitePlanner(workspace=self.workspace).plan(argv, selection, directory)
        return await self._execute("tests_run", plan, announced=argv != own or directory != ".")

    @operation(executes=True, risk=Risk.MEDIUM)
    async def pytest(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Keyword = None,
        deselect: Deselect = [],  # noqa: B006
        max_failures: Annotated[int | None, Field(description="Stop after so many failures.", ge=1)] = None,
    ) -> ToolResult:
        """Run pytest, all tests or some; failing tests come with their message and the end of their traceback."""
        own = self.workspace.environment.test_command
        selection = Selection(paths=tuple(paths), keyword=plain_keyword(keyword), deselect=checked_ids(deselect))
        planner = SuitePlanner(workspace=self.workspace, max_failures=max_failures)
        plan = await planner.plan(own if is_pytest(own) else PYTHON_PYTEST, selection)
        return await self._execute("tests_pytest", plan)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def unittest(
        self,
        paths: Annotated[
            list[str],
            Field(description="Files, directories, file.py::Class::test or dotted names; all that is found if empty."),
        ] = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Name = None,
    ) -> ToolResult:
        """Run Python's unittest, all tests or some."""
        argv = self.workspace.environment.test_command
        if not is_unittest(argv) and not paths:
            suite = await (await Inventory.take(self.workspace)).suite()
            argv = suite.argv if suite is not None else ()
        selection = Selection(paths=tuple(paths), keyword=checked_keyword(keyword))
        plan = await SuitePlanner(workspace=self.workspace).plan(argv if is_unittest(argv) else DISCOVER, selection)
        return await self._execute("tests_unittest", plan)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def go_test(
        self,
        paths: FilePaths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Pattern = None,
    ) -> ToolResult:
        """Run `go test`: all packages, or those of the paths (a file stands for its package)."""
        return await self._project("tests_go_test", "go", paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def npm_test(
        self,
        paths: FilePaths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Pattern = None,
    ) -> ToolResult:
        """Run a package's test script (node --test, jest, vitest, mocha or another), all tests or some."""
        return await self._project("tests_npm_test", "npm", paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def cargo_test(
        self,
        paths: Annotated[
            list[str], Field(description="Crates, files in src and tests, or ids (file::test) to run; all if empty.")
        ] = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Name = None,
    ) -> ToolResult:
        """Run `cargo test`, all tests or some; what does not compile is told by file, line and message."""
        return await self._project("tests_cargo_test", "cargo", paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def make_test(
        self,
        directory: Directory = ".",
        target: Annotated[str, Field(description="The target that runs the tests.")] = "test",
    ) -> ToolResult:
        """Run a target of the Makefile, `test` unless another is named, and read the test reports in its output."""
        inventory = await Inventory.take(self.workspace)
        plan = make_plan(inventory, inventory.real(checked_path(directory)), target)
        return await self._execute("tests_make_test", plan)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def lint(
        self,
        paths: Annotated[
            list[str], Field(description="Files or directories to check whole; the lines you have changed if empty.")
        ] = [],  # noqa: B006
    ) -> ToolResult:
        """Run the linters that the repository configures on what you have changed; findings by file and line."""
        tree = Tree(self.workspace.root, self.workspace.mount)
        chosen = tuple(tree.find(checked_path(path)) for path in paths)
        base = str(getattr(self.workspace, "base_commit", "HEAD"))
        return await lint(self.workspace, chosen, base, seconds=self.pipeline.limits.command_timeout_seconds)

    async def _project(self, name: str, framework: str, paths: Sequence[str], keyword: str | None) -> ToolResult:
        inventory = await Inventory.take(self.workspace)
        files = [inventory.real(checked_path(path).partition("::")[0]) for path in paths]
        selection = Selection(paths=tuple(paths), keyword=checked_keyword(keyword))
        root = inventory.root_for(framework, files)
        plan = await SuitePlanner(workspace=self.workspace).project(framework, inventory, root, selection)
        return await self._execute(name, plan)

    async def _execute(self, name: str, plan: SuitePlan, *, announced: bool = False) -> ToolResult:
        whole = max(1.0, self.pipeline.limits.command_timeout_seconds - _SPARE_SECONDS)
        limits = TestLimits(whole=whole)
        run = await run_tests(self.workspace, plan, limits)
        before = await self.failed_before() if self.failed_before is not None else None
        return run_result(name, run, announced=announced, failed_before=before)


def run_result(
    name: str, run: TestRun, *, announced: bool = False, failed_before: Collection[str] | None = None
) -> ToolResult:
    """The result of the operation `name`.

    Args:
        run: The test run.
        announced: Whether the text begins with the command: it does where the tool has chosen the command.
        failed_before: Tests that fail on the untouched commit; they are only counted, at the end.

    A run without any test is not a success: it proves nothing.
    """
    earlier_failures = failed_before or ()
    old = [test for test in run.failing if test in earlier_failures]
    new = [test for test in run.failing if test not in earlier_failures]
    # A command that reports no tests has succeeded if its exit code is 0.
    passed = run.green or (not run.framework and not run.reported and not run.stopped and run.exit_code == 0)
    output = run.output.strip()
    parts = [f"Ran `{run.command}`."] if announced else []
    parts += [f"Note: {note}." for note in run.notes]
    if run.reported:
        parts.append(_counts(run))
        parts.extend(_described(test, run.results[test]) for test in new[:MAX_TESTS_SHOWN])
        if new[MAX_TESTS_SHOWN:]:
            parts.append("Also failing:\n" + "\n".join(new[MAX_TESTS_SHOWN:MAX_TESTS_NAMED]))
        parts.extend(_compared(run, earlier_failures, old))
    if run.stopped:
        parts.append(f"Not all tests were run: {run.stopped}.")
    if not run.reported or run.stopped or (not passed and not run.failing):
        parts.append(output if not run.reported and run.framework != "pytest" else _tail(output))
    return ToolResult(
        success=passed,
        operation=name,
        content="\n\n".join(part for part in parts if part),
        error="" if passed else _error(run, new, old),
        exit_code=run.exit_code,
        metadata={
            "framework": run.framework,
            "command": run.command,
            **({"tests": _as_json(run)} if run.reported else {}),
        },
        outcome=Outcome.SUCCESS if passed else Outcome.TIMEOUT if _timed_out(run) else Outcome.ERROR,
        truncated="left out ...]" in run.output,
    )


def _described(name: str, result: TestResult) -> str:
    """A failing test with its message and the end of its traceback, unless that contains the message."""
    first = result.message.splitlines()[:1]
    in_traceback = first and first[0] in result.traceback
    body_text = result.traceback if in_traceback else "\n".join(filter(None, (result.message, result.traceback)))
    return f"FAILED {name}\n" + "\n".join(f"    {line}" for line in body_text.splitlines())


def _compared(run: TestRun, earlier_failures: Collection[str], old: list[str]) -> list[str]:
    fixed = [test for test in run.passing if test in earlier_failures]
    listed = "\n".join(fixed[:MAX_TESTS_SHOWN])
    parts = [f"{_tests(fixed)} failed on the untouched commit and pass now:\n{listed}"] if fixed else []
    return [*parts, *([f"{_tests(old)} failed on the untouched commit already."] if old else [])]


def _tests(names: list[str]) -> str:
    return f"{len(names)} test{'' if len(names) == 1 else 's'}"


def _timed_out(run: TestRun) -> bool:
    return bool(run.stopped) and run.exit_code is None


def _error(run: TestRun, new: list[str], old: list[str]) -> str:
    if _timed_out(run):
        return f"the tests were stopped: {run.stopped}"
    if run.framework == "pytest" and run.exit_code == _PYTEST_USAGE_ERROR and not run.reported:
        return "pytest could not start with these arguments; it says why below"
    if run.framework == "pytest" and run.exit_code == _PYTEST_NOTHING_COLLECTED and not run.ran:
        return f"no tests were collected: {_NOTHING_RUN}"
    if run.reported and not run.ran:
        return f"no test was run: {_NOTHING_RUN}"
    if new:
        return f"{len(new)} of {run.ran + run.summary.skipped} tests did not pass"
    if old:
        return f"the {_tests(old)} that fail failed on the untouched commit already"
    if run.failing or run.unnamed.failed or run.unnamed.errors:
        return f"{run.summary.failed + run.summary.errors} of {run.ran} tests did not pass"
    if not run.reported:
        why = f" ({run.stopped})" if run.stopped else f": exit code {run.exit_code}"
        return f"no test was run{why}; {_NOTHING_RUN}" if run.exit_code in (0, 5) else f"the test run failed{why}"
    return f"the test run failed: {run.stopped or f'exit code {run.exit_code}'}"


def _counts(run: TestRun) -> str:
    summary = run.summary
    expected = sum(run.results[test].message.startswith(_EXPECTED) for test in run.of(TestOutcome.SKIPPED))
    counts = [
        f"{number} {word}"
        for number, word in (
            (summary.failed, "failed"),
            (summary.errors, "error" if summary.errors == 1 else "errors"),
            (summary.passed, "passed"),
            (summary.skipped - expected, "skipped"),
            (expected, "failed as expected"),
        )
        if number
    ]
    return f"{', '.join(counts) or 'no tests ran'} in {summary.duration_ms / 1000:.2f} s"


def _tail(output: str) -> str:
    if len(output) <= TAIL_CHARS:
        return output
    cut = output.find("\n", len(output) - TAIL_CHARS)
    return "[...]\n" + output[cut + 1 if cut >= 0 else len(output) - TAIL_CHARS :]


def _as_json(run: TestRun) -> dict[str, object]:
    summary = run.summary
    return {
        "passed": summary.passed,
        "failed": summary.failed,
        "errors": summary.errors,
        "skipped": summary.skipped,
        "duration_ms": summary.duration_ms,
        "failing": [{"id": test, "message": run.results[test].message} for test in run.failing[:MAX_TESTS_NAMED]],
    }
