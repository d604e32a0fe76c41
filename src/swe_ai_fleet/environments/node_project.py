"""The Node side of an environment: package manager, installation, test command."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from swe_ai_fleet.domain.environment import EnvironmentDecision
from swe_ai_fleet.domain.json_values import mapping, string, strings
from swe_ai_fleet.environments.automation import workflow_jobs
from swe_ai_fleet.environments.recipe import Machine, NodeRecipe, Recipe, RecipeStep, Removal
from swe_ai_fleet.environments.repository_files import RepositoryFiles, joined
from swe_ai_fleet.tools.tests.inventory import test_script
from swe_ai_fleet.tools.tests.scripts import lints, words_of

_DEPENDENCIES = ("dependencies", "devDependencies", "optionalDependencies")
_MANAGER = re.compile(r"(npm|pnpm|yarn)@(\d+\.\d+\.\d+(?:-[\w.]+)?)(?:\+.*)?")
_YARN_PATH = re.compile(r"yarn-(\d+\.\d+\.\d+)\.c?js")
REGISTRY = "https://registry.npmjs.org"
_QUIET = ("--no-audit", "--no-fund", "--loglevel=error", "--no-progress")
# Without the scripts of the project itself; those of its packages run afterwards, and may fail.
_NPM_WITHOUT_SCRIPTS = 'npm "$@" --ignore-scripts && { npm rebuild --loglevel=error || true; }'
# The lock is removed afterwards: in the checkout it would look like a file of the repository.
_NPM_PINNED = 'cp "$1" package-lock.json && shift && npm "$@"; s=$?; rm -f package-lock.json; exit $s'
_NPM_LOCK = "npm-lock.json"
_LOCKLESS = "--no-package-lock"
_NPM_LOG = 'grep -h " placeDep " "$(ls -t ~/.npm/_logs/*.log | head -n 1)"'
_PRUNE = """\
// Takes dependencies out of manifests: arguments are manifests, then `--`, then names.
const fs = require('fs');
const at = process.argv.indexOf('--');
const names = new Set(process.argv.slice(at + 1));
for (const file of process.argv.slice(2, at)) {
  const manifest = JSON.parse(fs.readFileSync(file, 'utf8'));
  for (const kind of ['dependencies', 'devDependencies', 'optionalDependencies'])
    for (const name of Object.keys(manifest[kind] || {}))
      if (names.has(name)) delete manifest[kind][name];
  fs.writeFileSync(file, JSON.stringify(manifest, null, 2));
}
"""
PRUNE = "prune.js"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_MAX_FOLLOWED = 3
_BROWSER = re.compile(r"\b(?:karma|cypress|playwright|wdio|testcafe|testem|web-test-runner|wtr)\b")
_BUILDS = re.compile(r"(?:build|compile|bootstrap|generate|codegen)(?:[:_-](?!.*(?:check|docs?|watch)).*)?", re.I)
_TESTS = re.compile(r"(?:test|jest|vitest|mocha|unit|ci)(?:[:_-].*)?", re.I)
_DYNAMIC = re.compile(r"[|<>()`$;*?]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """A package manager: its name, the package and version to install it with, its lock file."""

    name: str
    package: str = ""
    lock: str = ""
    source: str = ""
    modern_yarn: bool = False


def node_recipe(files: RepositoryFiles, directory: str, machine: Machine, base: str) -> Recipe | None:
    """The recipe for the packages of a directory; None if it has none."""
    root, members = package_places(files, directory)
    manifests = files.existing(root, "package.json")
    if not manifests:
        return None
    packages = [files.json(joined(place, "package.json")) for place in (root, *members)]
    if not any(mapping(package, kind) for package in packages for kind in _DEPENDENCIES):
        return None
    if "npm" not in machine.programs:
        return Recipe(
            decisions=(EnvironmentDecision(what="this machine has no npm: nothing is installed", source=manifests[0]),)
        )
    manager = package_manager(files, root)
    steps: list[RecipeStep] = []
    if manager.package:
        install = ("npm", "install", "--prefix", f"{base}/pm", *_QUIET, manager.package)
        steps.append(RecipeStep(argv=install, purpose=f"the package manager {manager.package}", source=manager.source))
    steps.append(_install(files, root, members, manager, base))
    steps += builds(files, root)
    decisions = [
        EnvironmentDecision(
            what=f"packages are installed with {manager.package or manager.name}", source=manager.source
        )
    ]
    if members:
        decisions.append(EnvironmentDecision(what=f"a workspace of {len(members)} packages", source=manifests[0]))
    if engine := string(mapping(packages[0], "engines").get("node")):
        decisions.append(
            EnvironmentDecision(what=f"it asks for Node {engine}; this machine's is used", source=manifests[0])
        )
    variables = {
        "npm_config_update_notifier": "false",
        # Otherwise Yarn and pnpm would fetch the version that the repository names, which is installed already.
        "YARN_ENABLE_TELEMETRY": "0",
        "COREPACK_ENABLE_DOWNLOAD_PROMPT": "0",
        **({"npm_config_manage_package_manager_versions": "false"} if manager.name == "pnpm" else {}),
        **({"YARN_NODE_LINKER": "node-modules"} if manager.modern_yarn else {}),
    }
    return Recipe(
        node=NodeRecipe(root=root, manager=manager.name, members=members),
        steps=tuple(steps),
        files={PRUNE: _PRUNE},
        variables=variables,
        build_variables=_build_variables(files, root, manager),
        decisions=tuple(decisions),
    )


def pinned_npm(recipe: Recipe, lock: str, base: str) -> Recipe:
    """A recipe in which npm uses this lock if the repository has none; npm replaces entries that do not fit.

    `lock` is the text of a package-lock.json, `base` the environment's directory as commands see it.
    """
    for position, step in enumerate(recipe.steps):
        if _LOCKLESS in step.argv:
            words = [word for word in step.argv if word not in ("npm", _LOCKLESS)]
            pinned = RecipeStep(
                argv=("sh", "-c", _NPM_PINNED, "npm", f"{base}/{_NPM_LOCK}", *words),
                purpose="the packages, in the versions of the commit that this one stands on",
                source=step.source,
                directory=step.directory,
                alternatives=(step,),
            )
            note = EnvironmentDecision(
                what="no lock: what npm installs has the versions of the commit that this one stands on"
            )
            return replace(
                recipe,
                steps=(*recipe.steps[:position], pinned, *recipe.steps[position + 1 :]),
                files={**recipe.files, _NPM_LOCK: lock},
                decisions=(*recipe.decisions, note),
            )
    return recipe


def node_test_command(files: RepositoryFiles, directory: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the argv that runs a package's tests, notes on parts of its `test` script left out); both empty without one.

    Linters and type checkers are left out, since their findings are not results of tests, and tests that need a
    browser.
    """
    path = joined(directory, "package.json")
    text = test_script(files.text(path))
    if not text:
        return (), ()
    scripts = {name: value for name, value in mapping(files.json(path), "scripts").items() if isinstance(value, str)}
    parts = [part.strip() for part in text.split("&&")]
    linting = [part for part in parts if lints(part, scripts)]
    browsing = [part for part in parts if part not in linting and _runs(_BROWSER, part, scripts)]
    testing = [part for part in parts if part not in linting and part not in browsing]
    left_out = [f"left out of the tests, since it tests nothing: {'; '.join(linting)}"] if linting else []
    left_out += [f"left out of the tests, since it needs a browser: {'; '.join(browsing)}"] if browsing else []
    before = scripts.get("pretest", "")
    only_lints_before = bool(before) and lints(before, scripts)
    # Only npm runs the scripts that prepare the tests.
    is_one = (
        len(testing) == 1 and testing != parts and not _DYNAMIC.search(testing[0]) and (not before or only_lints_before)
    )
    words = words_of(testing[0]) if is_one else []
    if not words and only_lints_before:
        note = f"left out of the tests, since it tests nothing: pretest: {before}"
        return ("npm", "test", "--silent", "--ignore-scripts"), (note,)
    if not words:
        return ("npm", "test", "--silent"), ()
    if followed := _followed(words):
        return ("npm", "run", followed, "--silent"), tuple(left_out)
    assigned = list(takewhile(_ASSIGNMENT.fullmatch, words))
    command = words[len(assigned) :]
    start = ("env", *assigned) if assigned else ()
    via = () if command[0] in ("node", "npx", "npm", "pnpm", "yarn", "env") else ("npx", "--no", "--")
    return (*start, *via, *command), tuple(left_out)


