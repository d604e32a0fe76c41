"""Proposals of environment runs, stored for all executions of a tenant."""

from __future__ import annotations

import hashlib

import structlog

from swe_ai_fleet.codec import from_json, to_json
from swe_ai_fleet.domain.environment import EnvironmentProposal
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.ports import KeyValue

RECIPES_BUCKET = "agent-environments"
RECIPES_KEPT_SECONDS = 30 * 86_400.0
RECIPES_BYTES = 64 * 1024 * 1024
_log = structlog.get_logger(__name__)


class Recipes:
    """`ports.KnownRecipes` in a key-value store.

    Args:
        store: Shared by all processes of the fleet; None: proposals are kept in this process only.
    """

    def __init__(self, store: KeyValue | None = None) -> None:
        self._store = store
        self._local: dict[str, EnvironmentProposal] = {}

    async def find(self, tenant: str, key: str) -> EnvironmentProposal | None:
        """The proposal of a key; None where there is none, or the store does not answer."""
        name = _name(tenant, key)
        if self._store is None:
            return self._local.get(name)
        try:
            entry = await self._store.get(name)
            return from_json(EnvironmentProposal, entry.value) if entry is not None else None
        except (FleetError, ValueError) as error:
            _log.warning("environment.recipe_not_read", reason=str(error)[:200])
            return None

    async def keep(self, tenant: str, key: str, proposal: EnvironmentProposal) -> None:
        """Store a proposal for all executions of the tenant. Raises Unavailable."""
        if self._store is None:
            self._local[_name(tenant, key)] = proposal
        else:
            await self._store.put(_name(tenant, key), to_json(proposal))


def tenant_key(tenant: str) -> str:
    """The prefix of a tenant's keys in buckets whose values tenants must not share."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:16]


def _name(tenant: str, key: str) -> str:
    return f"{tenant_key(tenant)}.{key}"
