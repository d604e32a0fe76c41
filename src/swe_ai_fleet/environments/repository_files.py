"""The files of a commit as detection reads them: every path, and the text of manifests, locks and automation."""

from __future__ import annotations

import ast
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import yaml

from swe_ai_fleet.domain.json_values import json_object, mapping, parse_json, parsed
from swe_ai_fleet.domain.text import utf8
from swe_ai_fleet.tools.tests.inventory import is_test, parsed_toml, toml

Table = Mapping[str, object]

PYTHON_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock")
NODE_LOCKS = ("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock")
_LOCKS = frozenset({*PYTHON_LOCKS, *NODE_LOCKS, "go.sum", "Cargo.lock"})
_MANIFESTS = frozenset(
    {
        *("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "hatch.toml", "pytest.ini", ".pytest.ini", "tox.ini"),
        *("noxfile.py", "MANIFEST.in", "PKG-INFO", ".python-version", "package.json", "pnpm-workspace.yaml", ".npmrc"),
        *(".yarnrc", ".yarnrc.yml", ".nvmrc", "go.mod", "go.work", "Cargo.toml", "rust-toolchain", ".gitmodules"),
        *("rust-toolchain.toml", "Makefile", "makefile", "GNUmakefile", "conftest.py", ".gitattributes"),
    }
)
_CHANGE_LOG = re.compile(r"(?:changelog|changes|history|news|releases?)(?:\.(?:md|rst|txt))?", re.I)
_REQUIREMENTS = re.compile(r"[\w.-]*(?:requirements?|constraints?)[\w.-]*\.(?:txt|in)", re.I)
_REQUIREMENT_DIRECTORIES = frozenset({"requirements", "reqs", "requirement"})
_WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml|\.gitlab-ci\.yml|\.travis\.yml")
_NATIVE = frozenset(
    {
        *(".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".pyx", ".pxd", ".pxi", ".rs", ".f", ".f90", ".cu", ".S"),
        *(".build", ".cmake"),
    }
)
_NATIVE_NAMES = frozenset({"CMakeLists.txt", "Cargo.toml", "Cargo.lock", "meson.build", "meson.options"})
_FOREIGN = frozenset({"node_modules", "site-packages", ".git"})
_DEEPEST = 6
_YAML_BYTES = 512 * 1024
_DEEPEST_YAML = 50
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFiles:
    """Paths relative to the repository's top, with the object id of each, and the text of those that were read.

    `tree` identifies the whole content, `parent` is the commit's first parent. `versions_tagged` says that a tag of the
    commit or its ancestors names a version; `submodules` are paths with available content, and the ids of that. `until`
    is the last day (ISO 8601) of releases of packages to use, empty for a recent commit.
    """

    tree: str = ""
    parent: str = ""
    files: Mapping[str, str]
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    versions_tagged: bool = False
    until: str = ""
    submodules: Mapping[str, str] = field(default_factory=dict[str, str])

    def text(self, path: str) -> str:
        """The text of a file; empty if it does not exist or was not read."""
        return self.texts.get(path, "")

    def toml(self, path: str) -> Table:
        """A TOML document; empty if it cannot be parsed."""
        return toml(self.text(path))

    def json(self, path: str) -> Table:
        """A JSON object; empty if it cannot be parsed."""
        return json_object(self.text(path))

    def yaml(self, path: str) -> Table:
        """A YAML mapping without tags or aliases; empty if it cannot be parsed or is larger than 512 KiB."""
        return parsed_yaml(self.text(path))

    def broken(self, path: str) -> bool:
        """Whether a TOML or JSON file has text that cannot be parsed."""
        if path.endswith(".toml"):
            return parsed_toml(self.text(path)) is None
        try:
            parse_json(self.text(path) or "{}")
        except ValueError:
            return True
        return False

    def existing(self, directory: str, *names: str) -> list[str]:
        """Those of the names that exist in a directory, as paths."""
        return [path for name in names if (path := joined(directory, name)) in self.files]

    def below(self, directory: str) -> dict[str, str]:
        """The paths in a directory, by their names relative to it."""
        prefix = f"{directory}/" if directory else ""
        return {path.removeprefix(prefix): path for path in self.files if path.startswith(prefix)}

    def members(self, directory: str, manifest: str, patterns: Iterable[str]) -> set[str]:
        """The directories of a workspace that hold a manifest and match one of its patterns."""
        places = {posixpath.dirname(name) for name in self.below(directory) if posixpath.basename(name) == manifest}
        own = [place for place in places if place and "node_modules" not in place]
        return {joined(directory, place) for place in own if any(_matches(place, pattern) for pattern in patterns)}

    def nearest(self, directory: str, *names: str) -> str:
        """The path of the first of the names that exists in a directory or its nearest parent; empty if none does."""
        place = directory
        while True:
            if files := self.existing(place, *names):
                return files[0]
            if not place:
                return ""
            place = place.rpartition("/")[0]

    def releases_until(self, directory: str) -> str:
        """The last day of releases to use for a directory: `until`, unless it has a lock file of Python or Node."""
        return "" if self.nearest(directory, *PYTHON_LOCKS, *NODE_LOCKS) else self.until

    def digest(self, paths: Iterable[str]) -> str:
        """A digest of the existence and content of files."""
        facts = "".join(f"{path}\0{self.files.get(path, '')}\n" for path in sorted(set(paths)))
        return hashlib.sha256(utf8(facts)).hexdigest()


def parsed_yaml(text: str) -> Table:
    """A YAML mapping; empty if it is none, has aliases, is nested deeper than 50 levels or larger than 512 KiB.

    A few lines of aliases can expand to gigabytes, and parsing a deep document can crash the process: the parser
    recurses in C.
    """
    if len(text) > _YAML_BYTES:
        return {}
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST_YAML or isinstance(event, yaml.AliasEvent):
                return {}
        return mapping(parsed(yaml.load, text, Loader=_LOADER))
    except (yaml.YAMLError, ValueError):
        return {}


def parsed_python(text: str) -> ast.Module | None:
    """The syntax tree of Python source; None if it cannot be parsed."""
    try:
        return parsed(ast.parse, text)
    except (SyntaxError, ValueError):
        return None


def _matches(place: str, pattern: str) -> bool:
    pattern = posixpath.normpath(pattern)
    if "**" in pattern:
        return fnmatchcase(f"{place}/", pattern.replace("**/", "*").replace("**", "*") + "/") or fnmatchcase(
            place, pattern.replace("/**", "/*").replace("**", "*")
        )
    parts, pattern_parts = place.split("/"), pattern.split("/")
    return len(parts) == len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts))