def _runs(programs: re.Pattern[str], text: str, scripts: Mapping[str, str], depth: int = 0) -> bool:
    """Whether a script, or one that it runs, starts one of some programs."""
    if programs.search(text):
        return True
    followed = [name for part in text.split("&&") if (name := _followed(words_of(part)))]
    return depth < _MAX_FOLLOWED and any(
        _runs(programs, scripts.get(name, ""), scripts, depth + 1) for name in followed
    )


def _followed(words: list[str]) -> str:
    """The name of the script that a command runs; empty for any other command."""
    if len(words) >= 3 and words[0] in ("npm", "pnpm", "yarn") and words[1] in ("run", "run-script"):
        return next((word for word in words[2:] if not word.startswith("-")), "")
    if len(words) == 2 and words[0] in ("pnpm", "yarn") and not words[1].startswith("-"):
        return words[1]
    return ""


def package_places(files: RepositoryFiles, directory: str) -> tuple[str, tuple[str, ...]]:
    """(the directory of a package's workspace, or its own without one; the directories of the workspace's members)."""
    place = directory
    while place:
        place = place.rpartition("/")[0]
        if directory in (members := _members(files, place)):
            return place, members
    return directory, _members(files, directory)


def _members(files: RepositoryFiles, root: str) -> tuple[str, ...]:
    """The directories of a workspace's packages, relative to the top."""
    package = files.json(joined(root, "package.json"))
    declared = package.get("workspaces")
    patterns = strings(declared) or strings(mapping(declared).get("packages"))
    patterns += strings(files.yaml(joined(root, "pnpm-workspace.yaml")).get("packages"))
    chosen: set[str] = set()
    for pattern in patterns:
        matching = files.members(root, "package.json", [pattern.removeprefix("!")])
        chosen = chosen - matching if pattern.startswith("!") else chosen | matching
    return tuple(sorted(chosen))


