"""Chooses the plan for a test command: by its framework, which is started so that it reports each test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from swe_ai_fleet.ports import Workspace
from swe_ai_fleet.sandbox import jail
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.files.paths import Tree, quoted
from swe_ai_fleet.tools.tests.compiled import GO_PACKAGE, cargo_plan, go_plan
from swe_ai_fleet.tools.tests.inventory import FRAMEWORKS, MAKEFILES, PYTEST, Inventory, SuiteDirectory
from swe_ai_fleet.tools.tests.javascript import NPM_TEST, JavaScript
from swe_ai_fleet.tools.tests.plan import Selection, SuitePlan, checked_path, not_installed, probe
from swe_ai_fleet.tools.tests.python import checked_name, pytest_plan, unittest_plan
from swe_ai_fleet.tools.tests.running import inside
from swe_ai_fleet.tools.tests.scripts import assigned, framework_of, read_shell_line

_TARGET = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+-]{0,199}")
_PYTHON_RUNNERS = ("pytest", "unittest")
_TEST_COMMANDS = {"go": ("go", "test", "./..."), "cargo": ("cargo", "test"), "npm": ("npm", "test", "--silent")}


def make_plan(inventory: Inventory, directory: str, target: str, base: tuple[str, ...] = ("make", "test")) -> SuitePlan:
    """The plan for a make target. Raises ToolRefusal for a text that make could treat as an option or a variable.

    Raises ToolFailure for an invalid target, or without a Makefile.
    """
    if not _TARGET.fullmatch(target):
        if target.startswith(("-", "@")) or "=" in target:
            raise ToolRefusal(f"target {quoted(target)} looks like an option or a variable of make's; give a target")
        raise ToolFailure(f"{quoted(target)} is not a target: letters, digits and . _ / + - only")
    prefix = "" if directory == "." else f"{directory}/"
    if not any(prefix + name in inventory.files for name in MAKEFILES):
        raise ToolFailure(f"there is no Makefile in {quoted(directory)}; use tests_run or shell_run_command")
    words = (*base[:-1], target)
    return SuitePlan(
        framework="make",
        argv=words,
        typed=words,
        cwd=directory,
        absent=not_installed("make", "make"),
        stream="output",
    )


async def suite_for(inventory: Inventory, own: tuple[str, ...], paths: Sequence[str]) -> SuiteDirectory:
    """The environment's test command, or that of another project in the repository that the paths belong to.

    Args:
        own: The environment's test command; empty: it is derived from the files.

    Raises:
        ToolFailure: No tests are found, or the paths belong to several suites.
    """
    if not paths:
        return SuiteDirectory(directory=".", argv=own) if own else await inventory.only_suite()
    suites = list(dict.fromkeys([await _suite_of(inventory, own, path.partition("::")[0]) for path in paths]))
    if len(suites) > 1:
        named = "; ".join(f"{suite.directory}: {' '.join(suite.argv)}" for suite in suites)
        raise ToolFailure(f"these paths belong to several test suites, run each in a call of its own ({named})")
    return suites[0]


async def _suite_of(inventory: Inventory, own: tuple[str, ...], path: str) -> SuiteDirectory:
    default = SuiteDirectory(directory=".", argv=own)
    if own and framework_of(own) in ("", *_PYTHON_RUNNERS) and not inventory.has(path):
        return default  # the path may be a test's name for this runner, which reports unknown names itself
    if framework := FRAMEWORKS.get(PurePosixPath(path).suffix):
        root = inventory.root_for(framework, [inventory.real(checked_path(path))])
        return SuiteDirectory(directory=root, argv=own if framework_of(own) == framework else _TEST_COMMANDS[framework])
    if path.endswith(".py"):
        return await _python(inventory, own)
    real = PurePosixPath(inventory.real(checked_path(path)))
    for directory in (real, *real.parents):
        suite = await inventory.suite(str(directory))
        if suite is not None and framework_of(suite.argv) in _PYTHON_RUNNERS:
            return await _python(inventory, own)
        if suite is not None:
            same = framework_of(own) == framework_of(suite.argv)
            return SuiteDirectory(directory=suite.directory, argv=own) if same else suite
    if own:
        return default
    raise ToolFailure(f"no tests were found for {quoted(path)}; use tests_pytest or shell_run_command")


async def _python(inventory: Inventory, own: tuple[str, ...]) -> SuiteDirectory:
    """The suite for Python tests, which run from the top of the workspace, wherever they are."""
    if framework_of(own) in _PYTHON_RUNNERS:
        return SuiteDirectory(directory=".", argv=own)
    top = await inventory.suite()
    if top is not None and framework_of(top.argv) in _PYTHON_RUNNERS:
        return top
    return SuiteDirectory(directory=".", argv=PYTEST)


@dataclass(frozen=True, kw_only=True)
class SuitePlanner:
    """Makes plans for one workspace.

    `known_seconds` are time limits of single tests, by id, above the default; pytest stops after `max_failures` (None:
    never).
    """

    workspace: Workspace
    known_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    max_failures: int | None = None

    async def line(self, line: str, selection: Selection, directory: str = ".") -> SuitePlan:
        """The plan for a shell line: that of the runner it starts, else the line itself, whose exit code counts.

        Raises ToolFailure for a selection that its runner does not support.
        """
        read = read_shell_line(line)
        if isinstance(read, str):
            if selection.some or selection.deselect:
                raise ToolFailure("a shell command takes no selection of tests")
            argv = ("sh", "-c", line)
            return SuitePlan(
                framework="", argv=argv, typed=argv, absent="", cwd=directory, stream="output", unknown=read
            )
        target = str(PurePosixPath(directory, read.directory)) if read.directory else directory
        plan = await self.plan(read.argv, selection, target)
        # As in the shell line, the tests run only if the commands before them succeed.
        before = ("sh", "-c", f'{read.before} && exec "$@"', "sh") if read.before else ()
        return replace(plan, before=before)

    async def plan(self, argv: tuple[str, ...], selection: Selection, directory: str = ".") -> SuitePlan:
        """The plan for a command in a directory. Raises ToolFailure for a selection its runner does not support."""
        variables, command = assigned(argv)
        if variables and framework_of(command):
            plan = await self.plan(command, selection, directory)
            return replace(plan, variables={**variables, **plan.variables}, typed=(*argv, *plan.typed[len(command) :]))
        match framework_of(argv):
            case "pytest":
                return self._pytest(argv, selection, directory)
            case "unittest":
                return self._unittest(argv, selection, directory)
            case "":
                return _plain(argv, selection, directory)
            case "make":
                inventory = await Inventory.take(self.workspace)
                directories = all(map(inventory.is_directory, selection.paths))
                if selection.keyword or selection.deselect or not directories:
                    raise ToolFailure("make takes no paths, keyword or ids: leave them out, or use shell_run_command")
                return make_plan(inventory, directory, argv[-1], argv)
            case framework:
                inventory = await Inventory.take(self.workspace)
                return await self.project(framework, inventory, directory, selection, argv)

    async def project(
        self,
        framework: str,
        inventory: Inventory,
        directory: str,
        selection: Selection,
        base: tuple[str, ...] = (),
    ) -> SuitePlan:
        """The plan for the Go module, crate or npm package in a directory; the selection's paths must exist."""
        paths = tuple(_real_name(inventory, framework, path) for path in selection.paths)
        # The project's own directory selects all of it.
        selection = replace(selection, paths=tuple(path for path in paths if path != directory))
        if framework == "go":
            return go_plan(inventory, directory, selection, base or ("go", "test", "./..."))
        if framework == "cargo":
            scratch, _ = await probe(self.workspace, "sh")
            return cargo_plan(
                *(inventory, directory, selection, scratch, base or ("cargo", "test")),
                programs=inside(self.workspace),
                mount=self.workspace.mount,
                python=jail.python(self.workspace.environment),
            )
        programs = inside(self.workspace)
        package = JavaScript(inventory=inventory, root=directory, mount=self.workspace.mount, programs=programs)
        return package.plan(selection, base or NPM_TEST)

    def _pytest(self, argv: tuple[str, ...], selection: Selection, directory: str) -> SuitePlan:
        if directory != ".":
            below = tuple(path.removeprefix(f"{directory}/") for path in selection.paths)
            selection = replace(selection, paths=below)
        plan = pytest_plan(
            argv,
            selection,
            plugin_directory=inside(self.workspace),
            variables=self.workspace.environment.variables,
            known_seconds=self.known_seconds,
            max_failures=self.max_failures,
        )
        return replace(plan, cwd=directory)

    def _unittest(self, argv: tuple[str, ...], selection: Selection, directory: str) -> SuitePlan:
        tree = Tree(self.workspace.root, self.workspace.mount)
        selection = replace(selection, paths=tuple(checked_name(tree, path) for path in selection.paths))
        programs = inside(self.workspace)
        plan = unittest_plan(selection, argv, program_directory=programs, known_seconds=self.known_seconds)
        return replace(plan, cwd=directory)


