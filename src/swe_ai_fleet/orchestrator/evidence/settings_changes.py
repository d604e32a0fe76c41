"""Changes of how the repository checks itself: settings of tools, and marks that silence them."""

from __future__ import annotations

import asyncio
import posixpath
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.json_values import json_object, mapping
from swe_ai_fleet.orchestrator.evidence.check_results import Concern, Violation
from swe_ai_fleet.orchestrator.evidence.patch import FilePatch, Patch, PatchLine
from swe_ai_fleet.orchestrator.evidence.source_files import CloneFiles, is_document, is_test
from swe_ai_fleet.orchestrator.evidence.test_runs import Suite
from swe_ai_fleet.tools.tests.inventory import MAKEFILES, parsed_ini, parsed_toml
from swe_ai_fleet.tools.tests.scripts import words_of

_SETTINGS = (
    *("ruff.toml", ".ruff.toml", ".flake8", ".pylintrc", "pylintrc", "eslint.config.*", ".eslintrc*", ".eslintignore"),
    *("clippy.toml", ".clippy.toml", ".golangci.*", "mypy.ini", ".mypy.ini", "pyrightconfig.json", "pytest.ini"),
    *(".pytest.ini", ".coveragerc", ".nycrc*", "codecov.yml", ".codecov.yml", "jest.config.*", "vitest.config.*"),
    *(".mocharc.*", "noxfile.py", "biome.json*", ".prettierrc*", "prettier.config.*", "rustfmt.toml", ".rustfmt.toml"),
)
_TABLES = frozenset({"ruff", "pytest", "mypy", "pyright", "basedpyright", "coverage", "flake8", "pylint"})
_SECTIONS = re.compile(r"flake8|mypy.*|tool:pytest|pytest|coverage:.*|pycodestyle|pylint.*")
_PACKAGE_KEYS = ("jest", "vitest", "mocha", "ava", "nyc", "c8", "eslintConfig", "eslintIgnore")
_HOOK = re.compile(r"\s*(?:async\s+)?def pytest_|.*\bautouse\b|\s*(?:collect_ignore|pytest_plugins)")
_SILENCERS = re.compile(
    r"#\s*(?:noqa\b|type:\s*ignore|pyright:\s*(?:ignore|basic)|mypy:\s*ignore|pylint:\s*disable|pragma:\s*no cover|"
    r"nosec\b|ruff:\s*noqa)|\beslint-disable|@ts-(?:ignore|expect-error|nocheck)|//\s*nolint\b|\bNOSONAR\b|"
    r"\b(?:istanbul|c8|v8) ignore\b|#!?\[allow\("
)
# Files that take part in every test run, whatever their contents.
_RUNS_TESTS = (
    *("conftest.py", "sitecustomize.py", "usercustomize.py", "*.pth", ".npmrc", "vite.config.*", "babel.config.*"),
    *(".babelrc*", ".env.test", "*.mk", ".cargo/config", ".cargo/config.toml"),
    # Assertion libraries and test runners inside the repository itself.
    *("node_modules/*", "*/node_modules/*", "vendor/*", "*/vendor/*"),
)
# pytest, the modules that it imports, and the standard library: a file that shadows one of them controls the tests.
_RUNNER_MODULES = frozenset(
    {
        *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "exceptiongroup", "tomli", "py", "xdist", "execnet"),
        *("pytest_asyncio", "anyio", "coverage", "pytest_cov", "colorama", "pygments", "attr", "attrs"),
        *("fleet_pytest", "fleet_unittest"),
    }
) | frozenset(sys.stdlib_module_names)
_TEST_SETTING = re.compile(r"\b(?:pytest|tool:pytest|jest|vitest|mocha|ava|script (?:pre|post)?test)")
_TEST_SETTINGS = re.compile(r"(?:pytest\.ini|jest\.config|vitest\.config|\.mocharc)\S{0,300} the settings")
# A file in a check's command that is not a source under test: a shell script, or a file named after testing.
_SCRIPT = re.compile(
    r"\.(?:sh|bash|zsh|mk|bat|ps1)$|(?:^|[/_.-])(?:tests?|checks?|verify|ci|scripts?|tools?|run(?:tests?|ner)?)(?:[/_.-]|$)",
    re.I,
)
_MAX_NAMES = 3
# Files that define what a program such as make runs.
_SCRIPTED = (*MAKEFILES, "package.json")
_RUNNERS = frozenset({"make", "gmake", "npm", "npx", "pnpm", "yarn", "bun"})
_PATH = re.compile(r"[\w.@+/-]+")
_STEP = re.compile(r"(?:^|[\s;&|(])(?:cd|-C|--prefix|--cwd)[ =]+([\w.@+/-]+)", re.M)
_MOST_SCRIPTS = 50
_MOST_SCRIPT_CHARACTERS = 100_000
_WORKSPACE = "/workspace/"


