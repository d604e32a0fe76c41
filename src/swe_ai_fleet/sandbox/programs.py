"""The fleet's own code inside a sandbox, for programs of ours that work on what must not be worked on outside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory of this host and where a sandbox shows it, read-only. Without a sandbox only `outside` exists."""

    outside: str
    inside: str


@cache
def code() -> Place:
    """The fleet's own package."""
    return Place(outside=str(Path(__file__).parents[1]), inside="/run/fleet/swe_ai_fleet")


@cache
def packages() -> Place:
    """What is installed beside it, the parsers among it; nothing puts that on the path of the workspace's programs."""
    found = find_spec("tree_sitter")
    origin = found.origin if found is not None else None
    # Whoever has no parsers has no packages worth a mount either.
    return Place(outside=str(Path(origin).parents[1]) if origin else code().outside, inside="/run/fleet/packages")
