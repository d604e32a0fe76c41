"""The steps that create and fill a virtual environment: everything at once, or piece by piece if that fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

from swe_ai_fleet.environments.python_project import Group, PythonProject, package_of
from swe_ai_fleet.environments.recipe import Choice, Machine, RecipeStep, allows, version_text
from swe_ai_fleet.environments.requirements import RequirementFile, as_arguments, is_of_index

CONSTRAINTS = "constraints.txt"
BUILD_CONSTRAINTS = "build-constraints.txt"
# The last setuptools with `setuptools.command.test` and `pkg_resources`, which old setup files use, and with editable
# installations. (2to3 was removed earlier.)
OLD_SETUPTOOLS = "setuptools<72\n"
_PIP_OPTIONS = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar=off")
# pip as a directory on the path: unpacking its thousand files into each environment would take seconds.
_ADD_PIP = """\
for site in "$0"/lib/python3*/site-packages; do printf '%s\\n' "$1" > "$site/fleet-pip.pth" || exit 1; done
printf '#!%s/bin/python\\nimport runpy\\nrunpy.run_module("pip", run_name="__main__")\\n' "$0" > "$0/bin/pip"
chmod +x "$0/bin/pip" && ln -s pip "$0/bin/pip3"
"""
_ADD_SOURCES = """\
for site in "$0"/lib/python3*/site-packages; do printf '%s\\n' "$@" > "$site/fleet-sources.pth" || exit 1; done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tooling:
    """The paths of a build, as its commands see them.

    `base` is the environment's directory, `pip` a directory with the fleet's own pip (empty: there is none),
    `workspace` the checkout (empty if its path varies). `pinned` says that there are constraints without a lock.
    """

    base: str
    pip: str = ""
    workspace: str = ""
    pinned: bool = False

    @property
    def venv(self) -> str:
        return f"{self.base}/venv"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProject:
    """A project of this repository that is installed in place."""

    project: PythonProject
    extras: tuple[str, ...] = ()

    @property
    def argument(self) -> str:
        place = f"./{self.project.directory}" if self.project.directory else "."
        return f"{place}[{','.join(self.extras)}]" if self.extras else place


@dataclass(kw_only=True)
class Wanted:
    """The packages to install, while they are collected."""

    targets: dict[str, LocalProject] = field(default_factory=dict[str, LocalProject])
    groups: list[Group] = field(default_factory=list[Group])
    files: dict[str, RequirementFile] = field(default_factory=dict[str, RequirementFile])
    constraints: list[str] = field(default_factory=list[str])

    def lines(self) -> list[str]:
        """All requirements."""
        lines = [line for group in self.groups for line in group.lines]
        lines += [line for file in self.files.values() for line in file.lines]
        for target in self.targets.values():
            lines += [*target.project.dependencies.lines]
            lines += [line for extra in target.extras for line in target.project.extras.get(extra, ())]
        return lines

    def packages(self) -> set[str]:
        """The canonical names of all requirements."""
        return {package_of(line) for line in self.lines()}


