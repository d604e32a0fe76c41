"""Environments: what a repository's commands need, built once in the sandbox and then shown read-only to everyone."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.build_facts import (
    Facts,
    first_report,
    missing_on_path,
    notes_for_agents,
    read_facts,
    read_furnishing,
    read_npm_lock,
    submodule_decisions,
    write_facts,
)
from swe_ai_fleet.adapters.git_workspace.building import MOST_RECORDED, REPORTS, Build, BuildRoot
from swe_ai_fleet.adapters.git_workspace.clones import CloneDirs, Clones
from swe_ai_fleet.adapters.git_workspace.directories import (
    clear_name,
    copy_tree,
    locked,
    read_file,
    remove_tree,
    write_file,
)
from swe_ai_fleet.adapters.git_workspace.disk_space import TenantDisk
from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing, collect
from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.adapters.git_workspace.images.store import ImageStore
from swe_ai_fleet.adapters.git_workspace.keys import Keys
from swe_ai_fleet.adapters.git_workspace.places import (
    ENVIRONMENT_MOUNT,
    WORKSPACE_MOUNT,
    Places,
    PythonTools,
    SetupPolicy,
    check,
)
from swe_ai_fleet.domain.command import Owner
from swe_ai_fleet.domain.environment import Decision, Environment, EnvironmentReport, ImageRoot, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.environments import caller_command, detect, digest
from swe_ai_fleet.environments.node_project import pinned_npm
from swe_ai_fleet.environments.pip_steps import CONSTRAINTS, Tooling
from swe_ai_fleet.environments.recipe import Recipe, allows, version_text
from swe_ai_fleet.environments.repository_files import RepositoryFiles
from swe_ai_fleet.environments.requirements import NODE_LOCKS, PYTHON_LOCKS, Lock, npm_lock, read_lock, recorded_lock
from swe_ai_fleet.ports import KnownRecipes, SecretMask
from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, Sandbox
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.sandbox.workspace import IMAGES_HINT

_RETRY_SECONDS = 600.0
_MOST_RETRIES = 100
# What a build writes from nothing but its inputs: versions, metadata, what it compiled.
_EXPECTED = re.compile(
    r"(?:.*/)?(?:[^/]*version[^/]*\.(?:py|pyi|txt)|VERSION|[^/]+\.(?:egg-info|dist-info)/.*|[^/]+\.so)", re.I
)

_OF_THE_CALLER = "environment.setup"
_HAD_BEFORE = Decision(what="the packages of the index are reused from the build of another commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pins:
    """The versions that a commit's environment holds the one of its candidates to: lines for pip, a lock for npm."""

    pip: tuple[str, ...] = ()
    npm: str = ""

    def derive(self, key: str) -> str:
        """The key of an environment that is held to them."""
        marks = ["\n".join(self.pip)] if self.pip else []
        marks += [hashlib.sha256(self.npm.encode()).hexdigest()] if self.npm else []
        for mark in marks:
            key = _derived(key, mark)
        return key


