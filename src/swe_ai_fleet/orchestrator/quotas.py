"""What tenants may use: executions that wait, tokens of a day; and who says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from swe_ai_fleet.domain.access import TenantRules
from swe_ai_fleet.domain.errors import ResourceExhausted

Rules = Callable[[str], TenantRules]
"""What holds for a tenant now."""
Spent = Callable[[str], Awaitable[int]]
"""The prompt and completion tokens of a tenant since midnight UTC. Raises Unavailable while nobody knows."""


Stored = Callable[[str], Awaitable[int]]
"""The bytes that are kept for a tenant. Raises Unavailable while nobody knows."""


def no_rules(tenant: str) -> TenantRules:
    """What holds for everybody where nobody said anything: nothing."""
    return TenantRules(tenant=tenant)


async def nothing_spent(_: str) -> int:
    """What everybody spent, or stored, where nobody counts."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """Asks whether a tenant may have more.

    Attributes:
        rules: What holds for a tenant.
        spent: What a tenant spent today.
        stored: What is kept for a tenant.
        now: The time.
    """

    rules: Rules = no_rules
    spent: Spent = nothing_spent
    stored: Stored = nothing_spent
    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))

    def check_queued(self, tenant: str, queued: int) -> None:
        """Whether one more execution of a tenant may wait where so many do. Raises ResourceExhausted."""
        most = self.rules(tenant).quota.queued
        if most and queued >= most:
            raise ResourceExhausted(
                f"{queued} executions of the tenant are waiting",
                field="quota.queued",
                hint=f"at most {most} may; hand in more when some of them have begun",
            )

    async def tokens_left(self, tenant: str) -> int | None:
        """The tokens that a tenant may still spend today, 0 at least; None: as many as it wants. Raises Unavailable."""
        most = self.rules(tenant).quota.tokens_per_day
        return max(0, most - await self.spent(tenant)) if most else None

    async def check_tokens(self, tenant: str) -> int | None:
        """`tokens_left`, where there are any. Raises ResourceExhausted, Unavailable."""
        left = await self.tokens_left(tenant)
        if left == 0:
            raise ResourceExhausted(
                f"the tenant has spent its {self.rules(tenant).quota.tokens_per_day} tokens of today",
                field="quota.tokens_per_day",
                hint=f"the next day begins at {self._midnight().isoformat(timespec='minutes')}",
            )
        return left

    async def storage_left(self, tenant: str) -> int | None:
        """The bytes that may still be stored for a tenant, 0 at least; None: as many as there is room for.

        Raises Unavailable.
        """
        most = self.rules(tenant).quota.storage_bytes
        return max(0, most - await self.stored(tenant)) if most else None

    async def check_storage(self, tenant: str, wanted: int = 1) -> int | None:
        """`storage_left`, where that is as much as wanted. Raises ResourceExhausted, Unavailable."""
        left = await self.storage_left(tenant)
        if left is not None and left < wanted:
            most = self.rules(tenant).quota.storage_bytes
            raise ResourceExhausted(
                f"{most - left:,} of the {most:,} bytes that may be kept for the tenant are in use",
                field="quota.storage_bytes",
                hint="what is older than FLEET_EVENT_DAYS is forgotten; the operator can raise the quota",
            )
        return left

    def _midnight(self) -> datetime:
        """When the present day ends."""
        return self.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
