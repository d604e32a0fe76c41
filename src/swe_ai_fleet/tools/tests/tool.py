"""Running tests and linters, with reports that a model can act on and a program can compare."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.tool import FOR_PROGRAMS, Risk, ToolResult
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.operation import BareDirectory, Toolkit, operation
from swe_ai_fleet.tools.tests.planning import Planned, Planner, checked_ids, plain_keyword
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.linting import lint
from swe_ai_fleet.tools.tests.runners.plan import Selection, checked_keyword, checked_path
from swe_ai_fleet.tools.tests.runners.python import DISCOVER, PYTHON_PYTEST
from swe_ai_fleet.tools.tests.runners.scripts import framework_of, is_pytest, is_unittest
from swe_ai_fleet.tools.tests.runners.suites import make_plan, suite_for
from swe_ai_fleet.tools.tests.runners.wording import test_result
from swe_ai_fleet.tools.tests.running import TestLimits, run_tests

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

    `failed_before` gives the tests that fail on the untouched commit, once known; new failures then come first.
    """

    __test__ = False
    name: ClassVar[str] = "tests"
    failed_before: Callable[[], Awaitable[Collection[str] | None]] | None = None

    async def call(self, operation: str, arguments: Mapping[str, object], *, call_id: str = "") -> ToolResult:
        if not isinstance(self.workspace, BareDirectory):
            return await super().call(operation, arguments, call_id=call_id)
        # A run of tests is several commands, which find in one sandbox what the others left there.
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
        planned = await Planner(workspace=self.workspace).plan(argv, selection, directory)
        return await self._execute("tests_run", planned, announced=argv != own or directory != ".")

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
        planner = Planner(workspace=self.workspace, max_failures=max_failures)
        planned = await planner.plan(own if is_pytest(own) else PYTHON_PYTEST, selection)
        return await self._execute("tests_pytest", planned)

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
        planned = await Planner(workspace=self.workspace).plan(argv if is_unittest(argv) else DISCOVER, selection)
        return await self._execute("tests_unittest", planned)

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
        return await self._execute("tests_make_test", Planned(plan=plan, inventory=inventory))

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
        places = [inventory.real(checked_path(path).partition("::")[0]) for path in paths]
        selection = Selection(paths=tuple(paths), keyword=checked_keyword(keyword))
        root = inventory.root_for(framework, places)
        planned = await Planner(workspace=self.workspace).project(framework, inventory, root, selection)
        return await self._execute(name, planned)

    async def _execute(self, name: str, planned: Planned, *, announced: bool = False) -> ToolResult:
        whole = max(1.0, self.pipeline.limits.command_timeout_seconds - _SPARE_SECONDS)
        limits = TestLimits(whole=whole)
        run = await run_tests(self.workspace, planned.plan, limits, inventory=planned.inventory)
        before = await self.failed_before() if self.failed_before is not None else None
        return test_result(name, run, announced=announced, failed_before=before)
