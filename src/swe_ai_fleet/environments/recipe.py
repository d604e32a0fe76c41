"""The recipe of an environment: its steps in order, and the decisions with the files they are based on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from swe_ai_fleet.domain.environment import EnvironmentDecision

# npm's log has the placed package, the package that requires it, and the requirement.
_PLACED = re.compile(r"placeDep \S+ (@?[^@\s]+)@\S* OK for: (@?[^@\s]+)@\S* want: (\S+)")
_LOCATION = re.compile(r"([\w.-]+/[\w.-]+?)(?:\.git)?(?:#.*)?$")
_FAULT = re.compile(r"\berr(?:or)?\b|\bERR_|YN00|Couldn't find|not found|No matching", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """How an installation continues without unavailable packages.

    `packages` are the names that may be left out, with their requirements; `remove` is the argv that removes packages
    from the manifests, their names appended, and `then` the argv that installs the rest. `log` prints which package
    requires which; empty if there is no such log.
    """

    packages: Mapping[str, str]
    remove: tuple[str, ...]
    then: tuple[str, ...]
    log: tuple[str, ...] = ()

    def needing(self, output: str, log: str) -> tuple[str, ...]:
        """The packages that require one from a location in the output's errors, by a package manager's log."""
        faults = "\n".join(line for line in output.splitlines() if _FAULT.search(line))
        dependents: dict[str, set[str]] = {}
        blamed: set[str] = set()
        for name, parent, requirement in _PLACED.findall(log):
            dependents.setdefault(name, set()).add(parent)
            location = _LOCATION.search(requirement)
            if location and not requirement.startswith("npm:") and location[1] in faults:
                blamed.add(parent)
        needing = set[str]()
        while blamed:
            name = blamed.pop()
            needing.add(name)
            if name not in self.packages:
                blamed |= dependents.get(name, set()) - needing
        return tuple(name for name in self.packages if name in needing)

    def blamed(self, output: str) -> tuple[str, ...]:
        """The packages in the errors of a package manager's output."""
        faults = "\n".join(line for line in output.splitlines() if _FAULT.search(line))
        named = set(re.findall(r"@?[\w.][\w./-]*(?=@|['\":,\s]|$)", faults))
        return tuple(
            name
            for name, requirement in self.packages.items()
            if name in named
            or ("://" in requirement and requirement.partition("#")[0] in faults)
            or re.search(rf"/{re.escape(name).replace('/', '(?:/|%2[fF])')}(?::| |$)", faults, re.M)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeStep:
    """One command of a build.

    `source` is the file that it is based on, `purpose` describes it in words. If it fails, it is retried without the
    packages that its output blames (pins, if it is `pinned`; arguments for `optional` packages, by name; packages, by
    its `removal`), then replaced by the first of `alternatives` that works, then by all of `pieces` that work. A step
    that still fails is left out, unless it is `required`: then the build fails, and `concerns` is the field that its
    fault names. After a step that `puts_on_path`, programs can import from the repository. The failure of a `spare`
    step is ignored: later steps do not need it. `directory` is relative to the repository. A `third_party` step runs no
    code of the repository and reads none of its files but lists of packages.
    """

    argv: tuple[str, ...]
    purpose: str
    source: str = ""
    concerns: str = "environment"
    directory: str = ""
    required: bool = False
    spare: bool = False
    third_party: bool = False
    puts_on_path: bool = False
    pinned: bool = False
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    removal: Removal | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    alternatives: tuple[RecipeStep, ...] = ()
    pieces: tuple[RecipeStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRecipe:
    """The Python side: the version of the interpreter, and the pins.

    `version` is (major, minor). `lock` is the path of the lock file whose pins become constraints, empty without one;
    then `pins` apply, as lines for pip. `packages` says that pip installs something, `project` that it installs the
    repository's own package.
    """

    version: tuple[int, int]
    lock: str = ""
    pins: tuple[str, ...] = ()
    packages: bool = False
    project: bool = False
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecipe:
    """The Node side: where packages are installed, with which package manager, and the workspace's members.

    `root` and `members` are directories relative to the repository's top.
    """

    root: str = ""
    manager: str = "npm"
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All steps and settings. `files`, with paths relative to the environment, are written before the first step.

    `packages` installs the packages that the steps need from an index. It is run together with the `third_party` steps,
    whose result is shared with builds of other commits.
    """

    python: PythonRecipe | None = None
    node: NodeRecipe | None = None
    steps: tuple[RecipeStep, ...] = ()
    packages: RecipeStep | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    build_variables: Mapping[str, str] = field(default_factory=dict[str, str])
    test_command: tuple[str, ...] = ()
    test_source: str = ""
    decisions: tuple[EnvironmentDecision, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def third_party(self) -> Recipe:
        """The part that runs no code of the repository; useless without packages to install.

        It has no `variables`, which are those of the repository's tests: some of them choose the settings of a package
        manager, and with them the origin of packages that other commits would share.
        """
        steps = [step for step in self.steps if step.third_party]
        packages = (self.packages,) if self.packages is not None else ()
        return replace(self, steps=(*steps, *packages), variables={})

    @property
    def own(self) -> Recipe:
        """The remaining part."""
        return replace(self, steps=tuple(step for step in self.steps if not step.third_party))


PythonVersion = tuple[int, int]

NO_PYTHON: PythonVersion = (0, 0)
"""The default Python of a machine without one."""
_CLASSIFIER = re.compile(r"Programming Language :: Python :: (\d)\.(\d{1,2})")
_TOX = re.compile(r"py(\d)\.?(\d{1,2})")
_DOTTED = re.compile(r"(\d)\.(\d{1,2})(?:\.\d+|-dev|t)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The toolchains of a machine: its default Python, and all versions with their programs as commands find them.

    `pip_requires` is the Python that the fleet's own pip requires; `programs` are toolchains, such as `npm` and `go`.
    In an `image`, the packages already installed for its Python are used.
    """

    default: PythonVersion
    pythons: Mapping[PythonVersion, str] = field(default_factory=dict[PythonVersion, str])
    pip_requires: str = ""
    programs: Collection[str] = ()
    image: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen version, the reason, and the file that it is based on."""

    version: PythonVersion
    reason: str
    source: str = ""


def choose_python(
    machine: Machine, *, pinned: str = "", requires: tuple[str, str] = ("", ""), tested: Iterable[tuple[str, str]] = ()
) -> Choice:
    """The Python for a repository.

    Args:
        machine: The toolchains.
        pinned: The text of `.python-version`.
        requires: `requires-python` and the file that has it.
        tested: Versions that the repository is tested with, each with its file; in any of the forms `3.11`, `py311` and
            a trove classifier.
    """
    available = {machine.default, *machine.pythons}
    named = _version(pinned.strip())
    if named is not None and named in available:
        return Choice(version=named, reason=f"Python {version_text(named)} is named there", source=".python-version")
    lacking = f"; .python-version names {version_text(named)}, which this machine lacks" if named else ""
    fitting = {version for version in available if allows(requires[0], version)}
    sources = {version: source for text, source in tested if (version := _version(text)) is not None}

    def chosen(version: PythonVersion, reason: str, source: str = "") -> Choice:
        return Choice(
            version=version, reason=f"Python {version_text(version)}: {reason}{lacking}", source=source or requires[1]
        )

    if not fitting:
        return chosen(machine.default, f"nothing on this machine fits {requires[0]!r}, so its own is taken")
    if machine.default in fitting and (not sources or machine.default in sources):
        return chosen(machine.default, "this machine's own, which fits", sources.get(machine.default, ""))
    if both := fitting & sources.keys():
        return chosen(max(both), "the newest on this machine that it is tested with", sources[max(both)])
    if not sources:
        return chosen(max(fitting), "the newest on this machine that fits")
    newest = max(sources)
    later = {version for version in fitting if version > newest}
    if not later and machine.default in fitting:
        return chosen(
            machine.default, f"this machine's own; {version_text(newest)}, which it is tested with, is not here"
        )
    nearest = min(later) if later else max(fitting)
    return chosen(nearest, f"nearest to {version_text(newest)}, the newest that it is tested with", sources[newest])


def allows(specifier: str, version: PythonVersion) -> bool:
    """Whether some release of a Python version fits a specifier; a broken specifier fits everything."""
    try:
        specifiers = SpecifierSet(specifier)
    except InvalidSpecifier:
        return True
    return any(
        specifiers.contains(f"{version_text(version)}.{patch}", prereleases=True) for patch in (0, 1, 5, 10, 15, 20, 99)
    )


def version_text(version: PythonVersion) -> str:
    """A version as people write it."""
    return f"{version[0]}.{version[1]}"


def _version(text: str) -> PythonVersion | None:
    for pattern in (_DOTTED, _TOX, _CLASSIFIER):
        if match := pattern.fullmatch(text.strip().removeprefix("python").strip("-")):
            return int(match[1]), int(match[2])
    return None
