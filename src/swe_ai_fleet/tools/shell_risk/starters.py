"""Commands that start others or run the repository's own code.

A started command is assessed with all arguments that it may get. Tests, linters and builds count as harmless, with few
options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swe_ai_fleet.tools.shell_risk.words import (
    CommandScope,
    Options,
    Word,
    Words,
    computed,
    harmless_variable,
    literal,
    names,
    write_risk,
)

_DURATION = re.compile(r"\d+(\.\d+)?[smhd]?", re.ASCII)


def _env(words: Words, scope: CommandScope) -> Iterator[str]:
    rest = list(words)
    while rest and rest[0].text is not None and "=" in rest[0].text and not rest[0].text.startswith("-"):
        name = rest.pop(0).text or ""
        if not harmless_variable(name.partition("=")[0]):
            yield f"environment: it sets {name.partition('=')[0][:64]}"
    yield from _wrapped(rest, scope)


def _timeout(words: Words, scope: CommandScope) -> Iterator[str]:
    options = Options(
        valued="ks", flags="v", long=names("foreground preserve-status kill-after= signal="), permuted=False
    )
    parsed = options.parse(words)
    if parsed is None or not parsed.operands or not _DURATION.fullmatch(parsed.operands[0].text or ""):
        yield "unknown: an option of timeout, or a time that is computed"
        return
    yield from _wrapped(parsed.operands[1:], scope)


def _nice(words: Words, scope: CommandScope) -> Iterator[str]:
    parsed = Options(valued="nc", numbers=True, permuted=False).parse(words)
    if parsed is None:
        yield "unknown: an option of a command that starts another"
        return
    yield from _wrapped(parsed.operands, scope)


def _command(words: Words, scope: CommandScope) -> Iterator[str]:
    """`command -v` looks a name up."""
    if words and words[0].text in ("-v", "-V"):
        return
    yield from _wrapped(words, scope)


def _wrapped(words: Words, scope: CommandScope) -> Iterator[str]:
    """The risks of a command that runs its arguments as another command; options of its own are unknown."""
    if words and (text := words[0].text) is not None and (text.startswith("-") or "=" in text):
        yield "unknown: an option or a variable given to a command that runs another"
    elif words:
        yield from scope.command(words, scope)


def _shell(words: Words, scope: CommandScope) -> Iterator[str]:
    flag = words[0].text if words else None
    line = words[1].text if len(words) > 1 else None
    if flag is None or not re.fullmatch(r"-[eux]*c", flag) or line is None or line.startswith(("-", "+")):
        yield "unknown: it runs code that cannot be judged"
        return
    yield from scope.nested(line)


_FIND_TESTS = names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype -size -mtime -mmin -atime "
    "-amin -ctime -cmin -newer -maxdepth -mindepth -perm -user -group -links -samefile -inum -printf -lname -ilname"
)
"""Tests of find with one argument."""
_FIND_SIGNS = names(
    "-H -L -P -depth -prune -print -print0 -ls -empty -not ! -a -o -or -and ( ) , -readable -writable -executable "
    "-quit -true -false -mount -xdev -follow -noleaf -daystart -nouser -nogroup"
)


def _find(words: Words, scope: CommandScope) -> Iterator[str]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.text is None:
            if not word.operand:
                yield "unknown: an argument of find is computed"
        elif word.text in _FIND_TESTS:
            if not rest or rest.pop(0).many:
                yield "unknown: an argument of find is computed"
        elif word.text == "-delete":
            yield "destructive: find deletes what it finds"
        elif word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            inner = scope if word.text in ("-exec", "-ok") else replace(scope, moved=True)
            end = _end_of_exec(rest)
            if not end:
                yield "unknown: where the command that find runs ends"
                end = len(rest)
            if end:
                yield from inner.command([_filled(part, "{}", "./") for part in rest[:end]], inner)
            rest = rest[end + 1 :]
        elif word.text.startswith(("-fprint", "-fls")):
            yield "destructive: find writes files"
        elif word.text not in _FIND_SIGNS and not word.operand:
            yield "unknown: an argument of find that is not known"


def _end_of_exec(words: Words) -> int:
    """The number of words of a command of `find -exec`; 0 if versions of find would disagree about its end."""
    for at, word in enumerate(words):
        if word.text == ";":
            return at
        if word.text == "+":
            return at if at > 1 and words[at - 1].text == "{}" else 0
    return 0


def _filled(word: Word, sign: str, head: str) -> Word:
    """A word whose placeholder `sign` is replaced at run time by a value that begins with `head`."""
    if word.text is None or sign not in word.text:
        return word
    before = word.text.partition(sign)[0]
    return computed(before or head)


def _xargs(words: Words, scope: CommandScope) -> Iterator[str]:
    options = Options(
        flags="0rtx",
        valued="nPLIdaEs",
        long=names("null no-run-if-empty max-args= max-procs= max-lines= replace= delimiter= arg-file= verbose"),
        permuted=False,
    )
    parsed = options.parse(words)
    if parsed is None or not parsed.operands:
        yield "unknown: what xargs runs"
        return
    signs = parsed.values("I", "replace")
    if any(sign.text in (None, "") for sign in signs):
        yield "unknown: what xargs puts its input in place of is computed"
        return
    command = list(parsed.operands)
    for sign in signs:
        command = [_filled(word, sign.text or "", "") for word in command]
    # Its input becomes further arguments, so the command must be harmless with any arguments.
    yield from scope.command(command if signs else [*command, computed(many=True)], scope)


STARTERS: Mapping[str, Callable[[Words, CommandScope], Iterator[str]]] = {
    **dict.fromkeys(("sh", "bash", "dash"), _shell),
    **dict.fromkeys(("builtin", "time", "nohup", "stdbuf", "setsid"), _wrapped),
    **dict.fromkeys(("nice", "ionice"), _nice),
    "env": _env,
    "timeout": _timeout,
    "command": _command,
    "find": _find,
    "xargs": _xargs,
}


CHECKERS = names(
    "pytest py.test ruff mypy pyright flake8 pylint black isort eslint tsc prettier shellcheck yamllint gofmt rustfmt "
    "clang-format"
)
_OPTIONS_REFUSED: Mapping[str, str] = {
    "pytest": "basetemp",
    "py.test": "basetemp",
    "pylint": "init-hook",
    "mypy": "python-executable",
    "pyright": "pythonpath",
}
"""A checker's option that names a program to run, or files to delete."""
_PYTHON_MODULES = names("pytest unittest py_compile compileall ruff mypy pyright flake8 black isort")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRunner:
    """A program that runs goals which the repository defines: the harmless goals, and options after them."""

    goals: frozenset[str]
    options: Options = field(default_factory=Options)
    scripts: tuple[tuple[str, str], ...] = ()