def package_manager(files: RepositoryFiles, root: str) -> Manager:
    """The package manager of a directory, by its files."""
    manifest = joined(root, "package.json")
    named = _MANAGER.fullmatch(string(files.json(manifest).get("packageManager")))
    lock_names = ("pnpm-lock.yaml", "yarn.lock", "npm-shrinkwrap.json", "package-lock.json")
    locks = {posixpath.basename(path): path for path in files.existing(root, *lock_names)}
    name = named[1] if named else ""
    if not name:
        name = "pnpm" if "pnpm-lock.yaml" in locks else "yarn" if "yarn.lock" in locks else "npm"
        # With locks of npm and Yarn, npm's is preferred: the machine has npm.
        name = "npm" if "package-lock.json" in locks and name == "yarn" else name
    if name == "pnpm":
        lock = locks.get("pnpm-lock.yaml", "")
        version = named[2] if named else _pnpm_version(files.text(lock))
        return Manager(name=name, package=f"pnpm@{version}", lock=lock, source=manifest if named else lock or manifest)
    if name == "yarn":
        lock = locks.get("yarn.lock", "")
        modern = "__metadata:" in files.text(lock)[:2000] or (bool(named) and not str(named[2]).startswith("1."))
        source = manifest if named else lock or manifest
        if not modern:
            return Manager(name=name, package=f"yarn@{named[2] if named else '1.22.22'}", lock=lock, source=source)
        in_path = _YARN_PATH.search(string(files.yaml(joined(root, ".yarnrc.yml")).get("yarnPath")))
        version = named[2] if named else in_path[1] if in_path else _yarn_version(files.text(lock))
        return Manager(name=name, package=f"@yarnpkg/cli-dist@{version}", lock=lock, source=source, modern_yarn=True)
    lock = locks.get("npm-shrinkwrap.json") or locks.get("package-lock.json", "")
    return Manager(name="npm", lock=lock, source=lock or manifest)


def _pnpm_version(lock: str) -> str:
    match = re.search(r"^lockfileVersion:\s*['\"]?(\d+)", lock, re.M)
    return {"5": "7", "6": "8", "9": "10"}.get(match[1] if match else "", "10")


def _yarn_version(lock: str) -> str:
    match = re.search(r"^__metadata:\s*\n\s+version:\s*(\d+)", lock, re.M)
    return "4" if match and int(match[1]) >= 8 else "3"


