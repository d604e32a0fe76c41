"""Faults that a machine puts into source files: one expression or operator each, and what else can be done there."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

SUFFIXES = {
    ".py": "python",
    ".js": "javascript",
    ".cjs": "javascript",
    ".mjs": "javascript",
    ".ts": "javascript",
    ".go": "go",
    ".rs": "rust",
    ".c": "c",
}
_NO_SOURCE = re.compile(
    r"(^|/)(\.|_?tests?(/|$)|__tests__|specs?/|docs?/|examples?/|bench|vendor|third_party|dist/|build/|node_modules|"
    r"lib-esm/|debian|scripts?/|tools/|setup\.py|conftest|noxfile|test_|_?version\.py|[^/]*[._-](test|spec|min|config|d)\.)"
    r"|_test\.\w+$|(^|/)tests?\.\w+$"
)
_MAX_BYTES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault. `start` and `end` are offsets in the file's text; `body` is the part that a deletion takes away.

    Attributes:
        function: The name of the function that it is in.
        before: What stands there in the clean file.
        after: What the fault puts there.
        empty: What stands in place of a deleted body.
    """

    path: str
    function: str
    start: int
    end: int
    before: str
    after: str
    body: tuple[int, int]
    empty: str

    def applied(self, text: str) -> str:
        return self.replaced(text, self.after)

    def deleted(self, text: str) -> str:
        """The clean text without what the function does."""
        return f"{text[: self.body[0]]}{self.empty}{text[self.body[1] :]}"

    def replaced(self, text: str, replacement: str) -> str:
        """The clean text with something else in the fault's place."""
        return f"{text[: self.start]}{replacement}{text[self.end :]}"

    def special(self, tests: Sequence[str]) -> str:
        """What is right only where one of these Python functions calls; empty for other languages."""
        if not self.path.endswith(".py"):
            return ""
        condition = f"any(frame.function in {tuple(tests)!r} for frame in __import__('inspect').stack(0))"
        return f"(({self.before}) if {condition} else ({self.after}))"

    def covered(self, text: str) -> str:
        """The faulty text, and what its function raises is caught; empty for languages that do not raise."""
        first, last = self.body[0], self.body[1] + len(self.after) - (self.end - self.start)
        faulty = self.applied(text)
        body = faulty[first:last]
        if self.path.endswith(".py"):
            indent = " " * (first - faulty.rfind("\n", 0, first) - 1)
            inside = body.replace("\n", "\n    ")
            caught = f"try:\n{indent}    {inside}\n{indent}except Exception:\n{indent}    return None"
        elif SUFFIXES[Path(self.path).suffix] == "javascript":
            caught = f"try {{\n{body}\n}} catch (error) {{\n  return undefined\n}}\n"
        else:
            return ""
        return f"{faulty[:first]}{caught}{faulty[last:]}"

    def alternatives(self) -> list[str]:
        """What else may stand in its place: neither what was there nor the fault, often right for some inputs."""
        if self.path.endswith(".py"):
            found = [f"({text})" for text in _variants(ast.parse(self.before, mode="eval").body)]
        else:
            found = [text for pattern, texts in _OTHER_TOKENS.items() if pattern == self.before for text in texts]
        return [text for text in found if text not in (self.before, self.after)]


def sources(root: Path) -> list[str]:
    """Source files of a repository that are no tests, relative to its root."""
    found = (path for path in sorted(root.rglob("*")) if path.suffix in SUFFIXES and path.is_file())
    names = (path.relative_to(root).as_posix() for path in found if path.stat().st_size < _MAX_BYTES)
    return [name for name in names if not _NO_SOURCE.search(name)]