class Environments:
    """Builds environments below `home` and finds those built before, also by other processes.

    One is complete when its `facts.json` stands, which is written last.
    """

    def __init__(
        self,
        home: Path,
        git: Git,
        sandbox: Sandbox,
        clones: Clones,
        tools: PythonTools,
        disk: TenantDisk,
        *,
        policy: SetupPolicy,
        images: ImageStore,
        mask: SecretMask,
        recipes: KnownRecipes | None = None,
    ) -> None:
        self._home = home
        self._git = git
        self._sandbox = sandbox
        self._clones = clones
        self._tools = tools
        self._disk = disk
        self._policy = policy
        self._mask = mask
        self._recipes = recipes
        self._images = images
        self._roots: dict[str, ImageRoot] = {}
        self._places = Places(home=home, level=sandbox.policy.level)
        self._confined = self._places.confined
        self._keys = Keys(git, policy=policy, level=sandbox.policy.level)

    def check_images(self) -> None:
        """Raise PreconditionFailed where this node's sandbox cannot show a container image."""
        if not self._confined:
            fault = f"the sandbox {self._places.level} cannot show a container image"
            raise PreconditionFailed(fault, field="environment.container_image", hint=IMAGES_HINT)

    async def warm(self) -> None:
        """Copy the tools that repositories without their own get; find the machine's interpreters."""
        await self._tools.directory()
        await self._keys.machine()

    async def environment(self, repository: PinnedRepository, seed: Path, spec: EnvironmentSpec) -> Environment:
        """The environment for a pinned repository. Raises InvalidRequest, PreconditionFailed with `field`.

        What an environment run found out for the same rules is used with them, as far as it still works.
        """
        check(spec, confined=self._confined)
        decisions: tuple[Decision, ...] = ()
        if spec.image:
            if self._sandbox.container is not None:
                root = await self._sandbox.container.root(spec.image)
            else:
                self.check_images()
                root = await self._images.root(repository.tenant, spec.image, spec.image_credential)
            decisions = (Decision(what=f"all of it is in the image {spec.image} ({root.digest})", source="the caller"),)
            # From here on it is known by its content, wherever it came from.
            spec = replace(spec, image=root.digest, image_credential="")
            self._roots[root.digest] = root
        files = await self._keys.files(seed)
        tools = await self._tools.directory()
        ground = await self._keys.ground(repository, seed, files)
        key = await self._keys.key(repository, files, spec, tools, ground)
        recipe_key = _derived(key, repository.location)
        known = None
        if self._recipes is not None and spec.detect:
            known = await self._recipes.find(repository.tenant, recipe_key)
        environment: Environment | None = None
        fault = ""
        if known is not None and known.setup:
            try:
                amended = known.amending(spec)
                amended_key = await self._keys.key(repository, files, amended, tools, ground)
                environment = await self._found_or_built(amended_key, repository, seed, ground, amended)
            except PreconditionFailed as error:
                fault = f"what an environment run found no longer works: {error.message.splitlines()[0][:300]}"
        if environment is None:
            bare = spec if known is None else replace(spec, test_command=known.amending(spec).test_command)
            environment = await self._found_or_built(key, repository, seed, ground, bare)
        report = environment.report
        if known is not None:
            used = replace(known, setup=()) if fault else known
            report = replace(report, learned=used)
            decisions += (Decision(what=fault),) if fault else ()
        report = replace(report, decisions=(*report.decisions, *decisions))
        return replace(environment, recipe_key=recipe_key, report=report)

    async def _found_or_built(
        self,
        key: str,
        repository: PinnedRepository,
        seed: Path,
        ground: Path,
        spec: EnvironmentSpec,
        pins: _Pins | None = None,
    ) -> Environment:
        """The environment under a key: what `ground` makes, or `seed` where only its own build fits its files.

        `pins` hold where there is no lock; None: those of the commit that it stands on, which are in the key then.
        """
        tools = await self._tools.directory()
        tree, code = (await self._keys.files(seed)).tree, (await self._keys.files(ground)).tree
        if pins is None:
            pins = await self._pins_below(repository, seed, spec)
            key = pins.derive(key)
        key, facts, is_own = await asyncio.to_thread(self._find, key, tree, code)
        if facts is not None:
            await self._disk.recorded(repository.tenant, self._home / key)
            return self._ready(key, facts, tools, spec, cached=True)
        source = seed if is_own or spec.setup else ground
        files = await self._keys.files(source)
        recipe = await self._recipe(repository, files, spec, key, pins)
        if not recipe.steps:
            bare = Facts(report=first_report(recipe, ""), path=self._places.path(recipe, spec, tools, key=""))
            notes = (
                *notes_for_agents(recipe, bare.report),
                *missing_on_path(spec, files, self._home / "-", Furnishing()),
            )
            return self._ready(
                "", replace(bare, variables=dict(spec.variables), notes=notes), tools, spec, cached=False
            )
        if recipe.python is not None and recipe.python.project and not self._confined:
            raise PreconditionFailed(
                "without a sandbox an editable installation would work in one clone only",
                field="environment",
                hint="install bubblewrap, or switch detection off and give set-up commands",
            )
        self._home.mkdir(parents=True, exist_ok=True)
        # Every one of those who wait may have to build, if those before it fail.
        async with locked(self._home / f"{key}.lock", timeout_seconds=10 * self._policy.timeout_seconds):
            facts = await asyncio.to_thread(read_facts, self._home / key)
            cached = facts is not None
            if facts is None:
                facts = await self._build(key, repository, source, files, recipe, spec)
        if facts.tree not in ("", tree) or facts.code not in ("", tree if is_own else code):
            # What the build left belongs to the ground's files alone, or what it may have run to somebody else's.
            return await self._found_or_built(key, repository, seed, ground, spec, pins)
        return self._ready(key, facts, tools, spec, cached=cached)

    async def _pins_below(self, repository: PinnedRepository, seed: Path, spec: EnvironmentSpec) -> _Pins:
        """What the environment of the commit that one of ours stands on had from an index, as far as this node has it.

        Releases that came out since must not make the two differ. A lock file says so itself.
        """
        files = await self._keys.files(seed)
        below = seed.parent / files.parent
        if (
            not repository.snapshot_of
            or repository.commit == repository.snapshot_of
            or not files.parent
            or not await asyncio.to_thread(below.is_dir)
        ):
            return _Pins()
        is_shared = files.parent == repository.snapshot_of
        base = replace(repository, commit=files.parent, snapshot_of="" if is_shared else repository.snapshot_of)
        content = await self._keys.files(below)
        pins = await self._pins_below(base, below, spec)
        if not spec.setup and digest(content, base.subdirectory) == digest(files, base.subdirectory):
            # It is the same environment.
            return pins
        ground = await self._keys.ground(base, below, content)
        key = await self._keys.key(base, content, spec, await self._tools.directory(), ground)
        code = (await self._keys.files(ground)).tree
        key, facts, _ = await asyncio.to_thread(self._find, pins.derive(key), content.tree, code)
        if facts is not None:
            pins = _Pins(pip=facts.report.installed, npm=await asyncio.to_thread(read_npm_lock, self._home / key))
        return _Pins(
            pip=() if files.nearest(repository.subdirectory, *PYTHON_LOCKS) else pins.pip,
            npm="" if files.nearest(repository.subdirectory, *NODE_LOCKS) else pins.npm,
        )

    def furnishing(self, environment: Environment) -> tuple[Path, Furnishing]:
        """(the environment's directory on this host, what its clones are furnished with). Blocking."""
        directory = self._home / environment.key
        return directory / "root", read_furnishing(directory) if environment.key else Furnishing()

    async def loosened(self, environment: Environment, directory: Path) -> tuple[Environment, tuple[Mount, ...]]:
        """An environment that can be changed, with a copy of its files in `directory`; and what is writable in it.

        Raises PreconditionFailed without a sandbox that can show the copy in its place.
        """
        if not self._confined:
            raise PreconditionFailed("environments can be changed in the sandbox bubblewrap only", field="environment")
        root, copy = self._home / environment.key / "root", directory / "environment"
        await uninterrupted(asyncio.to_thread(_copied, root if environment.key else None, copy))
        changed = replace(
            environment,
            variables={**self._policy.variables, **environment.variables},
            mounts=tuple(mount for mount in environment.mounts if mount.target != ENVIRONMENT_MOUNT),
            network=self._policy.network,
        )
        return changed, (Mount(source=str(copy), target=ENVIRONMENT_MOUNT),)

    def _find(self, key: str, tree: str, code: str) -> tuple[str, Facts | None, bool]:
        """(the key under which an environment is to be had, what was kept of its build, whether it is for these files
        alone). `code` is the tree whose code a build may run. Blocking."""
        is_own = False
        for _ in range(_MOST_RETRIES):
            facts = read_facts(self._home / key)
            if facts is None:
                break
            if facts.tree not in ("", tree):
                key, is_own = _derived(key, tree), True
            elif facts.code not in ("", tree if is_own else code):
                key = _derived(key, tree if is_own else code)
            elif facts.retry_at and time.time() > facts.retry_at:
                key = _derived(key, str(facts.retry_at))
            else:
                return key, facts, is_own
        return key, read_facts(self._home / key), is_own

    async def _recipe(
        self,
        repository: PinnedRepository,
        files: RepositoryFiles,
        spec: EnvironmentSpec,
        key: str,
        pins: _Pins,
    ) -> Recipe:
        tools = await self._tools.directory()
        pip = tools / "pip"
        has_pip = await asyncio.to_thread((pip / "pip").is_dir)
        tooling = Tooling(
            base=self._places.base(key),
            pip=f"{self._places.tools_base(tools)}/pip" if has_pip else "",
            workspace=WORKSPACE_MOUNT if self._confined else "",
            pinned=bool(pins.pip),
        )
        machine = await self._keys.toolchains(self._roots.get(spec.image), self._sandbox)
        recipe = await asyncio.to_thread(detect, files, spec, machine, tooling, directory=repository.subdirectory)
        if pins.npm:
            recipe = pinned_npm(recipe, pins.npm, self._places.base(key))
        if recipe.python is None or not recipe.python.packages or not pins.pip:
            return recipe
        pins_decision = Decision(what="no lock file: pip installs the versions of the parent commit's environment")
        return replace(
            recipe, python=replace(recipe.python, pins=pins.pip), decisions=(*recipe.decisions, pins_decision)
        )

    async def _build(
        self,
        key: str,
        repository: PinnedRepository,
        seed: Path,
        files: RepositoryFiles,
        recipe: Recipe,
        spec: EnvironmentSpec,
    ) -> Facts:
        started = time.monotonic()
        directory, root = self._home / key, self._home / key / "root"
        tools = await self._tools.directory()
        alone = await self._keys.alone(files, repository.subdirectory)
        shared = await self._shared(repository, seed, files, recipe, spec) if alone and self._confined else None
        before = EnvironmentReport() if shared is None else shared[1].report
        steps = recipe.steps if shared is None else recipe.own.steps
        complete = False
        try:
            lock = await self._lay_out(directory, recipe, files, shared[0] if shared else None)
            async with self._clones.checkout(f"environment-{key}", "build", seed) as clone_dirs:
                async with self._building(repository.tenant, key, seed, clone_dirs, recipe, spec, lock) as build:
                    await build.run(steps)
                    build.check_network()
                    installed = await build.record(before.installed) if recipe.python is not None else ()
                    npm = recipe.node if recipe.node is not None and recipe.node.manager == "npm" else None
                    hidden = await build.npm_record(npm.root) if npm is not None else ""
                    lock_of_npm, installed_npm = await asyncio.to_thread(npm_lock, hidden)
                    pytest_from_tools = await self._needs_our_pytest(build, recipe, files)
                furnishing, decisions = await self._collect(clone_dirs, root)
            report = first_report(recipe, await self._python_version(root, recipe))
            of_one = [Decision(what=f"built for this commit, since its own code may run: {alone}")] if alone else []
            report = replace(
                report,
                decisions=(
                    *report.decisions,
                    *of_one,
                    *before.decisions,
                    *build.decisions,
                    *submodule_decisions(seed),
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
                variables=self._places.variables(recipe, spec, key, tools, pytest_from_tools=pytest_from_tools),
                path=self._places.path(recipe, spec, tools, key=key),
                notes=(*notes_for_agents(recipe, report), *missing_on_path(spec, files, root, furnishing)),
                python=recipe.python.version if recipe.python else None,
                tree=files.tree if stray and not spec.setup else "",
                code=files.tree if build.exposed and not spec.setup else "",
                retry_at=round(time.time()) + _RETRY_SECONDS if build.hollow else 0.0,
            )
            await uninterrupted(asyncio.to_thread(write_facts, directory, facts, furnishing, npm_lock=lock_of_npm))
            complete = True
            await self._disk.admit(repository.tenant, directory)
            return facts
        finally:
            if not complete:
                await uninterrupted(asyncio.to_thread(remove_tree, directory))

    async def _shared(
        self, repository: PinnedRepository, seed: Path, files: RepositoryFiles, recipe: Recipe, spec: EnvironmentSpec
    ) -> tuple[Path, Facts] | None:
        """The directory that all builds with these packages of an index begin with, and what is known of it.

        Nothing of the repository runs while it is made. None where there is no package to have, or none could be had.
        """
        if recipe.packages is None:
            return None
        tools, recipe = await self._tools.directory(), recipe.third_party
        key = await self._keys.packages_key(repository.tenant, recipe, files, spec, tools)
        directory = self._home / key
        async with locked(self._home / f"{key}.lock", timeout_seconds=10 * self._policy.timeout_seconds):
            facts = await asyncio.to_thread(read_facts, directory)
            if facts is not None:
                report = replace(facts.report, decisions=(*facts.report.decisions, _HAD_BEFORE))
                return directory / "root", replace(facts, report=report)
            try:
                lock = await self._lay_out(directory, recipe, files, None)
                async with (
                    self._clones.checkout(f"environment-{key}", "build", seed) as clone_dirs,
                    self._building(repository.tenant, key, seed, clone_dirs, recipe, spec, lock) as build,
                ):
                    await build.run(recipe.steps)
                    installed = await build.record() if recipe.python is not None else ()
                if not build.hollow:
                    report = EnvironmentReport(
                        decisions=tuple(build.decisions),
                        steps=tuple(build.steps),
                        left_out=build.left_out,
                        installed=installed,
                    )
                    facts = Facts(report=report)
                    await uninterrupted(asyncio.to_thread(write_facts, directory, facts, Furnishing()))
                    await self._disk.admit(repository.tenant, directory)
            finally:
                if facts is None:
                    await uninterrupted(asyncio.to_thread(remove_tree, directory))
        return None if facts is None else (directory / "root", facts)

    @asynccontextmanager
    async def _building(
        self,
        tenant: str,
        key: str,
        seed: Path,
        clone_dirs: CloneDirs,
        recipe: Recipe,
        spec: EnvironmentSpec,
        lock: Lock | None,
    ) -> AsyncGenerator[Build]:
        """What runs the steps of a recipe, in a workspace of its own."""
        network = self._policy.network if _needs_network(recipe) else NetworkGrant()
        root = self._home / key / "root"
        async with self._sandbox.workspace(
            clone_dirs.tree,
            environment=self._build_environment(key, seed, recipe, spec, await self._tools.directory()),
            network=network,
            writable=self._places.writable(root),
            scratch=clone_dirs.directory,
            owner=Owner(tenant=tenant, execution_id=f"environment-{key}"),
        ) as workspace:
            seconds = self._policy.timeout_seconds
            has_our_pip = await self._has_our_pip(recipe, spec)
            place = BuildRoot(path=root, seen_at=self._places.base(key), reports=has_our_pip)
            yield Build(workspace, place, lock, grant=network, mask=self._mask, seconds=seconds)

    async def _has_our_pip(self, recipe: Recipe, spec: EnvironmentSpec) -> bool:
        machine = await self._keys.toolchains(self._roots.get(spec.image), self._sandbox)
        pip = await self._tools.directory() / "pip/pip"
        version = recipe.python.version if recipe.python is not None else machine.default
        return await asyncio.to_thread(pip.is_dir) and allows(machine.pip_requires, version)

    async def _lay_out(
        self, directory: Path, recipe: Recipe, files: RepositoryFiles, start: Path | None
    ) -> Lock | None:
        """Make the environment's directory, a copy of `start` if there is one, with what its steps read; the pins, if
        there are any."""

        def lay_out() -> Lock | None:
            # What a killed build may have left.
            remove_tree(directory)
            root = directory / "root"
            directory.mkdir(parents=True)
            _copied(start, root)
            if recipe.python is not None:
                clear_name(root / REPORTS)
                (root / REPORTS).mkdir()
            for path, text in recipe.files.items():
                write_file(root / path, text)
            if recipe.python is None or not (recipe.python.lock or recipe.python.pins):
                return None
            if recipe.python.lock:
                lock = read_lock(files, recipe.python.lock, recipe.python.version)
            else:
                lock = recorded_lock(recipe.python.pins)
            if start is None:
                write_file(root / CONSTRAINTS, lock.constraints())
            return lock

        return await uninterrupted(asyncio.to_thread(lay_out))

    def _build_environment(
        self, key: str, seed: Path, recipe: Recipe, spec: EnvironmentSpec, tools: Path
    ) -> Environment:
        variables = self._places.variables(recipe, spec, key, tools, pytest_from_tools=False)
        variables |= {**recipe.build_variables, **self._policy.variables, **spec.variables}
        if not any(step.concerns.startswith(_OF_THE_CALLER) for step in recipe.steps):
            # Tests import from the repository; package managers must not, since what they make is shared with commits
            # that have other files there. A caller's own commands are shared with none.
            variables.pop("PYTHONPATH", None)
        return Environment(
            variables=variables,
            path=self._places.path(recipe, spec, tools, key=key),
            mounts=self._places.mounts(tools, seed / "objects"),
            python_prefix=self._prefix(recipe.python.version if recipe.python else None, spec),
            image=self._roots.get(spec.image),
        )

    async def _needs_our_pytest(self, build: Build, recipe: Recipe, files: RepositoryFiles) -> bool:
        """Whether the environment has no pytest of its own, and ours runs with its Python."""
        if recipe.python is None:
            return False
        asked = build.in_image or recipe.python.packages or any(step.concerns != "environment" for step in recipe.steps)
        if asked and await build.has_pytest(files):
            return False
        return allows(self._tools.requires_python, recipe.python.version)

    async def _python_version(self, root: Path, recipe: Recipe) -> str:
        """The interpreter's full version, as its virtual environment has it on record."""
        if recipe.python is None:
            return ""
        try:
            text = await asyncio.to_thread(read_file, root, "venv", "pyvenv.cfg")
        except OSError:
            return version_text(recipe.python.version)
        match = re.search(r"^version\s*=\s*([\d.]+)", text, re.M)
        return match[1] if match else version_text(recipe.python.version)

    async def _collect(self, clone_dirs: CloneDirs, root: Path) -> tuple[Furnishing, list[Decision]]:
        if not self._confined:
            return Furnishing(), []
        gathered = await uninterrupted(
            collect(self._git, clone_dirs.layout, root, mount=WORKSPACE_MOUNT, base=ENVIRONMENT_MOUNT)
        )
        decisions = [Decision(what=f"left out because of its size: {text}") for text in gathered.too_much]
        kept = gathered.furnishing.kept
        if kept:
            more = f" and {len(kept) - 3} more" if len(kept) > 3 else ""
            decisions.append(
                Decision(what=f"build output that is copied into every clone: {', '.join(kept[:3])}{more}")
            )
        return gathered.furnishing, decisions

    def _ready(self, key: str, facts: Facts, tools: Path, spec: EnvironmentSpec, *, cached: bool) -> Environment:
        report = facts.report
        if own := spec.test_command.strip():
            report = replace(report, test_command=caller_command(own), test_source="the caller")
        mounts = self._places.mounts(tools)
        if key and self._places.level is not IsolationLevel.NONE:
            root = self._home / key / "root"
            mounts = (*mounts, Mount(source=str(root), target=self._places.base(key)))
        return Environment(
            key=key,
            variables=facts.variables,
            path=facts.path,
            mounts=mounts,
            test_command=report.test_command,
            notes=facts.notes,
            report=report,
            python_prefix=self._prefix(facts.python, spec),
            image=self._roots.get(spec.image),
            cached=cached,
        )

    def _prefix(self, python: tuple[int, int] | None, spec: EnvironmentSpec) -> str:
        """The installation of an interpreter that is not the usual one, where the sandbox does not show it anyway."""
        interpreters = self._keys.interpreters
        if (
            spec.image
            or python is None
            or interpreters is None
            or python == interpreters.machine.default
            or python not in interpreters.prefixes
        ):
            return ""
        prefix = str(interpreters.prefixes[python])
        return "" if prefix in ("/usr", "/usr/local") else prefix


def _needs_network(recipe: Recipe) -> bool:
    """Whether a build does more than make an empty virtual environment."""
    return any(not step.required or step.concerns != "environment" for step in recipe.steps)


def _copied(root: Path | None, copy: Path) -> None:
    if root is None:
        copy.mkdir()
    else:
        copy_tree(root, copy)


def _derived(key: str, mark: str) -> str:
    return hashlib.sha256(f"{key} {mark}".encode()).hexdigest()[:32]