def _install(files: RepositoryFiles, root: str, members: tuple[str, ...], manager: Manager, base: str) -> RecipeStep:
    """The step that installs the packages: by the lock; else without scripts; else without unavailable packages."""
    match manager.name:
        case "pnpm":
            locked = ("--frozen-lockfile",) if manager.lock else ()
            commands = [("pnpm", "install", *locked), ("pnpm", "install", *locked, "--ignore-scripts")]
            loose = ("pnpm", "install", "--no-frozen-lockfile", "--ignore-scripts")
        case "yarn" if manager.modern_yarn:
            locked = ("--immutable",) if manager.lock else ()
            commands = [("yarn", "install", *locked), ("yarn", "install", *locked, "--mode=skip-build")]
            loose = ("yarn", "install", "--no-immutable", "--mode=skip-build")
        case "yarn":
            plain = ("yarn", "install", "--non-interactive", *(("--frozen-lockfile",) if manager.lock else ()))
            commands = [plain, (*plain, "--ignore-scripts", "--ignore-engines")]
            loose = ("yarn", "install", "--non-interactive", "--ignore-scripts", "--ignore-engines")
        case _:
            kind = ("ci",) if manager.lock else ("install", _LOCKLESS)
            commands = [("npm", *kind, *_QUIET), ("sh", "-c", _NPM_WITHOUT_SCRIPTS, "npm", *kind, *_QUIET)]
            loose = ("sh", "-c", _NPM_WITHOUT_SCRIPTS, "npm", "install", "--legacy-peer-deps", *_QUIET)
    manifests = [posixpath.relpath(joined(place, "package.json"), root or ".") for place in (root, *members)]
    removal = Removal(
        packages=_declared(files, (root, *members)),
        remove=("node", f"{base}/{PRUNE}", *manifests, "--"),
        then=loose,
        log=("sh", "-c", _NPM_LOG) if manager.name == "npm" else (),
    )
    source = manager.lock or joined(root, "package.json")
    purposes = ("the packages, without the project's own scripts", "the packages, whatever their lock and peers say")
    alternatives = tuple(
        RecipeStep(argv=argv, purpose=purpose, source=source, directory=root)
        for purpose, argv in zip(purposes, (commands[1], loose), strict=True)
    )
    install = RecipeStep(
        argv=commands[0],
        purpose="the packages",
        source=source,
        directory=root,
        removal=removal,
        alternatives=alternatives,
    )
    until = files.releases_until(root)
    if manager.name != "npm" or not until:
        return install
    dated = (*commands[0], f"--before={until}")
    return RecipeStep(
        argv=dated, purpose=f"releases until {until}", source=source, directory=root, alternatives=(install,)
    )


def builds(files: RepositoryFiles, root: str) -> list[RecipeStep]:
    """The build scripts that a workflow runs before its tests: packages of a workspace may import built ones."""
    scripts = mapping(files.json(joined(root, "package.json")), "scripts")
    for path, commands in workflow_jobs(files):
        built: list[RecipeStep] = []
        for words in commands:
            name = _followed(words) or (words[1] if words[:1] in (["npm"], ["yarn"]) and words[1:] else "")
            if built and _TESTS.fullmatch(name):
                return built
            if _BUILDS.fullmatch(name) and name in scripts:
                built.append(RecipeStep(argv=tuple(words), purpose=f"the script {name}", source=path, directory=root))
    return []


def _declared(files: RepositoryFiles, places: tuple[str, ...]) -> dict[str, str]:
    """The dependencies in manifests, with their requirements."""
    return {
        name: spec
        for place in places
        for kind in _DEPENDENCIES
        for name, spec in mapping(files.json(joined(place, "package.json")), kind).items()
        if isinstance(spec, str)
    }


def _build_variables(files: RepositoryFiles, root: str, manager: Manager) -> dict[str, str]:
    variables = {
        "HUSKY": "0",
        "npm_config_loglevel": "error",
        "npm_config_fund": "false",
        "npm_config_audit": "false",
        # An unreachable host is retried within seconds, not minutes.
        "npm_config_fetch_retries": "2",
        "npm_config_fetch_retry_mintimeout": "500",
        "npm_config_fetch_retry_maxtimeout": "2000",
    }
    if manager.name == "yarn" and "registry" not in (
        files.text(joined(root, ".yarnrc")) + files.text(joined(root, ".npmrc"))
    ):
        # Yarn's default registry is an alias of npm's; with this, one host must be reachable instead of two.
        variables["YARN_REGISTRY"] = REGISTRY
    if manager.modern_yarn:
        # Yarn's cache must be in the home directory, which is deleted afterwards, not in the checkout.
        yarn = {"YARN_ENABLE_GLOBAL_CACHE": "true", "YARN_ENABLE_IMMUTABLE_INSTALLS": "false", "YARN_HTTP_RETRY": "1"}
        variables |= yarn
        variables.pop("YARN_REGISTRY", None)
        if "npmRegistryServer" not in files.text(joined(root, ".yarnrc.yml")):
            variables["YARN_NPM_REGISTRY_SERVER"] = REGISTRY
    return variables
