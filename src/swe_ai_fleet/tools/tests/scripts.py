"""Analyses shell lines and a package's scripts for the test runners they start, and the framework of a command.

A script's commands are sorted into preparation, linters and tests; a caller's own line must end with one test runner.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal

_MAX_FOLLOWED = 4
_TOKEN = re.compile(r"(?:[^\s\"'\\]|\\.|\"(?:[^\"\\]|\\.)*\"|'[^']*')+", re.S)
_PIECE = re.compile(
    r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|(?P<operator>&&|\|\||[;|\n]|(?<![<>])&(?!>))|\$\(|[`()]|[^\"'\\;|\n&$`()]+|.",
    re.S,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.S)
_WRAPPERS = frozenset(
    {
        *("cross-env", "cross-env-shell", "env", "c8", "nyc", "npx", "bunx", "dotenv", "exec", "time"),
        *("node", "tsx", "ts-node", "babel-node", "esmo", "pnpm", "yarn", "npm", "dlx"),
    }
)
_VALUED = frozenset({"-r", "--require", "--import", "--loader", "--experimental-loader", "-e", "-p", "--package"})
_RUNNERS = {
    **dict.fromkeys(("jest", "react-scripts", "craco"), "jest"),
    "vitest": "vitest",
    **dict.fromkeys(("mocha", "_mocha", "ts-mocha"), "mocha"),
    "ava": "ava",
    "tape": "tape",
    "tap": "tap",
}
_LINTERS = frozenset(
    {
        *("eslint", "xo", "standard", "prettier", "biome", "stylelint", "tsd", "dtslint", "publint", "attw", "knip"),
        *("oxlint", "ts-standard", "semistandard", "jshint", "jscs", "tslint", "flow", "vue-tsc", "depcheck", "dpdm"),
        *("commitlint", "cspell", "markdownlint", "remark", "dprint", "madge", "size-limit", "bundlesize", "check-dts"),
    }
)
_BEFORE = re.compile(
    r"(?:(?:cross-env|env)\s+(?=\w+=)|[A-Za-z_]\w*=(?:[^\s\"'\\]|\"[^\"]*\"|'[^']*')*\s+|(?:nyc|c8)\s+(?:-\S+\s+)*)+"
)
_LINT_NAME = re.compile(
    r"(?:.*:)?(?:lint|types?|typecheck|type-?check|format|fmt|prettier|style|tsc|spell|standard|xo|tsd)(?:[:_-].*)?",
    re.I,
)

Kind = Literal["runner", "lint", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptCommand:
    """One command of a shell line: its text, its kind, and the operator that joins it to the command before."""

    text: str
    operator: str = ""
    kind: Kind = "other"
    runner: str = ""
    head: str = ""
    tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLine:
    """The commands of a line, sorted by purpose.

    Attributes:
        before: Commands that the tests may need, in their order.
        runners: The commands that start a known runner; if there is none, the last command that does not lint.
        left_out: Commands that are not run: linters, type checkers, and those after the tests.
    """

    before: tuple[ScriptCommand, ...] = ()
    runners: tuple[ScriptCommand, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def runner(self) -> str:
        """The first known runner; empty if there is none."""
        return self.runners[0].runner if self.runners else ""


def parts_of(line: str) -> tuple[ScriptCommand, ...] | None:
    """The commands of a line; None for a line that only a shell can split (substitutions, groups)."""
    parts: list[ScriptCommand] = []
    text, operator = "", ""
    for match in _PIECE.finditer(line):
        piece = match[0]
        if piece in ("$(", "`", "(", ")"):
            return None
        if not match["operator"]:
            text += piece
            continue
        if text.strip():
            parts.append(ScriptCommand(text=text.strip(), operator=operator))
        text, operator = "", piece
    if text.strip():
        parts.append(ScriptCommand(text=text.strip(), operator=operator))
    return tuple(parts)


def words_of(text: str, *, comments: bool = False) -> list[str]:
    """The words of a command; none if its quotes are unbalanced."""
    try:
        return shlex.split(text, comments=comments)
    except ValueError:
        return []


def read_line(line: str, scripts: Mapping[str, str]) -> ScriptLine | None:
    """The commands of a package's script or a caller's line; None if only a shell can tell.

    Args:
        scripts: The package's scripts, by name, which the line may start.
    """
    steps = list(_steps(line, scripts, 0, ""))
    if any(step is None for step in steps):
        return None
    parts = dict(enumerate(step for step in steps if step is not None))
    others = [position for position, part in parts.items() if part.kind == "other"]
    tests = [position for position, part in parts.items() if part.kind == "runner"] or others[-1:]
    if not tests:
        return None
    before = [position for position in others if position < tests[0]]
    return ScriptLine(
        before=tuple(parts[position] for position in before),
        runners=tuple(parts[position] for position in tests),
        left_out=tuple(part.text for position, part in parts.items() if position not in (*before, *tests)),
    )


def lints(line: str, scripts: Mapping[str, str]) -> bool:
    """Whether a line of a package's script only lints, formats or checks types."""
    return {step.kind if step else "" for step in _steps(line, scripts, 0, "")} == {"lint"}


