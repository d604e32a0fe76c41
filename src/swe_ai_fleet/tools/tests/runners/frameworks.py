"""Which framework a test command belongs to."""

from __future__ import annotations

from pathlib import PurePosixPath

_KNOWN = (("go", "test"), ("cargo", "test"), ("npm", "test"))


def framework_of(argv: tuple[str, ...]) -> str:
    """`pytest`, `unittest`, `go`, `cargo`, `npm` or `make`; empty for any other command."""
    if is_pytest(argv):
        return "pytest"
    if is_unittest(argv):
        return "unittest"
    if argv[:1] == ("make",) and len(argv) == 2:
        return "make"
    return argv[0] if argv[:2] in _KNOWN else ""


def is_pytest(argv: tuple[str, ...]) -> bool:
    """Whether a test command is pytest's: by its own name, as a module, or behind `uv run` and its like."""
    names = [PurePosixPath(word).name in ("pytest", "py.test") for word in argv]
    return any(named and (i == 0 or argv[i - 1] in ("-m", "run")) for i, named in enumerate(names))


def is_unittest(argv: tuple[str, ...]) -> bool:
    """Whether a test command runs `python -m unittest`."""
    return len(argv) >= 3 and PurePosixPath(argv[0]).name.startswith("python") and argv[1:3] == ("-m", "unittest")
