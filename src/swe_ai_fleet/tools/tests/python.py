"""Plans for Python runners: pytest with our plug-in, unittest and Django's tests with our program.

Both report each test as it ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import Tree
from swe_ai_fleet.tools.tests.plan import Fallback, Selection, SuitePlan, checked_path, not_installed
from swe_ai_fleet.tools.tests.scripts import is_django

PYTHON_PYTEST = ("python3", "-m", "pytest")
_KNOWN_LIMITS = 300
# A plug-in that is too old for the environment's pytest (often a linter's) makes pytest fail at its start, and so do
# options that a repository sets for a plug-in which is not installed.
_PLUGIN = re.compile(r"PluginValidationError: [Pp]lugin '([\w.-]{1,80})' ")
# A pytest that does not support this Python's syntax trees.
_REWRITING = re.compile(r'TypeError: required field "lineno" missing from alias')
_USAGE = re.compile(r"^(?:\S*: )?(?:ERROR|error): .*(?:unrecognized arguments|Missing required plugins|usage:)", re.M)


def pytest_plan(
    base: tuple[str, ...],
    selection: Selection,
    *,
    plugin_directory: str,
    variables: Mapping[str, str],
    known_seconds: Mapping[str, float] | None = None,
    max_failures: int | None = None,
) -> SuitePlan:
    """The plan for pytest, all tests or a selection; if a file cannot be collected, the others still run.

    Args:
        base: The repository's own command.
        plugin_directory: The directory of our plug-in, as commands see it.
        variables: The environment's variables; its PYTHONPATH is extended.
    """
    chosen: list[str] = []
    if max_failures is not None:
        chosen.append(f"--maxfail={max_failures}")
    if selection.keyword:
        chosen.append(f"-k={selection.keyword}")
    chosen += (f"--deselect={name}" for name in selection.deselect)
    chosen += map(_operand, selection.paths)
    options = (
        *("-p", "fleet_pytest", "--continue-on-collection-errors"),
        # With a repository's own `-x`, later tests would not be run.
        *(() if max_failures is not None else ("--maxfail=0",)),
        # Outside the repository, where it would show up in the diff. pytest expands the variable itself.
        *("-o", "cache_dir=$TMPDIR/fleet-pytest-cache"),
    )
    longest = dict(sorted((known_seconds or {}).items(), key=lambda item: -item[1])[:_KNOWN_LIMITS])
    steering = {"first": selection.first, "limits": longest}
    own = variables.get("PYTHONPATH")
    argv = (*base, *options, *chosen)
    bare = (*base, *options, "-o", "addopts=", "-o", "required_plugins=", *chosen)
    plain = (*base, *options, "--assert=plain", *chosen)
    return SuitePlan(
        framework="pytest",
        argv=argv,
        typed=(*base, *chosen),
        absent=not_installed(base[0], "Python"),
        variables={
            "PYTHONPATH": f"{own}:{plugin_directory}" if own else plugin_directory,
            **({"FLEET_TEST_OPTIONS": json.dumps(steering)} if longest or selection.first else {}),
        },
        fallbacks=(
            Fallback(
                argv=bare,
                pattern=_USAGE,
                note="the options that the repository sets for pytest (addopts, required_plugins) were left out: "
                "a plug-in that they are for is not installed",
            ),
            Fallback(
                argv=plain,
                pattern=_REWRITING,
                note="pytest is older than this Python: its assertions are not rewritten (--assert=plain)",
            ),
            Fallback(
                option="-pno:", pattern=_PLUGIN, note="pytest's plug-in {} was left out: this pytest cannot load it"
            ),
        ),
    )


def _operand(path: str) -> str:
    """A path that pytest does not treat as an option (which it accepts after `--` too) or an options file (`@`)."""
    if not path.strip() or "\0" in path:
        raise ToolFailure(f"{path[:80]!r} selects nothing; leave it out to run all tests")
    return f"./{path}" if path.startswith(("-", "@")) else path


_DOTTED = re.compile(r"\w{1,200}(?:\.\w{1,200}){0,20}")
# Options of Django's `test` with a value; then those with an optional value; then those to drop: they make a run
# parallel, stop it early, prompt, or change its output.
_VALUED = frozenset(
    {
        *("--settings", "--pythonpath", "-p", "--pattern", "-t", "--top-level-directory", "-k", "--tag"),
        *("--exclude-tag", "-v", "--verbosity", "--testrunner", "--durations"),
    }
)
_COUNTED = frozenset({"--parallel", "--shuffle"})
_LEFT_OUT = frozenset(
    {"--parallel", "--failfast", "-v", "--verbosity", "--noinput", "--no-input", "--pdb", "--keepdb", "--timing"}
)
DISCOVER = ("python3", "-m", "unittest", "discover")


def checked_name(tree: Tree, name: str) -> str:
    """A dotted name, unchanged, or the real path of a file or directory, with the part after its `::`.

    Raises ToolRefusal for a text that looks like an option, ToolFailure for one that is neither.
    """
    path, mark, inside = checked_path(name).partition("::")
    if not mark and _DOTTED.fullmatch(path) and not path.endswith(".py"):
        try:
            return tree.find(path)
        except ToolFailure:
            return path
    return f"{tree.find(path)}{mark}{inside}"


def unittest_plan(
    selection: Selection,
    base: tuple[str, ...] = DISCOVER,
    *,
    program_directory: str,
    known_seconds: Mapping[str, float] | None = None,
) -> SuitePlan:
    """The plan for unittest: all tests that the repository's own command finds, or a selection."""
    patterns = (f"-k={selection.keyword}",) if selection.keyword else ()
    if is_django(base):
        options = _django_options(base[base.index("test") + 1 :], named=bool(selection.paths))
        words = (*base[: base.index("test") + 1], *options, *patterns, *map(_label, selection.paths))
        own = ("--django", *words[1:], "--noinput")
    elif selection.paths:
        names = tuple(f"./{path}" if path.startswith("-") else path for path in selection.paths)
        own, words = ("--paths", *patterns, *names), (*base[:3], *patterns, *names)
    else:
        own, words = (*base[3:], *patterns), (*base, *patterns)
    steering = {"limits": known_seconds or {}, "deselect": selection.deselect}
    return SuitePlan(
        framework="unittest",
        argv=(base[0], f"{program_directory}/fleet_unittest.py", *own),
        typed=words,
        absent=not_installed(base[0], "Python"),
        variables={"FLEET_TEST_OPTIONS": json.dumps(steering)} if any(steering.values()) else {},
    )


def _django_options(words: tuple[str, ...], *, named: bool) -> tuple[str, ...]:
    """The words after Django's `test`, without the options to drop, and without labels if others are `named`."""
    options: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        optional = word in _COUNTED and re.fullmatch(r"\d+|auto", rest[0] if rest else "")
        value = [rest.pop(0)] if rest and (optional or word in _VALUED) else []
        if word.partition("=")[0] not in _LEFT_OUT and (word.startswith("-") or not named):
            options += [word, *value]
    return tuple(options)


def _label(name: str) -> str:
    """A path or an id as a label of Django's."""
    path, _, inside = name.partition("::")
    if not path.endswith(".py"):
        return name
    return ".".join((path.removeprefix("./").removesuffix(".py").replace("/", "."), *inside.split("::"))).rstrip(".")
