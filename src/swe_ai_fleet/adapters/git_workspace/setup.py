"""Set-up of environments: the paths of their parts, the fleet's tools in them, the network of set-up commands.

Repositories without their own pytest, ruff and pip get copies of the fleet's, in a directory for sandboxes.
"""

from __future__ import annotations

import asyncio
import compileall
import hashlib
import importlib.metadata
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.building import pattern_of, way_out
from swe_ai_fleet.adapters.git_workspace.directories import appearing, locked
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.environment import Environment, Mount
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.environments.recipe import Recipe
from swe_ai_fleet.sandbox import IsolationLevel, NetworkGrant, ProxyRefusal, RefusalReason, Sandbox
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

ENVIRONMENT_MOUNT = "/environment"
TOOLS_MOUNT = "/fleet/tools"
WORKSPACE_MOUNT = "/workspace"
_VISIBLE = (
    *("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/tmp/", "/home/agent/"),  # noqa: S108 - the sandbox's own
    *(f"{ENVIRONMENT_MOUNT}/", f"{WORKSPACE_MOUNT}/", f"{TOOLS_MOUNT}/"),
)
_DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli")
_PROGRAMS = ("ruff",)
_INSTALLER = "pip"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPolicy:
    """The network and the variables (of an index, its certificate) for set-up commands only."""

    network: NetworkGrant
    variables: Mapping[str, str]
    timeout_seconds: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPaths:
    """The paths of environments below `home`, and for commands; without mounts these are the host's own paths."""

    home: Path
    level: IsolationLevel

    @property
    def confined(self) -> bool:
        """Whether commands see mounts instead of the host's paths."""
        return self.level.mounts

    def base(self, key: str) -> str:
        return ENVIRONMENT_MOUNT if self.confined else str(self.home / key / "root")

    def tools_base(self, tools: Path) -> str:
        return TOOLS_MOUNT if self.confined else str(tools)

    def mounts(self, tools: Path, *others: Path) -> tuple[Mount, ...]:
        if self.level is IsolationLevel.NONE:
            return ()
        same_path = (Mount(source=str(path), target=str(path)) for path in others)
        return (Mount(source=str(tools), target=self.tools_base(tools)), *same_path)

    def writable(self, root: Path) -> tuple[Mount, ...]:
        if self.level is IsolationLevel.NONE:
            return ()
        return (Mount(source=str(root), target=ENVIRONMENT_MOUNT if self.confined else str(root)),)

    def variables(
        self, recipe: Recipe, spec: EnvironmentSpec, key: str, tools: Path, *, pytest_from_tools: bool
    ) -> dict[str, str]:
        """The variables of commands; those of the specification take precedence."""
        # Compiled files would appear in patches.
        variables = {"PYTHONDONTWRITEBYTECODE": "1", **recipe.variables}
        if recipe.python is not None:
            variables["VIRTUAL_ENV"] = f"{self.base(key)}/venv"
        variables |= spec.variables
        if pytest_from_tools:
            own = variables.get("PYTHONPATH")
            our_packages = f"{self.tools_base(tools)}/python"
            variables["PYTHONPATH"] = f"{own}:{our_packages}" if own else our_packages
        return variables

    def path(self, recipe: Recipe, spec: EnvironmentSpec, tools: Path, *, key: str) -> tuple[str, ...]:
        """The first directories on PATH: the specification's, the environment's, our tools."""
        # Without a sandbox each workspace has another path, so relative entries stay relative.
        prefix = f"{WORKSPACE_MOUNT}/" if self.confined else ""
        path = [entry if entry.startswith("/") else prefix + entry.removeprefix("./") for entry in spec.path]
        if key:
            path.append(f"{self.base(key)}/bin")
            if recipe.python is not None:
                path.append(f"{self.base(key)}/venv/bin")
        if recipe.node is not None:
            below = f"{recipe.node.root}/" if recipe.node.root else ""
            path += [f"{self.base(key)}/pm/node_modules/.bin", f"{prefix}{below}node_modules/.bin"]
        return (*path, f"{self.tools_base(tools)}/bin")


def check(spec: EnvironmentSpec, *, confined: bool) -> None:
    """Raise InvalidRequest with `field` for an invalid specification."""
    for name, text in spec.variables.items():
        if not name or "=" in name or "\0" in name + text:
            raise InvalidRequest(f"{name[:64]!r} is not a variable", field="environment.variables")
    for number, directory in enumerate(spec.path):
        if not directory or ":" in directory or "\0" in directory:
            raise InvalidRequest(f"{directory[:64]!r} is not a directory", field=f"environment.path[{number}]")
        if confined and not spec.image and directory.startswith("/") and not f"{directory}/".startswith(_VISIBLE):
            raise InvalidRequest(
                f"commands cannot read {directory[:128]!r}: the sandbox shows the repository, the environment and /usr",
                field=f"environment.path[{number}]",
                hint="name a directory of the repository, or have a set-up command copy it to /environment/bin",
            )
    for number, line in enumerate(spec.setup):
        if not line.strip() or "\0" in line:
            raise InvalidRequest("a set-up command is empty", field=f"environment.setup[{number}]")
    if "\0" in spec.test_command or "\n" in spec.test_command:
        raise InvalidRequest("it is not one line", field="environment.test_command")