def joined(directory: str, path: str) -> str:
    """A path below a directory; the top directory is the empty text."""
    return posixpath.normpath(posixpath.join(directory, path)) if directory else posixpath.normpath(path)


def inside(path: str) -> bool:
    """Whether a normalised relative path stays inside the repository."""
    return not path.startswith(("/", "../", "~")) and path != ".."


def is_requirements(path: str) -> bool:
    """Whether a path looks like a list of requirements for pip."""
    file = PurePosixPath(path)
    is_named = _REQUIREMENTS.fullmatch(file.name) is not None
    return is_named or (file.suffix in (".txt", ".in") and file.parent.name in _REQUIREMENT_DIRECTORIES)


def is_manifest(path: str) -> bool:
    """Whether detection reads a file, and an environment therefore depends on it."""
    place = PurePosixPath(path)
    depth = len(place.parts)
    if depth > _DEEPEST or _FOREIGN.intersection(place.parts):
        return False
    if place.name in _MANIFESTS or place.name in _LOCKS:
        return True
    if _WORKFLOW.fullmatch(path) or (depth == 1 and _CHANGE_LOG.fullmatch(place.name)):
        return True
    return depth <= 3 and is_requirements(path)


def is_native_source(path: str) -> bool:
    """Whether a file is a source of an extension module."""
    place = PurePosixPath(path)
    return place.suffix in _NATIVE or place.name in _NATIVE_NAMES


def is_read(path: str) -> bool:
    """Whether detection needs the text of a file: manifests, and tests, which show their runner."""
    return is_manifest(path) or is_test(path)
