"""Walls inside one process: feeds of the gateway, hosts of agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swe_ai_fleet.runtime.ray_fleet import RayFleet, RayHost
from swe_ai_fleet.settings import Settings


@dataclass(kw_only=True)
class NamedHosts(RayFleet):
    """A pool whose hosts exist in name only, and those that ended."""

    ended: list[str] = field(default_factory=list[str])

    def _new_host(self, name: str, tenant: str) -> RayHost:
        return RayHost(name=name, actor=None, tenant=tenant)

    def _end(self, host: RayHost) -> None:
        self._hosts.remove(host)
        self.ended.append(host.name)

    def work(self, tenant: str) -> RayHost:
        """The host that a tenant's next run goes to, busy from now on."""
        host = self._choose_host(tenant)
        host.busy += 1
        return host


def pool(tmp_path: Any, *, agents_per_actor: int = 2, max_agents: int = 4) -> NamedHosts:
    return NamedHosts(settings=Settings(home=tmp_path, agents_per_actor=agents_per_actor, max_agents=max_agents))


def test_no_host_serves_two_tenants(tmp_path: Any) -> None:
    fleet = pool(tmp_path)
    warm = fleet._choose_host("default")
    hosts = {tenant: [fleet.work(tenant).name for _ in range(3)] for tenant in ("north", "south")}
    assert not {warm.name} & {*hosts["north"], *hosts["south"]}
    assert not set(hosts["north"]) & set(hosts["south"])
    # It did nothing, and there may be no more than two.
    assert fleet.ended == [warm.name]


def test_where_there_may_be_no_more_hosts_an_idle_one_of_another_tenant_ends(tmp_path: Any) -> None:
    fleet = pool(tmp_path, max_agents=2)
    first = fleet.work("north")
    first.busy = 0
    second = fleet.work("south")
    assert fleet.ended == [first.name]
    assert fleet.hosts == (second.name,)
    # All of them work: who has none gets one, who has one shares it with nobody but itself.
    third = fleet.work("north")
    assert third not in (first, second)
    assert [fleet.work("south") for _ in range(3)] == [second] * 3
    assert fleet.ended == [first.name]
