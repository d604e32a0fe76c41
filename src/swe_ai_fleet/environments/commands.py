"""Command lines of a repository's automation, read as data: the packages they install, and the tests they run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

from swe_ai_fleet.tools.tests.scripts import words_of

PYTHON = "python3"
_MAX_COMMANDS = 1_000
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)
_PYTHONS = re.compile(r"(?:python|pypy|py)(?:\d(?:\.\d+)?)?(?:\.exe)?")
_UNREADABLE = re.compile(r"[$`{}]|\$\{\{")
# Options of pytest that only change the output, distribute a run, or stop it early.
_REPORTING = re.compile(
    r"--(?:cov|no-cov|junit|html|self-contained-html|durations|color|tb|verbosity|verbose|quiet|report-log|maxfail|"
    r"exitfirst|dist|numprocesses|maxprocesses|codspeed|md-report|showlocals|capture|splits|group|instafail|pdb|lf|ff)"
    r"(?:-[\w-]+)?(?:=.*)?"
)
_SHORT_REPORTING = re.compile(r"-(?:[vqsxl]+|r[a-zA-Z]+|n\S*)")
_VALUED = frozenset(
    {
        *("-k", "-m", "-c", "-o", "-p", "-W", "-n", "--ignore", "--ignore-glob", "--deselect", "--rootdir"),
        *("--confcutdir", "--cov", "--cov-report", "--cov-config", "--cov-fail-under", "--junitxml", "--junit-xml"),
        *("--tb", "--durations", "--durations-min", "--maxfail", "--dist", "--numprocesses", "--maxprocesses"),
        *("--color", "--html", "--timeout", "--import-mode", "--splits", "--group", "--report-log", "--override-ini"),
    }
)
_PLACES = re.compile(
    r"PATH|HOME|TMP|TMPDIR|TEMP|SHELL|USER|CI|PWD|LD_.*|DYLD_.*|XDG_.*|PIP_.*|UV_.*|VIRTUALENV_.*|COV.*|TOX.*|NOX.*|.*_(?:TOKEN|KEY|"
    r"PASSWORD|SECRET)|PYTHON(?:HOME|DONTWRITEBYTECODE|PYCACHEPREFIX|STARTUP|WARNINGS|UNBUFFERED)|.*PROXY|FORCE_COLOR|PY_COLORS|PYTEST_ADDOPTS"
)
_RUNNERS = frozenset({"nosetests", "nose2", "stestr", "trial", "green", "zope-testrunner", "ward", "virtue", "avocado"})
_SYNCING = frozenset({("uv", "sync"), ("uv", "run")} | {(a, b) for a in ("poetry", "pdm") for b in ("install", "sync")})
# Tools that automation installs to start others with.
_BUILD_TOOLS = frozenset({"pip", "setuptools", "wheel", "uv", "tox", "nox", "poetry", "hatch", "pdm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one automation file (of tox, nox, a workflow …) installs and runs.

    `lines` are requirements, `files` lists of them, `targets` directories of the repository with their extras, as pip
    takes them; `constraints` are files with pins. `all_extras` and `all_groups` mean all of them. `tests` are argvs
    that run tests, with `variables` in their environment; `pythons` the versions that run them.
    """

    source: str = ""
    lines: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    without_extras: tuple[str, ...] = ()
    all_extras: bool = False
    all_groups: bool = False
    tests: tuple[tuple[str, ...], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    pythons: tuple[str, ...] = ()

    def __or__(self, other: Wish) -> Wish:
        """Both together, with the source of the first."""
        merged: dict[str, Any] = {"variables": {**other.variables, **self.variables}}
        for name in [each.name for each in fields(Wish) if each.name not in merged]:
            first, second = getattr(self, name), getattr(other, name)
            merged[name] = first or second if isinstance(first, str | bool) else tuple(dict.fromkeys((*first, *second)))
        return Wish(**merged)


def script_words(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script as words, as far as they can be read without running it."""
    for line in script.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;|(?<!\|)\|(?!\|)", line):
            if words := words_of(part.strip().lstrip("@-+"), comments=True):
                yield words


def read_scripts(scripts: Iterable[str], source: str) -> Wish:
    """The packages that shell scripts install, and their commands that run tests."""
    return read_commands([words for script in scripts for words in script_words(script)], source)


def read_commands(commands: Sequence[Sequence[str]], source: str) -> Wish:
    """The packages that commands install, and the commands that run tests; only the first 1,000 commands are read."""
    wish = Wish(source=source)
    for command in commands[:_MAX_COMMANDS]:
        words = _unwrapped(list(command))
        wish |= _installs(words)
        if test := test_argv(words):
            # A wrapper such as `uv run --extra x` installs packages, too.
            wish |= _installs(list(command))
            assigned = dict(word.split("=", 1) for word in takewhile(_ASSIGNMENT.fullmatch, command))
            wish |= Wish(tests=(test,), variables=readable_variables(assigned))
    return wish


def readable_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a test command that also apply here: without those about directories, caches and secrets."""
    return {
        name: value
        for name, value in variables.items()
        if not _UNREADABLE.search(value) and not _PLACES.fullmatch(name) and "\0" not in value
    }


def test_argv(words: Sequence[str]) -> tuple[str, ...]:
    """The argv of a command that runs tests, else empty: Python as `python3 …`, without options for reports."""
    words = _unwrapped(list(words))
    module = _module(words)
    if not module:
        return ()
    name, rest = module[0], [word for word in module[1:] if not _UNREADABLE.search(word)]
    if {"--help", "--version", "--collect-only", "--co"}.intersection(rest):
        return ()
    if name in ("pytest", "py.test"):
        return (PYTHON, "-m", "pytest", "-q", *pytest_arguments(module[1:]))
    if name == "unittest":
        return (PYTHON, "-m", "unittest", *rest)
    if name in _RUNNERS:
        if name == "stestr" and rest[:1] != ["run"]:
            return ()
        return (name, *rest)
    if name in ("django-admin", "django") and rest[:1] == ["test"]:
        return (PYTHON, "-m", "django", *rest)
    script = PurePosixPath(name)
    if script.suffix == ".py" and not name.startswith("/"):
        if script.name == "manage.py" and rest[:1] == ["test"]:
            return (PYTHON, name, *rest)
        if re.fullmatch(r"(?:run_?)?tests?(?:_?(?:runner|suite))?\.py|run-?tests?\.py|alltests\.py", script.name):
            return (PYTHON, name, *rest)
    return ()


test_argv.__test__ = False  # type: ignore[attr-defined]


def pytest_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Arguments of pytest without those that only change the output, stop the run early, or distribute it.

    An argument with an unknown value (a variable) is dropped, with its option.
    """
    arguments: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        value = [rest.pop(0)] if word in _VALUED and rest and not rest[0].startswith("-") else []
        is_readable = not any(_UNREADABLE.search(part) for part in (word, *value))
        if is_readable and not _REPORTING.fullmatch(word) and not _SHORT_REPORTING.fullmatch(word):
            arguments += [word, *value]
    return tuple(arguments)


def paths_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """The words of a pytest run that are neither options nor their values."""
    paths: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in _VALUED:
            rest = rest[1:]
        elif not word.startswith("-"):
            paths.append(word)
    return tuple(paths)


def _unwrapped(words: list[str]) -> list[str]:
    """A command without its wrappers: assignments, `env`, `uv run`, `coverage run` and the like."""
    while words:
        name = PurePosixPath(words[0]).name
        if _ASSIGNMENT.fullmatch(words[0]) and not words[0].startswith("-"):
            words = words[1:]
        elif name in ("env", "time", "xvfb-run", "command", "exec", "sudo", "nice"):
            words = _after_options(words[1:], frozenset({"-s", "-u"}))
        elif name in ("uv", "poetry", "pdm", "pipenv", "rye", "hatch") and words[1:2] == ["run"]:
            valued = frozenset(
                {"--python", "-p", "--with", "--group", "--extra", "--package", "--env-file", "--project"}
            )
            words = _after_options(words[2:], valued)
            if name == "hatch" and words and ":" in words[0]:
                words = [words[0].partition(":")[2], *words[1:]]
        elif name == "coverage" and words[1:2] == ["run"]:
            words = _after_options(words[2:], frozenset({"--source", "--rcfile", "--omit", "--include"}))
            words = words if words[:1] == ["python"] else ["python", *words]
        elif _PYTHONS.fullmatch(name) and (module := _module(words))[:2] == ["coverage", "run"]:
            words = module
        else:
            break
    return words


def _after_options(words: list[str], valued: frozenset[str]) -> list[str]:
    """The words after leading options, starting with `-m NAME` if that follows."""
    while words and (words[0].startswith("-") or _ASSIGNMENT.fullmatch(words[0])) and words[0] not in ("-m", "--"):
        words = words[2:] if words[0] in valued else words[1:]
    if words[:1] == ["--"]:
        return words[1:]
    return ["python", *words] if words[:1] == ["-m"] else words


def _module(words: list[str]) -> list[str]:
    """The program or Python module that a command runs, and its arguments."""
    if not words:
        return []
    name = PurePosixPath(words[0]).name
    if not _PYTHONS.fullmatch(name):
        program = words[0].removeprefix("./")
        return [program if program.endswith(".py") else name, *words[1:]]
    rest = words[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    if rest[:1] == ["-m"]:
        return rest[1:]
    return rest if rest[:1] != ["-c"] else []


def _installs(words: list[str]) -> Wish:
    module = _module(words)
    if not module:
        return Wish()
    name, rest = PurePosixPath(module[0]).name, module[1:]
    if name == "uv" and rest[:1] == ["pip"]:
        name, rest = "pip", rest[1:]
    if name in ("pip", "pip3") and rest[:1] == ["install"]:
        return _pip_install(rest[1:])
    if (name, *rest[:1]) in _SYNCING:
        return _flags(rest[1:])
    return Wish()


def _flags(words: list[str]) -> Wish:
    """The options of `uv sync`, `poetry install` and `pdm install` that choose what is installed."""
    chosen: defaultdict[str, list[str]] = defaultdict(list)
    names = {
        **dict.fromkeys(("--extra", "--extras", "-E"), "extras"),
        **dict.fromkeys(("--group", "--with", "-G", "--only-group", "--only"), "groups"),
        "--no-extra": "without_extras",
    }
    rest = list(words)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option in names:
            value = value if equals else (rest.pop(0) if rest else "")
            parts = (part for part in re.split(r"[\s,]+", value) if part and not _UNREADABLE.search(part))
            chosen[names[option]] += parts
    return Wish(
        extras=tuple(chosen["extras"]),
        groups=tuple(group.removeprefix(":") for group in chosen["groups"]),
        without_extras=tuple(chosen["without_extras"]),
        all_extras="--all-extras" in words,
        all_groups="--all-groups" in words or ":all" in chosen["groups"],
    )


_PIP_OPTIONS = {
    **dict.fromkeys(("-r", "--requirement"), "files"),
    **dict.fromkeys(("-c", "--constraint"), "constraints"),
    **dict.fromkeys(("-e", "--editable"), "targets"),
    "--group": "groups",
}


def _pip_install(words: list[str]) -> Wish:
    chosen: defaultdict[str, list[str]] = defaultdict(list)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word in _PIP_OPTIONS:
            option, value = word, rest.pop(0) if rest else ""
        elif re.match(r"-[rce][^-]", word):
            option, value = word[:2], word[2:].lstrip("=")
        elif word.startswith("-"):
            if not equals:
                # Whether an unknown option has a value is unknown, too.
                rest = rest[1:] if word in ("-i", "--index-url", "--extra-index-url", "-f", "-t", "--target") else rest
                continue
        else:
            option, value = "", word
        if _UNREADABLE.search(value) or not value:
            continue
        if option in _PIP_OPTIONS:
            chosen[_PIP_OPTIONS[option]].append(value.rpartition(":")[2] if option == "--group" else value)
        elif not option and re.match(r"\.{0,2}/|\.(?:\[|$)", value):
            chosen["targets"].append(value)
        elif not option and value.lower() not in _BUILD_TOOLS:
            chosen["lines"].append(value)
    given: dict[str, Any] = {name: tuple(values) for name, values in chosen.items()}
    return Wish(**given)
