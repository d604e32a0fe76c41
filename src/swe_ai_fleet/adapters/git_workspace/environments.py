"""Environments: what a repository's commands need, built once in the sandbox and then shown read-only to everyone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.clones import Clones
from swe_ai_fleet.adapters.git_workspace.detection import PYTEST, Detected, detect
from swe_ai_fleet.adapters.git_workspace.directories import appearing
from swe_ai_fleet.adapters.git_workspace.git import Git
from swe_ai_fleet.adapters.git_workspace.listing import Listing, read_listing
from swe_ai_fleet.adapters.git_workspace.locks import locked
from swe_ai_fleet.adapters.git_workspace.python_tools import TOOLS_MOUNT, PythonTools
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository
from swe_ai_fleet.ports import SecretMask, Workspace
from swe_ai_fleet.sandbox import NetworkGrant, Sandbox

ENVIRONMENT_MOUNT = "/environment"
WORKSPACE_MOUNT = "/workspace"
_VENV = f"{ENVIRONMENT_MOUNT}/venv"
_NODE = f"{ENVIRONMENT_MOUNT}/node"
_NODE_MODULES_MOUNT = "/node_modules"
_PIP = (
    f"{_VENV}/bin/python",
    "-m",
    "pip",
    "install",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
)
_FORMAT = 1
_TAIL_CHARACTERS = 2000
_SETUP_TIMEOUT_SECONDS = 1800.0
_VERSIONS = "python3 --version; node --version; npm --version; true"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPolicy:
    """What set-up commands get: the network they may reach, variables of theirs alone (an index, its certificate).

    `image` names the container image this node runs in; a specification that asks for another one is refused.
    """

    network: NetworkGrant
    variables: Mapping[str, str]
    image: str = ""
    timeout_seconds: float = _SETUP_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One command of a build; `field` is what its failure is about."""

    field: str
    argv: tuple[str, ...]


