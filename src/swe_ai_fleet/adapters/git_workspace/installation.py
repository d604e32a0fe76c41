"""How an environment is made and what commands then find: the steps, the variables, the words about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.detection import Detected
from swe_ai_fleet.domain.environment import Mount
from swe_ai_fleet.domain.task import EnvironmentSpec

ENVIRONMENT_MOUNT = "/environment"
TOOLS_MOUNT = "/fleet/tools"
WORKSPACE_MOUNT = "/workspace"
_NODE_MODULES_MOUNT = "/node_modules"
# pip as a directory on the path instead of a thousand files unpacked into each environment, which takes seconds.
_ADD_PIP = """\
for site in "$0"/lib/python3*/site-packages; do printf '%s\\n' "$1" > "$site/fleet-pip.pth" || exit 1; done
printf '#!%s/bin/python\\nimport runpy\\nrunpy.run_module("pip", run_name="__main__")\\n' "$0" > "$0/bin/pip"
chmod +x "$0/bin/pip" && ln -s pip "$0/bin/pip3"
"""
_PIP_OPTIONS = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar=off")
_COPY_NODE_MANIFESTS = (
    'mkdir -p "$0" && for f in package*.json npm-shrinkwrap.json .npmrc; do [ ! -f "$f" ] || cp "$f" "$0/"; done'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a build; `field` is what its failure is about."""

    field: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """One environment to be: what was found, what was asked for, and where it lies on the host.

    `confined` says that commands run in a sandbox, which shows `root` at `/environment`; without one they see the
    directories of the host.
    """

    found: Detected
    spec: EnvironmentSpec
    root: Path
    tools: Path
    confined: bool = True

    @property
    def base(self) -> str:
        return ENVIRONMENT_MOUNT if self.confined else str(self.root)

    @property
    def has_venv(self) -> bool:
        return self.found.python or bool(self.found.requirements or self.found.dependencies) or self.found.project

    @property
    def needs_build(self) -> bool:
        return bool(self.spec.setup) or self.found.needs_build

    def steps(self) -> list[Step]:
        """The commands that make it, in order, run in the repository's subdirectory."""
        found = self.found
        steps: list[Step] = []
        if self.has_venv:
            steps += self._venv()
        steps += [
            Step(field=f"environment.setup[{number}]", argv=("sh", "-c", line))
            for number, line in enumerate(self.spec.setup)
        ]
        wanted = [part for name in found.requirements for part in ("-r", name)]
        if found.dependencies:
            wanted += ["-r", f"{self.base}/dependencies.txt"]
        if found.project:
            wanted += ["-e", f".[{','.join(found.extras)}]" if found.extras else "."]
        if wanted:
            steps.append(self.pip(*wanted))
        if found.node:
            node = f"{self.base}/node"
            install = ("ci" if found.node_locked else "install", "--no-audit", "--no-fund", "--loglevel=error")
            steps.append(Step(field="environment", argv=("sh", "-c", _COPY_NODE_MANIFESTS, node)))
            steps.append(Step(field="environment", argv=("npm", "--prefix", node, *install)))
        return steps

    def pip(self, *wanted: str) -> Step:
        """The step that installs into the virtual environment."""
        python = f"{self.base}/venv/bin/python"
        return Step(field="environment", argv=(python, "-I", "-m", "pip", *_PIP_OPTIONS, *wanted))

    def _venv(self) -> list[Step]:
        # Isolated (-I): a `venv.py` of the repository is not what is meant.
        create = ("python3", "-I", "-m", "venv")
        venv = f"{self.base}/venv"
        if not (self.tools / "pip/pip").is_dir():
            return [Step(field="environment", argv=(*create, venv))]
        return [
            Step(field="environment", argv=(*create, "--without-pip", venv)),
            Step(field="environment", argv=("sh", "-c", _ADD_PIP, venv, f"{self._tools_base}/pip")),
        ]

    def variables(self, extra: Mapping[str, str], *, pytest_from_tools: bool) -> dict[str, str]:
        """What commands find in their environment; the specification's own variables win."""
        # Caches of compiled files would turn up in every patch.
        variables = {"PYTHONDONTWRITEBYTECODE": "1", **extra}
        if self.needs_build and self.has_venv:
            variables["VIRTUAL_ENV"] = f"{self.base}/venv"
        elif pytest_from_tools:
            # Plugins that this machine's Python happens to have are for another pytest, and nothing that was asked for.
            variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        if self.found.node:
            variables["NODE_PATH"] = f"{self.base}/node/node_modules"
        variables |= self.spec.variables
        if pytest_from_tools:
            own = self.spec.variables.get("PYTHONPATH")
            tools = f"{self._tools_base}/python"
            variables["PYTHONPATH"] = f"{own}:{tools}" if own else tools
        return variables

    def path(self) -> tuple[str, ...]:
        """The directories that come first on PATH: the specification's, the environment's, our tools."""
        # Without a sandbox the workspace lies somewhere else each time: a relative entry stays relative to it.
        prefix = f"{WORKSPACE_MOUNT}/" if self.confined else ""
        path = [entry if entry.startswith("/") else prefix + entry.removeprefix("./") for entry in self.spec.path]
        if self.needs_build:
            path.append(f"{self.base}/bin")
            if self.has_venv:
                path.append(f"{self.base}/venv/bin")
        if self.found.node:
            path.append(f"{self.base}/node/node_modules/.bin")
        return (*path, f"{self._tools_base}/bin")

    def mounts(self) -> tuple[Mount, ...]:
        """What is shown read-only to agents."""
        if not self.confined:
            return ()
        mounts = [Mount(source=str(self.tools), target=TOOLS_MOUNT)]
        if self.needs_build:
            mounts.append(Mount(source=str(self.root), target=ENVIRONMENT_MOUNT))
        modules = self.root / "node/node_modules"
        if self.found.node and modules.is_dir():
            # At the top, where Node looks last for both `import` and `require`; NODE_PATH serves `require` only.
            mounts.append(Mount(source=str(modules), target=_NODE_MODULES_MOUNT))
        return tuple(mounts)

    def notes(self) -> tuple[str, ...]:
        """A line each for an agent; of the commands it is told apart."""
        found = self.found
        notes = ["Python is `python3`."] if found.python else []
        notes.append(f"Environment: {self._installed()}.")
        if not found.test_command:
            notes.append("Tests: none were found.")
        return (*notes, *found.notes)

    @property
    def _tools_base(self) -> str:
        return TOOLS_MOUNT if self.confined else str(self.tools)

    def _installed(self) -> str:
        if self.spec.setup:
            count = len(self.spec.setup)
            return f"{count} set-up command{'s' if count > 1 else ''} ran; what they installed is read-only"
        parts = [*self.found.requirements]
        if self.found.dependencies:
            parts.append("the dependencies in pyproject.toml")
        if self.found.project:
            parts.append("the project itself (editable: this clone's code is what gets imported)")
        if self.found.node:
            parts.append("the packages in package.json")
        return f"installed, read-only: {', '.join(parts)}" if parts else "nothing was installed"
