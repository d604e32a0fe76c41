"""Environments of repositories: built once in the sandbox, then mounted read-only for all clones."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.builds import (
    Builder,
    EnvironmentBuildRequest,
    copy_environment,
    first_report,
    missing_on_path,
    notes_for_agents,
)
from swe_ai_fleet.adapters.git_workspace.clones import Clones
from swe_ai_fleet.adapters.git_workspace.directories import (
    locked,
)
from swe_ai_fleet.adapters.git_workspace.disk_space import TenantDisk
from swe_ai_fleet.adapters.git_workspace.furnishing import (
    Facts,
    Furnishing,
    read_facts,
    read_furnishing,
    read_npm_lock,
)
from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.adapters.git_workspace.image_store import ImageStore
from swe_ai_fleet.adapters.git_workspace.keys import EnvironmentKeys
from swe_ai_fleet.adapters.git_workspace.setup import (
    ENVIRONMENT_MOUNT,
    WORKSPACE_MOUNT,
    EnvironmentPaths,
    PythonTools,
    SetupPolicy,
    check,
)
from swe_ai_fleet.domain.environment import Environment, EnvironmentDecision, ImageRoot, Mount
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.environments import caller_command, detect, digest
from swe_ai_fleet.environments.node_project import pinned_npm
from swe_ai_fleet.environments.pip_steps import Tooling
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.environments.repository_files import NODE_LOCKS, PYTHON_LOCKS, RepositoryFiles
from swe_ai_fleet.ports import KnownRecipes, SecretMask
from swe_ai_fleet.sandbox import IsolationLevel, Sandbox
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted
from swe_ai_fleet.sandbox.workspace import IMAGES_HINT

_MOST_RETRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pins:
    """The versions that candidates' environments take from the commit's one: lines for pip, a lock for npm."""

    pip: tuple[str, ...] = ()
    npm: str = ""

    def derive(self, key: str) -> str:
        """The key of an environment with these pins."""
        marks = ["\n".join(self.pip)] if self.pip else []
        marks += [hashlib.sha256(self.npm.encode()).hexdigest()] if self.npm else []
        for mark in marks:
            key = _derived(key, mark)
        return key


class Environments:
    """Builds environments below `home`, and finds those that this or another process built.

    An environment is complete when it has `facts.json`, which is written last.
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
        self._sandbox = sandbox
        self._tools = tools
        self._disk = disk
        self._policy = policy
        self._recipes = recipes
        self._images = images
        self._roots: dict[str, ImageRoot] = {}
        self._paths = EnvironmentPaths(home=home, level=sandbox.policy.level)
        self._confined = self._paths.confined
        self._keys = EnvironmentKeys(git, policy=policy, level=sandbox.policy.level)
        self._builder = Builder(
            git=git,
            sandbox=sandbox,
            clones=clones,
            tools=tools,
            disk=disk,
            policy=policy,
            paths=self._paths,
            keys=self._keys,
            mask=mask,
        )

    def check_images(self) -> None:
        """Raise PreconditionFailed where this node's sandbox cannot show a container image."""
        if not self._confined:
            fault = f"the sandbox {self._paths.level} cannot show a container image"
            raise PreconditionFailed(fault, field="environment.container_image", hint=IMAGES_HINT)

    async def warm(self) -> None:
        """Copy the default tools for repositories, and find the machine's interpreters."""
        await self._tools.directory()
        await self._keys.machine()

    async def environment(self, repository: PinnedRepository, seed: Path, spec: EnvironmentSpec) -> Environment:
        """The environment for a pinned repository. Raises InvalidRequest, PreconditionFailed with `field`.

        The recipe of an earlier environment run for the same rules is used as well, as long as it works.
        """
        check(spec, confined=self._confined)
        decisions: tuple[EnvironmentDecision, ...] = ()
        if spec.image:
            if self._sandbox.container is not None:
                root = await self._sandbox.container.root(spec.image)
            else:
                self.check_images()
                root = await self._images.root(repository.tenant, spec.image, spec.image_credential)
            decisions = (
                EnvironmentDecision(
                    what=f"all of it is in the image {spec.image} ({root.digest})", source="the caller"
                ),
            )
            # From here on the image is identified by its content.
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
            decisions += (EnvironmentDecision(what=fault),) if fault else ()
        report = replace(report, decisions=(*report.decisions, *decisions))
        return replace(environment, recipe_key=recipe_key, report=report, tree=files.tree)

    async def _found_or_built(
        self,
        key: str,
        repository: PinnedRepository,
        seed: Path,
        ground: Path,
        spec: EnvironmentSpec,
        pins: _Pins | None = None,
    ) -> Environment:
        """The environment under a key: built from `ground`, or from `seed` where only its own build fits its files.

        `pins` apply without a lock file; None: those of the parent commit, which become part of the key.
        """
        tools = await self._tools.directory()
        tree, code = (await self._keys.files(seed)).tree, (await self._keys.files(ground)).tree
        if pins is None:
            pins = await self._pins_below(repository, seed, spec)
            key = pins.derive(key)
        key, facts, is_own = await asyncio.to_thread(self._find, key, tree, code)
        if facts is not None:
            await self._disk.recorded(repository.tenant, self._home / key)
            return await self._ready(key, facts, tools, spec, cached=True)
        source = seed if is_own or spec.setup else ground
        files = await self._keys.files(source)
        recipe = await self._recipe(repository, files, spec, key, pins)
        if not recipe.steps:
            bare = Facts(report=first_report(recipe, ""), path=self._paths.path(recipe, spec, tools, key=""))
            notes = (
                *notes_for_agents(recipe, bare.report),
                *missing_on_path(spec, files, self._home / "-", Furnishing()),
            )
            return await self._ready(
                "", replace(bare, variables=dict(spec.variables), notes=notes), tools, spec, cached=False
            )
        if recipe.python is not None and recipe.python.project and not self._confined:
            raise PreconditionFailed(
                "without a sandbox an editable installation would work in one clone only",
                field="environment",
                hint="install bubblewrap, or switch detection off and give set-up commands",
            )
        self._home.mkdir(parents=True, exist_ok=True)
        # Each of the waiting processes may have to build, if those before it fail.
        async with locked(self._home / f"{key}.lock", timeout_seconds=10 * self._policy.timeout_seconds):
            facts = await asyncio.to_thread(read_facts, self._home / key)
            cached = facts is not None
            if facts is None:
                request = EnvironmentBuildRequest(
                    tenant=repository.tenant,
                    subdirectory=repository.subdirectory,
                    seed=source,
                    files=files,
                    recipe=recipe,
                    spec=spec,
                    image=self._roots.get(spec.image),
                )
                facts = await self._builder.build(key, request)
        if facts.tree not in ("", tree) or facts.code not in ("", tree if is_own else code):
            # The build's output fits the ground's files only, or code of another content may have run in it.
            return await self._found_or_built(key, repository, seed, ground, spec, pins)
        return await self._ready(key, facts, tools, spec, cached=cached)

    async def _pins_below(self, repository: PinnedRepository, seed: Path, spec: EnvironmentSpec) -> _Pins:
        """The versions from an index in the environment of our commit's parent, if this node has that environment.

        Newer releases must not make the two environments differ. Lock files pin versions themselves.
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
            # The environment is the same.
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
        """(the environment's directory on this host, its furnishing of clones). Blocking."""
        directory = self._home / environment.key
        return directory / "root", read_furnishing(directory) if environment.key else Furnishing()

    async def writable_copy(self, environment: Environment, directory: Path) -> tuple[Environment, tuple[Mount, ...]]:
        """A writable environment, with a copy of its files in `directory`; and its writable mounts.

        Raises PreconditionFailed without a sandbox that can mount the copy in place of the environment.
        """
        if not self._confined:
            raise PreconditionFailed("environments can be changed in the sandbox bubblewrap only", field="environment")
        root, copy = self._home / environment.key / "root", directory / "environment"
        await uninterrupted(asyncio.to_thread(copy_environment, root if environment.key else None, copy))
        changed = replace(
            environment,
            variables={**self._policy.variables, **environment.variables},
            mounts=tuple(mount for mount in environment.mounts if mount.target != ENVIRONMENT_MOUNT),
            network=self._policy.network,
        )
        return changed, (Mount(source=str(copy), target=ENVIRONMENT_MOUNT),)

    def _find(self, key: str, tree: str, code: str) -> tuple[str, Facts | None, bool]:
        """(the key of the environment, the facts of its build, whether it is for these files only). `code` is the tree
        whose code a build may run. Blocking."""
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
            base=self._paths.base(key),
            pip=f"{self._paths.tools_base(tools)}/pip" if has_pip else "",
            workspace=WORKSPACE_MOUNT if self._confined else "",
            pinned=bool(pins.pip),
        )
        machine = await self._keys.toolchains(self._roots.get(spec.image), self._sandbox)
        recipe = await asyncio.to_thread(detect, files, spec, machine, tooling, directory=repository.subdirectory)
        if pins.npm:
            recipe = pinned_npm(recipe, pins.npm, self._paths.base(key))
        if recipe.python is None or not recipe.python.packages or not pins.pip:
            return recipe
        pins_decision = EnvironmentDecision(
            what="no lock file: pip installs the versions of the parent commit's environment"
        )
        return replace(
            recipe, python=replace(recipe.python, pins=pins.pip), decisions=(*recipe.decisions, pins_decision)
        )

    async def _ready(self, key: str, facts: Facts, tools: Path, spec: EnvironmentSpec, *, cached: bool) -> Environment:
        report = facts.report
        if own := spec.test_command.strip():
            report = replace(report, test_command=caller_command(own), test_source="the caller")
        mounts = self._paths.mounts(tools)
        if key and self._paths.level is not IsolationLevel.NONE:
            root = self._home / key / "root"
            mounts = (*mounts, Mount(source=str(root), target=self._paths.base(key)))
        return Environment(
            key=key,
            variables=facts.variables,
            path=facts.path,
            mounts=mounts,
            test_command=report.test_command,
            notes=facts.notes,
            report=report,
            python_prefix="" if spec.image else (await self._keys.machine()).prefix(facts.python),
            image=self._roots.get(spec.image),
            cached=cached,
        )


def _derived(key: str, mark: str) -> str:
    return hashlib.sha256(f"{key} {mark}".encode()).hexdigest()[:32]
