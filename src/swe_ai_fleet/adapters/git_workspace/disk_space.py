"""Room on a node's disk: the reaper removes leftovers and what is unused, and tenants are kept to their share.

Leftovers are those of processes that are gone. A tenant's share counts its environments, images, seeds and repository
caches.
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
# Whoever looks something up uses it a moment later; executions hold by pins what they use for longer.
_SETTLED_SECONDS = 600.0
# Commits that only the fleet has wait there for their execution to begin.
_CACHE_SETTLED_SECONDS = 24 * 3600.0
_CACHES = "repositories"
# What a pin of these begins with; a seed's is its name alone.
_PINNED_AS = {"environments": "environment-", "images": "image-"}
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long things stay unused before they go, in seconds. A pin holds its seed for at most `pin`.

    A cache that holds a delivered commit stays.
    """

    seed: float = 2 * 86_400.0
    pin: float = 30 * 86_400.0
    environment: float = 14 * 86_400.0
    image: float = 14 * 86_400.0
    cache: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCounts:
    """What was taken away, by number."""

    workspaces: int = 0
    seeds: int = 0
    environments: int = 0
    caches: int = 0
    images: int = 0


def reap(home: Path, ages: Ages) -> RemovedCounts:
    """One round over a node's home. Blocking; safe beside any number of processes at work there."""
    workspaces = _reap_workspaces(home / "workspaces")
    pinned = pins_of(home / "pins", ages.pin)
    seeds = 0
    for seed in _directories(home / "seeds", depth=2):
        if f"{seed.parent.name}-{seed.name}" not in pinned and age_of(seed) > ages.seed:
            seeds += remove_unused(seed, home / "trash")
    unused = {"environments": 0, "images": 0}
    for kind, age in (("environments", ages.environment), ("images", ages.image)):
        for place in _directories(home / kind, depth=1):
            is_held = place.name in ("probe", "granted") or f"{_PINNED_AS[kind]}{place.name}" in pinned
            if not is_held and age_of(place) > age:
                unused[kind] += remove_unused(place, home / "trash")
    caches = 0
    for cache in _directories(home / "repositories", depth=1):
        if age_of(cache) > ages.cache and not entries_of(cache / "refs/fleet/delivered"):
            caches += remove_unused(cache, home / "trash")
    for place in (home / "scratch", home / "trash"):
        for leftover in entries_of(place):
            if leftover.is_dir() and not leftover.is_symlink() and age_of(leftover) > _DRAFT_AGE_SECONDS:
                remove_tree(leftover)
    shared = ((1, home / name) for name in ("environments", "images", "tools", "repositories"))
    for depth, place in ((2, home / "seeds"), *shared):
        for draft in _directories(place, depth=depth, drafts=True):
            if age_of(draft) > _DRAFT_AGE_SECONDS:
                remove_tree(draft)
    return RemovedCounts(workspaces=workspaces, seeds=seeds, caches=caches, **unused)


def release(home: Path, execution_id: str) -> None:
    """Drop an execution's pins and the workspaces of its that no live process holds. Blocking."""
    remove_tree(home / "pins" / execution_id)
    _reap_workspaces(home / "workspaces", only=execution_id)


def forget(home: Path, tenant: str, places: Sequence[Path]) -> None:
    """Remove caches and seeds that nobody uses any more; with a tenant all of its that were recorded. Blocking."""
    records = (
        [entry for entry in entries_of(home / "held" / tenant) if not entry.name.startswith(".")] if tenant else []
    )
    for place in (*places, *(home.joinpath(*record.name.split(".")) for record in records)):
        remove_unused(place, home / "trash")
    for record in records:
        record.unlink(missing_ok=True)


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
        # not empty, or gone already
        with suppress(OSError):
            execution.rmdir()
    return reaped


