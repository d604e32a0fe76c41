"""What each tenant's environments, seeds and repository caches take on a node's disk, and who makes room."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.adapters.git_workspace.directories import finished
from swe_ai_fleet.adapters.git_workspace.locks import locked
from swe_ai_fleet.adapters.git_workspace.reaper import Ages, age_of, entries_of, pins_of, remove_unused
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.sandbox.disk import measure

# Whoever looks something up uses it a moment later; executions hold by pins what they use for longer.
_SETTLED_SECONDS = 600.0
# Commits that only the fleet has wait there for their execution to begin.
_CACHE_SETTLED_SECONDS = 24 * 3600.0
_CACHES = "repositories"
_ENVIRONMENTS = "environments"
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holding:
    """One directory: its bytes beside packs, and the bytes of its packs by inode, which seeds share."""

    place: Path
    record: Path
    bytes: int
    packs: dict[str, int]


class TenantDisk:
    """Keeps every tenant of a node below a limit. Processes share it through files in `held` below `home`.

    Args:
        home: The node's directory.
        max_bytes: What a tenant's environments, seeds and caches may take together; 0: no limit.
        unmeasured_bytes: What a directory counts as that cannot be measured to its end.
    """

    def __init__(self, home: Path, *, max_bytes: int, unmeasured_bytes: int) -> None:
        self._home = home
        self._max_bytes = max_bytes
        self._unmeasured_bytes = unmeasured_bytes

    async def admit(self, tenant: str, place: Path) -> None:
        """Measure and record what was just built at `place`; where the limit is passed the least recently used go.

        Raises ResourceExhausted where all that is left is in use: `place` is gone then, unless an execution holds it.
        """
        records = self._records(tenant)
        records.mkdir(parents=True, exist_ok=True)
        async with locked(records.with_name(f"{tenant}.lock")):
            taken = await finished(asyncio.to_thread(self._admit, records, place))
        if taken is not None:
            raise ResourceExhausted(
                f"environments and repositories of the tenant take {taken:,} bytes of this node's disk, and "
                f"{self._max_bytes:,} may be",
                field="tenant_disk_bytes",
                hint="executions that end make room; the operator can raise FLEET_TENANT_DISK_BYTES",
            )

    async def recorded(self, tenant: str, place: Path) -> None:
        """Admit what was there before anybody counted. Raises ResourceExhausted."""
        if not (self._records(tenant) / self._name(place)).exists():
            await self.admit(tenant, place)

    def _records(self, tenant: str) -> Path:
        return self._home / "held" / tenant

    def _name(self, place: Path) -> str:
        return ".".join(place.relative_to(self._home).parts)

    def _admit(self, records: Path, place: Path) -> int | None:
        """None, or the bytes of all where they are too many and nothing can go."""
        packs: dict[str, int] = {}
        for file in entries_of(place / "objects/pack"):
            # Another process may be fetching: what it receives gets its name at the end.
            with suppress(FileNotFoundError):
                status = file.lstat()
                packs[str(status.st_ino)] = status.st_blocks * _BLOCK_BYTES
        usage = measure((place,))
        beside = usage.bytes - sum(packs.values()) if usage.complete else self._unmeasured_bytes
        draft = records / f".{self._name(place)}"
        draft.write_text(json.dumps({"bytes": max(0, beside), "packs": packs}))
        draft.rename(records / self._name(place))
        holdings = self._holdings(records)
        if not self._max_bytes or _sum(holdings) <= self._max_bytes:
            return None
        pinned = pins_of(self._home / "pins", Ages().pin)
        for holding in sorted(holdings, key=lambda each: age_of(each.place), reverse=True):
            is_cache = holding.place.parent.name == _CACHES
            settled = _CACHE_SETTLED_SECONDS if is_cache else _SETTLED_SECONDS
            if holding.place == place or age_of(holding.place) < settled or not self._remove(holding, pinned):
                continue
            holdings.remove(holding)
            if _sum(holdings) <= self._max_bytes:
                return None
        taken = _sum(holdings)
        for holding in holdings:
            if holding.place == place:
                self._remove(holding, pinned)
        return taken

    def _remove(self, holding: _Holding, pinned: set[str]) -> bool:
        """Whether a directory that nobody holds is gone."""
        kind, *names = holding.place.relative_to(self._home).parts
        name = "-".join(names)
        if kind == _CACHES:
            if entries_of(holding.place / "refs/fleet/delivered") or any(pin.startswith(f"{name}-") for pin in pinned):
                return False
        elif (f"environment-{name}" if kind == _ENVIRONMENTS else name) in pinned:
            return False
        remove_unused(holding.place, self._home / "trash")
        holding.record.unlink(missing_ok=True)
        return True

    def _holdings(self, records: Path) -> list[_Holding]:
        holdings: list[_Holding] = []
        for record in entries_of(records):
            if record.name.startswith("."):
                continue
            place = self._home.joinpath(*record.name.split("."))
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
