"""Environments: what a repository's commands need, built once in the sandbox and then shown read-only to everyone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.clones import Clones
from swe_ai_fleet.adapters.git_workspace.detection import PYTEST, detect
from swe_ai_fleet.adapters.git_workspace.directories import finished, remove_tree
from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.adapters.git_workspace.installation import ENVIRONMENT_MOUNT, TOOLS_MOUNT, Installation, Step
from swe_ai_fleet.adapters.git_workspace.listing import Listing, read_listing
from swe_ai_fleet.adapters.git_workspace.locks import locked
from swe_ai_fleet.adapters.git_workspace.python_tools import PythonTools
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.ports import SecretMask, Workspace
from swe_ai_fleet.sandbox import NetworkGrant, Rung, Sandbox

_FORMAT = 1
_FACTS = "facts.json"
_TAIL_CHARACTERS = 2000
_LISTINGS_KEPT = 64
_VERSIONS = "python3 --version; node --version; true"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPolicy:
    """What set-up commands get: the network they may reach, variables of theirs alone (an index, its certificate).

    `image` names the container image this node runs in; a specification that asks for another one is refused.
    """

    network: NetworkGrant
    variables: Mapping[str, str]
    image: str = ""
    timeout_seconds: float = 1800.0


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
        *,
        policy: SetupPolicy,
        mask: SecretMask,
    ) -> None:
        self._home = home
        self._git = git
        self._sandbox = sandbox
        self._clones = clones
        self._tools = tools
        self._policy = policy
        self._mask = mask
        self._rung = sandbox.policy.rung
        self._confined = self._rung.mounts
        self._listings: dict[tuple[Path, str], Listing] = {}
        self._toolchain = ""

    async def warm(self) -> None:
        """Copy the tools that repositories without their own get."""
        await self._tools.directory()

    async def environment(self, repository: PinnedRepository, seed: Path, spec: EnvironmentSpec) -> Environment:
        """The environment for a pinned repository. Raises InvalidRequest, PreconditionFailed with `field`."""
        _check(spec, image=self._policy.image)
        listing = await self._listing(seed, repository.subdirectory)
        found = detect(listing)
        if spec.setup or not spec.detect:
            # Who says how to set up is not second-guessed; how to test and lint is still read off the files.
            found = replace(found, requirements=(), dependencies=(), project=False, node=False)
        installation = Installation(
            found=found, spec=spec, root=self._home, tools=await self._tools.directory(), confined=self._confined
        )
        if not installation.needs_build:
            ready = _environment(installation, pytest_from_tools=True)
            if self._rung is Rung.LANDLOCK:
                # Nothing can be shown at another place, but where it is it can.
                tools = str(installation.tools)
                ready = replace(ready, mounts=(Mount(source=tools, target=tools),))
            return ready
        if found.project and not self._confined:
            raise PreconditionFailed(
                "without a sandbox an editable installation would belong to one clone only",
                field="environment",
                hint="install bubblewrap, or give set-up commands",
            )
        key = await self._key(repository, listing, installation)
        installation = replace(installation, root=self._home / key / "root")
        facts = await asyncio.to_thread(_facts, self._home / key)
        cached = facts is not None
        if facts is None:
            self._home.mkdir(parents=True, exist_ok=True)
            # Every one of those who wait may have to build, if those before it fail.
            async with locked(self._home / f"{key}.lock", timeout_seconds=10 * self._policy.timeout_seconds):
                facts = await asyncio.to_thread(_facts, self._home / key)
                cached = facts is not None
                if facts is None:
                    facts = await self._build(key, repository, seed, installation)
        environment = _environment(installation, pytest_from_tools=facts.pytest_from_tools)
        return replace(environment, key=key, cached=cached)

    async def _listing(self, seed: Path, subdirectory: str) -> Listing:
        place = (seed, subdirectory)
        if place not in self._listings:
            while len(self._listings) >= _LISTINGS_KEPT:
                self._listings.pop(next(iter(self._listings)))
            self._listings[place] = await read_listing(self._git, seed, subdirectory)
        return self._listings[place]

    async def _key(self, repository: PinnedRepository, listing: Listing, installation: Installation) -> str:
        found, spec = installation.found, installation.spec
        content = listing.tree if spec.setup else listing.digest(found.inputs)
        if found.project:
            # An editable installation maps the packages that it found: a new one needs a new installation.
            content += "\n".join(sorted({"/".join(path.split("/")[:2]) for path in listing.files if "/" in path}))
        facts = [
            *(_FORMAT, self._confined, repository.tenant, repository.subdirectory, spec.image, list(spec.setup)),
            *(list(spec.path), sorted(spec.variables.items()), spec.detect, content, await self._versions()),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    async def _versions(self) -> str:
        if not self._toolchain:
            empty = self._home / "probe"
            empty.mkdir(parents=True, exist_ok=True)
            async with self._sandbox.workspace(empty) as workspace:
                asked = await workspace.run(Command(argv=("sh", "-c", _VERSIONS), light=True))
            self._toolchain = asked.stdout.text() or "none"
        return self._toolchain

    async def _build(self, key: str, repository: PinnedRepository, seed: Path, installation: Installation) -> _Facts:
        directory, root = self._home / key, installation.root
        # What a killed build may have left.
        await asyncio.to_thread(remove_tree, directory)
        root.mkdir(parents=True)
        mounts = (
            Mount(source=str(seed / "objects"), target=str(seed / "objects")),
            Mount(source=str(installation.tools), target=TOOLS_MOUNT),
        )
        environment = Environment(
            variables=installation.variables(self._policy.variables, pytest_from_tools=False),
            path=installation.path(),
            mounts=mounts if self._confined else (),
        )
        complete = False
        try:
            async with (
                self._clones.checkout(f"environment-{key}", "build", seed) as premises,
                self._sandbox.workspace(
                    premises.tree,
                    environment=environment,
                    network=self._policy.network,
                    writable=(Mount(source=str(root), target=ENVIRONMENT_MOUNT),) if self._confined else (),
                    scratch=premises.directory,
                ) as workspace,
            ):
                if installation.found.dependencies:
                    lines = "".join(f"{line}\n" for line in installation.found.dependencies)
                    await finished(asyncio.to_thread((root / "dependencies.txt").write_text, lines))
                for step in installation.steps():
                    await self._run(workspace, step, repository.subdirectory)
                has_pytest = await self._provide_pytest(workspace, installation)
            facts = _Facts(pytest_from_tools=not has_pytest)
            await asyncio.to_thread(_write_facts, directory, facts)
            complete = True
            return facts
        finally:
            if not complete:
                await finished(asyncio.to_thread(remove_tree, directory))

    async def _provide_pytest(self, workspace: Workspace, installation: Installation) -> bool:
        """Whether the environment has a pytest of its own in the end."""
        if not installation.has_venv:
            return False
        # In the root of the file system, so that no directory of the repository can pose as pytest.
        asked = await workspace.run(Command(argv=("sh", "-c", "cd / && exec python3 -c 'import pytest'")))
        if asked.ok:
            return True
        if installation.spec.setup or installation.found.test_command != PYTEST:
            return False
        await self._run(workspace, installation.pip("pytest"), "")
        return True

    async def _run(self, workspace: Workspace, step: Step, subdirectory: str) -> None:
        result = await workspace.run(
            Command(
                argv=step.argv,
                cwd=subdirectory or ".",
                timeout_seconds=self._policy.timeout_seconds,
                merge_stderr=True,
            )
        )
        if not result.ok:
            shown = self._mask(" ".join(step.argv[-1:] if step.argv[0] == "sh" else step.argv)[:200])
            raise PreconditionFailed(
                f"setting up the environment failed: `{shown}`: {self._reason(result)}", field=step.field
            )

    def _reason(self, result: CommandResult) -> str:
        said = self._mask(result.stdout.text())[-_TAIL_CHARACTERS:].strip()
        return f"{'its time was up' if result.timed_out else f'exit code {result.exit_code}'}\n{said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    pytest_from_tools: bool


def _facts(directory: Path) -> _Facts | None:
    try:
        facts = json.loads((directory / _FACTS).read_text())
        os.utime(directory)
    except FileNotFoundError:
        return None
    return _Facts(pytest_from_tools=bool(facts["pytest_from_tools"]))


def _write_facts(directory: Path, facts: _Facts) -> None:
    draft = directory / f".{_FACTS}"
    draft.write_text(json.dumps({"pytest_from_tools": facts.pytest_from_tools}))
    draft.rename(directory / _FACTS)


def _environment(installation: Installation, *, pytest_from_tools: bool) -> Environment:
    return Environment(
        variables=installation.variables({}, pytest_from_tools=pytest_from_tools),
        path=installation.path(),
        mounts=installation.mounts(),
        test_command=installation.found.test_command,
        lint_command=installation.found.lint_command,
        notes=installation.notes(),
    )


def _check(spec: EnvironmentSpec, *, image: str) -> None:
    if spec.image and spec.image != image:
        raise PreconditionFailed(
            f"this node does not run in image {spec.image[:128]!r}",
            field="environment.image",
            hint="leave it empty or use a node of that image",
        )
    for name, text in spec.variables.items():
        if not name or "=" in name or "\0" in name + text:
            raise InvalidRequest(f"{name[:64]!r} is not a variable", field="environment.variables")
    for number, directory in enumerate(spec.path):
        if not directory or ":" in directory or "\0" in directory:
            raise InvalidRequest(f"{directory[:64]!r} is not a directory", field=f"environment.path[{number}]")
    for number, line in enumerate(spec.setup):
        if not line.strip() or "\0" in line:
            raise InvalidRequest("a set-up command is empty", field=f"environment.setup[{number}]")
