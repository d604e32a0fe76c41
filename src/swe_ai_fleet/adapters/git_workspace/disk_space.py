"""Disk space of a node: the reaper removes unused directories and those of dead processes, and tenants have limits.

A tenant's limit applies to its environments, images, seeds and repository caches.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import locked, try_lock
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.sandbox.disk import measure, remove_tree
from swe_ai_fleet.sandbox.uninterrupted import uninterrupted

_DRAFT_AGE_SECONDS = 24 * 3600.0
# A directory is used soon after it was looked up; for longer use executions pin it.
_SETTLED_SECONDS = 600.0
# A cache may have commits that exist nowhere else, until their execution begins.
_CACHE_SETTLED_SECONDS = 24 * 3600.0
_CACHES = "repositories"
# Prefixes of the pins' names; a seed's pin has none.
_PINNED_AS = {"environments": "environment-", "images": "image-"}
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Seconds after which unused directories are removed. A pin protects its seed for at most `pin`.

    A cache with a delivered commit is kept.
    """

    seed: float = 2 * 86_400.0
    pin: float = 30 * 86_400.0
    environment: float = 14 * 86_400.0
    image: float = 14 * 86_400.0
    cache: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCounts:
    """The numbers of removed directories."""

    workspaces: int = 0
    seeds: int = 0
    environments: int = 0
    caches: int = 0
    images: int = 0


def reap(home: Path, ages: Ages) -> RemovedCounts:
    """Reap a node's home once. Blocking; safe while other processes use it."""
    workspaces = _reap_workspaces(home / "workspaces")
    pinned = pins_of(home / "pins", ages.pin)
    seeds = 0
    for seed in _directories(home / "seeds", depth=2):
        if f"{seed.parent.name}-{seed.name}" not in pinned and age_of(seed) > ages.seed:
            seeds += remove_unused(seed, home / "trash")
    unused = {"environments": 0, "images": 0}
    for kind, age in (("environments", ages.environment), ("images", ages.image)):
        for directory in _directories(home / kind, depth=1):
            is_used = directory.name in ("probe", "granted") or f"{_PINNED_AS[kind]}{directory.name}" in pinned
            if not is_used and age_of(directory) > age:
                unused[kind] += remove_unused(directory, home / "trash")
    caches = 0
    for cache in _directories(home / "repositories", depth=1):
        if age_of(cache) > ages.cache and not entries_of(cache / "refs/fleet/delivered"):
            caches += remove_unused(cache, home / "trash")
    for parent in (home / "scratch", home / "trash"):
        for leftover in entries_of(parent):
            if leftover.is_dir() and not leftover.is_symlink() and age_of(leftover) > _DRAFT_AGE_SECONDS:
                remove_tree(leftover)
    shared = ((1, home / name) for name in ("environments", "images", "tools", "repositories"))
    for depth, parent in ((2, home / "seeds"), *shared):
        for draft in _directories(parent, depth=depth, drafts=True):
            if age_of(draft) > _DRAFT_AGE_SECONDS:
                remove_tree(draft)
    return RemovedCounts(workspaces=workspaces, seeds=seeds, caches=caches, **unused)


def release(home: Path, execution_id: str) -> None:
    """Remove an execution's pins, and those of its workspaces that no live process holds. Blocking."""
    remove_tree(home / "pins" / execution_id)
    _reap_workspaces(home / "workspaces", only=execution_id)


def forget(home: Path, tenant: str, directories: Sequence[Path]) -> None:
    """Remove unused caches and seeds, and for a tenant all of its recorded directories. Blocking."""
    records = (
        [entry for entry in entries_of(home / "held" / tenant) if not entry.name.startswith(".")] if tenant else []
    )
    for directory in (*directories, *(home.joinpath(*record.name.split(".")) for record in records)):
        remove_unused(directory, home / "trash")
    for record in records:
        record.unlink(missing_ok=True)


