"""The declarations of a Python project: dependencies, extras, groups, the source of its version, extensions."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from swe_ai_fleet.domain.json_values import items, mapping, parsed, string, strings
from swe_ai_fleet.environments.packaging_formats import (
    poetry_requirement,
    read_setup_arguments,
    read_setup_config,
    version_specifier,
)
from swe_ai_fleet.environments.repository_files import RepositoryFiles, Table, inside, joined

_WANTED = frozenset(
    {
        *("test", "tests", "testing", "pytest", "unit", "unittest", "unittests", "ci"),
        *("dev", "devel", "develop", "development"),
    }
)
_UNWANTED = frozenset(
    {
        *("doc", "docs", "documentation", "lint", "linting", "linters", "typing", "types", "type", "mypy", "style"),
        *("pre", "release", "publish", "deploy", "format", "formatting", "random", "bench", "benchmark", "benchmarks"),
        *("perf", "min", "minimum", "minimal", "lowest", "nightly", "upstream", "gpu", "cuda", "profile", "profiling"),
    }
)
_VERSION_TOOLS = (
    "setuptools-scm", "hatch-vcs", "flit-scm", "versioningit", "poetry-dynamic-versioning", "uv-dynamic-versioning",
    "setuptools-git-versioning", "dunamai",
)  # fmt: skip
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of requirements: PEP 508 lines, and directories of the repository to install."""

    name: str
    source: str
    lines: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lines or self.directories)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProject:
    """One project in a directory of the repository.

    `installable` says that pip can install it as a package. `dependencies` are those that can be read without running
    anything. `version_tool` derives the version from git tags; empty if none does. Its packages are imported from the
    directory `source_root`.
    """

    directory: str = ""
    source: str = ""
    name: str = ""
    installable: bool = False
    requires_python: str = ""
    classifiers: tuple[str, ...] = ()
    dependencies: Group = field(default_factory=lambda: Group(name="dependencies", source=""))
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    groups: tuple[Group, ...] = ()
    version_tool: str = ""
    source_root: str = ""

    def group(self, name: str) -> Group | None:
        """A group by its name, in any spelling."""
        canonical = canonicalize_name(name)
        return next((group for group in self.groups if canonicalize_name(group.name) == canonical), None)

    def extras_named(self, names: str) -> list[str]:
        """The extras, in their own spelling, of comma-separated names."""
        canonical = [canonicalize_name(name.strip()) for name in names.split(",")]
        return [extra for name in canonical for extra in self.extras if canonicalize_name(extra) == name]


def is_for_tests(name: str) -> bool:
    """Whether tests need an extra or group of that name."""
    return bool(_words(name) & _WANTED) and not is_for_something_else(name)


def is_for_something_else(name: str) -> bool:
    """Whether an extra or group of that name serves documentation, linters, releases and the like."""
    return bool(_words(name) & _UNWANTED)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[-_.]", name.lower()))


