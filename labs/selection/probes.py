"""Probes of a statement as an agent would write them: commands made of the hidden tests, and of their opposites."""

from __future__ import annotations

import ast
import base64
import re
import shlex
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from labs.selection.catalogue import Probe
from labs.zoo.hiding import TestPlace
from labs.zoo.mutations import Mutant
from swe_ai_fleet.testing.repositories import git

MOST_CHARS = 2_000
"""A longer command is none: `agents/preparation.py` leaves it out."""
_NAMES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeProbe:
    """A probe and the words of the statement that it is of.

    A `loose` one has to know how the untouched commit fails: `test` tells it.
    """

    kind: Probe
    quote: str
    command: str
    test: Test | None = None

    def loosened(self, seen: str) -> str:
        """The command that only asks for another failure than the one that `test` printed on the untouched commit."""
        return self.test.otherwise(_message(seen)) if self.test is not None else self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One hidden test as shell commands: a file of its own beside the one that it stood in, and its run."""

    __test__ = False

    path: str
    text: str

    @property
    def written(self) -> str:
        plain = f"cat > {self.path} <<'PROBE'\n{self.text}\nPROBE"
        packed = base64.b64encode(zlib.compress(self.text.encode(), 9)).decode()
        short = (
            f"python3 -c \"import base64, zlib; text = zlib.decompress(base64.b64decode('{packed}')); "
            f"open('{self.path}', 'wb').write(text)\""
        )
        return plain if len(plain) < MOST_CHARS * 2 // 3 else short

    @property
    def run(self) -> str:
        if self.path.endswith(".py"):
            return f"COLUMNS=160 python3 -m pytest -q --tb=line -p no:cacheprovider {self.path}"
        return f"node {self.path}"

    @property
    def passes(self) -> str:
        return f"{self.written}\n{self.run}"

    def otherwise(self, message: str) -> str:
        """Passes too where the test fails in another way."""
        return (
            f'{self.written}\nout=$({self.run}); code=$?; printf %s "$out"\n'
            f'test $code = 0 || {{ test $code = 1 && ! printf %s "$out" | grep -qF -- {shlex.quote(message)}; }}'
        )

    def without(self, other: Test) -> str:
        """Passes where this test does and the other one fails."""
        return f"{self.passes} && {{\n{other.written}\n{other.run}; test $? = 1; }}"


@dataclass(frozen=True, kw_only=True)
class Prober:
    """Makes the probes of one pool.

    Attributes:
        repository: The clean one, with all its tests.
        ref: The untouched commit of the pool.
        hidden: The tests that notice the faults.
        mistaken: For each wrong candidate the hidden tests that fail with it.
        faulty: The texts of the faulty files, by path.
        chance: Chooses tests.
    """

    repository: Path
    ref: str
    mutants: Sequence[Mutant]
    hidden: Sequence[TestPlace]
    mistaken: Sequence[frozenset[TestPlace]]
    faulty: dict[str, str]
    chance: Random

    def made(self, kinds: Sequence[Probe]) -> tuple[MadeProbe, ...]:
        """A probe for each kind, as far as it can be made; each of the hidden tests is used before any is again."""
        tests = [(place, test) for place in self.hidden if (test := self._test(place)) is not None]
        self.chance.shuffle(tests)
        found: list[MadeProbe] = []
        for number, kind in enumerate(kinds, 1):
            quote = f"case {number} is as it should be"
            command, test = "", None
            match kind:
                case Probe.GOOD | Probe.LOOSE if tests:
                    tests.append(tests.pop(0))
                    test = tests[-1][1]
                    command = test.passes
                case Probe.VACUOUS:
                    command = self._loads()
                case Probe.TEXT:
                    command = self._without_the_line()
                case Probe.CHANGED:
                    tree = git(self.repository, "rev-parse", f"{self.ref}^{{tree}}")
                    command = f"test \"$(git rev-parse 'HEAD^{{tree}}')\" != {tree}"
                case Probe.WRONG if tests:
                    command = self._wrong(tests)
                case _:
                    pass
            if command and len(command) <= MOST_CHARS:
                loose = test if kind is Probe.LOOSE else None
                found.append(MadeProbe(kind=kind, quote=quote, command=command, test=loose))
        return tuple(found)

    def _loads(self) -> str:
        path = self.mutants[0].path
        if path.endswith(".py"):
            module = re.sub(r"^src/|(/__init__)?\.py$", "", path).replace("/", ".")
            return f"PYTHONPATH=.:src python3 -c 'import {module}'"
        return f"node -e 'require(\"./{path}\")'"

    def _without_the_line(self) -> str:
        mutant = self.mutants[0]
        clean = (self.repository / mutant.path).read_bytes().decode()
        start, end = clean.rfind("\n", 0, mutant.start) + 1, (clean + "\n").find("\n", mutant.end)
        line = f"{clean[start : mutant.start]}{mutant.after}{clean[mutant.end : end]}".split("\n")[0].rstrip("\r")
        if self.faulty[mutant.path].splitlines().count(line) != 1:
            return ""
        return f"! grep -qxF -- {shlex.quote(line)} {shlex.quote(mutant.path)}"

    def _wrong(self, tests: Sequence[tuple[TestPlace, Test]]) -> str:
        """That one test passes and another one fails: as a candidate that errs has it, where there is one."""
        pairs = [
            (one, other) for place, one in tests for second, other in tests if one is not other and place != second
        ]
        if not pairs:
            return f"{tests[0][1].passes} && false"
        by_test = {id(test): place for place, test in tests}

        def errs_alike(pair: tuple[Test, Test]) -> bool:
            one, other = (by_test[id(test)] for test in pair)
            return any(one not in broken and other in broken for broken in self.mistaken)

        one, other = min(pairs, key=lambda pair: not errs_alike(pair))
        return one.without(other)

    def _test(self, place: TestPlace) -> Test | None:
        """The test alone in a file; None where it cannot be taken out, or is too long."""
        text = (self.repository / place.file).read_text()
        found = alone(text, place.function) if place.file.endswith(".py") else _script(text, place.title)
        if not found:
            return None
        directory, _, name = place.file.rpartition("/")
        slug = re.sub(r"\W+", "_", place.name)[:40]
        named = f"test_probe_{slug}.py" if name.endswith(".py") else f"probe_{slug}{Path(name).suffix}"
        test = Test(path=f"{directory}/{named}".lstrip("/"), text=found)
        return test if len(test.passes) <= MOST_CHARS else None


def alone(text: str, function: str) -> str:
    """A module with one test and what it needs of the rest; empty where it has no such test."""
    body = [node for node in ast.parse(text).body if not _is_docstring(node)]
    kept: set[int] = set()
    for _ in body:  # a class may stand on another one that has the test
        kept |= {at for at, node in enumerate(body) if _has_test(node, function, [body[one] for one in kept])}
    if not kept:
        return ""
    for node in body:
        if isinstance(node, ast.ClassDef):
            node.body = [one for one in node.body if not _is_other_test(one, function)] or [ast.Pass()]
    while True:
        needed = {name for at in kept for name in _used(body[at])}
        more = {at for at, node in enumerate(body) if at not in kept and not _is_other_test(node, function)}
        more = {at for at in more if needed & set(_bound(body[at])) or _is_future(body[at])}
        if not more:
            break
        kept |= more
    pruned = [_pruned(body[at], needed) for at in sorted(kept)]
    return ast.unparse(ast.Module(body=pruned, type_ignores=[]))


def _has_test(node: ast.stmt, function: str, others: Sequence[ast.stmt]) -> bool:
    if isinstance(node, ast.ClassDef):
        names = {one.name for one in others if isinstance(one, ast.ClassDef)}
        stands_on = any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
        return stands_on or any(isinstance(one, _NAMES) and one.name == function for one in node.body)
    return isinstance(node, _NAMES) and node.name == function


def _is_other_test(node: ast.stmt, function: str) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
        node.name.startswith("test") and node.name != function
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _used(node: ast.AST) -> Iterator[str]:
    """Names in a statement; arguments of functions may be fixtures."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            yield one.id
        elif isinstance(one, ast.arg):
            yield one.arg


