"""Which builds are the same: what an environment is known by, and whose code may run while it is built."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.adapters.git_workspace.listing import read_files
from swe_ai_fleet.adapters.git_workspace.machine import Interpreters, find_interpreters
from swe_ai_fleet.adapters.git_workspace.places import SetupPolicy
from swe_ai_fleet.adapters.git_workspace.seeds import packed_refs
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.environments.detection import digest
from swe_ai_fleet.environments.project_code import project_code
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.environments.repository_files import RepositoryFiles, joined
from swe_ai_fleet.sandbox import Rung

_FORMAT = 5
_LISTINGS_KEPT = 64
_GO_FILES = frozenset({"go.mod", "go.sum", "go.work", "go.work.sum"})


class Keys:
    """Keys of environments, made of everything that decides what a build becomes."""

    def __init__(self, git: Git, *, policy: SetupPolicy, rung: Rung) -> None:
        self._git = git
        self._policy = policy
        self._rung = rung
        self._listings: dict[Path, RepositoryFiles] = {}
        self._reasons: dict[tuple[str, str], str] = {}
        self._interpreters: Interpreters | None = None

    async def files(self, seed: Path) -> RepositoryFiles:
        if seed not in self._listings:
            while len(self._listings) >= _LISTINGS_KEPT:
                self._listings.pop(next(iter(self._listings)))
            self._listings[seed] = await read_files(self._git, seed)
        return self._listings[seed]

    async def ground(self, repository: PinnedRepository, seed: Path, files: RepositoryFiles) -> Path:
        """The seed whose code a build may run: of a commit of ours, that of the commit it stands on where both ask for
        the same environment. What a candidate brings never is in the environment that others are tested in."""
        wanted, ground, content = digest(files, repository.subdirectory), seed, files
        # A commit of ours may stand on another one of ours: a candidate on a snapshot of uncommitted changes.
        while repository.snapshot_of and ground.name != repository.snapshot_of and content.parent:
            below = seed.parent / content.parent
            if not await asyncio.to_thread(below.is_dir):
                break
            content = await self.files(below)
            if digest(content, repository.subdirectory) != wanted:
                break
            ground = below
        return ground

    async def alone(self, files: RepositoryFiles, directory: str) -> str:
        """Why no other commit can share what these files make; empty where others can."""
        key = (files.tree, directory)
        if key not in self._reasons:
            while len(self._reasons) >= _LISTINGS_KEPT:
                self._reasons.pop(next(iter(self._reasons)))
            self._reasons[key] = await asyncio.to_thread(project_code, files, directory)
        return self._reasons[key]

    async def machine(self) -> Interpreters:
        if self._interpreters is None:
            self._interpreters = await asyncio.to_thread(find_interpreters, os.environ)
        return self._interpreters

    async def key(
        self, repository: PinnedRepository, files: RepositoryFiles, spec: EnvironmentSpec, tools: Path, ground: Path
    ) -> str:
        """The key of an environment whose build may run code of the seed `ground`."""
        # Set-up commands of the caller may read whatever the commit has.
        content = files.tree if spec.setup else digest(files, repository.subdirectory)
        if await self.alone(files, repository.subdirectory):
            # So may what the repository runs while it is built; its history too, and the tags that name versions.
            content += f" {ground.name} {hashlib.sha256(await asyncio.to_thread(packed_refs, ground)).hexdigest()}"
        facts = [
            *(repository.subdirectory, spec.image, list(spec.setup), spec.detect, content),
            *(sorted(files.submodules.items()), files.versions_tagged),
        ]
        return await self._hashed(repository.tenant, spec, tools, facts)

    async def packages_key(
        self, tenant: str, recipe: Recipe, files: RepositoryFiles, spec: EnvironmentSpec, tools: Path
    ) -> str:
        """The key of what the steps of a recipe make, which run no code of the repository: what they read decides."""
        lists = {joined(step.directory, word) for step in recipe.steps for word in step.argv} & files.files.keys()
        lists |= {path for path in files.files if posixpath.basename(path) in _GO_FILES}
        if recipe.python is not None and recipe.python.lock:
            lists.add(recipe.python.lock)
        steps = [(step.directory, step.argv, sorted(step.variables.items())) for step in recipe.steps]
        pins = recipe.python.pins if recipe.python is not None else ()
        facts = [steps, sorted(recipe.files.items()), sorted(recipe.build_variables.items()), files.digest(lists), pins]
        return await self._hashed(tenant, spec, tools, ["packages", *facts])

    async def _hashed(self, tenant: str, spec: EnvironmentSpec, tools: Path, facts: Sequence[object]) -> str:
        network = self._policy.network
        always = [
            *(_FORMAT, self._rung, tenant, tools.name, (await self.machine()).identity),
            *(list(spec.path), sorted(spec.variables.items()), sorted(self._policy.variables)),
            *(list(network.hosts), list(network.private_hosts)),
        ]
        return hashlib.sha256(json.dumps([always, facts]).encode()).hexdigest()[:32]

    @property
    def interpreters(self) -> Interpreters | None:
        """The machine's, once they have been looked for."""
        return self._interpreters