def _reap_workspaces(home: Path, only: str = "") -> int:
    reaped = 0
    for execution in [home / only] if only else _directories(home, depth=1):
        for lock in [entry for entry in entries_of(execution) if entry.suffix == ".lock"]:
            descriptor = try_lock(lock)
            if descriptor is None:
                continue  # its process lives
            try:
                remove_tree(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
                reaped += 1
            finally:
                os.close(descriptor)
        # not empty, or gone already
        with suppress(OSError):
            execution.rmdir()
    return reaped


def pins_of(home: Path, age: float) -> set[str]:
    """The names of all executions' pins; pins older than `age` seconds are removed. Blocking."""
    names: set[str] = set()
    for execution in _directories(home, depth=1):
        for pin in entries_of(execution):
            if age_of(pin) > age:
                pin.unlink(missing_ok=True)
            else:
                names.add(pin.name)
    return names


def remove_unused(directory: Path, trash: Path) -> int:
    """Remove a directory that others may be about to use; returns 1, or 0 if it is gone already. Blocking."""
    # Renamed first, so that no process can use it half removed.
    trash.mkdir(exist_ok=True)
    try:
        hidden = directory.rename(trash / f"{directory.name}-{time.monotonic_ns()}")
    except FileNotFoundError:
        return 0
    remove_tree(hidden)
    return 1


def age_of(path: Path) -> float:
    """Seconds since the last use; 0 for a path that does not exist. Blocking."""
    try:
        return time.time() - path.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def entries_of(directory: Path) -> list[Path]:
    """The sorted entries of a directory; none if it does not exist. Blocking."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _directories(directory: Path, *, depth: int, drafts: bool = False) -> list[Path]:
    directories = [directory]
    for level in range(depth):
        last = level == depth - 1
        directories = [
            entry
            for parent in directories
            for entry in entries_of(parent)
            if entry.is_dir() and (not last or entry.name.startswith(".new-") == drafts)
        ]
    return directories


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordedDirectory:
    """A directory: its bytes without packs, and the bytes of its packs by inode, which seeds share."""

    directory: Path
    record: Path
    bytes: int
    packs: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TenantDisk:
    """Enforces each tenant's disk limit on a node. Processes share records in `held` below `home`.

    Args:
        max_bytes: The limit of a tenant's environments, seeds and caches together; 0: no limit.
        unmeasured_bytes: The size assumed for a directory that cannot be measured completely.
    """

    home: Path
    max_bytes: int
    unmeasured_bytes: int

    async def admit(self, tenant: str, directory: Path) -> None:
        """Measure and record a new directory; above the limit the least recently used ones are removed.

        Raises ResourceExhausted where the rest is in use: `directory` is removed then, unless an execution pins it.
        """
        records = self._records(tenant)
        records.mkdir(parents=True, exist_ok=True)
        async with locked(records.with_name(f"{tenant}.lock")):
            used = await uninterrupted(asyncio.to_thread(self._admit, records, directory))
        if used is not None:
            raise ResourceExhausted(
                f"environments and repositories of the tenant take {used:,} bytes of this node's disk, and "
                f"{self.max_bytes:,} may be",
                field="tenant_disk_bytes",
                hint="executions that end make room; the operator can raise FLEET_TENANT_DISK_BYTES",
            )

    async def recorded(self, tenant: str, directory: Path) -> None:
        """Admit a directory that is not recorded yet. Raises ResourceExhausted."""
        if not (self._records(tenant) / self._name(directory)).exists():
            await self.admit(tenant, directory)

    def _records(self, tenant: str) -> Path:
        return self.home / "held" / tenant

    def _name(self, directory: Path) -> str:
        return ".".join(directory.relative_to(self.home).parts)

    def _admit(self, records: Path, directory: Path) -> int | None:
        """Record a directory; returns None, or the tenant's bytes if they are too many and none can be removed."""
        packs: dict[str, int] = {}
        for file in entries_of(directory / "objects/pack"):
            # Another process may be fetching, and rename its temporary packs meanwhile.
            with suppress(FileNotFoundError):
                status = file.lstat()
                packs[str(status.st_ino)] = status.st_blocks * _BLOCK_BYTES
        usage = measure((directory,))
        beside = usage.bytes - sum(packs.values()) if usage.complete else self.unmeasured_bytes
        draft = records / f".{self._name(directory)}"
        draft.write_text(json.dumps({"bytes": max(0, beside), "packs": packs}))
        draft.rename(records / self._name(directory))
        recorded = self._recorded_directories(records)
        if not self.max_bytes or _sum(recorded) <= self.max_bytes:
            return None
        pinned = pins_of(self.home / "pins", Ages().pin)
        for entry in sorted(recorded, key=lambda each: age_of(each.directory), reverse=True):
            is_cache = entry.directory.parent.name == _CACHES
            settled = _CACHE_SETTLED_SECONDS if is_cache else _SETTLED_SECONDS
            if entry.directory == directory or age_of(entry.directory) < settled or not self._remove(entry, pinned):
                continue
            recorded.remove(entry)
            if _sum(recorded) <= self.max_bytes:
                return None
        used = _sum(recorded)
        for entry in recorded:
            if entry.directory == directory:
                self._remove(entry, pinned)
        return used

    def _remove(self, entry: _RecordedDirectory, pinned: set[str]) -> bool:
        """Remove a directory unless it is pinned; returns whether it was removed."""
        kind, *names = entry.directory.relative_to(self.home).parts
        name = "-".join(names)
        if kind == _CACHES:
            if entries_of(entry.directory / "refs/fleet/delivered") or any(
                pin.startswith(f"{name}-") for pin in pinned
            ):
                return False
        elif _PINNED_AS.get(kind, "") + name in pinned:
            return False
        remove_unused(entry.directory, self.home / "trash")
        entry.record.unlink(missing_ok=True)
        return True

    def _recorded_directories(self, records: Path) -> list[_RecordedDirectory]:
        recorded: list[_RecordedDirectory] = []
        for record in entries_of(records):
            if record.name.startswith("."):
                continue
            directory = self.home.joinpath(*record.name.split("."))
            if not directory.is_dir():
                record.unlink(missing_ok=True)
                continue
            with suppress(FileNotFoundError):
                content = json.loads(record.read_bytes())
                recorded.append(
                    _RecordedDirectory(
                        directory=directory, record=record, bytes=content["bytes"], packs=content["packs"]
                    )
                )
        return recorded


def _sum(recorded: list[_RecordedDirectory]) -> int:
    packs: dict[str, int] = {}
    for entry in recorded:
        packs |= entry.packs
    return sum(entry.bytes for entry in recorded) + sum(packs.values())