class PythonTools:
    """Copies of the fleet's tools below `home`, a directory for each set of versions."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ready: Path | None = None

    @property
    def requires_python(self) -> str:
        """The Python versions that our pytest requires, as a specifier."""
        return next((item.metadata["Requires-Python"] or "" for item in _installed("pytest")), "")

    async def directory(self) -> Path:
        """The directory to mount read-only: `python/` for PYTHONPATH, `bin/` for PATH, `pip/` (empty without pip)."""
        if self._ready is not None:
            return self._ready
        distributions = [
            distribution for name in (*_DISTRIBUTIONS, *_PROGRAMS, _INSTALLER) for distribution in _installed(name)
        ]
        versions = "\n".join(f"{item.name} {item.version}" for item in distributions) + sys.version
        target = self._home / f"python-{hashlib.sha256(versions.encode()).hexdigest()[:16]}"
        self._home.mkdir(parents=True, exist_ok=True)
        async with locked(self._home / ".lock"):
            if not target.is_dir():
                async with appearing(target) as draft:
                    await uninterrupted(asyncio.to_thread(_copy, distributions, draft))
        self._ready = target
        return self._ready


def _installed(name: str) -> list[importlib.metadata.Distribution]:
    try:
        return [importlib.metadata.distribution(name)]
    except importlib.metadata.PackageNotFoundError:
        return []


def _copy(distributions: list[importlib.metadata.Distribution], draft: Path) -> None:
    packages, programs, installer = draft / "python", draft / "bin", draft / "pip"
    created = {packages, programs, installer}
    for directory in created:
        directory.mkdir()
    for distribution in distributions:
        name = distribution.name  # reads its metadata, each time
        for file in distribution.files or ():
            source = Path(str(file.locate()))
            if not source.is_file():
                continue
            if ".." not in file.parts and name not in _PROGRAMS:
                target = (installer if name == _INSTALLER else packages).joinpath(*file.parts)
                if target.parent not in created:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    created.add(target.parent)
                shutil.copy2(source, target)
            elif source.name in _PROGRAMS:
                shutil.copy2(source, programs / source.name)
    # Compiled here, since a sandbox cannot write there, and every test run would compile pytest again.
    compileall.compile_dir(packages, quiet=2)
    compileall.compile_dir(installer, quiet=2)


_SECONDS = 60.0
_MOST_HOSTS = 4
# A small package each, so that the host of the files is contacted as well, and not only the index.
_PIP = """\
PYTHONPATH="$0" exec python3 -m pip download --no-deps --no-cache-dir --retries 0 --timeout 10 -q -d "$TMPDIR" iniconfig
"""
_NPM = 'cd "$TMPDIR" && exec npm pack --silent --fetch-retries=0 isarray'


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallAttempt:
    """The result of trying a package manager: the end of its command, and a hint for a setting.

    `refused` are the hosts that the proxy refused.
    """

    program: str
    ok: bool = False
    message: str = ""
    refused: tuple[ProxyRefusal, ...] = ()
    way_out: str = ""


async def try_setup_network(home: Path, sandbox: Sandbox, policy: SetupPolicy) -> tuple[InstallAttempt, ...]:
    """Download one small package with pip and one with npm, by their own configuration, in the sandbox.

    Refused hosts are allowed for the rest of the trial, to find further ones: only these package managers use that
    network.
    """
    tools = await PythonTools(home / "tools").directory()
    tools_path = TOOLS_MOUNT if sandbox.policy.level.mounts else str(tools)
    commands = {"pip": ("sh", "-c", _PIP, f"{tools_path}/pip"), "npm": ("sh", "-c", _NPM)}
    environment = Environment(variables=policy.variables, mounts=(Mount(source=str(tools), target=tools_path),))
    empty = home / "environments" / "probe"
    await asyncio.to_thread(empty.mkdir, parents=True, exist_ok=True)
    attempts = (_attempt(name, argv, sandbox, policy, environment, empty) for name, argv in commands.items())
    return tuple(await asyncio.gather(*attempts))


async def _attempt(
    program: str, argv: tuple[str, ...], sandbox: Sandbox, policy: SetupPolicy, environment: Environment, empty: Path
) -> InstallAttempt:
    network = policy.network
    refused: dict[tuple[str, RefusalReason], ProxyRefusal] = {}
    while True:
        async with sandbox.workspace(empty, environment=environment, network=network) as workspace:
            has_it = ("sh", "-c", 'command -v "$0"', program)
            if program == "npm" and not (await workspace.run(Command(argv=has_it, light=True))).ok:
                return InstallAttempt(program=program, message="npm is not on this machine")
            result = await workspace.run(Command(argv=argv, light=True, merge_stderr=True, timeout_seconds=_SECONDS))
            refusals = workspace.refusals
        refused |= {(refusal.host, refusal.reason): refusal for refusal in refusals}
        private = [pattern_of(refusal) for refusal in refusals if refusal.reason is RefusalReason.PRIVATE]
        foreign = [pattern_of(refusal) for refusal in refusals if refusal.reason is RefusalReason.NOT_GRANTED]
        if result.ok and not refused:
            return InstallAttempt(program=program, ok=True)
        if result.ok or not (private or foreign) or len(refused) > _MOST_HOSTS:
            break
        network = NetworkGrant(hosts=(*network.hosts, *foreign), private_hosts=(*network.private_hosts, *private))
    lines = [line for line in result.stdout.text().splitlines() if line.strip()]
    return InstallAttempt(
        program=program,
        message=(lines[-1] if lines else f"exit code {result.exit_code}")[:300],
        refused=tuple(refused.values()),
        way_out=way_out(refused.values(), policy.network),
    )
