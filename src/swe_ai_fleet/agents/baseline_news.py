"""What an agent is told of the untouched commit's tests, once and as soon as it is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swe_ai_fleet.domain.baseline import suite_baseline
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.task import Task
from swe_ai_fleet.domain.test_run import TestRun
from swe_ai_fleet.ports import Baselines, SecretMask

TITLE = "Tests on the untouched commit: "


@dataclass(kw_only=True)
class BaselineNews:
    """The baseline of one run's clone.

    Attributes:
        baselines: Where it is found; None: nowhere.
        told: Whether the agent knows it already.
    """

    baselines: Baselines | None
    task: Task
    environment: Environment
    mask: SecretMask
    told: bool = False

    async def failing(self) -> Collection[str] | None:
        """The tests that fail on the untouched commit; None until the agent has been told of it."""
        run = await self._run() if self.told else None
        return None if run is None else frozenset(run.failing)

    async def _run(self) -> TestRun | None:
        return None if self.baselines is None else await self.baselines.known(self.task, self.environment)

    async def text(self) -> str:
        """The news, one line, the first time that there is any; empty before and afterwards."""
        run = None if self.told else await self._run()
        if run is None:
            return ""
        self.told = True
        return self.mask(f"{TITLE}{suite_baseline(run).line}.")

    def heard(self, messages: Sequence[Message]) -> None:
        """Take note of a conversation that goes on."""
        self.told = self.told or any(TITLE in message.content for message in messages)
