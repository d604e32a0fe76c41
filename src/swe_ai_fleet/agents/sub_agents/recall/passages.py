"""The passages of a working tree: documents by section, docstrings by name, commits by message."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

MAX_CHARS = 1_200
"""Of one passage; longer sections become several."""
MAX_PASSAGES = 20_000
MAX_COMMITS = 2_000
MAX_FILES = 4_000
MAX_FILE_BYTES = 512 * 1024
_MAX_TITLE_CHARS = 120
_GIT_SECONDS = 20
_DOCUMENTS = (".md", ".markdown", ".rst", ".adoc")
_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*)")
_SKIPPED = frozenset(
    {".git", "__pycache__", "build", "dist", "node_modules", "site-packages", "target", "venv", ".venv"}
)
_GIT = (
    "git", "--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false",
    "-c", "log.showSignature=false", "-c", "safe.directory=*", "-c", "color.ui=false",
)  # fmt: skip
_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C.UTF-8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and where it stands: `path#heading`, `path#name` or `commit <id>`."""

    source: str
    text: str


def passages(root: str, *, seconds: float) -> list[Passage]:
    """What a tree says about itself, documents first, as much as there is time for."""
    until = time.monotonic() + seconds
    found_passages: list[Passage] = []
    paths = _paths(root)
    documents = [path for path in paths if _is_document(path)]
    modules = [path for path in paths if path.endswith(".py")]
    parts = (
        _of_files(root, documents, _sections, until),
        _commits(root),
        _of_files(root, modules, _docstrings, until),
    )
    for part in parts:
        for passage in part:
            if len(found_passages) >= MAX_PASSAGES:
                return found_passages
            found_passages.append(passage)
    return found_passages


def _is_document(path: str) -> bool:
    directory, _, name = path.rpartition("/")
    if name.lower().endswith(_DOCUMENTS):
        return True
    stem = name.upper().removesuffix(".TXT")
    return stem in {"README", "CHANGES", "CHANGELOG", "HISTORY", "NEWS"} or (
        name.lower().endswith(".txt") and directory.split("/")[0].lower() in {"doc", "docs"}
    )


def _of_files(
    root: str, paths: Sequence[str], split: Callable[[str, str], Iterator[Passage]], until: float
) -> Iterator[Passage]:
    for path in paths[:MAX_FILES]:
        if time.monotonic() > until:
            return
        text = _read(root, path)
        if text:
            yield from split(path, text)


def _sections(path: str, text: str) -> Iterator[Passage]:
    """The sections of a document, fenced blocks kept whole as far as they fit."""
    title, lines, fenced = "", list[str](), False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield from _cut(path, title, "\n".join(lines))
        title, lines = heading[1].strip(" #\t")[:_MAX_TITLE_CHARS], []
    yield from _cut(path, title, "\n".join(lines))


def _docstrings(path: str, text: str) -> Iterator[Passage]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        name, node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _cut(path, name, ast.get_docstring(node) or "")
            children = [
                child for child in node.body if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            waiting += [(f"{name}.{child.name}".lstrip("."), child) for child in reversed(children)]


def _cut(path: str, title: str, text: str) -> Iterator[Passage]:
    """A section in passages that end between paragraphs where they can."""
    source = f"{path}#{title}" if title else path
    rest = text.strip()
    while rest:
        if len(rest) <= MAX_CHARS:
            yield Passage(source, rest)
            return
        end = rest.rfind("\n\n", MAX_CHARS // 3, MAX_CHARS)
        if end < 0:
            end = rest.rfind("\n", MAX_CHARS // 3, MAX_CHARS)
        end = MAX_CHARS if end < 0 else end
        yield Passage(source, rest[:end].rstrip())
        rest = rest[end:].lstrip()


def _commits(root: str) -> Iterator[Passage]:
    log = _git(root, "log", "-z", f"--max-count={MAX_COMMITS}", "--format=%h%x01%s%x01%b") or b""
    for record in log.split(b"\0"):
        name, _, message = record.decode("utf-8", "replace").partition("\x01")
        subject, _, body = message.partition("\x01")
        text = f"{subject}\n{body}".strip()[:MAX_CHARS]
        if name and text:
            yield Passage(f"commit {name}", text)


def _paths(root: str) -> list[str]:
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        return sorted({name.decode("utf-8", "replace") for name in listed.split(b"\0") if name})
    paths: list[str] = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _SKIPPED and not name.startswith("."))
        below = os.path.relpath(directory, root)
        paths += [name if below == "." else f"{below}/{name}" for name in sorted(files)]
        if len(paths) > 10 * MAX_FILES:
            break
    return paths


def _read(root: str, path: str) -> str:
    """A file's text; empty for what is not a regular file of the tree, too large, or no text."""
    whole = os.path.join(root, path)  # noqa: PTH118
    if os.path.realpath(whole) != os.path.normpath(whole):
        return ""  # through a link
    try:
        handle = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    with os.fdopen(handle, "rb") as file:
        try:
            data = file.read(MAX_FILE_BYTES + 1)
        except OSError:
            return ""
    return "" if len(data) > MAX_FILE_BYTES or b"\0" in data else data.decode("utf-8", "replace")


def _git(root: str, *arguments: str) -> bytes | None:
    """What git says; None where there is no repository, no git, or no answer in time."""
    try:
        done = subprocess.run(
            [*_GIT, *arguments],
            cwd=root,
            env={**os.environ, **_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
