"""`go test` on packages or by name; its events are read as they come."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.files.paths import quoted
from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES
from swe_ai_fleet.tools.tests.runners.go_reports import parse_go_output
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, not_installed

GO_ABSENT = not_installed("go", "Go")
GO_PACKAGE = re.compile(r"[a-z0-9][\w.~-]*\.[a-z]+(?:/[\w.~-]+)*")
"""An import path that begins with a host's name, as nearly all do."""
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


def go_plan(
    inventory: Inventory, root: str, selection: Selection, base: tuple[str, ...] = ("go", "test", "./...")
) -> Plan:
    """How to run a module's tests. A file selects its package, `file::TestName` or `package::TestName` one test.

    A keyword is a regular expression of Go's.

    Args:
        root: The directory of go.mod, relative to the workspace.
        base: The repository's own command; its packages are replaced by the selection's.

    Raises:
        ToolFailure: Names of tests beside whole packages or a keyword, or names to leave out.
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
    return Plan(
        framework="go",
        argv=(*base[:2], "-json", *words),
        told=(*base[:2], *words),
        absent=GO_ABSENT,
        cwd=root,
        stream="go",
        read_output=parse_go_output,
        output_limit=MAX_REPORT_BYTES // 2,
    )


def go_module(manifest: str) -> str:
    """The import path in the text of a go.mod; empty where it has none."""
    match = _MODULE.search(manifest)
    return match[1] if match else ""


def _read(words: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """(options, each in one word; packages; `-args` and what follows it) of a command."""
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
    # A directory stands for everything below it, as it does for the other runners.
    return "./..." if below == "." else f"./{below}/..."


def _pattern(name: str) -> str:
    """A regular expression of Go's that matches one test or subtest."""
    if not re.fullmatch(r"[^\s|]{1,500}", name):
        raise ToolFailure(f"{quoted(name)} is not the name of a Go test")
    return "/".join(f"^{re.escape(part)}$" for part in name.split("/"))
