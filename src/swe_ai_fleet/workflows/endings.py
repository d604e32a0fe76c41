"""What ends a run, or a try of a node, before its end; and how tasks that belong together end together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from swe_ai_fleet.domain.budget import Usage


class Ended(Exception):
    """A run ends here."""


class NodeFailed(Ended):
    """A node failed for good, and nothing says that the run goes on."""

    def __init__(self, node_id: str, error: str) -> None:
        super().__init__(f"{node_id}: {error}" if node_id else error)


class Rejected(Ended):
    """A person rejected what was asked."""

    def __init__(self, node_id: str, text: str) -> None:
        super().__init__(f"{node_id} was rejected: {text}" if text else f"{node_id} was rejected")


class Cancelled(Ended):
    """The run was cancelled from outside."""


class TryFailed(Exception):
    """One try of a node failed; `again` says whether another one could do better, `usage` what it took."""

    def __init__(self, error: str, *, again: bool = False, usage: Usage | None = None) -> None:
        super().__init__(error)
        self.again = again
        self.usage = usage or Usage()


@asynccontextmanager
async def together() -> AsyncGenerator[asyncio.TaskGroup]:
    """A task group that raises one error instead of a group of them: a fault before what ends a run by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        found = [*errors.exceptions]
        raise next((each for each in found if not isinstance(each, Ended)), found[0]) from None
