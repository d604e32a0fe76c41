"""Requirements of a repository: the requirement files that tests need, and the pins of lock files.

The pins of a lock are the versions of packages that an interpreter of a given version would get.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from packaging.markers import InvalidMarker, Marker, default_environment
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from swe_ai_fleet.domain.json_values import items, json_object, mapping, string, strings
from swe_ai_fleet.environments.python_project import is_requirement
from swe_ai_fleet.environments.recipe import allows
from swe_ai_fleet.environments.repository_files import RepositoryFiles, Table, inside, joined

_TESTS = r"dev|devel|develop|development|tests?|testing|pytest|ci|unit"
_WANTED_NAME = re.compile(rf"(?:(?:{_TESTS})[-_.])?requirements?(?:[-_.](?:{_TESTS}|base|main|all|common))?", re.I)
_WANTED_IN_DIRECTORY = re.compile(
    rf"(?:requirements?[-_.]?)?(?:{_TESTS}|base|main|all|common|requirements?|install|default|prod|production)?"
    rf"(?:[-_.]requirements?)?|(?:{_TESTS})[-_](?:tools|deps|base)",
    re.I,
)
_TEST_DIRECTORIES = frozenset({"tests", "test", "testing"})
_DIRECTORIES = frozenset({"requirements", "requirement", "reqs"})
# Names that pip takes for an archive file.
_ARCHIVE = re.compile(r"\.(?:zip|whl|tar|tar\.\w+|t(?:bz|gz|xz|lz))(?![\w.])", re.I)
_MAX_DEPTH = 6
_MAX_LINES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementFile:
    """A requirements file with the requirements of the files that it includes.

    `targets` are directories of the repository with their extras, as `-e` takes them; `constraints` are files with
    pins. `plain` says that pip can read the file itself: it has no targets, and no hashes, which pip would then require
    for the project too.
    """

    path: str
    lines: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    plain: bool = True


def wanted_files(files: RepositoryFiles, directory: str) -> tuple[str, ...]:
    """The requirement files in a directory for running and testing, by their names; a `.in` only without its `.txt`."""
    prefix = f"{directory}/" if directory else ""
    lists = [path for path in files.texts if path.startswith(prefix) and _is_wanted(path.removeprefix(prefix))]
    return tuple(
        path for path in sorted(lists) if path.endswith(".txt") or f"{path.removesuffix('.in')}.txt" not in files.files
    )


def read_requirements(files: RepositoryFiles, path: str, directory: str = "") -> RequirementFile:
    """The content of a requirement file; paths in it are relative to `directory`, where pip runs."""
    lines: list[str] = []
    targets: list[str] = []
    constraints: list[str] = []
    hashed = False
    pending = [(path, 0)]
    visited: set[str] = set()
    while pending and len(lines) < _MAX_LINES:
        current, depth = pending.pop(0)
        if current in visited or depth > _MAX_DEPTH:
            continue
        visited.add(current)
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
    """Whether pip would get the package of a line from an index, not from a file or URL."""
    named = line.partition(";")[0]
    return is_requirement(line) and "@" not in named and _ARCHIVE.search(named) is None


def is_plain(text: str) -> bool:
    """Whether a list has only packages of an index: no option, no other list, no path."""
    lines = (re.sub(r"(?:^|\s)#.*$", "", raw).strip() for raw in text.replace("\\\n", " ").splitlines())
    lines = (re.sub(r"\s+--hash[= ]\S+", "", line) for line in lines)
    return all(is_of_index(line) for line in lines if line)


def as_arguments(line: str) -> tuple[str, ...]:
    """A line as arguments for pip; empty for a line that pip could read as an option."""
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
    if not inside(place or ".") or not files.existing(place, "pyproject.toml", "setup.py", "setup.cfg"):
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


_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NPM_NAME = re.compile(r"(?:@[A-Za-z0-9][\w.-]{0,100}/)?[A-Za-z0-9_][\w.-]{0,200}", re.A)
_NPM_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,100}")
_INTEGRITY = re.compile(r"sha(?:1|256|384|512)-[A-Za-z0-9+/=]{20,100}")
# Messages of pip about a conflicting pin, and about a pin that is not available for this interpreter.
_CONSTRAINT = re.compile(r"\(constraint\) ([A-Za-z0-9][A-Za-z0-9._-]*)")
_UNAVAILABLE = re.compile(
    r"(?:No matching distribution found for|satisfies the requirement|from) ([A-Za-z0-9][A-Za-z0-9._-]*)=="
)
_NO_DISTRIBUTION = re.compile(r"No matching distribution found for ([A-Za-z0-9][A-Za-z0-9._-]*)")
_UNBUILDABLE = re.compile(
    r"(?:Failed building (?:wheel|editable) for |Failed to build (?:installable wheels for some pyproject.toml based "
    r"projects \()?'?|╰─> |Could not build wheels for )([A-Za-z0-9][A-Za-z0-9._-]*)"
)


def as_constraints(pins: Mapping[str, str], without: Iterable[str] = ()) -> str:
    """A constraints file for pip with versions by canonical name, without some packages."""
    left_out = set(without)
    return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()) if name not in left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    version: str
    markers: tuple[str, ...] = ()
    requires_python: str = ""
    own: bool = False


def read_lock(files: RepositoryFiles, path: str, python: tuple[int, int]) -> dict[str, str]:
    """The pins of a lock file for an interpreter on this machine: versions by canonical name.

    A package with several versions has no pin, and an unreadable file has none.
    """
    readers = {
        "Pipfile.lock": _pipenv,
        "uv.lock": _uv,
        "poetry.lock": _poetry,
        "pdm.lock": _pdm,
        "pylock.toml": _pylock,
    }
    name = PurePosixPath(path).name
    document = files.json(path) if name == "Pipfile.lock" else files.toml(path)
    version = f"{python[0]}.{python[1]}"
    machine = {name: str(value) for name, value in default_environment().items()}
    # A later patch release than any that a marker names.
    environment = {**machine, "python_version": version, "python_full_version": f"{version}.99", "extra": ""}
    versions: dict[str, set[str]] = {}
    own: set[str] = set()
    for entry in readers[name](document):
        canonical = str(canonicalize_name(entry.name))
        if not _is_version(entry.version):
            continue
        if entry.own:
            own.add(canonical)
        elif allows(entry.requires_python, python) and (
            not entry.markers or any(_holds(marker, environment) for marker in entry.markers)
        ):
            versions.setdefault(canonical, set()).add(entry.version)
    return {name: next(iter(pinned)) for name, pinned in versions.items() if len(pinned) == 1 and name not in own}


def recorded_lock(lines: Iterable[str]) -> dict[str, str]:
    """The pins of the packages that a build recorded as installed, as lines for pip."""
    named = (line.split()[0].partition("==") for line in lines)
    return {name: version for name, _, version in named}


def recorded_line(name: str, version: str, digest: str) -> str:
    """An installed package as a line for pip, with the SHA-256 of its archive if that is known; empty if invalid.

    The arguments come from a build, whose code is untrusted.
    """
    if not _PACKAGE.fullmatch(name) or not _is_version(version) or not version.isascii():
        return ""
    hashed = f" --hash=sha256:{digest}" if _SHA256.fullmatch(digest) else ""
    return f"{canonicalize_name(name)}=={Version(version)}{hashed}"


def npm_lock(hidden: str) -> tuple[str, tuple[str, ...]]:
    """The packages that npm has installed, as a package-lock.json and as lines; both empty without a record.

    `hidden` is the text of node_modules/.package-lock.json, which is untrusted: the build may have written it. Packages
    of the repository's own workspace are left out, and packages without a version.
    """
    packages: dict[str, object] = {"": {}}
    lines: set[str] = set()
    for place, entry in mapping(json_object(hidden), "packages").items():
        fields = mapping(entry)
        name = string(fields.get("name")) or place.rpartition("node_modules/")[2]
        version, integrity = string(fields.get("version")), string(fields.get("integrity"))
        is_installed = "node_modules" in place.split("/") and not fields.get("link")
        if is_installed and _NPM_NAME.fullmatch(name) and _NPM_VERSION.fullmatch(version):
            packages[place] = fields
            lines.add(f"{name}@{version} {integrity}" if _INTEGRITY.fullmatch(integrity) else f"{name}@{version}")
    if not lines:
        return "", ()
    return json.dumps({"lockfileVersion": 3, "requires": True, "packages": packages}), tuple(sorted(lines))


def offending_pins(output: str, pinned: Iterable[str]) -> frozenset[str]:
    """The pinned packages that conflict, are unavailable, or fail to build, by pip's output."""
    return _blamed(output, pinned, _CONSTRAINT, _UNAVAILABLE, _UNBUILDABLE)


