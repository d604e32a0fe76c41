"""pytest, with a plug-in of ours that reports each test as it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.tests.reports import parse_pytest_output
from swe_ai_fleet.tools.tests.runners.plan import Fallback, Plan, Selection, not_installed

PYTHON_PYTEST = ("python3", "-m", "pytest")
_KNOWN_LIMITS = 300
# A plug-in that is older than the environment's pytest (those of linters are the first) ends it before it has begun, as
# do options that a repository sets for a plug-in which is not installed.
_PLUGIN = re.compile(r"PluginValidationError: [Pp]lugin '([\w.-]{1,80})' ")
# A pytest that does not know this Python's syntax trees yet.
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
) -> Plan:
    """How to run pytest, all or a selection; one file that cannot be collected does not keep the others from running.

    Args:
        base: The repository's own command.
        plugin_directory: Where the plug-in lies, as commands see it.
        variables: The environment's own; PYTHONPATH is kept and added to.
        known_seconds: Limits of single tests that are longer than the usual one.
        max_failures: Stop after so many.
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
        # A repository's own `-x` would hide how the rest stands.
        *(() if max_failures is not None else ("--maxfail=0",)),
        # Out of the repository: it would show up in the diff. pytest resolves the variable itself.
        *("-o", "cache_dir=$TMPDIR/fleet-pytest-cache"),
    )
    longest = dict(sorted((known_seconds or {}).items(), key=lambda item: -item[1])[:_KNOWN_LIMITS])
    steering = {"first": selection.first, "limits": longest}
    own = variables.get("PYTHONPATH")
    argv = (*base, *options, *chosen)
    bare = (*base, *options, "-o", "addopts=", "-o", "required_plugins=", *chosen)
    plain = (*base, *options, "--assert=plain", *chosen)
    return Plan(
        framework="pytest",
        argv=argv,
        told=(*base, *chosen),
        absent=not_installed(base[0], "Python"),
        variables={
            "PYTHONPATH": f"{own}:{plugin_directory}" if own else plugin_directory,
            **({"FLEET_TEST_OPTIONS": json.dumps(steering)} if longest or selection.first else {}),
        },
        read_output=parse_pytest_output,
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
    """A path as pytest takes it for one: it reads options behind `--` too, and files of options behind `@`."""
    if not path.strip() or "\0" in path:
        raise ToolFailure(f"{path[:80]!r} selects nothing; leave it out to run all tests")
    return f"./{path}" if path.startswith(("-", "@")) else path
