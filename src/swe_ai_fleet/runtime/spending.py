"""The tokens that tenants spend on models outside of executions, such as chats, which are not in the event log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from swe_ai_fleet.agents.model_middleware import ModelWrapper
from swe_ai_fleet.domain.errors import Unavailable
from swe_ai_fleet.domain.message import ModelReply, ModelRequest
from swe_ai_fleet.following import rewritten
from swe_ai_fleet.orchestrator.meter import DAY_SECONDS
from swe_ai_fleet.ports import CallTimeout, ChatModel, KeyValue, KeyValueEntry, ModelSessions

SPENDING_BUCKET = "agent-spending"
SPENDING_KEPT_SECONDS = 2.0 * DAY_SECONDS
_log = structlog.get_logger(__name__)


class TenantSpending:
    """Sums tokens by tenant and day (UTC) for all replicas.

    Tokens that cannot be stored are counted here, and stored with the next ones; a process that dies before that loses
    them. Tokens that were stored without an answer are counted twice.
    """

    def __init__(self, store: KeyValue, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._unstored: Counter[str] = Counter()

    async def add(self, tenant: str, tokens: int) -> None:
        """Count tokens that a tenant has spent now. Raises nothing."""
        self._unstored[self._key(tenant)] += tokens
        for key in tuple(self._unstored):
            # Taken before the first await, so that no concurrent call stores it as well.
            amount, stored = self._unstored.pop(key, 0), False
            try:
                if amount:
                    await self._store_more(key, amount)
                stored = True
            except Unavailable as fault:
                _log.warning("spent tokens could not be stored yet", key=key, tokens=amount, reason=str(fault))
            finally:
                if not stored:
                    self._unstored[key] += amount

    async def today(self, tenant: str) -> int:
        """The prompt and completion tokens of a tenant since midnight UTC. Raises Unavailable."""
        key = self._key(tenant)
        entry = await self._store.get(key)
        return (int(entry.value) if entry else 0) + self._unstored[key]

    def metered(self, tenant: str, model: ChatModel) -> MeteredModel:
        """The model, with its tokens counted as the tenant's."""
        return MeteredModel(model=model, tenant=tenant, spending=self)

    async def _store_more(self, key: str, tokens: int) -> None:
        def more(entry: KeyValueEntry | None) -> bytes:
            return str((int(entry.value) if entry else 0) + tokens).encode()

        await rewritten(self._store, key, more, name="what a tenant spent")

    def _key(self, tenant: str) -> str:
        return f"{tenant}.{int(self._clock() // DAY_SECONDS)}"


@dataclass(frozen=True, kw_only=True)
class MeteredModel(ModelWrapper):
    """A `ChatModel` whose tokens are counted as a tenant's."""

    model: ChatModel
    tenant: str
    spending: TenantSpending

    def session(
        self, key: str, *, tenant: str = "", priority: int = 0, timeout: CallTimeout | None = None
    ) -> ChatModel:
        if not isinstance(self.model, ModelSessions):
            return self
        model = self.model.session(key, tenant=tenant or self.tenant, priority=priority, timeout=timeout)
        return self.spending.metered(self.tenant, model)

    async def reply(self, request: ModelRequest) -> ModelReply:
        reply = await self.model.reply(request)
        await self.spending.add(self.tenant, reply.usage.total_tokens)
        return reply
