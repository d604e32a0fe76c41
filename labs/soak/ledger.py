"""What the log said of every execution while the run was on: ends and results are counted as they are stored."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.nats_client import NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import EVENTS, RESULTS
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.domain.errors import NotFound

_TIMEOUT = 60.0
_AGAIN_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Account:
    """One execution: how often it began, ended, published its result and asked people.

    `disturbed` counts how often another orchestrator or another process of agents went on with it.
    """

    begun: int = 0
    ends: int = 0
    results: int = 0
    status: str = ""
    tools: int = 0
    asked: int = 0
    agents: int = 0
    disturbed: int = 0


@dataclass(kw_only=True)
class Ledger:
    """Follows events and results from the first one on, over every restart. Made by `open_ledger`."""

    accounts: dict[str, Account] = field(default_factory=dict[str, Account])
    events: int = 0
    heard_at: float = 0.0
    """When, by the monotonic clock, the log last said something."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, execution_id: str) -> Account:
        return self.accounts.setdefault(execution_id, Account())

    async def until(self, execution_id: str, holds: Callable[[Account], bool]) -> Account:
        """Wait until something holds for an execution."""
        async with self._changed:
            await self._changed.wait_for(lambda: holds(self.of(execution_id)))
        return self.of(execution_id)

    async def follow(self, connection: Connection, stream: str, wanted: str) -> None:
        start = 1
        while True:
            with suppress(NotFound):
                tail = messages(connection, stream, wanted, start=start, follow=True, timeout=_TIMEOUT)
                async with aclosing(tail) as stored:
                    async for message in stored:
                        if message is None:
                            continue
                        start = message.sequence + 1
                        self._hear(stream, json.loads(message.data))
                        async with self._changed:
                            self._changed.notify_all()
            await asyncio.sleep(_AGAIN_SECONDS)

    def _hear(self, stream: str, told: dict[str, object]) -> None:
        self.heard_at = time.monotonic()
        account = self.of(str(told["execution_id"]))
        if stream == RESULTS:
            account.results += told["kind"] == "execution"
            return
        self.events += 1
        body = told.get("body")
        kind = body.get("type", "") if isinstance(body, dict) else ""
        account.begun += kind == "execution_started"
        account.agents += kind == "run_started"
        account.tools += kind == "tool_started"
        account.asked += kind == "approval_requested"
        if kind == "execution_finished" and isinstance(body, dict):
            account.ends += 1
            account.status = str(body.get("status", ""))
        claimed_again = kind == "execution_claimed" and isinstance(body, dict) and body["generation"] > 1
        account.disturbed += claimed_again or kind == "run_reassigned"


@asynccontextmanager
async def open_ledger(url: str, token: str) -> AsyncGenerator[tuple[Ledger, Connection]]:
    """A ledger at work, and its connection."""
    async with Connection.open([url], NatsCredentials(token=token), name="soak") as connection:
        ledger = Ledger()
        following = [
            asyncio.create_task(ledger.follow(connection, EVENTS, "agent.events.>"), name="soak events"),
            asyncio.create_task(ledger.follow(connection, RESULTS, "agent.results.>"), name="soak results"),
        ]
        try:
            yield ledger, connection
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)
