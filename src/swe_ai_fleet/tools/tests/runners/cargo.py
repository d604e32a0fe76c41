"""`cargo test` on targets or by name; what it builds stays out of the repository."""

from __future__ import annotations

from pathlib import PurePosixPath

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import shown
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES
from swe_ai_fleet.tools.tests.runners.cargo_reports import parse_cargo_output
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, not_installed

CARGO_ABSENT = not_installed("cargo", "a Rust toolchain")


def cargo_variables(scratch: str) -> dict[str, str]:
    """Where cargo builds, and how it prints."""
    return {"CARGO_TARGET_DIR": f"{scratch}/fleet-cargo-target", "CARGO_TERM_COLOR": "never", "RUST_BACKTRACE": "0"}


def cargo_plan(
    inventory: Inventory, root: str, selection: Selection, scratch: str, base: tuple[str, ...] = ("cargo", "test")
) -> Plan:
    """How to run a crate's tests. `tests/x.rs` selects that target, `src/a/b.rs` the tests of its module.

    Args:
        root: The directory of Cargo.toml, relative to the workspace.
        scratch: The directory for temporary files, as commands see it.

    Raises:
        ToolFailure: A path that selects no tests.
    """
    targets: list[str] = []
    filters: list[str] = [selection.keyword] if selection.keyword else []
    for path in selection.paths:
        target, filtered = _target(inventory, root, path)
        targets += target
        filters += filtered
    if len({*filters}) > 1 and selection.keyword:
        raise ToolFailure("cargo cannot combine modules with a keyword: give either, or a keyword as 'module::name'")
    words = (*base[2:], *dict.fromkeys(targets), *(("--", *dict.fromkeys(filters)) if filters else ()))
    return Plan(
        framework="cargo",
        argv=(*base[:2], "--no-fail-fast", *words),
        told=(*base[:2], *words),
        absent=CARGO_ABSENT,
        cwd=root,
        variables=cargo_variables(scratch),
        stream="output",
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


def _target(inventory: Inventory, root: str, path: str) -> tuple[list[str], list[str]]:
    """(options that select targets, filters on names) for one path."""
    below = path if root == "." else path.removeprefix(root).removeprefix("/") or "."
    place = PurePosixPath(below)
    match place.parts:
        case ():
            return [], []
        case ("src",) | ("src", "lib.rs"):
            return ["--lib"], []
        case ("src", "main.rs"):
            return ["--bins"], []
        case ("src", "bin", name, *_):
            return [f"--bin={PurePosixPath(name).stem}"], []
        case ("src", *_):
            module = place.parent if place.name == "mod.rs" else place.with_suffix("")
            if not all(part.isidentifier() for part in module.parts[1:]):
                raise ToolFailure(f"{shown(path)} is no module of Rust's; use keyword to choose tests")
            return [], ["::".join(module.parts[1:]) + "::"]
        case ("tests",):
            return ["--test=*"], []
        case ("tests", name, *_):
            return [f"--test={PurePosixPath(name).stem}"], []
        case _:
            if path not in inventory.files and f"{path}/Cargo.toml" in inventory.files:
                return [], []
            raise ToolFailure(f"{shown(path)} selects no tests of cargo's: name a file in src or tests, or use keyword")
