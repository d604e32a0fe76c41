"""Generates the Python code of the public contract: ``proto/`` -> ``src/fleet/``.

``--check`` generates into a temporary directory instead and fails where ``src/fleet/`` differs.
"""

import argparse
import difflib
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
SOURCE = ROOT / "src"
PACKAGE = "fleet"
SUFFIXES = {".py", ".pyi"}
DIFF_LINES = 40
LINE_LENGTH = 160  # of a shown diff line; descriptors are one very long line


def generate(out: Path) -> None:
    """Writes the package of generated code below ``out``; raises RuntimeError where protoc refuses."""
    names = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", "-I", str(PROTO), "-I", str(well_known)]
    arguments += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main([*arguments, *names]) != 0:
        raise RuntimeError("protoc failed")
    root = out / PACKAGE
    for package in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        (package / "__init__.py").touch()


def read(root: Path) -> dict[str, str]:
    """The text of every generated file below ``root``, by its relative path."""
    paths = (path for path in (root / PACKAGE).rglob("*") if path.suffix in SUFFIXES)
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def drift(current: dict[str, str], expected: dict[str, str]) -> list[str]:
    """What differs, as lines to print; empty when nothing does."""
    lines: list[str] = []
    for name in sorted(current.keys() | expected.keys()):
        if name not in current:
            lines.append(f"missing: {name}")
        elif name not in expected:
            lines.append(f"left over: {name}")
        elif current[name] != expected[name]:
            lines.append(f"differs: {name}")
            changed = difflib.unified_diff(
                current[name].splitlines(), expected[name].splitlines(), "committed", "generated", lineterm="", n=0
            )
            lines += [f"  {line[:LINE_LENGTH]}" for line in changed]
    return lines


def replace(expected: dict[str, str]) -> None:
    """Makes ``src/fleet/`` hold exactly the expected files."""
    for name in read(SOURCE).keys() - expected.keys():
        (SOURCE / name).unlink()
    for name, text in expected.items():
        path = SOURCE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Exit status: 0 done or no drift, 1 drift."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the generated code differs")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        expected = read(Path(directory))
    if not check:
        replace(expected)
        return 0
    lines = drift(read(SOURCE), expected)
    if lines:
        print(*lines[:DIFF_LINES], sep="\n", file=sys.stderr)
        if len(lines) > DIFF_LINES:
            print(f"... {len(lines) - DIFF_LINES} lines more", file=sys.stderr)
        print("Run scripts/generate_proto.py and commit src/fleet.", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
