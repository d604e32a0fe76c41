"""Running tests and linters, with reports that a model can act on and a program can compare."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.tests.reports import ReportUnreadable, TestReport, parse_junit, parse_pytest_output
from swe_ai_fleet.tools.tests.runners.cargo import cargo_plan
from swe_ai_fleet.tools.tests.runners.frameworks import framework_of, is_pytest, is_unittest
from swe_ai_fleet.tools.tests.runners.go import go_plan
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.javascript import npm_plan
from swe_ai_fleet.tools.tests.runners.linting import lint
from swe_ai_fleet.tools.tests.runners.make import make_plan
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, checked_keyword, checked_path
from swe_ai_fleet.tools.tests.runners.premises import leaving_nothing, probe, written
from swe_ai_fleet.tools.tests.runners.recognised import recognise
from swe_ai_fleet.tools.tests.runners.suites import suite_for
from swe_ai_fleet.tools.tests.runners.unittests import DISCOVER, checked_name, unittest_plan
from swe_ai_fleet.tools.tests.runners.wording import TAIL_CHARS, told

_PYTHON = ("python3", "-m", "pytest")
_USAGE_ERROR = 4

Paths = Annotated[
    list[str], Field(description="Test files, directories or ids (tests/test_a.py::test_b); all if empty.")
]
Keyword = Annotated[str | None, Field(description="Only tests whose name matches this -k expression.")]
FilePaths = Annotated[list[str], Field(description="Files or directories to run the tests of; all if empty.")]
Name = Annotated[str | None, Field(description="Only tests whose name contains this.")]
Pattern = Annotated[str | None, Field(description="Only tests whose name matches this regular expression.")]
Directory = Annotated[str, Field(description="Where the Makefile lies, relative to the root of the workspace.")]


class TestTool(Toolkit):
    """The repository's tests and linters."""

    __test__ = False
    name: ClassVar[str] = "tests"

    @operation(executes=True, risk=Risk.MEDIUM)
    async def run(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Keyword = None,
    ) -> ToolResult:
        """Run the repository's tests the way the repository runs them, all or some.

        Knows pytest, unittest, go, npm, cargo and make. In a repository of several projects, paths say which.
        """
        own = self.workspace.environment.test_command
        if not paths and is_pytest(own):
            return await self._pytest("tests_run", own, paths, keyword, None)
        if not paths and is_unittest(own):
            return await self._unittest("tests_run", own, paths, keyword)
        inventory = await Inventory.take(self.workspace)
        suite = await suite_for(inventory, own, paths)
        announced = suite.argv != own or suite.directory != "."
        match framework_of(suite.argv):
            case "pytest":
                return await self._pytest("tests_run", suite.argv, paths, keyword, None, announced=announced)
            case "unittest":
                return await self._unittest("tests_run", suite.argv, paths, keyword, announced=announced)
            case "":
                return await self._unknown(suite.argv, paths, keyword)
            case "make" if not keyword and all(map(inventory.is_directory, paths)):
                plan = make_plan(inventory, suite.directory, suite.argv[-1], suite.argv)
                return await self._execute("tests_run", plan, inventory, announced=announced)
            case framework:
                selection = _selection(inventory, paths, keyword)
                plan = await self._plan(inventory, framework, suite.directory, selection, suite.argv)
                return await self._execute("tests_run", plan, inventory, announced=announced)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def pytest(
        self,
        paths: Paths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Keyword = None,
        max_failures: Annotated[int | None, Field(description="Stop after so many failures.", ge=1)] = None,
    ) -> ToolResult:
        """Run pytest, all tests or some; failing tests come with their message and the end of their traceback."""
        argv = self.workspace.environment.test_command
        return await self._pytest("tests_pytest", argv if is_pytest(argv) else _PYTHON, paths, keyword, max_failures)

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
        return await self._unittest("tests_unittest", argv if is_unittest(argv) else DISCOVER, paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def go_test(
        self,
        paths: FilePaths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Pattern = None,
    ) -> ToolResult:
        """Run `go test`: all packages, or those of the paths (a file stands for its package)."""
        return await self._run("tests_go_test", "go", paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def npm_test(
        self,
        paths: FilePaths = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Pattern = None,
    ) -> ToolResult:
        """Run a package's test script (node --test, jest, vitest, mocha or another), all tests or some."""
        return await self._run("tests_npm_test", "npm", paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def cargo_test(
        self,
        paths: Annotated[
            list[str], Field(description="Crates, or files in src and tests, to run the tests of; all if empty.")
        ] = [],  # noqa: B006 - never changed; a list is what the schema shows
        keyword: Name = None,
    ) -> ToolResult:
        """Run `cargo test`, all tests or some; what does not compile is told by file, line and message."""
        return await self._run("tests_cargo_test", "cargo", paths, keyword)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def make_test(
        self,
        directory: Directory = ".",
        target: Annotated[str, Field(description="The target that runs the tests.")] = "test",
    ) -> ToolResult:
        """Run a target of the Makefile, `test` unless another is named, and read the test reports in its output."""
        inventory = await Inventory.take(self.workspace)
        plan = make_plan(inventory, inventory.real(checked_path(directory)), target)
        return await self._execute("tests_make_test", plan, inventory)

    @operation(executes=True, risk=Risk.MEDIUM)
    async def lint(
        self,
        paths: Annotated[list[str], Field(description="Files or directories to check; all if empty.")] = [],  # noqa: B006
    ) -> ToolResult:
        """Run the linters that the repository configures (ruff, ESLint, go vet, clippy); findings by file and line."""
        inventory = await Inventory.take(self.workspace)
        chosen = tuple(inventory.real(checked_path(path)) for path in paths)
        limit = self.pipeline.limits.command_timeout_seconds
        return await lint(self.workspace, inventory, chosen, timeout_seconds=limit)

    async def _run(self, name: str, framework: str, paths: Sequence[str], keyword: str | None) -> ToolResult:
        inventory = await Inventory.take(self.workspace)
        selection = _selection(inventory, paths, keyword)
        root = inventory.root_for(framework, selection.paths)
        plan = await self._plan(inventory, framework, root, selection, ())
        return await self._execute(name, plan, inventory)

    async def _plan(
        self, inventory: Inventory, framework: str, root: str, selection: Selection, base: tuple[str, ...]
    ) -> Plan:
        scratch, _ = await probe(self.workspace, "sh")
        # A path that is the project's own directory means all of it.
        selection = replace(selection, paths=tuple(path for path in selection.paths if path != root))
        match framework:
            case "go":
                return go_plan(inventory, root, selection, base or ("go", "test", "./..."))
            case "cargo":
                return cargo_plan(inventory, root, selection, scratch, base or ("cargo", "test"))
            case "npm":
                report = f"{scratch}/fleet-{secrets.token_hex(8)}.report"
                options = self.workspace.environment.variables.get("NODE_OPTIONS", "")
                return npm_plan(inventory, root, selection, report, self.workspace.mount, node_options=options)
            case _:
                raise ToolFailure("make takes no paths or keyword: call it without them, or use shell_run_command")

    async def _unknown(self, argv: tuple[str, ...], paths: Sequence[str], keyword: str | None) -> ToolResult:
        if paths or keyword:
            raise ToolFailure(
                f"these tests are run by `{' '.join(argv)}`, which takes no paths or keyword from here: "
                "call it without them, or select with shell_run_command"
            )
        result = await self.workspace.run(self._command(argv))
        report = await asyncio.to_thread(recognise, result.stdout.text())
        return told("tests_run", result, report, framework="", command=" ".join(argv))

    async def _unittest(
        self, name: str, argv: tuple[str, ...], paths: Sequence[str], keyword: str | None, *, announced: bool = False
    ) -> ToolResult:
        tree = Tree(self.workspace.root, self.workspace.mount)
        selection = Selection(paths=tuple(checked_name(tree, path) for path in paths), keyword=checked_keyword(keyword))
        scratch, _ = await probe(self.workspace, "sh")
        plan = unittest_plan(selection, f"{scratch}/fleet-{secrets.token_hex(8)}.xml", argv)
        return await self._execute(name, plan, None, announced=announced)

    async def _execute(
        self, name: str, plan: Plan, inventory: Inventory | None, *, announced: bool = False
    ) -> ToolResult:
        program = plan.argv[0]
        _, there = await probe(self.workspace, program)
        if not there:
            raise ToolFailure(plan.absent)
        command = Command(
            argv=plan.argv,
            cwd=plan.cwd,
            variables=plan.variables,
            timeout_seconds=self.pipeline.limits.command_timeout_seconds,
            output_limit=plan.output_limit,
            merge_stderr=True,
        )
        with leaving_nothing(inventory, plan.transient):
            result = await self.workspace.run(command)
        report = await self._reported(plan, result)
        return told(
            name,
            result,
            report,
            framework=plan.framework,
            command=plan.command,
            announced=announced,
        )

    async def _reported(self, plan: Plan, result: CommandResult) -> TestReport | None:
        report: TestReport | None = None
        said = result.stdout.text()
        if plan.read_report is not None:
            data = await written(self.workspace, plan.report)
            report = await asyncio.to_thread(plan.read_report, data) if data else None
        if report is None:
            return await asyncio.to_thread(plan.read_output, said)
        return await asyncio.to_thread(plan.refine, report, said) if plan.refine is not None else report

    async def _pytest(
        self,
        name: str,
        argv: tuple[str, ...],
        paths: Sequence[str],
        keyword: str | None,
        max_failures: int | None,
        *,
        announced: bool = False,
    ) -> ToolResult:
        # pytest resolves variables in these two settings itself; the sandbox's TMPDIR is private to the workspace.
        report_name = f"fleet-{secrets.token_hex(8)}.xml"
        options = [
            "-q",
            f"--junitxml=$TMPDIR/{report_name}",
            *("-o", "junit_family=xunit1"),  # the family that names each test's file, without which ids are guesses
            *("-o", "cache_dir=$TMPDIR/fleet-pytest-cache"),  # out of the repository: it would show up in the diff
        ]
        chosen: list[str] = []
        if max_failures is not None:
            chosen.append(f"--maxfail={max_failures}")
        if keyword is not None:
            chosen.append(f"-k={_plain(keyword)}")
        chosen += map(_operand, paths)
        result = await self.workspace.run(self._command((*argv, *options, *chosen)))
        if _pytest_missing(result):
            raise ToolFailure(
                "pytest is not installed in this workspace's environment; the task's environment must install it "
                "(a setup command, or a requirements file), or use another runner through shell_run_command"
            )
        report = await self._pytest_report(report_name) if result.exit_code != _USAGE_ERROR else None
        report = report or await asyncio.to_thread(parse_pytest_output, result.stdout.text())
        command = " ".join((*argv, *chosen))
        return told(name, result, report, framework="pytest", command=command, announced=announced)

    async def _pytest_report(self, name: str) -> TestReport | None:
        scratch, _ = await probe(self.workspace, "sh")
        data = await written(self.workspace, f"{scratch}/{name}")
        try:
            return await asyncio.to_thread(parse_junit, data) if data else None
        except ReportUnreadable:
            return None

    def _command(self, argv: tuple[str, ...]) -> Command:
        return Command(argv=argv, timeout_seconds=self.pipeline.limits.command_timeout_seconds, merge_stderr=True)


def _selection(inventory: Inventory, paths: Sequence[str], keyword: str | None) -> Selection:
    chosen = tuple(inventory.real(checked_path(path)) for path in paths)
    return Selection(paths=chosen, keyword=checked_keyword(keyword))


def _operand(path: str) -> str:
    """A path as pytest takes it for one: it reads options behind `--` too, and files of options behind `@`."""
    _plain(path)
    return f"./{path}" if path.startswith(("-", "@")) else path


def _plain(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ToolFailure(f"{text[:80]!r} selects nothing; leave it out to run all tests")
    return text


def _pytest_missing(result: CommandResult) -> bool:
    said = result.stdout.text() if result.stdout.total < TAIL_CHARS else ""
    return result.exit_code == 127 or (result.exit_code == 1 and said.rstrip().endswith("No module named pytest"))
