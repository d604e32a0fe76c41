"""Whose turn it is among tenants: whoever has the least of its share at work, whatever the others hand in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

LEAST_WEIGHT = 0.01
"""What a tenant has at least where the shares of others leave nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantTurns:
    """How tenants stand when places are given.

    The next place is that of the tenant with the fewest agents at work for its weight, among equals of the one with the
    lowest pass: what it was given so far, each agent counted as one divided by the weight.

    Source: weighted max-min fairness (Bertsekas and Gallager, Data Networks, 1992; with one resource it is Dominant
    Resource Fairness, Ghodsi et al., NSDI 2011), equals by stride scheduling (Waldspurger and Weihl, MIT/LCS/TM-528,
    1995), where who was idle begins at the present pass (start-time fair queueing, Goyal et al., SIGCOMM 1996).

    Attributes:
        at_work: Agents of each tenant that work now; who is not in it has none.
        weights: Of each tenant, 1 where it is not in it.
        passes: Of each tenant, 0 where it is not in it.
    """

    at_work: Mapping[str, int] = field(default_factory=dict[str, int])
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    passes: Mapping[str, float] = field(default_factory=dict[str, float])

    def place(self, tenant: str) -> tuple[float, float]:
        """Where a tenant stands; the least is next."""
        return self.at_work.get(tenant, 0) / self.weights.get(tenant, 1.0), self.passes.get(tenant, 0.0)

    def given(self, tenant: str, agents: int) -> TenantTurns:
        """How they stand once a tenant was given a place for so many agents."""
        weight = self.weights.get(tenant, 1.0)
        return TenantTurns(
            at_work={**self.at_work, tenant: self.at_work.get(tenant, 0) + agents},
            weights=self.weights,
            passes={**self.passes, tenant: self.passes.get(tenant, 0.0) + agents / weight},
        )


class Passes:
    """Remembers passes between one time that places are given and the next."""

    def __init__(self) -> None:
        self._passes: dict[str, float] = {}
        self._waited: frozenset[str] = frozenset()
        self._present = 0.0

    def waiting(self, tenants: Collection[str]) -> Mapping[str, float]:
        """The passes of those that wait now; who did not the last time begins no lower than the present one."""
        kept = {tenant: self._passes.get(tenant, 0.0) for tenant in tenants}
        for tenant in kept.keys() - self._waited:
            kept[tenant] = max(kept[tenant], self._present)
        self._waited = frozenset(kept)
        # Whoever is behind the present one would begin there anyway, so nothing is to be remembered of it.
        idle = {name: at for name, at in self._passes.items() if name not in kept and at > self._present}
        self._passes = {**idle, **kept}
        return kept

    def given(self, tenant: str, agents: int, weight: float) -> None:
        """A place for so many agents was given to a tenant."""
        self._present = max(self._present, self._passes.get(tenant, 0.0))
        self._passes[tenant] = self._passes.get(tenant, 0.0) + agents / weight


def weights(tenants: Collection[str], share: Callable[[str], float]) -> dict[str, float]:
    """What each of these tenants weighs.

    Who has a share (above 0) weighs that; what is left is the others' in equal parts, `LEAST_WEIGHT` at least.
    """
    named = {tenant: share(tenant) for tenant in tenants}
    others = [tenant for tenant, value in named.items() if value <= 0]
    left = max(0.0, 1.0 - sum(value for value in named.values() if value > 0))
    equal = max(LEAST_WEIGHT, left / len(others)) if others else 0.0
    return {tenant: value if value > 0 else equal for tenant, value in named.items()}