def pins_of(home: Path, age: float) -> set[str]:
    """What executions hold, those pins aside that are older than so many seconds. Blocking."""
    names: set[str] = set()
    for execution in _directories(home, depth=1):
        for pin in entries_of(execution):
            if age_of(pin) > age:
                pin.unlink(missing_ok=True)
            else:
                names.add(pin.name)
    return names


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
class _Holding:
    """One directory: its bytes beside packs, and the bytes of its packs by inode, which seeds share."""

    place: Path
    record: Path
    bytes: int
    packs: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TenantDisk:
    """Keeps every tenant of a node below a limit. Processes share it through files in `held` below `home`.

    Args:
        home: The node's directory.
        max_bytes: What a tenant's environments, seeds and caches may take together; 0: no limit.
        unmeasured_bytes: What a directory counts as that cannot be measured to its end.
    """

    home: Path
    max_bytes: int
    unmeasured_bytes: int

    async def admit(self, tenant: str, place: Path) -> None:
        """Measure and record what was just built at `place`; where the limit is passed the least recently used go.

        Raises ResourceExhausted where all that is left is in use: `place` is gone then, unless an execution holds it.
        """
        records = self._records(tenant)
        records.mkdir(parents=True, exist_ok=True)
        async with locked(records.with_name(f"{tenant}.lock")):
            used = await uninterrupted(asyncio.to_thread(self._admit, records, place))
        if used is not None:
            raise ResourceExhausted(
                f"environments and repositories of the tenant take {used:,} bytes of this node's disk, and "
                f"{self.max_bytes:,} may be",
                field="tenant_disk_bytes",
                hint="executions that end make room; the operator can raise FLEET_TENANT_DISK_BYTES",
            )

    async def recorded(self, tenant: str, place: Path) -> None:
        """Admit what was there before anybody counted. Raises ResourceExhausted."""
        if not (self._records(tenant) / self._name(place)).exists():
            await self.admit(tenant, place)

    def _records(self, tenant: str) -> Path:
        return self.home / "held" / tenant

    def _name(self, place: Path) -> str:
        return ".".join(place.relative_to(self.home).parts)

    def _admit(self, records: Path, place: Path) -> int | None:
        """None, or the bytes of all where they are too many and nothing can go."""
        packs: dict[str, int] = {}
        for file in entries_of(place / "objects/pack"):
            # Another process may be fetching: what it receives gets its name at the end.
            with suppress(FileNotFoundError):
                status = file.lstat()
                packs[str(status.st_ino)] = status.st_blocks * _BLOCK_BYTES
        usage = measure((place,))
        beside = usage.bytes - sum(packs.values()) if usage.complete else self.unmeasured_bytes
        draft = records / f".{self._name(place)}"
        draft.write_text(json.dumps({"bytes": max(0, beside), "packs": packs}))
        draft.rename(records / self._name(place))
        holdings = self._holdings(records)
        if not self.max_bytes or _sum(holdings) <= self.max_bytes:
            return None
        pinned = pins_of(self.home / "pins", Ages().pin)
        for holding in sorted(holdings, key=lambda each: age_of(each.place), reverse=True):
            is_cache = holding.place.parent.name == _CACHES
            settled = _CACHE_SETTLED_SECONDS if is_cache else _SETTLED_SECONDS
            if holding.place == place or age_of(holding.place) < settled or not self._remove(holding, pinned):
                continue
            holdings.remove(holding)
            if _sum(holdings) <= self.max_bytes:
                return None
        used = _sum(holdings)
        for holding in holdings:
            if holding.place == place:
                self._remove(holding, pinned)
        return used

    def _remove(self, holding: _Holding, pinned: set[str]) -> bool:
        """Whether a directory that nobody holds is gone."""
        kind, *names = holding.place.relative_to(self.home).parts
        name = "-".join(names)
        if kind == _CACHES:
            if entries_of(holding.place / "refs/fleet/delivered") or any(pin.startswith(f"{name}-") for pin in pinned):
                return False
        elif _PINNED_AS.get(kind, "") + name in pinned:
            return False
        remove_unused(holding.place, self.home / "trash")
        holding.record.unlink(missing_ok=True)
        return True

    def _holdings(self, records: Path) -> list[_Holding]:
        holdings: list[_Holding] = []
        for record in entries_of(records):
            if record.name.startswith("."):
                continue
            place = self.home.joinpath(*record.name.split("."))
            if not place.is_dir():
                record.unlink(missing_ok=True)
                continue
            with suppress(FileNotFoundError):
                held = json.loads(record.read_bytes())
                holdings.append(_Holding(place=place, record=record, bytes=held["bytes"], packs=held["packs"]))
        return holdings


def _sum(holdings: list[_Holding]) -> int:
    packs: dict[str, int] = {}
    for holding in holdings:
        packs |= holding.packs
    return sum(holding.bytes for holding in holdings) + sum(packs.values())
