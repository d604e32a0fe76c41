"""Plans for `go test` and `cargo test`: all tests, or some by package, file or name."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from swe_ai_fleet.domain.json_values import mapping, string
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import quoted
from swe_ai_fleet.tools.tests.inventory import Inventory, toml
from swe_ai_fleet.tools.tests.plan import Selection, SuitePlan, not_installed
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES

GO_ABSENT = not_installed("go", "Go")
GO_PACKAGE = re.compile(r"[a-z0-9][\w.~-]*\.[a-z]+(?:/[\w.~-]+)*")
"""An import path that begins with a host name, like nearly all."""
_ALL = ("./...",)
_MODULE = re.compile(r"^module\s+\"?([^\s\"]+)", re.M)
_VALUED = frozenset(
    {
        *("asmflags", "bench", "benchtime", "blockprofile", "count", "covermode", "coverpkg", "coverprofile", "cpu"),
        *("cpuprofile", "exec", "fuzz", "fuzztime", "gcflags", "ldflags", "list", "memprofile", "mod", "modfile"),
        *("mutexprofile", "o", "outputdir", "overlay", "p", "parallel", "pkgdir", "run", "shuffle", "skip", "tags"),
        *("timeout", "toolexec", "trace", "vet"),
    }
)


def go_plan(inventory: Inventory, root: str, selection: Selection, base: tuple[str, ...]) -> SuitePlan:
    """The plan for a module's tests. A file selects its package, `file::TestName` or `package::TestName` one test.

    A keyword is a Go regular expression.

    Args:
        root: The directory of go.mod, relative to the workspace.
        base: The repository's own command; the selection replaces its packages.

    Raises:
        ToolFailure: Names of tests combined with packages or a keyword, or tests to deselect.
    """
    options, own, rest = _read(base[2:])
    module = go_module(inventory.text("go.mod" if root == "." else f"{root}/go.mod"))
    split = [path.partition("::") for path in selection.paths]
    packages = dict.fromkeys(_package(inventory, root, path, module) for path, _, _ in split)
    names = [name for _, _, name in split if name]
    if names and (selection.keyword or len(names) < len(split)):
        raise ToolFailure("go runs either whole packages or tests by name: give them in calls of their own")
    if selection.deselect:
        raise ToolFailure("go cannot leave out single tests from here: name the packages to run instead")
    if names:
        options.append("-run=" + "|".join(dict.fromkeys(map(_pattern, names))))
    elif selection.keyword:
        options.append(f"-run={selection.keyword}")
    words = (*options, *(packages or own or _ALL), *rest)
    return SuitePlan(
        framework="go",
        argv=(*base[:2], "-json", *words),
        typed=(*base[:2], *words),
        absent=GO_ABSENT,
        cwd=root,
        stream="go",
        output_limit=MAX_REPORT_BYTES // 2,
    )


def go_module(manifest: str) -> str:
    """The import path in the text of a go.mod; empty if it has none."""
    match = _MODULE.search(manifest)
    return match[1] if match else ""


def _read(words: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """(options, each as one word; packages; `-args` and the words after it) of a command."""
    cut = words.index("-args") if "-args" in words else len(words)
    options: list[str] = []
    packages: list[str] = []
    given = iter(words[:cut])
    for word in given:
        if not word.startswith("-"):
            packages.append(word)
        elif word.lstrip("-") in _VALUED:
            options.append(f"{word}={next(given, '')}")
        elif word not in ("-json", "--json"):
            options.append(word)
    return options, packages, list(words[cut:])


def _package(inventory: Inventory, root: str, path: str, module: str) -> str:
    if module and (path == module or path.startswith(f"{module}/")) and not inventory.has(path):
        return path
    directory = str(PurePosixPath(path).parent) if path in inventory.files else path
    below = directory if root == "." else directory.removeprefix(root).removeprefix("/") or "."
    if path in inventory.files:
        return "." if below == "." else f"./{below}"
    # A directory selects everything below it, as with the other runners.
    return "./..." if below == "." else f"./{below}/..."


def _pattern(name: str) -> str:
    """A Go regular expression that matches one test or subtest."""
    if not re.fullmatch(r"[^\s|]{1,500}", name):
        raise ToolFailure(f"{quoted(name)} is not the name of a Go test")
    return "/".join(f"^{re.escape(part)}$" for part in name.split("/"))


DOCUMENTATION = " (documentation)"
"""The suffix of ids of documentation tests; cargo does not run them with their file."""
CARGO_ABSENT = not_installed("cargo", "a Rust toolchain")
# Crates whose tests compare the compiler's output, which differs while unstable options are allowed.
_COMPARES_COMPILERS = re.compile(r"^[^\S\n]*(?:trybuild|ui_test|compiletest\w*)\s*[.=]", re.M)


def cargo_variables(scratch: str) -> dict[str, str]:
    """Variables for cargo's build directory and output."""
    return {"CARGO_TARGET_DIR": f"{scratch}/fleet-cargo-target", "CARGO_TERM_COLOR": "never", "RUST_BACKTRACE": "0"}


