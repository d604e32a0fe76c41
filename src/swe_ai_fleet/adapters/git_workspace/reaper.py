"""The reaper: takes away what processes that are gone have left, and what nobody has used for long."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import remove_tree
from swe_ai_fleet.adapters.git_workspace.locks import try_lock

_DRAFT_AGE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long things stay unused before they go, in seconds. A pin holds its seed for at most `pin`.

    A cache that holds a delivered commit stays.
    """

    seed: float = 2 * 86_400.0
    pin: float = 30 * 86_400.0
    environment: float = 14 * 86_400.0
    cache: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What was taken away, by number."""

    workspaces: int = 0
    seeds: int = 0
    environments: int = 0
    caches: int = 0


def reap(home: Path, ages: Ages) -> Reaped:
    """One round over a node's home. Blocking; safe beside any number of processes at work there."""
    workspaces = _reap_workspaces(home / "workspaces")
    pinned = pins_of(home / "pins", ages.pin)
    seeds = 0
    for seed in _directories(home / "seeds", depth=2):
        if f"{seed.parent.name}-{seed.name}" not in pinned and age_of(seed) > ages.seed:
            seeds += remove_unused(seed, home / "trash")
    environments = 0
    for environment in _directories(home / "environments", depth=1):
        is_held = environment.name == "probe" or f"environment-{environment.name}" in pinned
        if not is_held and age_of(environment) > ages.environment:
            environments += remove_unused(environment, home / "trash")
    caches = 0
    for cache in _directories(home / "repositories", depth=1):
        if age_of(cache) > ages.cache and not entries_of(cache / "refs/fleet/delivered"):
            caches += remove_unused(cache, home / "trash")
    for place in (home / "scratch", home / "trash"):
        for leftover in entries_of(place):
            if leftover.is_dir() and not leftover.is_symlink() and age_of(leftover) > _DRAFT_AGE_SECONDS:
                remove_tree(leftover)
    shared = ((1, home / name) for name in ("environments", "tools", "repositories"))
    for depth, place in ((2, home / "seeds"), *shared):
        for draft in _directories(place, depth=depth, drafts=True):
            if age_of(draft) > _DRAFT_AGE_SECONDS:
                remove_tree(draft)
    return Reaped(workspaces=workspaces, seeds=seeds, environments=environments, caches=caches)


def release(home: Path, execution_id: str) -> None:
    """Drop an execution's pins and the workspaces of its that no live process holds. Blocking."""
    remove_tree(home / "pins" / execution_id)
    _reap_workspaces(home / "workspaces", only=execution_id)


def _reap_workspaces(home: Path, only: str = "") -> int:
    reaped = 0
    for execution in [home / only] if only else _directories(home, depth=1):
        for lock in [entry for entry in entries_of(execution) if entry.suffix == ".lock"]:
            held = try_lock(lock)
            if held is None:
                continue  # its process lives
            try:
                remove_tree(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
                reaped += 1
            finally:
                os.close(held)
        try:
            execution.rmdir()
        except OSError:
            continue  # not empty, or gone already
    return reaped


def pins_of(home: Path, age: float) -> set[str]:
    """What executions hold, those pins aside that are older than so many seconds. Blocking."""
    found: set[str] = set()
    for execution in _directories(home, depth=1):
        for pin in entries_of(execution):
            if age_of(pin) > age:
                pin.unlink(missing_ok=True)
            else:
                found.add(pin.name)
    return found


def remove_unused(directory: Path, trash: Path) -> int:
    """Remove a directory that others may be about to use; how many that were. Blocking."""
    # Out of sight first: nobody can begin to use a thing half removed.
    trash.mkdir(exist_ok=True)
    try:
        hidden = directory.rename(trash / f"{directory.name}-{time.monotonic_ns()}")
    except FileNotFoundError:
        return 0
    remove_tree(hidden)
    return 1


def age_of(path: Path) -> float:
    """Seconds since the last use; 0 where there is nothing. Blocking."""
    try:
        return time.time() - path.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def entries_of(directory: Path) -> list[Path]:
    """What a directory holds, in order; nothing where there is none. Blocking."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _directories(directory: Path, *, depth: int, drafts: bool = False) -> list[Path]:
    found = [directory]
    for level in range(depth):
        last = level == depth - 1
        found = [
            entry
            for parent in found
            for entry in entries_of(parent)
            if entry.is_dir() and (not last or entry.name.startswith(".new-") == drafts)
        ]
    return found
