"""Commands that run the repository's own code: tests, linters and builds, harmless by decision and by few options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.tools.shell_risk.options import Options, names
from swe_ai_fleet.tools.shell_risk.paths import write_risk
from swe_ai_fleet.tools.shell_risk.words import Word, literal

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
"""An option of a checker that names what to run, or to delete."""
_PYTHON_MODULES = names("pytest unittest py_compile compileall ruff mypy pyright flake8 black isort")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A program that runs what a repository says: its harmless goals, and its options behind them."""

    goals: frozenset[str]
    options: Options = field(default_factory=Options)
    lists: tuple[tuple[str, str], ...] = ()


_SCRIPTS = (("run", "test"), ("run", "lint"))
RUNNERS: Mapping[str, Runner] = {
    "go": Runner(
        goals=names("test vet build fmt list version"),
        options=Options(
            flags="v",
            long=names("v run= race count= timeout= short cover bench= tags= failfast json parallel= benchmem"),
        ),
    ),
    "cargo": Runner(
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
    "npm": Runner(goals=names("test t --version"), options=Options(flags="s", long=names("silent")), lists=_SCRIPTS),
    "yarn": Runner(goals=names("test --version"), lists=_SCRIPTS),
    "pnpm": Runner(goals=names("test --version"), lists=_SCRIPTS),
    "make": Runner(goals=names("test tests check lint build all")),
    "tox": Runner(goals=frozenset(), options=Options(flags="qvr")),
}


def checker_risks(name: str, words: Sequence[Word]) -> Iterator[str]:
    """A checker reads and writes what it is told to: all of it must lie in the workspace."""
    refused = _OPTIONS_REFUSED.get(name)
    for word in words:
        text = (word.text or "").partition("=")[0]
        if refused and len(text) > 2 and text.startswith("--") and refused.startswith(text[2:]):
            yield f"unknown: an option of {name} that names what is run or deleted"
        yield from inside(word)


def inside(word: Word) -> Iterator[str]:
    """Why an argument should not be given to a program that reads and writes what its arguments name."""
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
    """Python with the modules that check or format."""
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
    """Goals that are tests, checks or builds, and options that say nothing about what is run."""
    runner = RUNNERS[name]
    goal, rest = words[:1], list(words[1:])
    if goal and any(tuple(word.text for word in words[:2]) == pair for pair in runner.lists):
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
