"""Facts about a build of an environment: kept beside its files, and told in words, to people and a line each to agents.

A build is complete once its facts stand there.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet import codec
from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing
from swe_ai_fleet.adapters.git_workspace.seeds import submodules_of
from swe_ai_fleet.adapters.git_workspace.setup import ENVIRONMENT_MOUNT, WORKSPACE_MOUNT
from swe_ai_fleet.domain.environment import Decision, EnvironmentReport
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.environments.repository_files import RepositoryFiles

_FACTS = "facts.json"
_FURNISHING = "furnishing.json"
_NPM_LOCK = "npm-lock.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is kept of a build, beside its files.

    `tree` is set where the build left files that may depend on anything: they belong to that content only. `code` is
    set where something of the content that it was made from may have run: then it is for what stands on that content
    only. `retry_at` is set where nothing could be installed: from that moment on (seconds since the epoch) it is built
    once more.
    """

    report: EnvironmentReport
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    python: tuple[int, int] | None = None
    tree: str = ""
    code: str = ""
    retry_at: float = 0.0


def read_facts(directory: Path) -> Facts | None:
    """What was kept of a complete build in a directory, None where there is none. Blocking."""
    try:
        text = (directory / _FACTS).read_bytes()
        os.utime(directory)
    except FileNotFoundError:
        return None
    return codec.from_json(Facts, text)


def write_facts(directory: Path, facts: Facts, furnishing: Furnishing, *, npm_lock: str = "") -> None:
    """Complete a build. Blocking."""
    if npm_lock:
        (directory / _NPM_LOCK).write_text(npm_lock, encoding="utf-8")
    if furnishing:
        (directory / _FURNISHING).write_bytes(codec.to_json(furnishing))
    draft = directory / f".{_FACTS}"
    draft.write_bytes(codec.to_json(facts))
    draft.rename(directory / _FACTS)


def read_npm_lock(directory: Path) -> str:
    """What npm installed in a build, as a package-lock.json; empty where it did nothing. Blocking."""
    try:
        return (directory / _NPM_LOCK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def read_furnishing(directory: Path) -> Furnishing:
    """What the clones of a build are furnished with. Blocking."""
    try:
        return codec.from_json(Furnishing, (directory / _FURNISHING).read_bytes())
    except FileNotFoundError:
        return Furnishing()


def first_report(recipe: Recipe, python: str) -> EnvironmentReport:
    decided, command, source = recipe.decisions, recipe.test_command, recipe.test_source
    return EnvironmentReport(python=python, decisions=decided, test_command=command, test_source=source)


def submodule_decisions(seed: Path) -> list[Decision]:
    return [
        Decision(
            what=f"submodule {submodule.path} at {submodule.commit[:12]}: "
            + ("checked out" if submodule.tree else f"not checked out: {submodule.reason}"),
            source=".gitmodules",
        )
        for submodule in submodules_of(seed)
    ]


def notes_for_agents(recipe: Recipe, report: EnvironmentReport) -> tuple[str, ...]:
    """A line each for an agent; of the commands it is told apart."""
    notes: list[str] = []
    if recipe.python is not None:
        notes.append(f"Python is `python3`{f' ({report.python})' if report.python else ''}.")
    sources = dict.fromkeys(
        part for step in recipe.steps if not step.required for part in step.source.split(", ") if part
    )
    setup = sum(step.concerns != "environment" for step in recipe.steps)
    installed = f"installed (read-only) by {', '.join(list(sources)[:6])}" if sources else "nothing was installed"
    if recipe.python is not None and recipe.python.project:
        installed += "; the project itself in editable mode, so imports find this clone's code"
    if setup:
        installed += f"; {setup} set-up command{'s' if setup > 1 else ''} ran"
    notes.append(f"Environment: {installed}.")
    if report.left_out:
        shown_parts = "; ".join(text.partition("\n")[0][:120] for text in report.left_out[:3])
        notes.append(f"Could not be installed: {shown_parts}.")
    notes += [
        f"{decision.what[0].upper()}{decision.what[1:]}."
        for decision in report.decisions
        if "not there:" in decision.what
    ]
    if not report.test_command:
        notes.append("Tests: none found.")
    return (*notes, *recipe.notes)


def missing_on_path(
    spec: EnvironmentSpec, files: RepositoryFiles, root: Path, furnishing: Furnishing
) -> tuple[str, ...]:
    """A line about directories that were to be put on PATH and are nowhere. Blocking."""
    kept = (*files.files, *furnishing.kept, *furnishing.modules)

    def exists(entry: str) -> bool:
        if entry.startswith(f"{ENVIRONMENT_MOUNT}/"):
            return _may_exist(root, entry.removeprefix(f"{ENVIRONMENT_MOUNT}/"))
        inner = posixpath.normpath(entry.removeprefix(f"{WORKSPACE_MOUNT}/"))
        if inner.startswith("/"):
            return Path(entry).is_dir()
        return inner == "." or any(path == inner or path.startswith(f"{inner}/") for path in kept)

    missing = [entry for entry in spec.path if not exists(entry)]
    return (f"Expected, but not on PATH: {', '.join(missing)}.",) if missing else ()


def _may_exist(root: Path, path: str) -> bool:
    """Whether a directory is there, or a link on the way to it: that is not followed, it leads elsewhere inside."""
    place = root
    for part in posixpath.normpath(path).split("/"):
        place /= part
        if place.is_symlink():
            return True
    return place.is_dir()