def _steps(line: str, scripts: Mapping[str, str], depth: int, name: str) -> Iterator[ScriptCommand | None]:
    parts = parts_of(line)
    if parts is None:
        yield None
        return
    for position, part in enumerate(parts):
        if part.operator in ("|", "||"):
            # It formats the tests' output, or runs if they fail.
            continue
        if part.operator == "&" or (position + 1 < len(parts) and parts[position + 1].operator == "&"):
            yield None  # a server beside the tests
            return
        followed = list(_followed(part, scripts)) if depth < _MAX_FOLLOWED else []
        if not followed or name in [other for other, _ in followed]:
            yield _classified(part)
            continue
        for other, text in followed:
            inner = [_after(_set_before(part.text), step) for step in _steps(text, scripts, depth + 1, other)]
            lints = bool(_LINT_NAME.fullmatch(other.removeprefix("pre")))
            if any(step is None for step in inner):
                yield replace(part, text=f"npm run {other}", kind="lint" if lints else "other")
            elif lints and not any(step is not None and step.kind == "runner" for step in inner):
                yield replace(part, text=f"npm run {other}", kind="lint")
            else:
                yield from inner


def _set_before(text: str) -> str:
    """The prefix of a command: variables, `cross-env A=1`, a program that measures coverage; empty if there is none."""
    match = _BEFORE.match(text)
    return match[0] if match else ""


def _after(variables: str, part: ScriptCommand | None) -> ScriptCommand | None:
    if part is None or not variables:
        return part
    return replace(part, text=variables + part.text, head=variables + part.head if part.head else "")


