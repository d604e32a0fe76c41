"""`cargo test` on targets or by name; what it builds stays out of the repository."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import mapping, string
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import quoted
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, not_installed
from swe_ai_fleet.tools.tests.runners.text_reports import parse_cargo_output
from swe_ai_fleet.tools.tests.runners.values import toml

DOCUMENTATION = " (documentation)"
"""What ids of documentation tests end with; cargo does not run them with their file."""
CARGO_ABSENT = not_installed("cargo", "a Rust toolchain")
# Their tests compare what the compiler says, which differs while unstable options are allowed.
_COMPARES_COMPILERS = re.compile(r"^[^\S\n]*(?:trybuild|ui_test|compiletest\w*)\s*[.=]", re.M)


def cargo_variables(scratch: str) -> dict[str, str]:
    """Where cargo builds, and how it prints."""
    return {"CARGO_TARGET_DIR": f"{scratch}/fleet-cargo-target", "CARGO_TERM_COLOR": "never", "RUST_BACKTRACE": "0"}


def cargo_plan(
    inventory: Inventory,
    root: str,
    selection: Selection,
    scratch: str,
    base: tuple[str, ...] = ("cargo", "test"),
    *,
    programs: str = "",
    mount: str = "",
    python: tuple[str, ...] = (),
) -> Plan:
    """How to run a crate's tests.

    `tests/x.rs` selects that target, `src/a/b.rs` the tests of its module, `file::name` one test.

    Args:
        root: The directory of Cargo.toml, relative to the workspace.
        scratch: The directory for temporary files, as commands see it.
        programs: Where our program lies that reports each test; empty: what cargo prints tells.
        mount: Where commands see the workspace.
        python: The argv of the Python that our program runs with.

    Raises:
        ToolFailure: A path that selects no tests, or a selection that cargo cannot be given.
    """
    options: dict[str, None] = {}
    modules: dict[str, None] = {}
    names: dict[str, None] = {}
    crates: dict[str, None] = {}
    for path in selection.paths:
        place, _, name = path.partition("::")
        crate = _crate(inventory, root, place)
        if crate != root:
            crates[crate] = None
        chosen, module = _target(inventory, crate, place)
        options |= dict.fromkeys(chosen)
        if name:
            names[name if name.startswith(module) else module + name] = None
        elif module:
            modules[module] = None
    if (names and (modules or selection.keyword or len(selection.paths) > len(names))) or (
        modules and selection.keyword
    ):
        raise ToolFailure("cargo cannot combine files with names or a keyword: give either, or 'module::name'")
    if modules and options:
        # Filters on names hold for all targets that are run, so those of the modules are run by ours alone.
        options |= dict.fromkeys(_roots(inventory, root if not crates else next(iter(crates))))
    reports = bool(programs) and not _COMPARES_COMPILERS.search(inventory.text(str(PurePosixPath(root, "Cargo.toml"))))
    if not reports and (selection.deselect or (modules and options)):
        raise ToolFailure(
            "cargo cannot be given this selection here: name modules, targets or tests in calls of their own"
        )
    filters = ("--exact", *names) if names else ((selection.keyword,) if selection.keyword else ())
    if modules and not options:
        filters = tuple(modules)
    packages = tuple(f"--package={_name(inventory, crate)}" for crate in crates)
    cut = base.index("--") if "--" in base else len(base)
    words = (*base[2:cut], *packages, *options)
    rest = (*base[cut + 1 :], *filters)
    steering = {"deselect": selection.deselect, "modules": list(modules) if options else []}
    runner = json.dumps([*python, "-I", "-S", "-B", f"{programs}/fleet_cargo.py"])
    own = ("--config", f"target.'cfg(all())'.runner={runner}") if reports else ()
    tail = ("--", *rest) if rest else ()
    return Plan(
        framework="cargo",
        argv=(*base[:2], "--no-fail-fast", *own, *words, *tail),
        told=(*base[:2], *words, *tail),
        absent=CARGO_ABSENT,
        cwd=root,
        variables={
            **cargo_variables(scratch),
            **({"FLEET_TEST_ROOT": mount} if reports else {}),
            **({"FLEET_TEST_OPTIONS": json.dumps(steering)} if any(steering.values()) else {}),
        },
        stream="cargo" if reports else "output",
        read_output=parse_cargo_output,
        output_limit=MAX_REPORT_BYTES // 2,
        transient=locks(inventory, root),
    )


def locks(inventory: Inventory, root: str) -> tuple[str, ...]:
    """The lock files that cargo writes where a crate has none: its own, or its workspace's above it."""
    place = PurePosixPath(root)
    return tuple(
        str(directory / "Cargo.lock")
        for directory in (place, *place.parents)
        if str(directory / "Cargo.toml") in inventory.files
    )


def _crate(inventory: Inventory, root: str, path: str) -> str:
    """The directory of the crate that a path belongs to, at or below the root."""
    place = PurePosixPath(path)
    for directory in (place, *place.parents):
        if str(directory) == root or str(directory / "Cargo.toml") in inventory.files:
            return str(directory)
    return root


def _name(inventory: Inventory, crate: str) -> str:
    name = string(mapping(toml(inventory.text(f"{crate}/Cargo.toml")), "package").get("name"))
    if not name:
        raise ToolFailure(f"{quoted(crate)}/Cargo.toml names no package")
    return name


def _roots(inventory: Inventory, crate: str) -> list[str]:
    """The options that select a crate's library and programs."""
    prefix = "" if crate == "." else f"{crate}/"
    manifest = toml(inventory.text(f"{prefix}Cargo.toml"))
    library = "lib" in manifest or f"{prefix}src/lib.rs" in inventory.files
    programs = "bin" in manifest or any(path.startswith(f"{prefix}src/bin/") for path in inventory.files)
    return [
        *(["--lib"] if library else []),
        *(["--bins"] if programs or f"{prefix}src/main.rs" in inventory.files else []),
    ]


def _target(inventory: Inventory, root: str, path: str) -> tuple[list[str], str]:
    """(options that select targets, the beginning of the names of its tests) for one path."""
    below = path if root == "." else path.removeprefix(root).removeprefix("/") or "."
    place = PurePosixPath(below)
    match place.parts:
        case ():
            return [], ""
        case ("src",) | ("src", "lib.rs"):
            return ["--lib"], ""
        case ("src", "main.rs"):
            return ["--bins"], ""
        case ("src", "bin", name, *_):
            return [f"--bin={PurePosixPath(name).stem}"], ""
        case ("src", *_):
            module = place.parent if place.name == "mod.rs" else place.with_suffix("")
            if not all(part.isidentifier() for part in module.parts[1:]):
                raise ToolFailure(f"{quoted(path)} is not a Rust module; use keyword to choose tests")
            return [], "::".join(module.parts[1:]) + "::"
        case ("tests",):
            return ["--test=*"], ""
        case ("tests", name, _, *_) if f"{path.partition('tests/')[0]}tests/{name}/main.rs" not in inventory.files:
            return ["--test=*"], ""  # what several targets share
        case ("tests", name, *_):
            return [f"--test={PurePosixPath(name).stem}"], ""
        case _:
            if path not in inventory.files and f"{path}/Cargo.toml" in inventory.files:
                return [], ""
            raise ToolFailure(
                f"{quoted(path)} selects no tests of cargo's: name a file in src or tests, or use keyword"
            )
