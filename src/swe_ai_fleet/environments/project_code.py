"""Whether building an environment runs code of the repository itself.

Builds that run no code of the repository may be shared between commits: packages of an index are the same for
everybody, while code of a repository can do anything to the environment. An unknown build counts as running such code.
"""

from __future__ import annotations

import ast
import posixpath
import re

from swe_ai_fleet.domain.json_values import mapping, parsed, string, strings
from swe_ai_fleet.environments.node_project import builds, package_manager, package_places
from swe_ai_fleet.environments.python_project import package_of
from swe_ai_fleet.environments.repository_files import RepositoryFiles, Table, is_requirements, joined, parsed_python

# Backends that read a project's files without importing or running any, except with the settings below.
_BACKENDS = frozenset(
    {
        *("setuptools.build_meta", "hatchling.build", "poetry.core.masonry.api", "pdm.backend", "uv_build"),
        *("flit_core.buildapi", "flit_scm:buildapi"),
    }
)
_TOOLS = frozenset(
    {
        *("setuptools", "wheel", "setuptools-scm", "hatchling", "hatch-vcs", "hatch-fancy-pypi-readme", "poetry-core"),
        *("pdm-backend", "uv-build", "flit-core"),
    }
)
_HATCH_HOOKS = frozenset({"vcs", "version", "fancy-pypi-readme"})
_NPM_SCRIPTS = frozenset(
    {
        *("preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"),
        *("dependencies", "pnpm:devPreinstall"),
    }
)
# Settings of npm, pnpm and Yarn that name a program or a file to load.
_RC = re.compile(
    r"^[^\S\n]*(?:node[-_]options|script[-_]shell|node[-_]gyp|git|shell|pnpmfile|global[-_]pnpmfile|userconfig|globalconfig|"
    r"yarn[-_]path|yarnPath|plugins)\s*[=: ]",
    re.M,
)
_PNPM = (".pnpmfile.cjs", ".pnpmfile.mjs", "pnpmfile.js")
# The directory itself matches too, if it is a link: the files behind it are in no listing.
_CARGO = re.compile(r"(?:.*/)?\.cargo(?:/config(?:\.toml)?)?")
_DEPENDENCY_FILES = re.compile(r"^[^\S\n]*(?!(?:long_)?description\b|version\b)[\w.-]+\s*[=:]\s*file:", re.M)
_CODE_OF_CFG = re.compile(r"^(?:[^=:\n]*[=:]\s*attr:|[^\S\n]*(?:cmdclass\b|setup_hooks\b))", re.M)
_MUST_READ = frozenset({"setup.py", "setup.cfg", "hatch.toml", "package.json", ".npmrc", ".yarnrc", ".yarnrc.yml"})
_LOCAL = re.compile(
    r"^[^\S\n]*(?:-e\s|--editable\b|-f\s|--find-links\b|\.{0,2}/|[\w.-]+/)|^[^#\n]*\bfile:|\.whl\b", re.M
)
# Packages whose scripts read nothing of the project, only their own directory.
_HARMLESS = frozenset(
    {"core-js", "core-js-bundle", "core-js-pure", "es5-ext", "esbuild", "fsevents", "protobufjs", "unrs-resolver"}
)
_NODE_DEPENDENCIES = ("dependencies", "devDependencies", "optionalDependencies")
_NODE_LOCAL = re.compile(r"(?:file|link|portal|patch|exec):|\.{0,2}/")


def project_code(files: RepositoryFiles, directory: str = "") -> str:
    """The first reason why a build may run code of the repository, or take packages from it; empty if it cannot.

    Args:
        files: The files of the commit.
        directory: The task's; Python's manifests count in all directories, since any may be installed.
    """
    for path in files.files:
        if reason := _of_file(files, path):
            return reason
    return _of_node(files, directory)


def _of_file(files: RepositoryFiles, path: str) -> str:
    text, place, name = files.text(path), posixpath.dirname(path), posixpath.basename(path)
    if name in _MUST_READ and path not in files.texts:
        return f"{path} cannot be read: a link, too large, or too deep"
    match name:
        case "pyproject.toml":
            return _of_pyproject(files, place)
        case "setup.py":
            declared = mapping(files.toml(joined(place, "pyproject.toml")), "build-system")
            if not declared and not re.search(r"\bsetup\(", text):
                return ""  # only a module of that name
            if not _is_bare(text):
                return f"{path} is a program"
            # Without a declared backend, a build can import the project itself.
            return "" if declared else f"{path} is built without a declared backend"
        case "setup.cfg" if _CODE_OF_CFG.search(text) or _DEPENDENCY_FILES.search(text):
            return f"{path} names code, or files with dependencies"
        case "pdm_build.py":
            return f"{path} is a hook of PDM"
        case "Pipfile" if re.search(r"\b(?:path|file|editable)\s*=", text):
            return f"{path} names files of the repository"
        case "rust-toolchain.toml" if re.search(r"^[^\S\n]*path\s*=", text, re.M):
            return f"{path} names a toolchain of the repository"
        case _ if (is_requirements(path) or name.endswith((".txt", ".in"))) and _LOCAL.search(text):
            return f"{path} names files of the repository"
        case _ if _CARGO.fullmatch(path):
            return f"{path} is there"
        case _:
            return ""