def cargo_plan(
    inventory: Inventory,
    root: str,
    selection: Selection,
    scratch: str,
    base: tuple[str, ...],
    *,
    programs: str,
    mount: str,
    python: tuple[str, ...],
) -> SuitePlan:
    """The plan for a crate's tests.

    `tests/x.rs` selects that target, `src/a/b.rs` the tests of its module, `file::name` one test.

    Args:
        root: The directory of Cargo.toml, relative to the workspace.
        scratch: The directory for temporary files, as commands see it.
        programs: The directory of the fleet's program that reports each test.
        mount: Where commands see the workspace.
        python: The argv of the Python for that program.

    Raises:
        ToolFailure: A path that selects no tests, or a selection that cargo does not support.
    """
    options: dict[str, None] = {}
    modules: dict[str, None] = {}
    names: dict[str, None] = {}
    crates: dict[str, None] = {}
    for path in selection.paths:
        file, _, name = path.partition("::")
        crate = _crate(inventory, root, file)
        if crate != root:
            crates[crate] = None
        chosen, module = _target(inventory, crate, file)
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
        # Filters on names apply to all targets, so our program applies those for modules to the crate's own targets.
        options |= dict.fromkeys(_roots(inventory, root if not crates else next(iter(crates))))
    reports = not _COMPARES_COMPILERS.search(inventory.text(str(PurePosixPath(root, "Cargo.toml"))))
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
    return SuitePlan(
        framework="cargo",
        argv=(*base[:2], "--no-fail-fast", *own, *words, *tail),
        typed=(*base[:2], *words, *tail),
        absent=CARGO_ABSENT,
        cwd=root,
        variables={
            **cargo_variables(scratch),
            **({"FLEET_TEST_ROOT": mount} if reports else {}),
            **({"FLEET_TEST_OPTIONS": json.dumps(steering)} if any(steering.values()) else {}),
        },
        stream="cargo" if reports else "output",
        output_limit=MAX_REPORT_BYTES // 2,
        transient=locks(inventory, root),
    )


def locks(inventory: Inventory, root: str) -> tuple[str, ...]:
    """The missing lock files that cargo will write: the crate's own, or that of its workspace above it."""
    directory = PurePosixPath(root)
    crates = [crate for crate in (directory, *directory.parents) if str(crate / "Cargo.toml") in inventory.files]
    return tuple(lock for crate in crates if not inventory.has(lock := str(crate / "Cargo.lock")))


def _crate(inventory: Inventory, root: str, path: str) -> str:
    """The directory of a path's crate, at or below the root."""
    for directory in (PurePosixPath(path), *PurePosixPath(path).parents):
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
    """(options that select the targets of a path, the prefix of its tests' names)."""
    below = PurePosixPath(path if root == "." else path.removeprefix(root).removeprefix("/") or ".")
    match below.parts:
        case ():
            return [], ""
        case ("src",) | ("src", "lib.rs"):
            return ["--lib"], ""
        case ("src", "main.rs"):
            return ["--bins"], ""
        case ("src", "bin", name, *_):
            return [f"--bin={PurePosixPath(name).stem}"], ""
        case ("src", *_):
            module = below.parent if below.name == "mod.rs" else below.with_suffix("")
            if not all(part.isidentifier() for part in module.parts[1:]):
                raise ToolFailure(f"{quoted(path)} is not a Rust module; use keyword to choose tests")
            return [], "::".join(module.parts[1:]) + "::"
        case ("tests",):
            return ["--test=*"], ""
        case ("tests", name, _, *_) if f"{path.partition('tests/')[0]}tests/{name}/main.rs" not in inventory.files:
            return ["--test=*"], ""  # shared by several targets
        case ("tests", name, *_):
            return [f"--test={PurePosixPath(name).stem}"], ""
        case _:
            if path not in inventory.files and f"{path}/Cargo.toml" in inventory.files:
                return [], ""
            raise ToolFailure(
                f"{quoted(path)} selects no tests of cargo's: name a file in src or tests, or use keyword"
            )
