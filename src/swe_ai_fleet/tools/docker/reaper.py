"""Removing what runs left on the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.tools.docker.engine import Engine
from swe_ai_fleet.tools.docker.owner import LABEL_PREFIX, Kind, Owner, label
from swe_ai_fleet.tools.docker.policy import DockerPolicy
from swe_ai_fleet.tools.failure import ToolFailure

_PATIENCE_SECONDS = (0.1, 0.3, 0.6, 1.0, 2.0)
"""The engine takes a moment over the end of a build that was broken off, and holds its images until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """How many containers and images were removed, and what could not be, by name with the reason."""

    containers: int = 0
    images: int = 0
    failures: tuple[str, ...] = ()


async def reap(
    policy: DockerPolicy, *, executions: Collection[str] | None = None, older_than_seconds: float | None = None
) -> Reaped:
    """Remove the fleet's containers and images of ended executions, whichever run made them.

    Args:
        policy: Where the engine is.
        executions: Only those of these executions; None is any.
        older_than_seconds: Only those made longer ago; None is any age. One of the two must be given.

    Raises:
        InvalidRequest: Neither was given: that would remove what is in use.
        ToolFailure: There is no engine.
    """
    if executions is None and older_than_seconds is None:
        raise InvalidRequest("say which executions have ended, or what age is too old", field="older_than_seconds")
    engine = Engine(policy.host, call_seconds=policy.call_seconds)
    try:
        left = await _left(engine, "")
        if executions is not None:
            left = [item for item in left if item.execution in executions]
        if older_than_seconds is not None:
            before = time.time() - older_than_seconds
            left = [item for item in left if item.created_at <= before]
        return await _remove(engine, left)
    finally:
        await engine.close()


async def remove_run(engine: Engine, owner: Owner) -> Reaped:
    """Remove everything of one run. Raises ToolFailure where there is no engine."""
    return await _remove(engine, await _left(engine, f"={owner.key}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    kind: Kind
    id: str
    execution: str
    created_at: float


async def _left(engine: Engine, owner: str) -> list[_Item]:
    """What carries the fleet's labels."""
    found: list[_Item] = []
    for kind, ask in ((Kind.CONTAINER, engine.containers), (Kind.IMAGE, engine.images)):
        for listed in await ask(f"{LABEL_PREFIX}{kind}.owner{owner}"):
            labels: Mapping[str, str] | None = listed.get("Labels")
            found.append(
                _Item(
                    kind=kind,
                    id=listed["Id"],
                    execution=label(labels, kind, "execution"),
                    created_at=float(listed["Created"]),
                )
            )
    return found


async def _remove(engine: Engine, items: list[_Item]) -> Reaped:
    first, failures = await _removed([item.id for item in items if item.kind is Kind.CONTAINER], engine.remove)
    left, second, patience = [item.id for item in items if item.kind is Kind.IMAGE], 0, iter(_PATIENCE_SECONDS)
    while left:
        count, refused = await _removed(left, engine.remove_image)
        second += count
        left = list(refused)
        if left and not count:  # those that others were built upon can go at once; these are in use
            wait = next(patience, None)
            if wait is None:
                failures |= refused
                break
            await asyncio.sleep(wait)
    reasons = tuple(f"{identifier}: {reason}" for identifier, reason in failures.items())
    return Reaped(containers=first, images=second, failures=reasons)


async def _removed(identifiers: list[str], remove: Callable[[str], Awaitable[None]]) -> tuple[int, dict[str, str]]:
    """How many could be removed, and why the others could not."""
    refused: dict[str, str] = {}
    for identifier in identifiers:
        try:
            await remove(identifier)
        except ToolFailure as failure:
            refused[identifier] = failure.message
    return len(identifiers) - len(refused), refused