def _followed(part: ScriptCommand, scripts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, text) of the scripts that a command starts, with their `pre` scripts."""
    words = words_of(part.text.removeprefix(_set_before(part.text)))
    if not words:
        return
    if words[0] in ("run-s", "run-p", "npm-run-all", "npm-run-all2", "run-pty"):
        names = [word for word in words[1:] if not word.startswith("-")]
        for name in names:
            for other in scripts:
                if fnmatchcase(other, name.replace(":**", ":*")):
                    yield other, scripts[other]
        return
    name, rest = _script_name(words, scripts)
    if not name or name not in scripts:
        return
    if before := scripts.get(f"pre{name}"):
        yield f"pre{name}", before
    yield name, " ".join((scripts[name], shlex.join(rest))).strip()


def _script_name(words: list[str], scripts: Mapping[str, str]) -> tuple[str, list[str]]:
    """(the script that a command starts, its arguments); the name is empty for other commands."""
    manager = words[0]
    if manager not in ("npm", "pnpm", "yarn", "bun"):
        return "", []
    rest = [word for word in words[1:] if word not in ("--silent", "-s", "--ignore-scripts", "--if-present")]
    if rest[:1] in (["run"], ["run-script"]):
        rest = rest[1:]
    elif rest[:1] in (["test"], ["t"], ["tst"]):
        rest = ["test", *rest[1:]]
    elif manager not in ("pnpm", "yarn") or not rest or rest[0] not in scripts:
        return "", []
    if not rest or rest[0].startswith("-") or any(word.startswith(("-w", "--workspace")) for word in rest):
        return "", []
    name, arguments = rest[0], rest[1:]
    return name, arguments[1:] if arguments[:1] == ["--"] else arguments


def _classified(part: ScriptCommand) -> ScriptCommand:
    tokens = [(match[0], match.end()) for match in _TOKEN.finditer(part.text)]
    valued = False
    for position, (raw, end) in enumerate(tokens):
        words = words_of(raw)
        word = words[0] if words else ""
        program = re.sub(r"\.[cm]?js$", "", PurePosixPath(word).name)
        following = [each for text, _ in tokens[position + 1 :] for each in words_of(text)]
        if valued or word.startswith("-") or _ASSIGNMENT.fullmatch(word):
            valued = word in _VALUED and not valued
            continue
        if program in ("node", "tsx") and "--test" in following and not _positional_before_test(following):
            return replace(part, kind="runner", runner="node", head=part.text[:end], tail=part.text[end:])
        if program in _RUNNERS and (program not in ("react-scripts", "craco") or following[:1] == ["test"]):
            if program in ("react-scripts", "craco"):
                end = tokens[position + 1][1]
            head = re.sub(r"^npx (?:--no(?:-install)? )?(?:-- )?", "", part.text[:end])
            return replace(part, kind="runner", runner=_RUNNERS[program], head=head, tail=part.text[end:])
        if program in _LINTERS or (program == "tsc" and {"--noEmit", "--noemit"}.intersection(following)):
            return replace(part, kind="lint")
        if program not in _WRAPPERS:
            break
    return part


def _positional_before_test(words: list[str]) -> bool:
    before = ["", *words[: words.index("--test")]]
    valued = _VALUED | {"-C", "--conditions"}
    return any(not word.startswith("-") and last not in valued for last, word in pairwise(before))


_MANAGERS = ("npm", "pnpm", "yarn")


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
    """Whether a test command runs pytest: by name, as a module, or after `uv run` and similar commands."""
    names = [PurePosixPath(word).name in ("pytest", "py.test") for word in argv]
    return any(named and (i == 0 or argv[i - 1] in ("-m", "run", "--")) for i, named in enumerate(names))


def is_unittest(argv: tuple[str, ...]) -> bool:
    """Whether a test command runs `python -m unittest`, or Django's `test`, which runs unittest."""
    is_python = bool(argv) and PurePosixPath(argv[0]).name.startswith("python")
    return is_python and (argv[1:3] == ("-m", "unittest") or is_django(argv))


def is_django(argv: tuple[str, ...]) -> bool:
    """Whether a Python command is `python -m django test` or `python manage.py test`."""
    return argv[1:4] == ("-m", "django", "test") or argv[1:3] in (("manage.py", "test"), ("./manage.py", "test"))


def _is_javascript(argv: tuple[str, ...]) -> bool:
    if argv[:1] and argv[0] in _MANAGERS and argv[1:2] in (("test",), ("t",), ("run",), ("run-script",)):
        return True
    script = read_line(" ".join(argv[:20]), {}) if argv else None
    return script is not None and bool(script.runner) and not script.before and not script.left_out


_OTHERS_NEED = re.compile(r"[<>$*?`]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLine:
    """A line that ends with a test runner: `cd dir && before && argv`."""

    argv: tuple[str, ...]
    directory: str = ""
    before: str = ""


def read_shell_line(line: str) -> ShellLine | str:
    """The test runner that a line starts, or the reason why none is recognised."""
    parts = parts_of(line)
    if not parts:
        return "only a shell can tell what it runs"
    *first, last = parts
    if any(part.operator not in ("", "&&") for part in parts):
        return "it combines commands by more than `&&`"
    directory = ""
    while first and (words := words_of(first[0].text))[:1] == ["cd"] and len(words) == 2:
        directory = posixpath.normpath(posixpath.join(directory, words[1]))
        first = first[1:]
    if directory.startswith(("/", "..")):
        return "it leaves the repository"
    argv = tuple(words_of(last.text))
    if not framework_of(argv):
        return "it starts no known test runner"
    if _OTHERS_NEED.search(re.sub(r"'[^']*'", "", last.text)):
        return "only a shell can tell what its words are"
    if any(words_of(part.text)[:1] == ["cd"] for part in first):
        return "it changes directories on its way"
    return ShellLine(argv=argv, directory=directory, before=" && ".join(part.text for part in first))
