"""Go modules and Rust crates: fetched once, and read-only afterwards."""

from __future__ import annotations

import re
from dataclasses import replace

from swe_ai_fleet.domain.environment import Decision
from swe_ai_fleet.environments.interpreters import Machine
from swe_ai_fleet.environments.recipe import Recipe, Step
from swe_ai_fleet.environments.repository_files import RepositoryFiles

_GO = re.compile(r"^(go \d[\w.]*)", re.M)
_RUST = re.compile(r"^(rust-version\s*=\s*\S+)", re.M)


def toolchain_recipe(files: RepositoryFiles, directory: str, machine: Machine, base: str) -> Recipe:
    """What Go and Rust in a directory need, as far as the machine has them."""
    steps: list[Step] = []
    variables: dict[str, str] = {}
    building: dict[str, str] = {}
    decisions: list[Decision] = []
    module = next(iter(files.named(directory, "go.mod")), "")
    # A module without requirements has no sums.
    if module and "go" in machine.programs and ("require" in files.text(module)):
        modules = f"{base}/go/mod"
        download = Step(argv=("go", "mod", "download"), purpose="the Go modules", source=module, directory=directory)
        steps.append(replace(download, third_party=True))
        variables |= {"GOMODCACHE": modules, "GOTOOLCHAIN": "local"}
        building |= {**variables, "GOFLAGS": "-modcacherw", "GOCACHE": "/tmp/go-build"}  # noqa: S108
    crate = next(iter(files.named(directory, "Cargo.toml")), "")
    if crate and "cargo" in machine.programs:
        locked = ("--locked",) if files.nearest(directory, "Cargo.lock") else ()
        fetch = Step(argv=("cargo", "fetch", *locked), purpose="the Rust crates", source=crate, directory=directory)
        steps.append(fetch)
        variables["CARGO_HOME"] = f"{base}/cargo"
    for name, manifest, version in (("go", module, _GO), ("cargo", crate, _RUST)):
        if manifest and name not in machine.programs:
            decisions.append(Decision(what=f"this machine has no {name}", source=manifest))
        elif wanted := version.search(files.text(manifest)):
            decisions.append(Decision(what=f"it asks for {wanted[1]}; this machine's {name} is used", source=manifest))
    return Recipe(steps=tuple(steps), variables=variables, build_variables=building, decisions=tuple(decisions))