class Environments:
    """Builds environments below `home` and finds those built before, also by other processes."""

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
        self._listings: dict[tuple[Path, str], Listing] = {}
        self._toolchain = ""

    async def environment(self, repository: PinnedRepository, seed: Path, spec: EnvironmentSpec) -> Environment:
        """The environment for a pinned repository. Raises InvalidRequest, PreconditionFailed with `field`."""
        _check(spec, image=self._policy.image)
        listing = await self._listing(seed, repository.subdirectory)
        found = detect(listing)
        if not spec.detect:
            found = replace(found, requirements=(), dependencies=(), project=False, node=False)
        if spec.setup:
            # Who says how to set up is not second-guessed; how to test and lint is still read off the files.
            found = replace(found, requirements=(), dependencies=(), project=False, node=False)
        if not spec.setup and not found.needs_build:
            return await self._bare(found, spec)
        key = await self._key(repository, listing, found, spec)
        built = self._home / key
        cached = built.is_dir()
        if not cached:
            built.parent.mkdir(parents=True, exist_ok=True)
            async with locked(built.with_suffix(".lock"), timeout_seconds=2 * self._policy.timeout_seconds):
                cached = built.is_dir()
                if not cached:
                    await self._build(key, repository, seed, found, spec)
        await asyncio.to_thread(os.utime, built)
        facts = json.loads((built / "facts.json").read_text())
        environment = await self._assembled(found, spec, built / "root", own_pytest=bool(facts["pytest"]))
        return replace(environment, key=key, cached=cached, build_seconds=float(facts["seconds"]))

    async def _listing(self, seed: Path, subdirectory: str) -> Listing:
        place = (seed, subdirectory)
        if place not in self._listings:
            while len(self._listings) >= 64:
                self._listings.pop(next(iter(self._listings)))
            self._listings[place] = await read_listing(self._git, seed, subdirectory)
        return self._listings[place]

    async def _bare(self, found: Detected, spec: EnvironmentSpec) -> Environment:
        tools = await self._tools.mount()
        return Environment(
            variables=_variables({}, spec, python_path=f"{TOOLS_MOUNT}/python"),
            path=(*_own_path(spec), f"{TOOLS_MOUNT}/bin"),
            mounts=(tools,),
            test_command=found.test_command,
            lint_command=found.lint_command,
            notes=_notes(found, "nothing was installed"),
        )

    async def _assembled(self, found: Detected, spec: EnvironmentSpec, root: Path, *, own_pytest: bool) -> Environment:
        tools = await self._tools.mount()
        variables, path = _places(found)
        mounts = [Mount(source=str(root), target=ENVIRONMENT_MOUNT), tools]
        modules = root / "node/node_modules"
        if found.node and modules.is_dir():
            # At the top, where Node looks last for both `import` and `require`; NODE_PATH serves `require` only.
            mounts.append(Mount(source=str(modules), target=_NODE_MODULES_MOUNT))
        return Environment(
            variables=_variables(variables, spec, python_path="" if own_pytest else f"{TOOLS_MOUNT}/python"),
            path=(*_own_path(spec), *path, f"{TOOLS_MOUNT}/bin"),
            mounts=tuple(mounts),
            test_command=found.test_command,
            lint_command=found.lint_command,
            notes=_notes(found, _installed(found, spec)),
        )

    async def _key(self, repository: PinnedRepository, listing: Listing, found: Detected, spec: EnvironmentSpec) -> str:
        if spec.setup:
            content = listing.tree
        else:
            content = listing.digest(found.inputs)
            if found.project:
                # An editable install maps the packages it found: a new one needs a new installation.
                content += "\n".join(sorted({"/".join(path.split("/")[:2]) for path in listing.files if "/" in path}))
        facts = [
            *(_FORMAT, repository.tenant, repository.subdirectory, spec.image, list(spec.setup), list(spec.path)),
            *(sorted(spec.variables.items()), spec.detect, content, await self._versions()),
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

    async def _build(
        self, key: str, repository: PinnedRepository, seed: Path, found: Detected, spec: EnvironmentSpec
    ) -> None:
        started = time.monotonic()
        variables, path = _places(found)
        environment = Environment(
            variables=_variables({**self._policy.variables, **variables}, spec, python_path=""),
            path=(*_own_path(spec), *path),
            mounts=(Mount(source=str(seed / "objects"), target=str(seed / "objects")),),
        )
        async with (
            appearing(self._home / key) as draft,
            self._clones.checkout(f"environment-{key}", "build", seed) as premises,
        ):
            root = draft / "root"
            root.mkdir()
            async with self._sandbox.workspace(
                premises.tree,
                environment=environment,
                network=self._policy.network,
                writable=(Mount(source=str(root), target=ENVIRONMENT_MOUNT),),
            ) as workspace:
                if found.dependencies:
                    (root / "dependencies.txt").write_text("".join(f"{line}\n" for line in found.dependencies))
                for step in _steps(found, spec):
                    await self._run(workspace, step, repository.subdirectory)
                own_pytest = await self._has_pytest(workspace, found)
                if not own_pytest and found.test_command == PYTEST and not spec.setup and _has_venv(found):
                    await self._run(workspace, _Step(field="environment", argv=(*_PIP, "pytest")), ".")
                    own_pytest = True
            facts = {"pytest": own_pytest, "seconds": round(time.monotonic() - started, 3)}
            (draft / "facts.json").write_text(json.dumps(facts))

    async def _has_pytest(self, workspace: Workspace, found: Detected) -> bool:
        if not found.python:
            return False
        asked = await workspace.run(Command(argv=("python3", "-c", "import pytest"), cwd="."))
        return asked.ok

    async def _run(self, workspace: Workspace, step: _Step, subdirectory: str) -> None:
        result = await workspace.run(
            Command(
                argv=step.argv,
                cwd=subdirectory or ".",
                timeout_seconds=self._policy.timeout_seconds,
                merge_stderr=True,
            )
        )
        if not result.ok:
            raise PreconditionFailed(
                f"setting up the environment failed: {' '.join(step.argv)[:200]}: {self._reason(result)}",
                field=step.field,
            )

    def _reason(self, result: CommandResult) -> str:
        said = self._mask(result.stdout.text())[-_TAIL_CHARACTERS:].strip()
        ended = "its time was up" if result.timed_out else f"exit code {result.exit_code}"
        return f"{ended}\n{said}"


def _check(spec: EnvironmentSpec, *, image: str) -> None:
    if spec.image and spec.image != image:
        raise PreconditionFailed(
            f"this node does not run in image {spec.image[:128]!r}",
            field="environment.image",
            hint="leave it empty or use a node of that image",
        )
    for name in spec.variables:
        if not name or "=" in name or "\0" in name or "\0" in spec.variables[name]:
            raise InvalidRequest(f"{name[:64]!r} is not a variable", field="environment.variables")
    for number, directory in enumerate(spec.path):
        if not directory or ":" in directory or "\0" in directory:
            raise InvalidRequest(f"{directory[:64]!r} is not a directory", field=f"environment.path[{number}]")
    for number, line in enumerate(spec.setup):
        if not line.strip() or "\0" in line:
            raise InvalidRequest("a set-up command is empty", field=f"environment.setup[{number}]")


def _has_venv(found: Detected) -> bool:
    return found.python or bool(found.requirements or found.dependencies) or found.project


def _places(found: Detected) -> tuple[dict[str, str], list[str]]:
    variables: dict[str, str] = {}
    path: list[str] = [f"{ENVIRONMENT_MOUNT}/bin"]
    if _has_venv(found):
        variables["VIRTUAL_ENV"] = _VENV
        path.append(f"{_VENV}/bin")
    if found.node:
        variables["NODE_PATH"] = f"{_NODE}/node_modules"
        path.append(f"{_NODE}/node_modules/.bin")
    return variables, path


def _own_path(spec: EnvironmentSpec) -> list[str]:
    return [entry if entry.startswith("/") else f"{WORKSPACE_MOUNT}/{entry.removeprefix('./')}" for entry in spec.path]


def _variables(own: Mapping[str, str], spec: EnvironmentSpec, *, python_path: str) -> dict[str, str]:
    # Caches of compiled files would turn up in every patch.
    variables = {"PYTHONDONTWRITEBYTECODE": "1", **own, **spec.variables}
    if python_path:
        asked = spec.variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{asked}:{python_path}" if asked else python_path
    return variables


def _steps(found: Detected, spec: EnvironmentSpec) -> list[_Step]:
    steps: list[_Step] = []
    if _has_venv(found):
        steps.append(_Step(field="environment", argv=("python3", "-m", "venv", _VENV)))
    steps += [
        _Step(field=f"environment.setup[{number}]", argv=("sh", "-c", line)) for number, line in enumerate(spec.setup)
    ]
    wanted = [part for name in found.requirements for part in ("-r", name)]
    if found.dependencies:
        wanted += ["-r", f"{ENVIRONMENT_MOUNT}/dependencies.txt"]
    if found.project:
        wanted += ["-e", f".[{','.join(found.extras)}]" if found.extras else "."]
    if wanted:
        steps.append(_Step(field="environment", argv=(*_PIP, *wanted)))
    if found.node:
        copy = f'mkdir -p {_NODE} && for f in package*.json npm-shrinkwrap.json .npmrc; do [ ! -f "$f" ] || cp "$f" {_NODE}/; done'
        install = "ci" if found.node_locked else "install"
        steps.append(_Step(field="environment", argv=("sh", "-c", copy)))
        steps.append(
            _Step(
                field="environment",
                argv=("npm", "--prefix", _NODE, install, "--no-audit", "--no-fund", "--loglevel=error"),
            )
        )
    return steps


def _installed(found: Detected, spec: EnvironmentSpec) -> str:
    if spec.setup:
        return f"the set-up of {len(spec.setup)} command(s) was run"
    parts = [*found.requirements]
    if found.dependencies:
        parts.append("the dependencies of pyproject.toml")
    if found.project:
        parts.append("the project itself (editable, so it is this clone's code that is imported)")
    if found.node:
        parts.append("the packages of package.json (in /node_modules)")
    return f"installed: {', '.join(parts)}"


def _notes(found: Detected, installed: str) -> tuple[str, ...]:
    notes: list[str] = []
    if found.python:
        notes.append("Python is `python3`.")
    notes.append(f"Environment: {installed}. It is read-only.")
    notes.append(f"Tests: `{' '.join(found.test_command)}`." if found.test_command else "Tests: no test command found.")
    if found.lint_command:
        notes.append(f"Linter: `{' '.join(found.lint_command)}`.")
    return (*notes, *found.notes)