def unavailable_packages(output: str, requested: Iterable[str]) -> frozenset[str]:
    """The requested packages that are unavailable or fail to build, by pip's output."""
    return _blamed(output, requested, _NO_DISTRIBUTION, _UNBUILDABLE)


def _blamed(output: str, names: Iterable[str], *patterns: re.Pattern[str]) -> frozenset[str]:
    blamed = {str(canonicalize_name(match[1])) for pattern in patterns for match in pattern.finditer(output)}
    return frozenset(blamed.intersection(names))


def _holds(marker: str, environment: dict[str, str]) -> bool:
    try:
        return Marker(marker).evaluate({**environment})
    except (InvalidMarker, ValueError, KeyError):
        return True


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _packages(document: Table, key: str) -> list[Table]:
    return [mapping(item) for item in items(document.get(key))]


def _entry(package: Table, *, markers: str = "", python: str = "", own: bool = False) -> _Entry:
    """A package by its table; `markers` and `python` are the keys of its conditions."""
    return _Entry(
        name=string(package.get("name")),
        version=string(package.get("version")),
        markers=tuple(strings(package.get(markers))),
        requires_python=string(package.get(python)),
        own=own,
    )


def _uv(document: Table) -> Iterator[_Entry]:
    for package in _packages(document, "package"):
        source = mapping(package, "source")
        own = bool({"editable", "virtual", "directory"}.intersection(source))
        if "registry" in source or own:
            yield _entry(package, markers="resolution-markers", own=own)


def _poetry(document: Table) -> Iterator[_Entry]:
    for package in _packages(document, "package"):
        kind = string(mapping(package, "source").get("type"))
        if kind not in ("git", "url", "file"):
            markers = package.get("markers")
            entry = _entry(package, python="python-versions", own=kind == "directory")
            # One marker for each group, or one for all.
            markers = tuple(strings(list(mapping(markers).values())) or strings(markers))
            yield replace(entry, markers=markers, requires_python=entry.requires_python.replace("*", ""))


def _pdm(document: Table) -> Iterator[_Entry]:
    for package in _packages(document, "package"):
        if not {"git", "url", "path"}.intersection(package):
            yield _entry(package, markers="marker", python="requires_python")


def _pylock(document: Table) -> Iterator[_Entry]:
    for package in _packages(document, "packages"):
        if not {"vcs", "directory", "archive"}.intersection(package):
            yield _entry(package, markers="marker", python="requires-python")


def _pipenv(document: Table) -> Iterator[_Entry]:
    for section in ("default", "develop"):
        for name, value in mapping(document, section).items():
            version = string(mapping(value).get("version")).removeprefix("==")
            yield _entry({**mapping(value), "name": name, "version": version}, markers="markers")