def _inside(paths: Iterable[str]) -> frozenset[str]:
    """The directories of a search path that are in the repository, relative to its root."""
    relative = (path.removeprefix(_WORKSPACE) for path in paths if path)
    return frozenset(_joined("", path) for path in relative if not path.startswith("/"))


def changed_settings(patch: Patch, text_of: Callable[[str], str]) -> Iterator[Violation]:
    """Warnings about settings of tests, linters and coverage that the patch changes."""
    for file in _sides(patch):
        if setting := _changed(file, text_of):
            line = next((line.number for line in file.lines("+-")), 0)
            text = f"changes {setting}, which decides what checks say"
            yield Violation(concern=Concern.SETTINGS, path=file.path, line=line, text=text, required=False)


async def changed_rules(
    patch: Patch, files: CloneFiles, suites: Sequence[Suite], environment: Environment
) -> list[str]:
    """The files by which the patch changes how tests are run: a candidate must not be verified by its own rules.

    Args:
        suites: The suites that run; scripts in their commands count, and scripts that these call.
        environment: Its PATH and PYTHONPATH say in which directories of the repository programs are looked up first.
    """
    return await asyncio.to_thread(_changed_rules, patch, files, await files.paths(), suites, environment)


def _changed_rules(
    patch: Patch, files: CloneFiles, listed: Collection[str], suites: Sequence[Suite], environment: Environment
) -> list[str]:
    text_of = files.text
    # A changed symbolic link may lead to a directory of any content.
    links = files.links(patch.paths)
    programs, modules = _inside(environment.path), _inside(environment.variables.get("PYTHONPATH", "").split(":"))
    named = _scripts(suites, text_of)
    roots = {_joined(suite.directory, "") for suite in suites} | modules
    added = {file.path for file in _sides(patch) if file.is_new}
    shadows = {root: _RUNNER_MODULES - {_module(path, root) for path in listed if path not in added} for root in roots}
    return [
        file.path
        for file in _sides(patch)
        if PurePosixPath(file.path).name in MAKEFILES
        or file.path in links
        or _fits(file.path, _RUNS_TESTS)
        or (file.path in named and not is_test(file.path))
        or any(_in_directory(directory, file.path) for directory in programs)
        or any(_module(file.path, root) in names for root, names in shadows.items())
        or _TEST_SETTING.search(change := _changed(file, text_of))
        or _TEST_SETTINGS.search(f"{file.path} {change}")
    ]


def _in_directory(directory: str, path: str) -> bool:
    """Whether a file is in a directory (in the root itself: without subdirectories), or has the path of a parent."""
    if not directory:
        return "/" not in path
    return path.startswith(f"{directory}/") or f"{directory}/".startswith(f"{path}/")


def _sides(patch: Patch) -> Iterator[FilePatch]:
    return (side for file in patch.files for side in file.sides)


