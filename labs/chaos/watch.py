"""What the log says while the run is on: who drives what, who ended, when somebody was heard again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from swe_ai_fleet.adapters.jetstream.connection import Connection
from swe_ai_fleet.adapters.jetstream.nats_client import NatsCredentials
from swe_ai_fleet.adapters.jetstream.protocol import EVENTS, RESULTS
from swe_ai_fleet.adapters.jetstream.reader import messages
from swe_ai_fleet.domain.errors import NotFound

_TIMEOUT = 60.0
_LOOK_SECONDS = 0.2


@dataclass(kw_only=True)
class Seen:
    """One execution so far. Times are seconds since the epoch."""

    execution_id: str
    task_id: str
    accepted_at: float
    owner: str = ""
    generation: int = 0
    claimed_at: float = 0.0
    agents_at: float = 0.0
    heard_at: float = 0.0
    claims: list[float] = field(default_factory=list[float])
    reassigned: list[float] = field(default_factory=list[float])
    ended_at: float = 0.0
    told_at: float = 0.0

    @property
    def under_way(self) -> bool:
        """Whether its agents have begun and it has not ended."""
        return bool(self.agents_at) and not self.ended_at


@dataclass(kw_only=True)
class Watch:
    """Follows the whole event log over every restart of the server. Made by `open_watch`."""

    executions: dict[str, Seen] = field(default_factory=dict[str, Seen])
    events: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def under_way(self) -> list[Seen]:
        return [one for one in self.executions.values() if one.under_way]

    @property
    def ended(self) -> int:
        """Executions of which subscribers have heard the result."""
        return sum(bool(one.told_at) for one in self.executions.values())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds; it is looked at with every event, and whenever somebody asks for it."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def look(self) -> None:
        """Have everybody who waits look again."""
        async with self._changed:
            self._changed.notify_all()

    async def follow(self, connection: Connection) -> None:
        """Hear everything, from the first event on; the first orchestrator makes the stream."""
        while True:
            with suppress(NotFound):
                await self._follow(connection)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _follow(self, connection: Connection) -> None:
        tail = messages(connection, EVENTS, "agent.events.>", follow=True, timeout=_TIMEOUT)
        async with aclosing(tail) as stored:
            async for message in stored:
                if message is not None:
                    self._hear(json.loads(message.data))
                    await self.look()

    def _hear(self, event: dict[str, Any]) -> None:
        self.events += 1
        body, at = event.get("body") or {}, datetime.fromisoformat(event["at"]).timestamp()
        key = event["execution_id"]
        kind = body.get("type", "")
        if key not in self.executions:
            self.executions[key] = Seen(execution_id=key, task_id=event["task_id"], accepted_at=at)
        seen = self.executions[key]
        seen.heard_at = max(seen.heard_at, at)
        match kind:
            case "execution_claimed":
                seen.owner, seen.generation, seen.claimed_at = body["owner"], body["generation"], at
            case "run_claimed":
                seen.agents_at = seen.agents_at or at
                seen.claims.append(at)
            case "run_reassigned":
                seen.reassigned.append(at)
            case "execution_finished":
                seen.ended_at = at
            case "result_published":
                seen.told_at = at
            case _:
                pass


@asynccontextmanager
async def open_watch(url: str, token: str) -> AsyncGenerator[tuple[Watch, Connection]]:
    """A watch at work, and its connection."""
    async with Connection.open([url], NatsCredentials(token=token), name="chaos") as connection:
        watch = Watch()
        following = asyncio.create_task(watch.follow(connection), name="chaos watch")
        try:
            yield watch, connection
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def results(connection: Connection) -> list[dict[str, Any]]:
    """Every message that was published about results, of agents too."""
    stored = messages(connection, RESULTS, "agent.results.>", follow=False, timeout=_TIMEOUT)
    return [json.loads(message.data) async for message in stored if message is not None]
