"""Files that tools write: changed without what they are made of, they were changed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from swe_ai_fleet.orchestrator.evidence.patch import FilePatch, Patch
from swe_ai_fleet.orchestrator.evidence.source_files import is_document, is_test
from swe_ai_fleet.orchestrator.evidence.violation import Concern, Violation

_LOCKS = {
    **dict.fromkeys(("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "bun.lock"), ("package.json",)),
    "pnpm-lock.yaml": ("package.json", "pnpm-workspace.yaml"),
    **dict.fromkeys(("poetry.lock", "uv.lock", "pdm.lock"), ("pyproject.toml",)),
    "Pipfile.lock": ("Pipfile",),
    "Cargo.lock": ("Cargo.toml",),
    "go.sum": ("go.mod", "go.work"),
    "composer.lock": ("composer.json",),
    "Gemfile.lock": ("Gemfile", "*.gemspec"),
    "requirements*.lock": ("pyproject.toml", "requirements*.in", "requirements*.txt", "setup.py", "setup.cfg"),
}
_MADE = (("*_pb2.py", "*.proto"), ("*_pb2.pyi", "*.proto"), ("*_pb2_grpc.py", "*.proto"), ("*.pb.go", "*.proto"))
_HEADER = re.compile(r"(?i)\bdo not edit\b|@generated\b")
_HEADER_LINES = 20
_FILE_NAME = re.compile(r"[\w-]{1,60}(?:\.[\w-]{1,20}){1,3}")


def is_lock(path: str) -> bool:
    """Whether a package manager writes the file."""
    return bool(_sources_of_lock(path))


def changed_by_hand(patch: Patch, text_of: Callable[[str], str]) -> Iterator[Violation]:
    """Warnings about lock files and generated files that change while nothing that they are made of does.

    Args:
        patch: What is changed.
        text_of: The text of a file with the patch applied, empty where it cannot be read.
    """
    changed = {PurePosixPath(name).name for file in patch.files for name in (file.path, file.old_path)}
    generated = {file.path: header for file in patch.files if (header := _header(file, text_of))}
    causes = {path for path in patch.paths if path not in generated and _may_be_source(path)}
    for file in patch.files:
        if file.is_deleted:
            continue
        if sources := _sources_of_lock(file.path):
            if not _any_fits(changed, sources):
                yield _warning(Concern.LOCKS, file, f"a lock file changes without {' or '.join(sources)}")
        elif sources := _sources_of_code(file.path):
            if not _any_fits(changed, sources):
                yield _warning(Concern.GENERATED, file, f"a generated file changes without {' or '.join(sources)}")
        elif header := generated.get(file.path):
            named = set(_FILE_NAME.findall(header)) - {PurePosixPath(file.path).name}
            if not (named & changed or causes):
                yield _warning(Concern.GENERATED, file, "a file that says it is generated changes without its source")


def _may_be_source(path: str) -> bool:
    return not (is_test(path) or is_document(path) or is_lock(path) or _sources_of_code(path))


def _header(file: FilePatch, text_of: Callable[[str], str]) -> str:
    """The beginning of a file that says it is generated; empty for others, and for files that are new."""
    if file.is_deleted or file.is_new or file.is_binary or is_lock(file.path) or is_document(file.path):
        return ""
    text = text_of(file.path)
    heads = ("\n".join(side.split("\n", _HEADER_LINES)[:_HEADER_LINES])[:4_000] for side in (text, file.before(text)))
    return next((head for head in heads if _HEADER.search(head)), "")


def _sources_of_lock(path: str) -> tuple[str, ...]:
    name = PurePosixPath(path).name
    return next((sources for lock, sources in _LOCKS.items() if fnmatchcase(name, lock)), ())


def _sources_of_code(path: str) -> tuple[str, ...]:
    name = PurePosixPath(path).name
    return tuple(source for made, source in _MADE if fnmatchcase(name, made))


def _any_fits(names: set[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _warning(concern: Concern, file: FilePatch, text: str) -> Violation:
    return Violation(concern=concern, path=file.path, text=text, required=False)