def _of_pyproject(files: RepositoryFiles, directory: str) -> str:
    path = joined(directory, "pyproject.toml")
    document = files.toml(path)
    build = mapping(document, "build-system")
    if not build:
        return ""  # not installed, or by setup.py
    backend = string(build.get("build-backend"))
    if backend not in _BACKENDS or "backend-path" in build:
        return f"{path}: the backend {backend or 'of old'!r} may run anything"
    requires = strings(build.get("requires"))
    if others := [line for line in requires if package_of(line) not in _TOOLS or "@" in line]:
        return f"{path}: the build tool {others[0]!r} may run anything"
    if "describe_command" in files.text(path):
        return f"{path}: a command tells the version"
    tool = mapping(document, "tool")
    project = mapping(document, "project")
    match backend.partition(".")[0]:
        case "setuptools":
            options = mapping(tool, "setuptools")
            dynamic = mapping(options, "dynamic")
            if any("attr" in mapping(value) for value in dynamic.values()) or "cmdclass" in options:
                return f"{path}: setuptools is told to import code"
            if {"dependencies", "optional-dependencies"} & dynamic.keys():
                return f"{path}: dependencies stand in other files"
            if "ext-modules" in options:
                return f"{path}: extension modules"
        case "hatchling":
            tables = (mapping(tool, "hatch"), files.toml(joined(directory, "hatch.toml")))
            hooks = {name for hatch in tables for name in _hooks(hatch)} - _HATCH_HOOKS
            if hooks or any(string(mapping(hatch, "version").get("source")) == "code" for hatch in tables):
                return f"{path}: a hook of Hatch ({', '.join(sorted(hooks)) or 'version'})"
        case "poetry":
            if "build" in mapping(tool, "poetry"):
                return f"{path}: a build script of Poetry"
        case "pdm":
            options = mapping(tool, "pdm")
            called = string(mapping(options, "version").get("source")) == "call"
            if called or any(key in mapping(options, "build") for key in ("run-setuptools", "custom-hook")):
                return f"{path}: a hook of PDM"
        case "flit_core" | "flit_scm:buildapi":
            if project.get("dynamic") or "flit" in tool:
                return f"{path}: Flit imports the module"
        case _:
            pass
    return ""


def _hooks(hatch: Table) -> list[str]:
    """The names of all hooks that Hatch's tables declare."""
    names: list[str] = []
    build = mapping(hatch, "build")
    targets = mapping(build, "targets")
    for holder in (build, mapping(hatch, "metadata"), *map(mapping, targets.values())):
        names += mapping(holder, "hooks")
    return names


def _is_bare(text: str) -> bool:
    """Whether a setup.py only calls `setup()` with literal values."""
    if (module := parsed_python(text)) is None:
        return False
    for statement in module.body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Import(names=[ast.alias(name="setuptools", asname=None)]):
                continue
            case ast.ImportFrom(module="setuptools", level=0, names=names) if {name.name for name in names} <= {
                "setup",
                "find_packages",
            }:
                continue
            case ast.Expr(value=ast.Call(func=function, args=[], keywords=keywords)) if ast.unparse(function) in (
                "setup",
                "setuptools.setup",
            ):
                if any(keyword.arg is None or not _is_literal(keyword.value) for keyword in keywords):
                    return False
            case _:
                return False
    return True


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("find_packages", "setuptools.find_packages") and all(
            map(_is_literal, (*node.args, *(keyword.value for keyword in node.keywords)))
        )
    try:
        parsed(ast.literal_eval, node)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def _of_node(files: RepositoryFiles, directory: str) -> str:
    root, members = package_places(files, directory)
    if not files.existing(root, "package.json"):
        return ""
    installed = joined(root, "node_modules"), joined(root, ".yarn")
    for path in files.files:
        if path.startswith(installed) or path.endswith("/node_modules") or "/node_modules/" in path:
            return f"{path} is among the repository's files"
    for place in (root, *members):
        path = joined(place, "package.json")
        package = files.json(path)
        if scripts := _NPM_SCRIPTS & mapping(package, "scripts").keys():
            return f"{path}: the script {min(scripts)}"
        if "pnpm" in package and "patchedDependencies" in mapping(package, "pnpm"):
            return f"{path}: packages are patched"
        for kind in _NODE_DEPENDENCIES:
            for name, spec in mapping(package, kind).items():
                if _NODE_LOCAL.match(string(spec)):
                    return f"{path}: {name} comes from the repository"
        if files.existing(place, "binding.gyp"):
            return f"{joined(place, 'binding.gyp')} is there"
    for path in files.existing(root, ".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml"):
        if _RC.search(files.text(path)) or "patchedDependencies" in files.text(path):
            return f"{path} names code"
    hooks = files.existing(root, *_PNPM)
    if hooks:
        return f"{hooks[0]} is there"
    if builds(files, root):
        return f"{joined(root, 'package.json')}: a workflow builds before it tests"
    return _of_packages(files, root, members)


def _of_packages(files: RepositoryFiles, root: str, members: tuple[str, ...]) -> str:
    """Why a package of the index may run a script that reads files of the repository, such as its settings."""
    manifests = [files.json(joined(place, "package.json")) for place in (root, *members)]
    if not any(mapping(manifest, kind) for manifest in manifests for kind in _NODE_DEPENDENCIES):
        return ""
    manager = package_manager(files, root)
    entries = mapping(files.json(manager.lock), "packages")
    if manager.name != "npm" or not entries:
        return f"{manager.lock or joined(root, 'package.json')} does not say which packages run scripts"
    for place, entry in entries.items():
        fields = mapping(entry)
        name = string(fields.get("name")) or place.rpartition("node_modules/")[2]
        if fields.get("hasInstallScript") and not fields.get("link") and name not in _HARMLESS:
            return f"{manager.lock}: the package {name} runs a script among the repository's files"
    return ""
