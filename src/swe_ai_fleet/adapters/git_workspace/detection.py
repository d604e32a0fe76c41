"""What a repository needs and how it is tested, read off its files. Nothing of it is executed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from swe_ai_fleet.adapters.git_workspace.listing import Listing, is_requirements
from swe_ai_fleet.tools.tests.runners.detection import PYTEST as PYTEST
from swe_ai_fleet.tools.tests.runners.detection import test_command, uses_pytest

LINT = ("ruff", "check")
_LOCKS = ("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
_PYTHON_INPUTS = ("pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in", ".python-version", *_LOCKS)
_NODE_INPUTS = ("package.json", "package-lock.json", "npm-shrinkwrap.json", ".npmrc")
_TEST_GROUPS = ("test", "tests", "testing", "dev")
_REQUIREMENTS = re.compile(
    r"requirements(?:[-_](?:dev|test|tests|testing))?\.txt|requirements/(?:base|main|dev|test|tests|testing)\.txt"
)
# One line that names a package: nothing that pip would take for an option or a second line.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][^\x00-\x1f]*")
_LFS = re.compile(r"^[^#\n]*\bfilter=lfs\b", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What there is to install and to run.

    `requirements` are files for pip, `dependencies` lines of such a file; `project` says that the repository itself is
    installed, with `extras`; `inputs` are the files that decide what an installation gives.
    """

    python: bool = False
    requirements: tuple[str, ...] = ()
    project: bool = False
    extras: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    node: bool = False
    node_locked: bool = False
    uses_pytest: bool = False
    test_command: tuple[str, ...] = ()
    lint_command: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def needs_build(self) -> bool:
        return bool(self.requirements or self.dependencies or self.project or self.node)


def detect(listing: Listing) -> Detected:
    """Read a listing. A manifest that cannot be parsed is a note, not an error: its tool will say more."""
    notes: list[str] = []
    pyproject = _toml(listing.text("pyproject.toml"), "pyproject.toml", notes)
    package = _json(listing.text("package.json"), notes)
    python = any(path.endswith(".py") for path in listing.files)
    project, extras, dependencies = _project(listing, pyproject)
    requirements = tuple(sorted(filter(_is_wanted, listing.files)))
    node = any(_table(package, name) for name in ("dependencies", "devDependencies", "optionalDependencies"))
    inputs = [*_PYTHON_INPUTS, *filter(is_requirements, listing.files), *(_NODE_INPUTS if node else ())]
    return Detected(
        python=python,
        requirements=requirements,
        project=project,
        extras=extras,
        dependencies=dependencies,
        node=node,
        node_locked=bool(listing.named("package-lock.json", "npm-shrinkwrap.json")),
        uses_pytest=uses_pytest(listing.files, listing.texts),
        test_command=test_command(listing.files, listing.texts),
        lint_command=LINT if python else (),
        inputs=tuple(inputs),
        notes=(*notes, *_gaps(listing)),
    )


def _is_wanted(path: str) -> bool:
    # Only what running and testing need is certain to fit together; documentation and lower bounds are not.
    return bool(_REQUIREMENTS.fullmatch(path))


def _project(listing: Listing, pyproject: Mapping[str, object]) -> tuple[bool, tuple[str, ...], tuple[str, ...]]:
    """(whether it is installed itself, which extras then, which dependencies otherwise and in any case)."""
    project = _table(pyproject, "project")
    groups = _table(pyproject, "dependency-groups")
    dependencies = [line for name in _TEST_GROUPS for line in _requirements(groups.get(name))]
    # As uv sees it: a project without a build system is a set of dependencies, not a package.
    if "build-system" in pyproject or "setup.py" in listing.files:
        optional = _table(project, "optional-dependencies")
        return True, tuple(name for name in _TEST_GROUPS if name in optional), tuple(dependencies)
    return False, (), (*_requirements(project.get("dependencies")), *dependencies)


def _requirements(value: object) -> list[str]:
    lines = cast("list[object]", value) if isinstance(value, list) else []
    return [line for line in lines if isinstance(line, str) and _REQUIREMENT.fullmatch(line)]


def _gaps(listing: Listing) -> list[str]:
    notes: list[str] = []
    if ".gitmodules" in listing.files:
        notes.append("Submodules are not fetched: their directories are empty.")
    if _LFS.search(listing.text(".gitattributes")):
        notes.append("Git LFS files are not fetched: they hold pointers, not content.")
    return notes


def _toml(text: str, name: str, notes: list[str]) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        notes.append(f"{name} cannot be parsed.")
        return {}


def _json(text: str, notes: list[str]) -> Mapping[str, object]:
    try:
        value: object = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        notes.append("package.json cannot be parsed.")
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _table(value: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = value.get(name)
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}