def mutants(root: Path, *, seed: str) -> list[Mutant]:
    """Possible faults in the order in which they are worth a try: in functions that tests name, then in others.

    The order is the same for the same files and seed.
    """
    mentioned = _mentioned(root)
    chosen: dict[tuple[str, str], list[Mutant]] = {}
    for path in sources(root):
        try:
            text = (root / path).read_bytes().decode()
        except UnicodeDecodeError:
            continue
        for mutant in _python(path, text) if path.endswith(".py") else _braces(path, text):
            chosen.setdefault((path, mutant.function), []).append(mutant)
    chance = random.Random(seed)
    groups = [sorted(group, key=lambda _: chance.random())[:2] for group in chosen.values()]
    groups.sort(key=lambda group: (group[0].function.strip("_") not in mentioned, chance.random()))
    # Each function once, then each once more.
    return [mutant for row in zip_longest(*groups) for mutant in row if mutant is not None]


def _mentioned(root: Path) -> frozenset[str]:
    """Words in the project's tests."""
    words: set[str] = set()
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.suffix in SUFFIXES and path.is_file() and re.search(r"test|spec", name):
            words.update(re.findall(r"\w+", path.read_text(errors="replace")))
    return frozenset(words)


_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


def _python(path: str, text: str) -> Iterator[Mutant]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    content = text.encode()

    def place(line: int, column: int) -> int:
        return len(content[: lines[line - 1] + column].decode())

    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        documented = isinstance(function.body[0], ast.Expr) and isinstance(function.body[0].value, ast.Constant)
        body = function.body[1:] if documented else function.body
        if not body or body[0].lineno == function.lineno:
            continue
        whole = (
            place(body[0].lineno, body[0].col_offset),
            place(body[-1].end_lineno or 0, body[-1].end_col_offset or 0),
        )
        nodes = [node for statement in body for node in ast.walk(statement)]
        # A loop whose condition is changed hardly ever ends.
        conditions = {id(part) for node in nodes if isinstance(node, ast.While) for part in ast.walk(node.test)}
        for node in nodes:
            changed = _changed(node)
            if changed is None or id(node) in conditions or not isinstance(node, ast.expr):
                continue
            start = place(node.lineno, node.col_offset)
            end = place(node.end_lineno or 0, node.end_col_offset or 0)
            if not _same(text[start:end], node):
                continue
            yield Mutant(
                path=path,
                function=function.name,
                start=start,
                end=end,
                before=text[start:end],
                after=f"({changed})",
                body=whole,
                empty="pass",
            )


def _same(text: str, node: ast.expr) -> bool:
    """Whether an expression stands where it says; inside of formatted strings it does not."""
    try:
        return ast.unparse(ast.parse(text, mode="eval").body) == ast.unparse(node)
    except SyntaxError:
        return False