def read_project(files: RepositoryFiles, directory: str = "") -> PythonProject | None:
    """The project in a directory; None if it has no manifests."""
    manifests = files.existing(directory, "pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "hatch.toml")
    if not manifests:
        return None
    pyproject = files.toml(joined(directory, "pyproject.toml"))
    setup_text = files.text(joined(directory, "setup.py"))
    setup = read_setup_arguments(setup_text)
    config = read_setup_config(files.text(joined(directory, "setup.cfg")))
    declared = mapping(pyproject, "project")
    poetry = mapping(pyproject, "tool", "poetry")
    is_setup = bool(re.search(r"\bsetup\(", setup_text))
    extras: dict[str, tuple[str, ...]] = {}
    of_setup = [mapping(each, "extras_require") for each in (config, setup)]
    for group in (mapping(declared, "optional-dependencies"), *of_setup):
        extras |= {name: requirements(strings(lines)) for name, lines in group.items()}
    extras |= {name: () for name in (*mapping(poetry, "extras"), *_hook_extras(pyproject)) if name not in extras}
    groups = [
        *_dependency_groups(mapping(pyproject, "dependency-groups"), joined(directory, "pyproject.toml")),
        *_tool_groups(files, directory, pyproject),
        _pipfile_group(files, joined(directory, "Pipfile"), "dev-packages"),
    ]
    tests_require = requirements(_both("tests_require", config, setup))
    if tests_require:
        source = joined(directory, "setup.py" if setup.get("tests_require") else "setup.cfg")
        groups.append(Group(name="tests", source=source, lines=tests_require))
    requires_python = (
        string(declared.get("requires-python"))
        or version_specifier(string(mapping(poetry, "dependencies").get("python")))
        or string(config.get("python_requires"))
        or string(setup.get("python_requires"))
    )
    package = mapping(pyproject, "tool", "uv").get("package")
    installable = package is not False and poetry.get("package-mode") is not False
    return PythonProject(
        directory=directory,
        source=manifests[0],
        name=next(filter(None, (string(each.get("name")) for each in (declared, poetry, config, setup))), ""),
        installable=installable and ("build-system" in pyproject or is_setup or package is True),
        requires_python=requires_python,
        classifiers=(
            *strings(declared.get("classifiers")),
            *strings(poetry.get("classifiers")),
            *_both("classifiers", config, setup),
        ),
        dependencies=_dependencies(files, directory, declared, poetry, config, setup),
        extras=extras,
        groups=tuple(filter(None, groups)),
        version_tool=_version_tool(pyproject, setup_text, " ".join(strings(config.get("setup_requires")))),
        source_root=_source_root(files, directory),
    )


def _both(name: str, config: Table, setup: Table) -> list[str]:
    return [*strings(config.get(name)), *strings(setup.get(name))]


def workspace_members(files: RepositoryFiles, directory: str = "") -> tuple[str, ...]:
    """The directories of the members of a uv or Hatch workspace, without the root."""
    tool = mapping(files.toml(joined(directory, "pyproject.toml")), "tool")
    workspace = mapping(tool, "uv", "workspace")
    hatch = mapping(tool, "hatch")
    patterns = [*strings(workspace.get("members")), *strings(mapping(hatch, "workspace").get("members"))]
    excluded = strings(workspace.get("exclude"))
    members = files.members(directory, "pyproject.toml", patterns)
    return tuple(sorted(members - files.members(directory, "pyproject.toml", excluded)))


def requirements(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines that are PEP 508 requirements: none that pip would read as an option or a path."""
    return tuple(line.strip() for line in lines if is_requirement(line))


def is_requirement(line: str) -> bool:
    """Whether a line is one PEP 508 requirement."""
    return "\n" not in line and _requirement(line.strip()) is not None


def package_of(line: str) -> str:
    """The canonical name of the package of a requirement; empty if the line is none."""
    requirement = _requirement(line)
    return str(canonicalize_name(requirement.name)) if requirement is not None else ""


def _requirement(line: str) -> Requirement | None:
    try:
        return parsed(Requirement, line)
    except ValueError:
        return None


def local_sources(files: RepositoryFiles, directory: str) -> Mapping[str, str]:
    """`tool.uv.sources` inside the repository: directories by canonical package name."""
    directories: dict[str, str] = {}
    for place in (directory, ""):
        sources = mapping(mapping(files.toml(joined(place, "pyproject.toml")), "tool", "uv").get("sources"))
        for name, value in sources.items():
            path = string(mapping(value).get("path"))
            target = joined(place, path) if path else ""
            if target and inside(target) and files.existing(target, "pyproject.toml", "setup.py"):
                directories.setdefault(str(canonicalize_name(name)), target)
    return directories


def pinned_sources(files: RepositoryFiles, directory: str) -> Mapping[str, str]:
    """`tool.uv.sources` outside the repository: PEP 508 lines by canonical package name."""
    pins: dict[str, str] = {}
    tool = mapping(files.toml(joined(directory, "pyproject.toml")), "tool")
    for name, value in mapping(tool, "uv", "sources").items():
        source = mapping(value)
        revision = next((string(source.get(key)) for key in ("rev", "tag", "branch") if source.get(key)), "")
        place = string(source.get("git"))
        line = f"{name} @ git+{place}{'@' + revision if revision else ''}" if place else ""
        if url := string(source.get("url")):
            line = f"{name} @ {url}"
        if line and is_requirement(line):
            pins[str(canonicalize_name(name))] = line
    return pins


def _dependencies(
    files: RepositoryFiles, directory: str, declared: Table, poetry: Table, config: Table, setup: Table
) -> Group:
    source = next(iter(files.existing(directory, "pyproject.toml", "setup.cfg", "setup.py")), "")
    if "dependencies" in declared:
        return Group(name="dependencies", source=source, lines=requirements(strings(declared.get("dependencies"))))
    if poetry:
        return _poetry_group("dependencies", mapping(poetry, "dependencies"), directory, source)
    lines = requirements(_both("install_requires", config, setup))
    if not lines:
        pipfile = _pipfile_group(files, joined(directory, "Pipfile"), "packages")
        return pipfile or Group(name="dependencies", source=source)
    return Group(name="dependencies", source=source, lines=lines)


def _poetry_group(name: str, dependencies: Table, directory: str, source: str) -> Group:
    lines: list[str] = []
    directories: list[str] = []
    for package, value in dependencies.items():
        if package.lower() == "python":
            continue
        for specification in items(value) or [value]:
            if mapping(specification).get("optional"):
                continue
            path = string(mapping(specification).get("path"))
            if path and inside(joined(directory, path)):
                directories.append(joined(directory, path))
            elif line := poetry_requirement(package, specification):
                lines.append(line)
    return Group(name=name, source=source, lines=requirements(lines), directories=tuple(directories))


def _hook_extras(pyproject: Table) -> tuple[str, ...]:
    """The names of extras whose requirements Hatch's metadata hooks add when the project is built."""
    hooks = mapping(pyproject, "tool", "hatch", "metadata", "hooks")
    return tuple(name for hook in hooks.values() for name in mapping(hook, "optional-dependencies"))


def _dependency_groups(groups: Table, source: str) -> list[Group]:
    """PEP 735 groups, with the groups that they include."""

    def lines(name: str, including: frozenset[str]) -> list[str]:
        key = next((key for key in groups if canonicalize_name(key) == canonicalize_name(name)), "")
        if not key or key in including or len(including) > _MAX_DEPTH:
            return []
        texts: list[str] = []
        for item in items(groups[key]):
            if isinstance(item, str):
                texts.append(item)
                continue
            included = string(mapping(item).get("include-group"))
            # A `dev` group may include everything; tests do not need its groups for documentation and the like.
            if included and not (is_for_tests(key) and is_for_something_else(included)):
                texts += lines(included, including | {key})
        return texts

    return [
        Group(name=name, source=source, lines=tuple(dict.fromkeys(requirements(lines(name, frozenset())))))
        for name in groups
    ]


def _tool_groups(files: RepositoryFiles, directory: str, pyproject: Table) -> list[Group]:
    """The groups of uv's, PDM's, Poetry's and Hatch's own tables."""
    source = joined(directory, "pyproject.toml")
    tool = mapping(pyproject, "tool")
    poetry, pdm, hatch = (mapping(tool, name) for name in ("poetry", "pdm", "hatch"))
    grouped = [
        Group(name="dev", source=source, lines=requirements(strings(mapping(tool, "uv").get("dev-dependencies")))),
        _poetry_group("dev", mapping(poetry, "dev-dependencies"), directory, source),
    ]
    for name, group in mapping(poetry, "group").items():
        grouped.append(_poetry_group(name, mapping(group, "dependencies"), directory, source))
    for name, lines in mapping(pdm, "dev-dependencies").items():
        local = tuple(
            place
            for line in strings(lines)
            if line.startswith("-e ") and inside(place := joined(directory, _pdm_path(line)))
        )
        grouped.append(Group(name=name, source=source, lines=requirements(strings(lines)), directories=local))
    environments = {
        **{name: (value, source) for name, value in mapping(hatch, "envs").items()},
        **{
            name: (value, joined(directory, "hatch.toml"))
            for name, value in mapping(files.toml(joined(directory, "hatch.toml")), "envs").items()
        },
    }
    for name, (value, file) in environments.items():
        environment = mapping(value)
        lines = (*strings(environment.get("dependencies")), *strings(environment.get("extra-dependencies")))
        is_test = name == "default" or is_for_tests(name.removeprefix("hatch-"))
        grouped.append(Group(name=f"test-{name}" if is_test else name, source=file, lines=requirements(lines)))
    return [group for group in grouped if group]


def _pdm_path(line: str) -> str:
    text = line.removeprefix("-e ").strip().partition("#")[0]
    return text.removeprefix("file:///${PROJECT_ROOT}/").removeprefix("file:///").removeprefix("./")


def _pipfile_group(files: RepositoryFiles, path: str, section: str) -> Group:
    name = "dev" if section == "dev-packages" else "dependencies"
    return _poetry_group(name, mapping(files.toml(path), section), posixpath.dirname(path), path)


def _version_tool(pyproject: Table, setup_text: str, setup_requires: str) -> str:
    tool = mapping(pyproject, "tool")
    requires = " ".join(strings(mapping(pyproject, "build-system").get("requires")))
    named = f"{requires} {setup_requires} {setup_text if 'use_scm_version' in setup_text else ''}".replace("_", "-")
    if "use_scm_version" in setup_text or "setuptools_scm" in tool:
        return "setuptools-scm"
    if string(mapping(tool, "pdm", "version").get("source")) == "scm":
        return "pdm-backend"
    return next((name for name in _VERSION_TOOLS if name in named), "")


def _source_root(files: RepositoryFiles, directory: str) -> str:
    prefix = joined(directory, "src") + "/"
    is_src = any(path.startswith(prefix) and path.count("/") == prefix.count("/") + 1 for path in files.files)
    return prefix.rstrip("/") if is_src else directory
