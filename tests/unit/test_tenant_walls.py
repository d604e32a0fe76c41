"""Walls inside one process: feeds of the gateway, hosts of agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import grpc

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.gateway.streams.feeds import Feeds
from services.gateway.upstream import Upstream
from swe_ai_fleet.runtime.ray_fleet import Host, RayFleet
from swe_ai_fleet.settings import Settings


class Events:
    """An upstream whose executions have one event for each token that it is shown, and then go on for ever."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.orchestrator = SimpleNamespace(get_state=lambda: grpc.ChannelConnectivity.READY)

    async def stream(
        self, _target: object, request: pb.StreamExecutionRequest, *, token: str, caller: str = ""
    ) -> AsyncGenerator[pb.ExecutionEvent, None]:
        self.shown.append(token)
        yield pb.ExecutionEvent(execution_id=request.execution_id, sequence=1, type="run_lost", payload_json="{}")
        await asyncio.Event().wait()


async def test_watchers_who_show_another_token_never_share_a_feed() -> None:
    upstream = Events()
    feeds = Feeds(cast("Upstream", upstream), max_watchers=10)
    async with asyncio.timeout(10), AsyncExitStack() as stack:
        mine, again, theirs = [
            await stack.enter_async_context(feeds.watching("an-execution", text=False, token=token, caller=""))
            for token in ("mine", "mine", "theirs")
        ]
        assert mine is again
        assert theirs is not mine
        assert theirs.ring is not mine.ring
        while len(upstream.shown) < 2:
            await asyncio.sleep(0)
        assert sorted(upstream.shown) == ["mine", "theirs"]
        stack.push_async_callback(feeds.close)


@dataclass(kw_only=True)
class NamedHosts(RayFleet):
    """A pool whose hosts exist in name only, and those that ended."""

    ended: list[str] = field(default_factory=list[str])

    def _new_host(self, name: str, tenant: str) -> Host:
        return Host(name=name, actor=None, tenant=tenant)

    def _end(self, host: Host) -> None:
        self._hosts.remove(host)
        self.ended.append(host.name)

    def work(self, tenant: str) -> Host:
        """The host that a tenant's next run goes to, busy from now on."""
        host = self._host(tenant)
        host.busy += 1
        return host


def pool(tmp_path: Any, *, agents_per_actor: int = 2, max_agents: int = 4) -> NamedHosts:
    return NamedHosts(settings=Settings(home=tmp_path, agents_per_actor=agents_per_actor, max_agents=max_agents))


def test_no_host_serves_two_tenants(tmp_path: Any) -> None:
    fleet = pool(tmp_path)
    warm = fleet._host("default")
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