def _scripts(suites: Iterable[Suite], text_of: Callable[[str], str]) -> set[str]:
    """The scripts that run tests: those in commands, in rules of `make` and package.json, and those that they call."""
    named, read = set[str](), set[str]()
    pending: list[tuple[str, str]] = []
    for suite in suites:
        words = [*suite.argv, *(words_of(suite.line) or suite.line.split())]
        named |= {_joined(suite.directory, word) for word in words if _SCRIPT.search(word)}
        pending.append((suite.directory, " ".join(words)))
    while pending:
        directory, text = pending.pop()
        text = text[:_MOST_SCRIPT_CHARACTERS]
        words = dict.fromkeys(_PATH.findall(text))
        names = [*filter(_SCRIPT.search, words), *(_SCRIPTED if _RUNNERS.intersection(words) else ())]
        # Scripts may change to a directory before they name files there.
        directories = [directory, *(_joined(directory, match[1]) for match in _STEP.finditer(text))]
        for path in {_joined(parent, name) for name in names for parent in directories} - read:
            if len(read) < _MOST_SCRIPTS and (content := text_of(path)):
                read.add(path)
                pending += [(directory, content), (posixpath.dirname(path), content)]
    return named | {path for path in read if posixpath.basename(path) not in _SCRIPTED}


def _module(path: str, root: str) -> str:
    """The module that a file is for a Python that starts in `root`, where it looks first. Empty: it is none."""
    if root and not path.startswith(f"{root}/"):
        return ""
    inside = path.removeprefix(f"{root}/") if root else path
    return inside.partition("/")[0].removesuffix(".py") if inside.endswith((".py", ".so")) else ""


def _joined(directory: str, word: str) -> str:
    path = posixpath.normpath(posixpath.join(directory, word))
    return "" if path == "." else path


def added_silencers(patch: Patch) -> Iterator[Violation]:
    """Warnings about comments in the code that switch off a check."""
    for file in patch.files:
        if is_document(file.path):
            continue
        added = [line for line in file.lines("+") if _silences(line)]
        surplus = len(added) - sum(1 for line in file.lines("-") if _silences(line))
        if surplus > 0:
            more = f", {surplus} in all" if surplus > 1 else ""
            text = f"silences a check with {_SILENCERS.findall(added[-1].text[:1_000])[0].strip()!r}{more}"
            number = added[-surplus].number
            yield Violation(concern=Concern.SUPPRESSIONS, path=file.path, line=number, text=text, required=False)


def _silences(line: PatchLine) -> bool:
    return bool(_SILENCERS.search(line.text[:1_000]))


def _changed(file: FilePatch, text_of: Callable[[str], str]) -> str:
    name = PurePosixPath(file.path).name
    if _fits(file.path, _SETTINGS):
        return "the settings"
    if name == "conftest.py":
        hooks = any(_HOOK.match(line.text[:1_000]) for line in file.lines("+-"))
        return "pytest's hooks" if hooks or "def pytest_" in text_of(file.path) else ""
    read = _READERS.get(name)
    if read is None:
        return ""
    after = "" if file.is_deleted else text_of(file.path)
    before = "" if file.is_new else file.before(text_of(file.moved_to) if file.moved_to else after)
    old, new = read(before), read(after)
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    return f"the settings of {', '.join(names[:_MAX_NAMES])}" if names else ""


def _of_pyproject(text: str) -> Mapping[str, object]:
    document = parsed_toml(text)
    if document is None:
        return {"an unreadable file": text}
    return {name: value for name, value in mapping(document, "tool").items() if name in _TABLES}


def _of_ini(text: str) -> Mapping[str, object]:
    parser = parsed_ini(text)
    if parser is None:
        return {"an unreadable file": text}
    return {name: dict(parser[name]) for name in parser.sections() if _SECTIONS.fullmatch(name)}


def _of_package(text: str) -> Mapping[str, object]:
    package = json_object(text)
    return {
        **{key: package[key] for key in _PACKAGE_KEYS if key in package},
        **{
            f"the script {name}": line
            for name, line in mapping(package, "scripts").items()
            if re.match(r"(?:pre|post)?(?:test|lint)\b", name)
        },
    }


_READERS: Mapping[str, Callable[[str], Mapping[str, object]]] = {
    "pyproject.toml": _of_pyproject,
    "setup.cfg": _of_ini,
    "tox.ini": _of_ini,
    "package.json": _of_package,
}


def _fits(path: str, patterns: tuple[str, ...]) -> bool:
    name = PurePosixPath(path).name
    return any(fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)
