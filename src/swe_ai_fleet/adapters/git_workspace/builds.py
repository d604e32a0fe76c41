"""Builds environments, and describes them in reports for people and in notes for agents."""

from __future__ import annotations

import asyncio
import posixpath
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.building import MOST_RECORDED, REPORTS, Build, BuildRoot
from swe_ai_fleet.adapters.git_workspace.clone import CloneDirs
from swe_ai_fleet.adapters.git_workspace.clones import Clones
from swe_ai_fleet.adapters.git_workspace.directories import clear_name, copy_tree, locked, read_file, write_file
from swe_ai_fleet.adapters.git_workspace.disk_space import TenantDisk
from swe_ai_fleet.adapters.git_workspace.furnishing import (
    Facts,
    Furnishing,
    collect,
    is_complete,
    read_facts,
    write_facts,
)
from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.adapters.git_workspace.git_dirs import submodules_of
from swe_ai_fleet.adapters.git_workspace.keys import EnvironmentKeys
from swe_ai_fleet.adapters.git_workspace.setup import (
    ENVIRONMENT_MOUNT,
    WORKSPACE_MOUNT,
    EnvironmentPaths,
    PythonTools,
    SetupPolicy,
)
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.environment import Environment, EnvironmentDecision, EnvironmentReport, ImageRoot
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.environments.pip_steps import CONSTRAINTS
from swe_ai_fleet.environments.recipe import Recipe, allows, version_text
from swe_ai_fleet.environments.repository_files import RepositoryFiles
from swe_ai_fleet.environments.requirements import as_constraints, npm_lock, read_lock, recorded_lock
from swe_ai_fleet.ports import SecretMask
from swe_ai_fleet.sandbox import NetworkGrant, Sandbox
from swe_ai_fleet.sandbox.disk import remove_tree
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_RETRY_SECONDS = 600.0
# Files that a build derives from its inputs alone: versions, metadata, compiled extensions.
_EXPECTED = re.compile(
    r"(?:.*/)?(?:[^/]*version[^/]*\.(?:py|pyi|txt)|VERSION|[^/]+\.(?:egg-info|dist-info)/.*|[^/]+\.so)", re.I
)
_OF_THE_CALLER = "environment.setup"
_HAD_BEFORE = EnvironmentDecision(what="the packages of the index are reused from the build of another commit")


def first_report(recipe: Recipe, python: str) -> EnvironmentReport:
    decided, command, source = recipe.decisions, recipe.test_command, recipe.test_source
    return EnvironmentReport(python=python, decisions=decided, test_command=command, test_source=source)


def submodule_decisions(seed: Path) -> list[EnvironmentDecision]:
    return [
        EnvironmentDecision(
            what=f"submodule {submodule.path} at {submodule.commit[:12]}: "
            + ("checked out" if submodule.tree else f"not checked out: {submodule.reason}"),
            source=".gitmodules",
        )
        for submodule in submodules_of(seed)
    ]


def notes_for_agents(recipe: Recipe, report: EnvironmentReport) -> tuple[str, ...]:
    """Notes for an agent, one line each; the test command is given separately."""
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
    """A line about the directories for PATH that do not exist. Blocking."""
    paths = (*files.files, *furnishing.kept, *furnishing.modules)

    def exists(entry: str) -> bool:
        if entry.startswith(f"{ENVIRONMENT_MOUNT}/"):
            return _may_exist(root, entry.removeprefix(f"{ENVIRONMENT_MOUNT}/"))
        inner = posixpath.normpath(entry.removeprefix(f"{WORKSPACE_MOUNT}/"))
        if inner.startswith("/"):
            return Path(entry).is_dir()
        return inner == "." or any(path == inner or path.startswith(f"{inner}/") for path in paths)

    missing = [entry for entry in spec.path if not exists(entry)]
    return (f"Expected, but not on PATH: {', '.join(missing)}.",) if missing else ()


