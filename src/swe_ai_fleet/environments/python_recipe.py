"""The Python side of an environment: interpreter, packages for pip, test command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from packaging.utils import canonicalize_name

from swe_ai_fleet.domain.environment import EnvironmentDecision
from swe_ai_fleet.domain.json_values import mapping, strings
from swe_ai_fleet.environments.automation import read_automation
from swe_ai_fleet.environments.commands import Wish, paths_of
from swe_ai_fleet.environments.pip_steps import (
    BUILD_CONSTRAINTS,
    OLD_SETUPTOOLS,
    LocalProject,
    PipSteps,
    Tooling,
    Wanted,
    venv_steps,
)
from swe_ai_fleet.environments.python_project import (
    Group,
    PythonProject,
    is_for_something_else,
    is_for_tests,
    local_sources,
    package_of,
    pinned_sources,
    read_project,
    workspace_members,
)
from swe_ai_fleet.environments.recipe import Choice, Machine, PythonRecipe, Recipe, choose_python
from swe_ai_fleet.environments.repository_files import PYTHON_LOCKS, RepositoryFiles, is_requirements, joined
from swe_ai_fleet.environments.requirements import is_plain, read_requirements, wanted_files
from swe_ai_fleet.tools.tests.inventory import PYTEST, uses_pytest

# Options in pytest's configuration that a plug-in must understand.
_PLUGINS = (
    (r"--(?:no-)?cov\b", "pytest-cov"),
    (r"(?:^|\s)-n[ =]?(?:auto|\d)|--dist\b|--numprocesses\b", "pytest-xdist"),
    (r"--timeout\b|^[^\S\n]*timeout\s*=", "pytest-timeout"),
    (r"asyncio_mode\b|--asyncio-mode\b", "pytest-asyncio"),
    (r"--benchmark-", "pytest-benchmark"),
    (r"--reruns\b", "pytest-rerunfailures"),
    (r"--random-order\b", "pytest-random-order"),
    (r"--mypy\b", "pytest-mypy"),
    (r"--flake8\b", "pytest-flake8"),
    (r"--html\b", "pytest-html"),
    (r"DJANGO_SETTINGS_MODULE|--ds=|django_find_project", "pytest-django"),
    (r"--doctest-plus|doctest_plus", "pytest-doctestplus"),
    (r"--snapshot-|--inline-snapshot", "inline-snapshot"),
)
_HEADING = re.compile(r"^\W*(?:version|release|v)?\s*\[?v?(\d+\.\d+(?:\.\d+)*)\b", re.I | re.M)
_HIGH_VERSION = "999.0.0"


def recipe_of_python(files: RepositoryFiles, directory: str, machine: Machine, tooling: Tooling) -> Recipe | None:
    """The recipe for the Python code in a directory; None if there is none."""
    has_code = any(name.endswith(".py") for name in files.below(directory))
    if not has_code and not files.existing(directory, "pyproject.toml", "requirements.txt", "Pipfile"):
        return None
    project = read_project(files, directory)
    choice = _python(files, directory, machine, project, read_automation(files, directory))
    wishes = read_automation(files, directory, choice.version)
    decisions = [EnvironmentDecision(what=choice.reason, source=choice.source)]
    lock = files.nearest(directory, *PYTHON_LOCKS)
    wanted = _collect(files, directory, project, wishes, decisions)
    packages = bool(wanted.targets or wanted.groups or wanted.files)
    if lock and packages:
        decisions.append(EnvironmentDecision(what="its pins constrain what pip installs", source=lock))
    test_command, test_source, variables = _test_command(files, directory, wishes)
    missing = _plugins(files, directory, test_command) - wanted.packages()
    install = PipSteps(tooling=tooling, directory=directory, lock=lock, constraints=tuple(wanted.constraints))
    steps = venv_steps(machine, choice, tooling)
    until = files.releases_until(directory) if packages else ""
    pins = [path for path in wanted.constraints if is_requirements(path) and is_plain(files.text(path))]
    if until and (dated := install.packages(wanted, sorted(missing), constraints=pins, until=until)):
        steps.append(dated)
        decisions.append(
            EnvironmentDecision(what=f"no lock, an old commit: releases until {until}, as far as that can be had")
        )
    if packages and missing:
        # Before the project: after its installation, every Python program may import from the repository.
        lines = tuple(sorted(missing))
        purpose = "what pytest's configuration asks for" if missing != {"pytest"} else "pytest, which nothing names"
        steps.append(install.lines(Group(name="plug-ins", source=test_source, lines=lines), purpose))
    steps += install.steps(wanted)
    build_variables = _pretended_versions(files, wanted, decisions)
    return Recipe(
        python=PythonRecipe(
            version=choice.version, lock=lock if packages else "", packages=packages, project=bool(wanted.targets)
        ),
        steps=tuple(steps),
        packages=install.packages(wanted, sorted(missing), constraints=pins),
        files={BUILD_CONSTRAINTS: OLD_SETUPTOOLS} if wanted.targets else {},
        variables=variables,
        build_variables=build_variables,
        test_command=test_command,
        test_source=test_source,
        decisions=tuple(decisions),
    )


def _python(
    files: RepositoryFiles, directory: str, machine: Machine, project: PythonProject | None, wishes: Sequence[Wish]
) -> Choice:
    tested = [(version, wish.source) for wish in wishes for version in wish.pythons]
    requires = ("", "")
    if project is not None:
        tested += [(text, project.source) for text in project.classifiers]
        requires = (project.requires_python, project.source)
    # `py311-django4` is a Python too.
    tested = [(text.partition("-")[0] if text.startswith("py") else text, source) for text, source in tested]
    pinned = files.text(files.nearest(directory, ".python-version")).splitlines()[:1]
    return choose_python(machine, pinned="".join(pinned), requires=requires, tested=tested)


# -- what is installed -------------------------------------------------------------------------------------------------


def _collect(
    files: RepositoryFiles,
    directory: str,
    project: PythonProject | None,
    wishes: Sequence[Wish],
    decisions: list[EnvironmentDecision],
) -> Wanted:
    wanted = Wanted()
    wish = Wish()
    for each in wishes:
        wish |= each
    root = _workspace_root(files, directory)
    members = [member for place in workspace_members(files, root) if (member := read_project(files, place)) is not None]
    locals_ = {str(canonicalize_name(member.name)): member for member in members if member.name}
    for place in local_sources(files, directory).values():
        if (project_found := read_project(files, place)) is not None and project_found.name:
            locals_.setdefault(str(canonicalize_name(project_found.name)), project_found)
    projects = [*([project] if project else []), *(members if root == directory else ())]
    if project is not None and project.name:
        locals_[str(canonicalize_name(project.name))] = project
    for each in projects:
        _collect_project(files, each, wish, wanted, is_main=each is project)
    named = [path for name in wish.files if (path := joined(directory, name)) in files.texts]
    for path in dict.fromkeys((*wanted_files(files, directory), *named)):
        read = read_requirements(files, path, directory)
        wanted.constraints += read.constraints
        for target in read.targets:
            _want_target(files, target, wanted)
        if read.lines:
            wanted.files[path] = read
    for target in wish.targets:
        _want_target(files, target, wanted, directory)
    wanted.constraints += [path for name in wish.constraints if (path := joined(directory, name)) in files.files]
    for each in wishes:
        packages = wanted.packages() | locals_.keys()
        if each.source.startswith(".") and "pytest" in packages:
            # Pipelines also install their own tools; they are used only if no other file names pytest.
            continue
        lines = tuple(line for line in each.lines if package_of(line) not in {*packages, ""})
        if lines:
            wanted.groups.append(Group(name="requirements", source=each.source, lines=lines))
    _resolve_locals(wanted, locals_)
    _decide(wanted, decisions)
    return wanted


def _collect_project(
    files: RepositoryFiles,
    project: PythonProject,
    wish: Wish,
    wanted: Wanted,
    *,
    is_main: bool,
) -> None:
    named = {canonicalize_name(name) for name in wish.extras}
    left_out = {canonicalize_name(name) for name in wish.without_extras}
    extras = [
        name
        for name in project.extras
        if canonicalize_name(name) not in left_out
        and (wish.all_extras or is_for_tests(name) or (is_main and canonicalize_name(name) in named))
    ]
    pinned = pinned_sources(files, project.directory)
    if project.installable:
        wanted.targets[project.directory] = LocalProject(project=project, extras=tuple(extras))
        elsewhere = tuple(pinned[name] for line in project.dependencies.lines if (name := package_of(line)) in pinned)
        if elsewhere:
            wanted.groups.append(Group(name="sources", source=project.source, lines=elsewhere))
        for place in project.dependencies.directories:
            _want_target(files, place, wanted)
    else:
        lines = [*project.dependencies.lines, *(line for extra in extras for line in project.extras[extra])]
        own = Group(
            name="dependencies",
            source=project.dependencies.source or project.source,
            lines=tuple(dict.fromkeys(pinned.get(package_of(line), line) for line in lines)),
            directories=project.dependencies.directories,
        )
        if own:
            wanted.groups.append(own)
    tool = mapping(files.toml(joined(project.directory, "pyproject.toml")), "tool")
    defaults = strings(mapping(tool, "uv").get("default-groups"))
    chosen = (name for name in defaults if not is_for_something_else(name))
    groups = {canonicalize_name(name) for name in (*wish.groups, *chosen)}
    for group in project.groups:
        if wish.all_groups or is_for_tests(group.name) or canonicalize_name(group.name) in groups:
            lines = tuple(pinned.get(package_of(line), line) for line in group.lines)
            wanted.groups.append(Group(name=group.name, source=group.source, lines=lines))
            for place in group.directories:
                _want_target(files, place, wanted)


def _want_target(files: RepositoryFiles, target: str, wanted: Wanted, directory: str = "") -> None:
    """Add a directory of the repository, `path[extras]`, to be installed in place."""
    match = re.fullmatch(r"(?P<path>[^\[]*)(?:\[(?P<extras>[\w.,\s-]+)\])?", target)
    if match is None:
        return
    place = joined(directory, match["path"] or ".")
    place = "" if place == "." else place
    chosen = wanted.targets.get(place)
    project = chosen.project if chosen else read_project(files, place)
    if project is None or not project.installable:
        return
    named = project.extras_named(match["extras"] or "")
    extras = dict.fromkeys((*(chosen.extras if chosen else filter(is_for_tests, project.extras)), *named))
    wanted.targets[place] = LocalProject(project=project, extras=tuple(extras))


def _resolve_locals(wanted: Wanted, locals_: Mapping[str, PythonProject]) -> None:
    """Resolve requirements that name projects of this repository to these projects, not to packages of an index."""
    changed = True
    while changed:
        changed = False
        lines = [line for group in wanted.groups for line in group.lines]
        for target in list(wanted.targets.values()):
            lines += target.project.dependencies.lines
            lines += [line for extra in target.extras for line in target.project.extras.get(extra, ())]
        for line in lines:
            project = locals_.get(package_of(line))
            if project is None or not project.installable:
                continue
            chosen = wanted.targets.get(project.directory)
            asked = re.search(r"\[([\w.,\s-]+)\]", line.partition(";")[0])
            named = project.extras_named(asked[1] if asked else "")
            extras = tuple(dict.fromkeys((*(chosen.extras if chosen else ()), *named)))
            if chosen is None or extras != chosen.extras:
                wanted.targets[project.directory] = LocalProject(project=project, extras=extras)
                changed = True
    installed = {
        str(canonicalize_name(target.project.name)) for target in wanted.targets.values() if target.project.name
    }
    # A compiled requirements file may pin a project of this repository, which would be replaced by a release.
    groups, files = wanted.groups, wanted.files
    wanted.groups = [replace(group, lines=_other_packages(group.lines, installed), directories=()) for group in groups]
    wanted.groups = [group for group in wanted.groups if group]
    wanted.files = {
        path: replace(file, lines=lines, plain=file.plain and lines == file.lines)
        for path, file in files.items()
        if (lines := _other_packages(file.lines, installed))
    }


def _other_packages(lines: Sequence[str], packages: Set[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if package_of(line) not in packages)


def _workspace_root(files: RepositoryFiles, directory: str) -> str:
    """The root of the workspace of a directory; the directory itself if it is in none."""
    place = directory
    while place:
        place = place.rpartition("/")[0]
        if directory in workspace_members(files, place):
            return place
    return directory


def _decide(wanted: Wanted, decisions: list[EnvironmentDecision]) -> None:
    for target in wanted.targets.values():
        project = target.project
        extras = f" with {', '.join(target.extras)}" if target.extras else ""
        named = project.name or project.directory or "the project"
        decisions.append(EnvironmentDecision(what=f"{named} is installed in place{extras}", source=project.source))
    for group in wanted.groups:
        group_name = (
            "dependencies" if group.name in ("dependencies", "requirements", "sources") else f"group {group.name}"
        )
        decisions.append(EnvironmentDecision(what=f"{group_name}: {_some(group.lines)}", source=group.source))
    decisions += [
        EnvironmentDecision(what=f"requirements: {_some(file.lines)}", source=file.path)
        for file in wanted.files.values()
    ]


def _some(lines: Sequence[str]) -> str:
    names = [package_of(line) or line for line in lines]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


# -- tests -------------------------------------------------------------------------------------------------------------


def _test_command(
    files: RepositoryFiles, directory: str, wishes: Sequence[Wish]
) -> tuple[tuple[str, ...], str, Mapping[str, str]]:
    """(argv, its file, variables) of the first automation file that runs tests; empty if none does."""
    for wish in wishes:
        for argv in wish.tests:
            if argv[1:3] != ("-m", "pytest"):
                return argv, wish.source, wish.variables
            is_workflow = wish.source.startswith(".")
            arguments = list(argv[len(PYTEST) :])
            missing = [path for path in paths_of(arguments) if not _exists(files, directory, path)]
            if missing or is_workflow:
                # A job of a workflow may run only a part of the tests.
                dropped = paths_of(arguments) if is_workflow else missing
                arguments = [word for word in arguments if word not in dropped]
            return (*PYTEST, *arguments), wish.source, wish.variables
    return (), "", {}


def _exists(files: RepositoryFiles, directory: str, path: str) -> bool:
    place = joined(directory, path.partition("::")[0])
    return place in (".", "") or place in files.files or any(name.startswith(f"{place}/") for name in files.files)


def _plugins(files: RepositoryFiles, directory: str, test_command: tuple[str, ...]) -> set[str]:
    """The packages that pytest needs with this configuration; none if another runner runs the tests."""
    names = files.below(directory)
    texts = {name: files.texts[path] for name, path in names.items() if path in files.texts}
    if test_command[: len(PYTEST) - 1] != PYTEST[:-1] and (test_command or not uses_pytest(names, texts)):
        return set()
    settings = [shlex.join(test_command)]
    for name in ("pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg"):
        section = re.search(r"^\[(?:tool:)?pytest\]$(.*?)(?=^\[|\Z)", texts.get(name, ""), re.M | re.S)
        settings += [section[1]] if section else []
    pytest_table = mapping(files.toml(joined(directory, "pyproject.toml")), "tool", "pytest")
    options = mapping(pytest_table, "ini_options") or pytest_table
    settings += [f"{name} = {' '.join(strings(value)) or value}" for name, value in options.items()]
    text = "\n".join(settings)
    return {"pytest", *(package for pattern, package in _PLUGINS if re.search(pattern, text, re.M))}


# -- versions ----------------------------------------------------------------------------------------------------------


def _pretended_versions(files: RepositoryFiles, wanted: Wanted, decisions: list[EnvironmentDecision]) -> dict[str, str]:
    """The variables that give a build its version if the history has no tags for it."""
    if files.versions_tagged:
        return {}
    variables: dict[str, str] = {}
    for target in wanted.targets.values():
        project = target.project
        if not project.version_tool:
            continue
        version, source = _named_version(files)
        variables |= _version_variables(project, version)
        named = f"from {source}" if source else "made up, for want of any"
        decision_text = f"version {version} ({named}): {project.version_tool} finds no tag in the history"
        decisions.append(EnvironmentDecision(what=decision_text, source=project.source))
    return variables


def _version_variables(project: PythonProject, version: str) -> dict[str, str]:
    match project.version_tool:
        case "pdm-backend":
            return {"PDM_BUILD_SCM_VERSION": version}
        case "poetry-dynamic-versioning":
            return {"POETRY_DYNAMIC_VERSIONING_BYPASS": version}
        case "uv-dynamic-versioning":
            return {"UV_DYNAMIC_VERSIONING_BYPASS": version}
        case _:
            name = re.sub(r"[-_.]+", "_", project.name).upper()
            return {f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{name}" if name else "SETUPTOOLS_SCM_PRETEND_VERSION": version}


def _named_version(files: RepositoryFiles) -> tuple[str, str]:
    """(the newest version, its file), from PKG-INFO, else from a change log's first heading."""
    if match := re.search(r"^Version: (\S+)$", files.text("PKG-INFO"), re.M):
        return match[1], "PKG-INFO"
    for path, text in files.texts.items():
        is_log = "/" not in path and re.match(r"(?:change|news|history|releases?)", path, re.I)
        if is_log and (heading := _HEADING.search(text[:20_000])):
            return heading[1], path
    return _HIGH_VERSION, ""