_SCRIPTS = (("run", "test"), ("run", "lint"))
RUNNERS: Mapping[str, GoalRunner] = {
    "go": GoalRunner(
        goals=names("test vet build fmt list version"),
        options=Options(
            flags="v",
            long=names("v run= race count= timeout= short cover bench= tags= failfast json parallel= benchmem"),
        ),
    ),
    "cargo": GoalRunner(
        goals=names("test check clippy fmt build tree --version"),
        options=Options(
            flags="qv",
            valued="pF",
            long=names(
                "quiet verbose all workspace release lib bins tests examples benches all-targets all-features check "
                "no-default-features locked offline package= features= test= bin= example= no-run no-fail-fast doc"
            ),
        ),
    ),
    "npm": GoalRunner(
        goals=names("test t --version"), options=Options(flags="s", long=names("silent")), scripts=_SCRIPTS
    ),
    "yarn": GoalRunner(goals=names("test --version"), scripts=_SCRIPTS),
    "pnpm": GoalRunner(goals=names("test --version"), scripts=_SCRIPTS),
    "make": GoalRunner(goals=names("test tests check lint build all")),
    "tox": GoalRunner(goals=frozenset(), options=Options(flags="qvr")),
}


def checker_risks(name: str, words: Sequence[Word]) -> Iterator[str]:
    """The risks of a checker: all files that its arguments name must be in the workspace."""
    refused = _OPTIONS_REFUSED.get(name)
    for word in words:
        text = (word.text or "").partition("=")[0]
        if refused and len(text) > 2 and text.startswith("--") and refused.startswith(text[2:]):
            yield f"unknown: an option of {name} that names what is run or deleted"
        yield from inside(word)


def inside(word: Word) -> Iterator[str]:
    """The risks of an argument for a program that reads and writes the files that its arguments name."""
    text = word.text
    if text is None:
        if word.shape is None or "/" in word.shape:
            yield from write_risk(word)
        return
    path = text
    if text.startswith("--"):
        path = text.partition("=")[2]
    elif text.startswith("-"):
        path = text[2:] if "/" in text or ".." in text else ""
    if path:
        yield from write_risk(literal(path.partition("::")[0].lstrip("=")))


def python_risks(words: Sequence[Word]) -> Iterator[str]:
    """The risks of Python, which is harmless with modules that check or format."""
    texts = [word.text for word in words]
    if texts in (["--version"], ["-V"]):
        return
    module = texts[1] if len(texts) > 1 and texts[0] == "-m" else None
    if module == "json.tool" and len(words) < 4 and all(word.operand for word in words[2:]):
        return
    if module in _PYTHON_MODULES:
        yield from checker_risks(module or "", words[2:])
        return
    yield "unknown: it runs code that cannot be judged"


def runner_risks(name: str, words: Sequence[Word]) -> Iterator[str]:
    """The risks of a runner, which is harmless with goals that test, check or build and options that run nothing."""
    runner = RUNNERS[name]
    goal, rest = words[:1], list(words[1:])
    if goal and any(tuple(word.text for word in words[:2]) == pair for pair in runner.scripts):
        rest = list(words[2:])
    elif goal and runner.goals and goal[0].text not in runner.goals:
        yield f"unknown: {name} {str(goal[0].text)[:32]} may do anything"
        return
    elif not runner.goals:
        rest = list(words)
    if any(word.text is None or ("=" in word.text and name in ("make", "cargo", "tox")) for word in rest):
        yield f"unknown: what {name} is to do is computed, or given by options"
        return
    if name == "go":
        rest = [
            literal(f"-{word.text}") if (word.text or "").startswith("-") and word.text != "-" else word
            for word in rest
        ]
    options = runner.options
    parsed = options.parse(rest)
    if parsed is None:
        yield f"unknown: an option of {name} that may say what is run"
    elif name in ("make", "tox") and any(word.text not in runner.goals for word in parsed.operands):
        yield f"unknown: {name} may do anything with other goals"
