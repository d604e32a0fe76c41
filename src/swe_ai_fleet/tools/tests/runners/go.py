"""`go test` on packages or by name, with its events as the report."""

from __future__ import annotations

from pathlib import PurePosixPath

from swe_ai_fleet.tools.tests.reports import MAX_REPORT_BYTES
from swe_ai_fleet.tools.tests.runners.go_reports import parse_go
from swe_ai_fleet.tools.tests.runners.inventory import Inventory
from swe_ai_fleet.tools.tests.runners.plan import Plan, Selection, not_installed

GO_ABSENT = not_installed("go", "Go")
_ALL = ("./...",)


def go_plan(
    inventory: Inventory, root: str, selection: Selection, base: tuple[str, ...] = ("go", "test", "./...")
) -> Plan:
    """How to run a module's tests. A file selects its package; a keyword is a regular expression of Go's.

    Args:
        root: The directory of go.mod, relative to the workspace.
        base: The repository's own command; its packages are replaced by the selection's.
    """
    options = [word for word in base[2:] if word.startswith("-") and word != "-json"]
    packages = tuple(dict.fromkeys(_package(inventory, root, path) for path in selection.paths)) or tuple(
        word for word in base[2:] if not word.startswith("-")
    )
    if selection.keyword:
        options.append(f"-run={selection.keyword}")
    words = (*options, *(packages or _ALL))
    return Plan(
        framework="go",
        argv=(*base[:2], "-json", *words),
        told=(*base[:2], *words),
        absent=GO_ABSENT,
        cwd=root,
        stream="output",
        read_output=parse_go,
        output_limit=MAX_REPORT_BYTES // 2,
    )


def _package(inventory: Inventory, root: str, path: str) -> str:
    directory = str(PurePosixPath(path).parent) if path in inventory.files else path
    below = directory if root == "." else directory.removeprefix(root).removeprefix("/") or "."
    if path in inventory.files:
        return "." if below == "." else f"./{below}"
    # A directory stands for everything below it, as it does for the other runners.
    return "./..." if below == "." else f"./{below}/..."
