"""Lists of requirements for pip: which of a repository's are wanted, and what stands in them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_ai_fleet.environments.python_project import is_requirement
from swe_ai_fleet.environments.repository_files import RepositoryFiles, inside, joined

_TESTS = r"dev|devel|develop|development|tests?|testing|pytest|ci|unit"
_WANTED_NAME = re.compile(rf"(?:(?:{_TESTS})[-_.])?requirements?(?:[-_.](?:{_TESTS}|base|main|all|common))?", re.I)
_WANTED_IN_DIRECTORY = re.compile(
    rf"(?:requirements?[-_.]?)?(?:{_TESTS}|base|main|all|common|requirements?|install|default|prod|production)?"
    rf"(?:[-_.]requirements?)?|(?:{_TESTS})[-_](?:tools|deps|base)",
    re.I,
)
_TEST_DIRECTORIES = frozenset({"tests", "test", "testing"})
_DIRECTORIES = frozenset({"requirements", "requirement", "reqs"})
# pip takes a file of such a name for the package itself.
_ARCHIVE = re.compile(r"\.(?:zip|whl|tar|tar\.\w+|t(?:bz|gz|xz|lz))(?![\w.])", re.I)
_MAX_DEPTH = 6
_MAX_LINES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementFile:
    """One list: its requirements, those of the lists that it includes among them.

    `targets` are directories of the repository with their extras, as `-e` takes them; `constraints` files of pins.
    `plain` says that pip may be given the file itself: without hashes, which a project in a directory has none of, and
    without targets.
    """

    path: str
    lines: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    plain: bool = True


def wanted_files(files: RepositoryFiles, directory: str) -> tuple[str, ...]:
    """The lists in a directory that running and testing needs, by their names; a `.in` only without its `.txt`."""
    prefix = f"{directory}/" if directory else ""
    found = [path for path in files.texts if path.startswith(prefix) and _is_wanted(path.removeprefix(prefix))]
    return tuple(
        path for path in sorted(found) if path.endswith(".txt") or f"{path.removesuffix('.in')}.txt" not in files.files
    )


def read_requirements(files: RepositoryFiles, path: str, directory: str = "") -> RequirementFile:
    """What stands in a list; paths in it are relative to `directory`, where pip runs."""
    lines: list[str] = []
    targets: list[str] = []
    constraints: list[str] = []
    hashed = False
    pending = [(path, 0)]
    seen: set[str] = set()
    while pending and len(lines) < _MAX_LINES:
        current, depth = pending.pop(0)
        if current in seen or depth > _MAX_DEPTH:
            continue
        seen.add(current)
        for raw in files.text(current).replace("\\\n", " ").splitlines():
            line = re.sub(r"(?:^|\s)#.*$", "", raw).strip()
            hashed = hashed or " --hash" in line
            line = re.sub(r"(?<!\s)\s+--(?:hash|config-settings?|global-option)[= ]\S+", "", line).strip()
            option = re.match(r"(-r|-c|-e|--requirement|--constraint|--editable)[ =]*(.+)", line)
            if option and option[1] in ("-r", "--requirement"):
                pending.append((joined(posixpath.dirname(current), option[2].strip()), depth + 1))
            elif option and option[1] in ("-c", "--constraint"):
                constraints.append(joined(posixpath.dirname(current), option[2].strip()))
            elif option or re.match(r"\.{1,2}(?:/|\[|$)", line):
                target = option[2].strip() if option else line
                local = _local(files, target, directory)
                if local:
                    targets.append(local)
                elif target:
                    lines.append(f"-e {target}" if option else target)
            elif line and not line.startswith("-"):
                lines.append(line)
    return RequirementFile(
        path=path,
        lines=tuple(dict.fromkeys(lines)),
        targets=tuple(dict.fromkeys(targets)),
        constraints=tuple(constraint for constraint in dict.fromkeys(constraints) if constraint in files.files),
        plain=not hashed and not targets,
    )


def is_of_index(line: str) -> bool:
    """Whether pip has what a line asks for from an index, whatever files there are of that name."""
    named = line.partition(";")[0]
    return is_requirement(line) and "@" not in named and _ARCHIVE.search(named) is None


def is_plain(text: str) -> bool:
    """Whether a list has packages of an index and nothing else: no option, no other list, no place."""
    lines = (re.sub(r"(?:^|\s)#.*$", "", raw).strip() for raw in text.replace("\\\n", " ").splitlines())
    lines = (re.sub(r"\s+--hash[= ]\S+", "", line) for line in lines)
    return all(is_of_index(line) for line in lines if line)


def as_arguments(line: str) -> tuple[str, ...]:
    """A line as arguments for pip; empty for what pip could take for an option."""
    if line.startswith("-e ") and not line[3:].strip().startswith("-"):
        return ("-e", line[3:].strip())
    if line.startswith("-") or "\0" in line or "\n" in line:
        return ()
    return (line,) if is_requirement(line) or re.match(r"[\w./:+@]", line) else ()


def _local(files: RepositoryFiles, target: str, directory: str) -> str:
    """A target that is a project of this repository, relative to its top; empty for anything else."""
    match = re.fullmatch(r"(?:file:)?(?P<path>\.{0,2}[\w./-]*)(?P<extras>\[[\w., -]+\])?", target)
    if match is None or match["path"].startswith("/"):
        return ""
    place = joined(directory, match["path"] or ".")
    place = "" if place == "." else place
    if not inside(place or ".") or not files.named(place, "pyproject.toml", "setup.py", "setup.cfg"):
        return ""
    return f"{place or '.'}{(match['extras'] or '').replace(' ', '')}"


def _is_wanted(path: str) -> bool:
    place = PurePosixPath(path)
    if place.suffix not in (".txt", ".in"):
        return False
    directory = "/".join(place.parts[:-1])
    if directory in _DIRECTORIES:
        return bool(place.stem) and _WANTED_IN_DIRECTORY.fullmatch(place.stem) is not None
    return directory in {"", *_TEST_DIRECTORIES} and _WANTED_NAME.fullmatch(place.stem) is not None
