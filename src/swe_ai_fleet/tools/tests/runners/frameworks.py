"""Which framework a test command belongs to."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from swe_ai_fleet.tools.tests.runners.scripts import read_line

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)
_MANAGERS = ("npm", "pnpm", "yarn")
_LAUNCHERS = ("uv", "poetry", "pdm", "pipenv", "hatch", "rye")


def framework_of(argv: tuple[str, ...]) -> str:
    """`pytest`, `unittest`, `go`, `cargo`, `npm` (any runner of JavaScript) or `make`; empty for any other command."""
    _, argv = assigned(argv)
    if is_pytest(argv):
        return "pytest"
    if is_unittest(argv):
        return "unittest"
    if argv[:1] == ("make",) and len(argv) == 2:
        return "make"
    if argv[:2] in (("go", "test"), ("cargo", "test")):
        return argv[0]
    return "npm" if _is_javascript(argv) else ""


def assigned(argv: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the variables that a command sets for itself, the command): `env A=1 pytest`, `A=1 pytest`."""
    rest = argv[1:] if argv[:1] == ("env",) else argv
    variables: dict[str, str] = {}
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest[0].partition("=")
        variables[name] = value
        rest = rest[1:]
    return (variables, rest) if variables else ({}, argv)


def is_pytest(argv: tuple[str, ...]) -> bool:
    """Whether a test command is pytest's: by its own name, as a module, or behind `uv run` and its like."""
    names = [PurePosixPath(word).name in ("pytest", "py.test") for word in argv]
    return any(named and (i == 0 or argv[i - 1] in ("-m", "run", "--")) for i, named in enumerate(names))


def is_unittest(argv: tuple[str, ...]) -> bool:
    """Whether a test command runs `python -m unittest`, or Django's `test`, which runs unittest."""
    is_python = bool(argv) and PurePosixPath(argv[0]).name.startswith("python")
    return is_python and (argv[1:3] == ("-m", "unittest") or is_django(argv))


def is_django(argv: tuple[str, ...]) -> bool:
    """Whether a command of Python's is `python -m django test` or `python manage.py test`."""
    return argv[1:4] == ("-m", "django", "test") or argv[1:3] in (("manage.py", "test"), ("./manage.py", "test"))


def _is_javascript(argv: tuple[str, ...]) -> bool:
    if argv[:1] and argv[0] in _MANAGERS and argv[1:2] in (("test",), ("t",), ("run",), ("run-script",)):
        return True
    script = read_line(" ".join(argv[:20]), {}) if argv else None
    return script is not None and bool(script.runner) and not script.before and not script.left_out
