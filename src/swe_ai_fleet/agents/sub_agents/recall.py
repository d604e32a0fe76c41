"""Searches a repository's documents and history: BM25 over passages, exact phrases for names.

`main` runs inside the workspace's sandbox, where nothing else of the fleet can be imported: untrusted files are parsed
neither in the fleet's event loop nor outside a jail. `memory.RepositoryMemory` starts it.

The ranking is Okapi BM25, its scores made comparable between queries: Robertson and Zaragoza, "The Probabilistic
Relevance Framework: BM25 and Beyond" (2009). The inverse document frequency has one added under its logarithm, so that
a term in every passage has a small weight instead of a negative one. A score is divided by that of a passage of average
length with each of the query's terms once: 1.0 is such a passage, for every query.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

MAX_CHARS = 1_200
"""The longest passage; longer sections are split."""
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
K1, B = 1.2, 0.75
MAX_TERM_CHARS = 64
_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STOP_WORDS = """
a an and are as at be been but by can could did do does for from had has have how i if in into is it its may me my no
not of on or our should so that the their them then there these they this to us was we were what when where which who
why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def main(request: Mapping[str, Any]) -> None:
    """Search the working directory and print the results as JSON.

    The request has entities and queries (lists of texts), threshold (the least score of a passage that answers a
    query), hits (the most passages of each) and seconds (for reading).
    """
    root = os.path.realpath(os.getcwd())  # noqa: PTH109
    json.dump(recall(passages(root, seconds=float(request["seconds"])), request), sys.stdout)


def recall(passages: Sequence[Passage], request: Mapping[str, Any]) -> dict[str, object]:
    """The answer to one request: `answers` has for each entity and query the passages that answer it, best first."""
    index = Index([f"{passage.source}\n{passage.text}" for passage in passages])
    hits = int(request["hits"])
    shown: dict[int, int] = {}
    answers: list[dict[str, object]] = []
    for entity in request["entities"]:
        chosen = _naming(passages, index, entity)[:hits]
        answers.append({"asked": entity, "passages": [shown.setdefault(number, len(shown)) for number in chosen]})
    threshold = float(request["threshold"])
    for query in request["queries"]:
        chosen = [number for score, number in index.rank(query)[:hits] if score >= threshold]
        answers.append({"asked": query, "passages": [shown.setdefault(number, len(shown)) for number in chosen]})
    return {
        "answers": answers,
        "passages": [{"source": passages[number].source, "text": passages[number].text} for number in shown],
    }


def _naming(passages: Sequence[Passage], index: Index, entity: str) -> list[int]:
    """The passages that name an entity exactly: those titled with it first, then by score."""
    # A name without terms (`__init__`, a stop word) is searched for in all passages.
    ranked = [number for _, number in index.rank(entity)] or range(len(passages))
    named = [number for number in ranked if names(entity, f"{passages[number].source}\n{passages[number].text}")]
    return sorted(named, key=lambda number: not _is_titled(passages[number].source, entity))


def _is_titled(source: str, entity: str) -> bool:
    """Whether the entity is the name of the heading, definition or file."""
    path, mark, title = source.partition("#")
    title = title if mark else path.rpartition("/")[2]
    return entity.casefold() in (title.casefold(), title.rpartition(".")[2].casefold(), path.casefold())


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and its source: `path#heading`, `path#name` or `commit <id>`."""

    source: str
    text: str


def passages(root: str, *, seconds: float) -> list[Passage]:
    """The documents, commit messages and docstrings of a repository, as many as there is time for."""
    until = time.monotonic() + seconds
    paths = _paths(root)
    documents = [path for path in paths if _is_document(path)]
    modules = [path for path in paths if path.endswith(".py")]
    parts = (
        _of_files(root, documents, _sections, until),
        _commits(root),
        _of_files(root, modules, _docstrings, until),
    )
    return list(islice(chain.from_iterable(parts), MAX_PASSAGES))


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
    """The sections of a document; headings inside code blocks do not start a section."""
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
    """A file's text; empty for links, files that are not regular, too large or binary."""
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
    """The output of git; None without a repository or git, or after a time-out."""
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


def terms(text: str) -> Iterator[str]:
    """The words of a text in lower case, without plural endings and stop words; also the parts of `camelCase`.

    The endings are those of Harman's S stemmer ("How effective is suffixing?", 1991).
    """
    for match in _WORD.finditer(text):
        word = match[0][:MAX_TERM_CHARS]
        yield from _term(word)
        if not (word.islower() or word.isupper() or word.istitle() or word.isdigit()):
            for part in _PART.findall(word):
                if part != word:
                    yield from _term(part)


def _term(word: str) -> Iterator[str]:
    word = word.casefold()
    if word in STOP_WORDS:
        return
    if len(word) > 3:
        if word.endswith("ies") and not word.endswith(("eies", "aies")):
            word = f"{word[:-3]}y"
        elif word.endswith("s") and not word.endswith(("us", "ss", "aes", "ees", "oes")):
            word = word[:-1]
        # So that `fixes` and `fix`, `classes` and `class` are equal.
        word = word.removesuffix("e") if len(word) > 3 else word
    yield word


class Index:
    """An inverted index of passages, which are identified by their numbers."""

    def __init__(self, passages: Sequence[str]) -> None:
        self._postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths: list[int] = []
        for number, passage in enumerate(passages):
            counts = Counter(terms(passage))
            self._lengths.append(counts.total())
            for term, count in counts.items():
                self._postings[term].append((number, count))
        self._average = max(1.0, sum(self._lengths) / max(1, len(self._lengths)))

    def rank(self, query: str) -> list[tuple[float, int]]:
        """(score, number) of the passages with any of the query's terms, best first; ties in the given order."""
        query_terms = set(terms(query))
        scores: defaultdict[int, float] = defaultdict(float)
        for term in query_terms:
            postings = self._postings.get(term, ())
            weight = self._weight(len(postings))
            for number, count in postings:
                damping = 1 - B + B * self._lengths[number] / self._average
                scores[number] += weight * count * (K1 + 1) / (count + K1 * damping)
        whole = sum(self._weight(len(self._postings.get(term, ()))) for term in query_terms)
        return sorted(((score / whole, number) for number, score in scores.items()), key=lambda hit: (-hit[0], hit[1]))

    def _weight(self, containing: int) -> float:
        """The inverse document frequency of a term in so many passages."""
        return math.log(1 + (len(self._lengths) - containing + 0.5) / (containing + 0.5))


def names(phrase: str, text: str) -> bool:
    """Whether a text contains a phrase, except for case, and not as a part of longer words."""
    folded, text = phrase.strip().casefold(), text.casefold()
    start = text.find(folded) if folded else -1
    while start >= 0:
        end = start + len(folded)
        if not _joined(text[max(0, start - 1) : start], folded[0]) and not _joined(folded[-1], text[end : end + 1]):
            return True
        start = text.find(folded, start + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters, either of which may be empty, belong to one word."""
    return bool(left and right) and all(character.isalnum() or character == "_" for character in (left, right))
