"""What is kept of a build beside its files; a build is complete once it stands there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet import codec
from swe_ai_fleet.adapters.git_workspace.furnishing import Furnishing
from swe_ai_fleet.domain.environment import EnvironmentReport

_FACTS = "facts.json"
_FURNISHING = "furnishing.json"
_NPM_LOCK = "npm-lock.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is kept of a build, beside its files.

    `tree` is set where the build left files that may depend on anything: they belong to that content only. `code` is
    set where something of the content that it was made from may have run: then it is for what stands on that content
    only. `retry_at` is set where nothing could be installed: from that moment on (seconds since the epoch) it is built
    once more.
    """

    report: EnvironmentReport
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    python: tuple[int, int] | None = None
    tree: str = ""
    code: str = ""
    retry_at: float = 0.0


def read_facts(directory: Path) -> Facts | None:
    """What was kept of a complete build in a directory, None where there is none. Blocking."""
    try:
        text = (directory / _FACTS).read_bytes()
        os.utime(directory)
    except FileNotFoundError:
        return None
    return codec.from_json(Facts, text)


def write_facts(directory: Path, facts: Facts, furnishing: Furnishing, *, npm_lock: str = "") -> None:
    """Complete a build. Blocking."""
    if npm_lock:
        (directory / _NPM_LOCK).write_text(npm_lock, encoding="utf-8")
    if furnishing:
        (directory / _FURNISHING).write_bytes(codec.to_json(furnishing))
    draft = directory / f".{_FACTS}"
    draft.write_bytes(codec.to_json(facts))
    draft.rename(directory / _FACTS)


def read_npm_lock(directory: Path) -> str:
    """What npm installed in a build, as a package-lock.json; empty where it did nothing. Blocking."""
    try:
        return (directory / _NPM_LOCK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def read_furnishing(directory: Path) -> Furnishing:
    """What the clones of a build are furnished with. Blocking."""
    try:
        return codec.from_json(Furnishing, (directory / _FURNISHING).read_bytes())
    except FileNotFoundError:
        return Furnishing()