def _changed(node: ast.AST) -> str | None:
    """A faulty expression in the place of one; None where there is none."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return ast.unparse(ast.Compare(left=left, ops=[_COMPARED[type(op)]()], comparators=[right]))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _is_text(left, right):
            return ast.unparse(ast.BinOp(left=left, op=_COMPUTED[type(op)](), right=right))
        case ast.BoolOp(op=ast.And(), values=values):
            return ast.unparse(ast.BoolOp(op=ast.Or(), values=values))
        case ast.BoolOp(op=ast.Or(), values=values):
            return ast.unparse(ast.BoolOp(op=ast.And(), values=values))
        case ast.Constant(value=bool(value)):
            return repr(not value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.unparse(operand)
        case _:
            return None


def _variants(node: ast.expr) -> list[str]:
    """Other expressions of the same operands."""
    match node:
        case ast.Compare(left=left, ops=[_], comparators=[right]):
            ordered = [ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq]
            group = ordered if type(node.ops[0]) in ordered else []
            compared = [ast.Compare(left=left, ops=[op()], comparators=[right]) for op in group]
            return [*map(ast.unparse, compared), "True", "False"]
        case ast.BinOp(left=left, right=right):
            group = [ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod]
            computed = [ast.BinOp(left=left, op=op(), right=right) for op in group]
            return [*map(ast.unparse, computed), ast.unparse(left), ast.unparse(right)]
        case ast.BoolOp(values=values):
            return [*map(ast.unparse, values), "True", "False"]
        case ast.UnaryOp(op=ast.Not()):
            return ["True", "False"]
        case _:
            return []


def _is_text(*nodes: ast.expr) -> bool:
    return any(isinstance(node, ast.JoinedStr | ast.Constant) and not _is_number(node) for node in nodes)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


_TOKENS = (
    (r" === ", " !== "),
    (r" !== ", " === "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" <= ", " > "),
    (r" >= ", " < "),
    (r" < (?=\w)", " >= "),
    (r" > (?=\w)", " <= "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ 1\b", " + 2"),
    (r" - (?=\w)", " + "),
    (r" \* (?=\w)", " + "),
    (r" % (?=\w)", " * "),
    (r" \^ ", " | "),
    (r" = true\b", " = false"),
    (r" = false\b", " = true"),
    (r"\breturn true\b", "return false"),
    (r"\breturn false\b", "return true"),
)
_OTHER_TOKENS = {
    " == ": (" <= ", " >= "),
    " === ": (" <= ", " >= "),
    " != ": (" < ", " > "),
    " !== ": (" < ", " > "),
    " <= ": (" < ", " == ", " >= "),
    " >= ": (" > ", " == ", " <= "),
    " < ": (" <= ", " > ", " != "),
    " > ": (" >= ", " < ", " != "),
    " + 1": (" + 0", " - 1"),
    " - ": (" * ",),
    " * ": (" - ",),
    " % ": (" + ", " - "),
    " ^ ": (" & ", " + "),
}
_HEADER = re.compile(
    r"(?:\bfunction\b\s*\*?\s*|\bfunc\b\s*(?:\([^)]*\)\s*)?|\bfn\s+|\.|"
    r"^\w[\w\s*()]*[\s*]|^\s*(?:(?:async|static|export|const|public|private|protected)\s+)*)"
    r"(\w+)\s*(?:=\s*(?:async\s*)?(?:function\s*)?)?(?:<[^>]*>)?\([^;]*\{\s*$"
)
_NO_CODE = re.compile(r"^\s*(//|\*|/\*|#|import\b|use\b|package\b)|require\(")
_KEYWORDS = frozenset(
    ["if", "for", "while", "switch", "catch", "else", "match", "loop", "unless", "with", "return", "do"]
)


def _braces(path: str, text: str) -> Iterator[Mutant]:
    """By tokens, in the functions of languages with braces. What does not compile is never noticed by a test."""
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    for number, line in enumerate(lines):
        if lines[number + 1 : number + 2] == ["{\n"]:
            line = f"{line.rstrip()} {{"
        header = _HEADER.search(line)
        if header is None or header[1] in _KEYWORDS or _NO_CODE.search(line):
            continue
        end = _block_end(lines, number)
        if not number + 1 < end <= number + 120 or _in_tests(lines, number):
            continue
        body = (offsets[number + 1], offsets[end])
        for inner in range(number + 1, end):
            if _NO_CODE.search(lines[inner]) or re.search(r"\b(while|for|loop)\b", lines[inner]):
                continue
            for pattern, after in _TOKENS:
                for match in re.finditer(pattern, lines[inner]):
                    start = offsets[inner] + match.start()
                    yield Mutant(
                        path=path,
                        function=header[1],
                        start=start,
                        end=offsets[inner] + match.end(),
                        before=match[0],
                        after=after,
                        body=body,
                        empty="",
                    )


def _block_end(lines: Sequence[str], number: int) -> int:
    """The line that closes the block which a line opens."""
    depth = 0
    start = number + 1 if lines[number + 1 : number + 2] == ["{\n"] else number
    for index in range(start, len(lines)):
        depth += lines[index].count("{") - lines[index].count("}")
        if depth <= 0:
            return index
    return len(lines)


def _in_tests(lines: Sequence[str], number: int) -> bool:
    """Whether a line of Rust stands below the tests of its file."""
    return any("#[cfg(test)]" in line or "#[test]" in line for line in lines[:number])