def venv_steps(machine: Machine, choice: Choice, tooling: Tooling) -> list[RecipeStep]:
    program = machine.pythons.get(choice.version, "python3") if choice.version != machine.default else "python3"
    # Isolated (-I): a `venv.py` or `pip.py` of the repository must not be imported.
    create = (program, "-I", "-m", "venv", *(("--system-site-packages",) if machine.image else ()))
    purpose = f"a virtual environment with Python {version_text(choice.version)}"
    if tooling.pip and allows(machine.pip_requires, choice.version):
        add = ("sh", "-c", _ADD_PIP, tooling.venv, tooling.pip)
        return [
            RecipeStep(argv=(*create, "--without-pip", tooling.venv), purpose=purpose, required=True, third_party=True),
            RecipeStep(argv=add, purpose="pip", required=True, third_party=True),
        ]
    newer = (f"{tooling.venv}/bin/python", "-I", "-m", "pip", *_PIP_OPTIONS, "--upgrade", "pip", "setuptools", "wheel")
    return [
        RecipeStep(argv=(*create, tooling.venv), purpose=purpose, required=True, third_party=True),
        RecipeStep(argv=newer, purpose=f"the newest pip for Python {version_text(choice.version)}", third_party=True),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipSteps:
    """Makes the steps for pip: everything at once, with smaller pieces for the case that this fails."""

    tooling: Tooling
    directory: str
    lock: str
    constraints: tuple[str, ...] = ()

    def steps(self, wanted: Wanted) -> list[RecipeStep]:
        targets, groups, files = list(wanted.targets.values()), wanted.groups, list(wanted.files.values())
        if not (targets or groups or files):
            return []
        arguments: list[str] = []
        for target in targets:
            arguments += ["-e", target.argument]
        for file in files:
            arguments += self._file_arguments(file)
        arguments += dict.fromkeys(
            argument for group in groups for line in group.lines for argument in as_arguments(line)
        )
        pieces = [
            *self._projects(targets),
            *(self.lines(group, f"group {group.name}") for group in groups),
            *map(self._file, files),
        ]
        sources = dict.fromkeys(
            [
                *(target.project.source for target in targets),
                *(group.source for group in groups),
                *(f.path for f in files),
            ]
        )
        parts = [
            *(["the project"] if any(not target.project.directory for target in targets) else []),
            *([f"{len(targets)} projects of the repository"] if len(targets) > 1 else []),
            *(["its dependencies"] if targets else ["the dependencies"]),
        ]
        whole = self._pip(
            *arguments,
            purpose=" with ".join(dict.fromkeys(parts)),
            source=", ".join(sources),
            optional=_arguments_by_package([line for group in groups for line in group.lines]),
        )
        return [replace(whole, pieces=tuple(pieces))]

    def packages(
        self, wanted: Wanted, plugins: Iterable[str], *, constraints: Sequence[str] = (), until: str = ""
    ) -> RecipeStep | None:
        """The step that installs the packages from an index; later steps keep its versions.

        Args:
            wanted: The packages to install.
            plugins: More packages.
            constraints: The constraints files that refer to no other file.
            until: The last day of releases to use; empty: no limit.
        """
        own = {canonicalize_name(target.project.name) for target in wanted.targets.values()}
        lines = [line for line in (*wanted.lines(), *plugins) if package_of(line) not in {"", *own}]
        named = list(dict.fromkeys(filter(is_of_index, lines)))
        if not named or (until and not self.tooling.pip):
            return None
        dated = (f"--uploaded-prior-to={until}T00:00:00Z",) if until else ()
        purpose = f"releases until {until}" if until else "packages of the index"
        optional = {} if until else _arguments_by_package(named)
        constrained = replace(self, constraints=tuple(constraints))
        step = constrained._pip(*dated, *dict.fromkeys(named), purpose=purpose, source="", optional=optional)
        return replace(step, spare=True, third_party=True)

    def lines(self, group: Group, purpose: str) -> RecipeStep:
        """The step for a group, with one piece for each line in case it fails."""
        arguments = [argument for line in group.lines for argument in as_arguments(line)]
        single = [
            self._pip(*as_arguments(line), purpose=line, source=group.source)
            for line in group.lines
            if as_arguments(line)
        ]
        return self._pip(
            *arguments,
            purpose=purpose,
            source=group.source,
            pieces=single if len(single) > 1 else (),
            optional=_arguments_by_package(group.lines) if len(single) > 1 else {},
        )

    def _file(self, file: RequirementFile) -> RecipeStep:
        step = self.lines(Group(name=file.path, source=file.path, lines=file.lines), file.path)
        whole = self._pip(*self._file_arguments(file), purpose=file.path, source=file.path)
        return replace(whole, pieces=step.pieces)

    def _file_arguments(self, file: RequirementFile) -> list[str]:
        if file.plain:
            prefix = f"{self.directory}/" if self.directory else ""
            return ["-r", file.path.removeprefix(prefix)]
        return [argument for line in file.lines for argument in as_arguments(line)]

    def _projects(self, targets: Sequence[LocalProject]) -> list[RecipeStep]:
        if not targets:
            return []
        single = [self._project(target) for target in targets]
        plain = [LocalProject(project=target.project) for target in targets]
        arguments = [part for target in plain for part in ("-e", target.argument)]
        pieces = list(single)
        if len(targets) > 1:
            whole = self._pip(*arguments, purpose="the projects of the repository", source=targets[0].project.source)
            pieces = [replace(whole, pieces=tuple(single))]
        for target in targets:
            for extra in target.extras:
                group = Group(name=extra, source=target.project.source, lines=target.project.extras.get(extra, ()))
                chosen = LocalProject(project=target.project, extras=(extra,))
                own = self._pip("-e", chosen.argument, purpose=f"extra {extra}", source=target.project.source)
                pieces.append(
                    replace(own, pieces=(self.lines(group, f"extra {extra}, by its lines"),) if group else ())
                )
        return pieces

    def _project(self, target: LocalProject) -> RecipeStep:
        """Install a project in place; else with older tools; else its dependencies, with its sources on the path."""
        project = target.project
        plain = LocalProject(project=project)
        source = project.source
        named = project.name or project.directory or "the project"
        limit = f"{self.tooling.base}/{BUILD_CONSTRAINTS}"
        older = self._pip(
            *("-e", plain.argument),
            purpose=f"{named} with a setuptools from before 2024",
            source=source,
            variables={"PIP_CONSTRAINT": limit, "PIP_BUILD_CONSTRAINT": limit},
        )
        pieces: list[RecipeStep] = []
        if project.dependencies.lines:
            pieces.append(self.lines(project.dependencies, f"the dependencies of {named}"))
        if self.tooling.workspace:
            root = project.source_root or project.directory
            place = f"{self.tooling.workspace}/{root}" if root else self.tooling.workspace
            add = ("sh", "-c", _ADD_SOURCES, self.tooling.venv, place)
            purpose = f"{named} imported from {root or 'the top'}"
            pieces.append(RecipeStep(argv=add, purpose=purpose, source=source, puts_on_path=True))
        return self._pip("-e", plain.argument, purpose=named, source=source, alternatives=(older,), pieces=pieces)

    def _pip(
        self,
        *arguments: str,
        purpose: str,
        source: str,
        variables: Mapping[str, str] | None = None,
        alternatives: tuple[RecipeStep, ...] = (),
        pieces: Iterable[RecipeStep] = (),
        optional: Mapping[str, tuple[str, ...]] | None = None,
    ) -> RecipeStep:
        pinned = bool(self.lock) or self.tooling.pinned
        pins: list[str] = ["-c", f"{self.tooling.base}/{CONSTRAINTS}"] if pinned else []
        prefix = f"{self.directory}/" if self.directory else ""
        for path in self.constraints:
            pins += ["-c", path.removeprefix(prefix)]
        python = f"{self.tooling.venv}/bin/python"
        return RecipeStep(
            argv=(python, "-I", "-m", "pip", *_PIP_OPTIONS, *pins, *arguments),
            purpose=purpose,
            source=source,
            directory=self.directory,
            puts_on_path="-e" in arguments,
            pinned=pinned,
            variables=variables or {},
            alternatives=alternatives,
            pieces=tuple(pieces),
            optional=optional or {},
        )


def _arguments_by_package(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The arguments of pip for each package."""
    by_package: dict[str, tuple[str, ...]] = {}
    for line in lines:
        if name := package_of(line):
            by_package[name] = (*by_package.get(name, ()), *as_arguments(line))
    return by_package