def _real_name(inventory: Inventory, framework: str, name: str) -> str:
    """A path or a test's id with its real path; names of Go packages stay unchanged."""
    path, mark, inside_file = checked_path(name).partition("::")
    if framework == "go" and not inventory.has(path) and GO_PACKAGE.fullmatch(path):
        return name
    return f"{inventory.real(path)}{mark}{inside_file}"


def _plain(argv: tuple[str, ...], selection: Selection, directory: str) -> SuitePlan:
    if selection.some or selection.deselect:
        raise ToolFailure(
            f"these tests are run by `{' '.join(argv)}`, which takes no paths or keyword from here: "
            "call it without them, or select with shell_run_command"
        )
    return SuitePlan(
        framework="",
        argv=argv,
        typed=argv,
        absent=not_installed(argv[0], "it"),
        cwd=directory,
        stream="output",
        unknown="it starts no known test runner",
    )


def plain_keyword(keyword: str | None) -> str:
    """A keyword for pytest; empty for None. Raises ToolFailure for a blank one."""
    if keyword is not None and (not keyword.strip() or "\0" in keyword):
        raise ToolFailure(f"{keyword[:80]!r} selects nothing; leave it out to run all tests")
    return keyword or ""


def checked_ids(names: Sequence[str]) -> tuple[str, ...]:
    """The ids, unchanged. Raises ToolFailure for an invalid id."""
    for name in names:
        if not name.strip() or "\0" in name or len(name) > 1_000:
            raise ToolFailure(f"{name[:80]!r} is not a test id")
    return tuple(names)
