"""Test runs on the commit that candidates start from: made once on a node, shared by all candidates of an execution."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.task import PinnedRepository
from swe_ai_fleet.orchestrator.evidence.suite_run import SuiteRun

_KEPT = 64

Key = tuple[object, ...]


def baseline_key(repository: PinnedRepository, environment: Environment) -> Key:
    """Equal where a test run has to come to the same."""
    return (
        *(repository.tenant, repository.location, repository.credential, repository.commit, repository.subdirectory),
        *(environment.key, environment.test_command, environment.network),
        tuple(sorted(environment.variables.items())),
    )


@dataclass(slots=True)
class _Shared:
    task: asyncio.Task[SuiteRun]
    waiting: int = 0


class Baselines:
    """The last baselines of this process. Used within one event loop."""

    def __init__(self) -> None:
        self._done: OrderedDict[Key, SuiteRun] = OrderedDict()
        self._running: dict[tuple[str, Key], _Shared] = {}

    async def of(self, execution_id: str, key: Key, run: Callable[[], Awaitable[SuiteRun]]) -> SuiteRun:
        """The baseline under a key: one that is known, one that is being made for the execution, or a new one.

        A run goes on while anybody waits for it. Raises what it raises; only runs that brought a report are kept.
        """
        if key in self._done:
            self._done.move_to_end(key)
            return self._done[key]
        # The clone belongs to the execution: when that is over, nobody else may be looking at it.
        name = (execution_id, key)
        shared = self._running.get(name)
        if shared is None:
            shared = self._running[name] = _Shared(asyncio.create_task(_awaited(run)))
        shared.waiting += 1
        try:
            found = await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                self._running.pop(name, None)
                shared.task.cancel()
                # Its clone is gone when this returns, however it ended; the awaited result is told above.
                await asyncio.gather(shared.task, return_exceptions=True)
        if found.summary is not None and not found.timed_out:
            self._done[key] = found
            while len(self._done) > _KEPT:
                self._done.popitem(last=False)
        return found


async def _awaited(run: Callable[[], Awaitable[SuiteRun]]) -> SuiteRun:
    return await run()