def _bound(node: ast.stmt) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in one.names)
        elif isinstance(one, _NAMES):
            yield one.name
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
        if isinstance(node, _NAMES):
            return  # what is inside of it is bound there


def _pruned(node: ast.stmt, needed: set[str]) -> ast.stmt:
    """An import without what nobody needs."""
    if isinstance(node, ast.Import | ast.ImportFrom) and not _is_future(node):
        node.names = [one for one in node.names if (one.asname or one.name).partition(".")[0] in needed]
    return node


def _script(text: str, title: str) -> str:
    """A script with one top-level test of JavaScript and what stands before the first one; empty: it has none."""
    lines = text.splitlines()
    starts = [at for at, line in enumerate(lines) if re.match(r"(\w+\.)?(test|it)\(", line)]
    start = next((at for at in starts if title in lines[at]), None)
    if start is None:
        return ""
    end = next((at for at in range(start, len(lines)) if re.match(r"\}.*\)", lines[at])), start)
    return "\n".join(line for line in (*lines[: starts[0]], *lines[start : end + 1]) if line.strip())


def _message(seen: str) -> str:
    """How a run of pytest failed, of what it printed last."""
    lines = [line for line in seen.splitlines() if line.strip()]
    failed = [line for line in lines if re.search(r"(^|FAILED .*| )- ?\w*(Error|Exception|Failed|assert)", line)]
    told = (failed or lines[:-1] or [seen])[-1].rpartition(" - ")[2].strip()
    return told.removesuffix("...")
