"""Which linters a repository configures, and how each is run on a selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from swe_ai_fleet.tools.tests.runners.cargo import cargo_variables, locks
from swe_ai_fleet.tools.tests.runners.findings import Finding, parse_clippy, parse_eslint, parse_go_vet, parse_ruff
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.values import json_object

RUFF = ("ruff", "check")
_ESLINT_FILES = frozenset(
    [f"eslint.config.{suffix}" for suffix in ("js", "mjs", "cjs", "ts", "mts", "cts")]
    + [f".eslintrc{suffix}" for suffix in ("", ".js", ".cjs", ".json", ".yml", ".yaml")]
)
_ESLINT_SUFFIXES = (".js", ".cjs", ".mjs", ".jsx", ".ts", ".cts", ".mts", ".tsx", ".vue", ".svelte")
_WITH_BINARIES = 'PATH="$PWD/node_modules/.bin:$PATH"; export PATH; exec "$@"'
_RUFF_FILES = ("ruff.toml", ".ruff.toml")
_MAX_PROJECTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """One linter's run. `parse` takes (output, mount, directory); `transient` as in a test run's plan."""

    name: str
    argv: tuple[str, ...]
    parse: Callable[[str, str, str], list[Finding] | None]
    cwd: str = "."
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    merge_stderr: bool = False
    transient: tuple[str, ...] = ()


def linters(inventory: Inventory, paths: tuple[str, ...], own: tuple[str, ...], scratch: str) -> list[Lint]:
    """The runs to make: the environment's linter first, then those that the repository configures.

    Args:
        paths: Existing files and directories relative to the workspace; none means all.
        own: The environment's lint command, empty where it has none.
    """
    found: list[Lint] = []
    python = _of(paths, (".py", ".pyi", ".ipynb"), inventory)
    if python is not None and (own or _configures_ruff(inventory)):
        options = ("--no-cache", "--output-format", "json", "--", *(python or (".",)))
        found.append(Lint(name="ruff", argv=(*(own or RUFF), *options), parse=parse_ruff))
    script = _of(paths, _ESLINT_SUFFIXES, inventory)
    for directory in _eslint_directories(inventory) if script is not None else []:
        below = _within(script or (), directory)
        if paths and not below:
            continue
        argv = ("sh", "-c", _WITH_BINARIES, "sh", "eslint", "--format", "json", "--", *(below or (".",)))
        found.append(Lint(name="eslint", argv=argv, parse=parse_eslint, cwd=directory))
    go = _of(paths, (".go",), inventory)
    for directory in _roots(inventory, "go.mod") if go is not None else []:
        below = _within(go or (), directory)
        if paths and not below:
            continue
        packages = tuple(dict.fromkeys(_package(inventory, directory, path) for path in below)) or ("./...",)
        found.append(
            Lint(name="go vet", argv=("go", "vet", *packages), parse=parse_go_vet, cwd=directory, merge_stderr=True)
        )
    rust = _of(paths, (".rs",), inventory)
    for directory in _roots(inventory, "Cargo.toml") if rust is not None else []:
        if paths and not _within(rust or (), directory):
            continue
        found.append(
            Lint(
                name="clippy",
                argv=("cargo", "clippy", "--quiet", "--all-targets", "--message-format=json"),
                parse=parse_clippy,
                cwd=directory,
                variables=cargo_variables(scratch),
                transient=locks(inventory, directory),
            )
        )
    return found


def concerns(finding: Finding, paths: Iterable[str]) -> bool:
    """Whether a finding lies in one of the paths; linters of whole projects say more than was asked."""
    chosen = tuple(paths)
    return not chosen or any(
        path == "." or finding.path == path or finding.path.startswith(f"{path}/") for path in chosen
    )


def _of(paths: tuple[str, ...], suffixes: tuple[str, ...], inventory: Inventory) -> tuple[str, ...] | None:
    """Those of the paths that a linter is for, all directories among them; None where no file is."""
    if not paths:
        return () if any(path.endswith(suffixes) for path in inventory.files) else None
    chosen = tuple(path for path in paths if path.endswith(suffixes) or path not in inventory.files)
    return chosen or None


def _configures_ruff(inventory: Inventory) -> bool:
    return any(name in inventory.files for name in _RUFF_FILES) or "[tool.ruff" in inventory.text("pyproject.toml")


def _eslint_directories(inventory: Inventory) -> list[str]:
    found = {str(PurePosixPath(path).parent) for path in inventory.files if PurePosixPath(path).name in _ESLINT_FILES}
    if "eslintConfig" in json_object(inventory.text("package.json")):
        found.add(".")
    return _outermost(found)


def _roots(inventory: Inventory, manifest: str) -> list[str]:
    return _outermost(
        str(PurePosixPath(path).parent) for path in inventory.files if PurePosixPath(path).name == manifest
    )


def _outermost(directories: Iterable[str]) -> list[str]:
    found: list[str] = []
    for directory in sorted(directories, key=lambda name: (name != ".", name.count("/"), name)):
        if not any(outer == "." or directory == outer or directory.startswith(f"{outer}/") for outer in found):
            found.append(directory)
    return found[:_MAX_PROJECTS]


def _within(paths: tuple[str, ...], directory: str) -> tuple[str, ...]:
    """The paths as seen from a directory; one that holds the directory stands for all of it."""
    if directory == ".":
        return paths
    below = [path.removeprefix(f"{directory}/") for path in paths if path.startswith(f"{directory}/")]
    if any(path in (".", directory) or directory.startswith(f"{path}/") for path in paths):
        return (".",)
    return tuple(below)


def _package(inventory: Inventory, directory: str, path: str) -> str:
    whole = path if directory == "." else f"{directory}/{path}"
    if whole in inventory.files:
        return f"./{PurePosixPath(path).parent}"
    return "./..." if path == "." else f"./{path}/..."