def _may_exist(root: Path, path: str) -> bool:
    """Whether a directory exists, or a link on the way to it, which is not followed: inside it leads elsewhere."""
    directory = root
    for part in posixpath.normpath(path).split("/"):
        directory /= part
        if directory.is_symlink():
            return True
    return directory.is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentBuildRequest:
    """The inputs of a build: the recipe for a seed's files, in an image if there is one."""

    tenant: str
    subdirectory: str
    seed: Path
    files: RepositoryFiles
    recipe: Recipe
    spec: EnvironmentSpec
    image: ImageRoot | None


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Builds environments, each in its own checkout and sandbox. Only one process builds a key at a time."""

    git: Git
    sandbox: Sandbox
    clones: Clones
    tools: PythonTools
    disk: TenantDisk
    policy: SetupPolicy
    paths: EnvironmentPaths
    keys: EnvironmentKeys
    mask: SecretMask

    async def build(self, key: str, request: EnvironmentBuildRequest) -> Facts:
        """Build an environment under a key. Raises PreconditionFailed where it cannot be built, ResourceExhausted."""
        started = time.monotonic()
        recipe, spec, files, root = request.recipe, request.spec, request.files, self.paths.home / key / "root"
        tools = await self.tools.directory()
        unshared_reason = await self.keys.unshared_reason(files, request.subdirectory)
        shared = await self._shared(request) if unshared_reason and self.paths.confined else None
        before = EnvironmentReport() if shared is None else shared[1].report
        async with self._prepared(key, request, shared[0] if shared else None) as (clone_dirs, lock):
            async with self._building(key, request, clone_dirs, lock) as build:
                await build.run(recipe.steps if shared is None else recipe.own.steps)
                build.check_network()
                installed = await build.record(before.installed) if recipe.python is not None else ()
                npm = recipe.node if recipe.node is not None and recipe.node.manager == "npm" else None
                hidden = await build.npm_record(npm.root) if npm is not None else ""
                lock_of_npm, installed_npm = await asyncio.to_thread(npm_lock, hidden)
                pytest_from_tools = await self._needs_our_pytest(build, recipe, files)
            furnishing, decisions = await self._collect(clone_dirs, root)
            report = first_report(recipe, await self._python_version(root, recipe))
            of_one = (
                [EnvironmentDecision(what=f"built for this commit, since its own code may run: {unshared_reason}")]
                if unshared_reason
                else []
            )
            report = replace(
                report,
                decisions=(
                    *report.decisions,
                    *of_one,
                    *before.decisions,
                    *build.decisions,
                    *submodule_decisions(request.seed),
                    *decisions,
                ),
                steps=(*before.steps, *build.steps),
                left_out=(*before.left_out, *build.left_out),
                installed=installed,
                installed_npm=installed_npm[:MOST_RECORDED],
                seconds=round(time.monotonic() - started, 2),
            )
            stray = [path for path in furnishing.kept if not _EXPECTED.fullmatch(path)]
            facts = Facts(
                report=report,
                variables=self.paths.variables(recipe, spec, key, tools, pytest_from_tools=pytest_from_tools),
                path=self.paths.path(recipe, spec, tools, key=key),
                notes=(*notes_for_agents(recipe, report), *missing_on_path(spec, files, root, furnishing)),
                python=recipe.python.version if recipe.python else None,
                tree=files.tree if stray and not spec.setup else "",
                code=files.tree if build.exposed and not spec.setup else "",
                retry_at=round(time.time()) + _RETRY_SECONDS if build.hollow else 0.0,
            )
            await self._complete(key, request, facts, furnishing, lock_of_npm)
        return facts

    async def _shared(self, request: EnvironmentBuildRequest) -> tuple[Path, Facts] | None:
        """The directory with which all builds with these packages of an index begin, and its facts.

        No code of the repository runs during its build. None if there are no packages, or none could be installed.
        """
        if request.recipe.packages is None:
            return None
        request = replace(request, recipe=request.recipe.third_party)
        key = await self.keys.packages_key(
            request.tenant, request.recipe, request.files, request.spec, await self.tools.directory()
        )
        directory = self.paths.home / key
        async with locked(directory.with_name(f"{key}.lock"), timeout_seconds=10 * self.policy.timeout_seconds):
            if (facts := await asyncio.to_thread(read_facts, directory)) is not None:
                report = replace(facts.report, decisions=(*facts.report.decisions, _HAD_BEFORE))
                return directory / "root", replace(facts, report=report)
            async with self._prepared(key, request, None) as (clone_dirs, lock):
                async with self._building(key, request, clone_dirs, lock) as build:
                    await build.run(request.recipe.steps)
                    installed = await build.record() if request.recipe.python is not None else ()
                if build.hollow:
                    return None
                report = EnvironmentReport(
                    decisions=tuple(build.decisions),
                    steps=tuple(build.steps),
                    left_out=build.left_out,
                    installed=installed,
                )
                await self._complete(key, request, facts := Facts(report=report), Furnishing())
        return directory / "root", facts

    async def _complete(
        self, key: str, request: EnvironmentBuildRequest, facts: Facts, furnishing: Furnishing, lock_of_npm: str = ""
    ) -> None:
        directory = self.paths.home / key
        await uninterrupted(asyncio.to_thread(write_facts, directory, facts, furnishing, npm_lock=lock_of_npm))
        await self.disk.admit(request.tenant, directory)

    @asynccontextmanager
    async def _prepared(
        self, key: str, request: EnvironmentBuildRequest, start: Path | None
    ) -> AsyncGenerator[tuple[CloneDirs, Mapping[str, str] | None]]:
        """(a checkout of the commit, the pins if there are any) for filling the environment's directory.

        The directory begins as a copy of `start`, if there is one, with the files that the steps read. At the end it is
        removed unless it is complete.
        """
        directory = self.paths.home / key
        try:
            lock = await uninterrupted(asyncio.to_thread(_lay_out, directory, request, start))
            async with self.clones.checkout(f"environment-{key}", "build", request.seed) as clone_dirs:
                yield clone_dirs, lock
        finally:
            if not is_complete(directory):
                await uninterrupted(asyncio.to_thread(remove_tree, directory))

    @asynccontextmanager
    async def _building(
        self, key: str, request: EnvironmentBuildRequest, clone_dirs: CloneDirs, lock: Mapping[str, str] | None
    ) -> AsyncGenerator[Build]:
        """A build in a new workspace, for running the steps of a recipe."""
        recipe, spec, root = request.recipe, request.spec, self.paths.home / key / "root"
        tools, python = await self.tools.directory(), recipe.python.version if recipe.python else None
        # The network is only for more than an empty virtual environment.
        is_more = any(not step.required or step.concerns != "environment" for step in recipe.steps)
        network = self.policy.network if is_more else NetworkGrant()
        variables = self.paths.variables(recipe, spec, key, tools, pytest_from_tools=False)
        variables |= {**recipe.build_variables, **self.policy.variables, **spec.variables}
        if not any(step.concerns.startswith(_OF_THE_CALLER) for step in recipe.steps):
            # Tests import from the repository; package managers must not, since their output is shared with commits
            # with other files there. The output of a caller's own commands is not shared.
            variables.pop("PYTHONPATH", None)
        environment = Environment(
            variables=variables,
            path=self.paths.path(recipe, spec, tools, key=key),
            mounts=self.paths.mounts(tools, request.seed / "objects"),
            python_prefix="" if spec.image else (await self.keys.machine()).prefix(python),
            image=request.image,
        )
        machine = await self.keys.toolchains(request.image, self.sandbox)
        has_pip = await asyncio.to_thread((tools / "pip/pip").is_dir)
        reports = has_pip and allows(machine.pip_requires, python or machine.default)
        async with self.sandbox.workspace(
            clone_dirs.tree,
            environment=environment,
            network=network,
            writable=self.paths.writable(root),
            scratch=clone_dirs.directory,
            owner=Owner(tenant=request.tenant, execution_id=f"environment-{key}"),
        ) as workspace:
            build_root = BuildRoot(path=root, seen_at=self.paths.base(key), reports=reports)
            seconds = self.policy.timeout_seconds
            yield Build(workspace, build_root, lock, grant=network, mask=self.mask, seconds=seconds)

    async def _needs_our_pytest(self, build: Build, recipe: Recipe, files: RepositoryFiles) -> bool:
        """Whether the environment lacks pytest, and its Python can run ours."""
        if recipe.python is None:
            return False
        may_need_pytest = (
            build.in_image or recipe.python.packages or any(step.concerns != "environment" for step in recipe.steps)
        )
        if may_need_pytest and await build.has_pytest(files):
            return False
        return allows(self.tools.requires_python, recipe.python.version)

    async def _python_version(self, root: Path, recipe: Recipe) -> str:
        """The interpreter's full version, from its virtual environment."""
        if recipe.python is None:
            return ""
        try:
            text = await asyncio.to_thread(read_file, root, "venv", "pyvenv.cfg")
        except OSError:
            return version_text(recipe.python.version)
        match = re.search(r"^version\s*=\s*([\d.]+)", text, re.M)
        return match[1] if match else version_text(recipe.python.version)

    async def _collect(self, clone_dirs: CloneDirs, root: Path) -> tuple[Furnishing, list[EnvironmentDecision]]:
        if not self.paths.confined:
            return Furnishing(), []
        gathered = await uninterrupted(
            collect(self.git, clone_dirs.layout, root, mount=WORKSPACE_MOUNT, base=ENVIRONMENT_MOUNT)
        )
        decisions = [EnvironmentDecision(what=f"left out because of its size: {text}") for text in gathered.too_much]
        kept = gathered.furnishing.kept
        if kept:
            more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""
            decisions.append(
                EnvironmentDecision(what=f"build output that is copied into every clone: {', '.join(kept[:3])}{more}")
            )
        return gathered.furnishing, decisions


def _lay_out(directory: Path, request: EnvironmentBuildRequest, start: Path | None) -> Mapping[str, str] | None:
    """Make an environment's directory; returns the pins, if there are any."""
    recipe, root = request.recipe, directory / "root"
    # A killed build may have left files.
    remove_tree(directory)
    directory.mkdir(parents=True)
    copy_environment(start, root)
    for path, text in recipe.files.items():
        write_file(root / path, text)
    if recipe.python is None:
        return None
    clear_name(root / REPORTS)
    (root / REPORTS).mkdir()
    if not (recipe.python.lock or recipe.python.pins):
        return None
    if recipe.python.lock:
        lock = read_lock(request.files, recipe.python.lock, recipe.python.version)
    else:
        lock = recorded_lock(recipe.python.pins)
    if start is None:
        write_file(root / CONSTRAINTS, as_constraints(lock))
    return lock


def copy_environment(root: Path | None, copy: Path) -> None:
    """Copy an environment's files, or make an empty directory. Blocking."""
    if root is None:
        copy.mkdir()
    else:
        copy_tree(root, copy)
