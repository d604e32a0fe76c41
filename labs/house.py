"""`make house`: how large the house is: lines by package, modules above their limit, and what tests import of it."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT, TESTS = ("src/swe_ai_fleet", "services", "workers"), ("tests",)
EXTENSIONS = ("src/swe_ai_fleet/extensions/", "workers/")
MOST_LINES = 400
LISTS = {"src/swe_ai_fleet/domain/event.py", "src/swe_ai_fleet/settings.py", "src/swe_ai_fleet/ports.py"}
"""Modules that may be longer."""


def files(*rooms: str) -> list[str]:
    """The Python files that git knows below these folders."""
    listed = subprocess.run(["git", "ls-files", "--", *rooms], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if name.endswith(".py") and (ROOT / name).exists()]


def lines(name: str) -> int:
    return (ROOT / name).read_text(encoding="utf-8").count("\n")


def package(name: str) -> str:
    """What a file is counted with: the folder below the product's or the tests' root."""
    parts = name.removeprefix("src/swe_ai_fleet/").split("/")
    depth = 2 if parts[0] in ("extensions", "tests", "services", "adapters") else 1
    return "/".join(parts[:-1][:depth]) or "(single modules)"


def imported(name: str, modules: dict[str, str]) -> Iterator[str]:
    """The product's modules that a file imports."""
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules or node.module in modules:
                    yield inner if inner in modules else node.module


def main() -> None:
    product, tests = files(*PRODUCT), files(*TESTS)
    for title, names in (("product", product), ("tests", tests)):
        sizes = Counter[str]()
        for name in names:
            sizes[package(name)] += lines(name)
        print(f"{title}: {sum(sizes.values()):,} lines in {len(names)} modules")
        for room, size in sizes.most_common():
            print(f"  {size:>7,}  {room}")
    core = sum(lines(name) for name in product if not name.startswith(EXTENSIONS))
    print(f"core: {core:,} lines of the product, without extensions and their programs")
    modules = {name.removeprefix("src/").removesuffix(".py").replace("/", "."): name for name in product}
    modules = {dotted.removesuffix(".__init__"): name for dotted, name in modules.items()}
    used = {module for name in tests for module in imported(name, modules)}
    print(f"tests import {len(used)} of {len(modules)} modules of the product")
    longer = {name: size for name in product if name not in LISTS and (size := lines(name)) > MOST_LINES}
    print(f"{len(longer)} modules have more than {MOST_LINES} lines, beside the lists that may:")
    for name, size in sorted(longer.items(), key=lambda entry: -entry[1]):
        print(f"  {size:>7,}  {name}")


if __name__ == "__main__":
    main()
