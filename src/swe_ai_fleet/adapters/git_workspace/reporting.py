"""How an environment came to be, in words: for people, and a line each for agents."""

from __future__ import annotations

import posixpath
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing
from swe_ai_fleet.adapters.git_workspace.places import ENVIRONMENT_MOUNT, WORKSPACE_MOUNT
from swe_ai_fleet.adapters.git_workspace.seeds import submodules_of
from swe_ai_fleet.domain.environment import Decision, EnvironmentReport
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.environments.repository_files import RepositoryFiles


def first_report(recipe: Recipe, python: str) -> EnvironmentReport:
    return EnvironmentReport(
        python=python,
        decisions=recipe.decisions,
        test_command=recipe.test_command,
        test_source=recipe.test_source,
    )


def submodule_decisions(seed: Path) -> list[Decision]:
    return [
        Decision(
            what=f"submodule {found.path} at {found.commit[:12]}: "
            + ("its files are there" if found.tree else f"not there: {found.reason}"),
            source=".gitmodules",
        )
        for found in submodules_of(seed)
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
    installed = f"installed, read-only, by {', '.join(list(sources)[:6])}" if sources else "nothing was installed"
    if recipe.python is not None and recipe.python.project:
        installed += "; the project itself in place, so that this clone's code is what gets imported"
    if setup:
        installed += f"; {setup} set-up command{'s' if setup > 1 else ''} ran"
    notes.append(f"Environment: {installed}.")
    if report.left_out:
        shown_parts = "; ".join(text.partition("\n")[0][:120] for text in report.left_out[:3])
        notes.append(f"Could not be installed: {shown_parts}.")
    notes += [f"{said.what[0].upper()}{said.what[1:]}." for said in report.decisions if "not there:" in said.what]
    if not report.test_command:
        notes.append("Tests: none were found.")
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
    return (f"On PATH, but not there: {', '.join(missing)}.",) if missing else ()


def _may_exist(root: Path, path: str) -> bool:
    """Whether a directory is there, or a link on the way to it: that is not followed, it leads elsewhere inside."""
    place = root
    for part in posixpath.normpath(path).split("/"):
        place /= part
        if place.is_symlink():
            return True
    return place.is_dir()
