"""New credentials on a NATS that works: what came in before comes in until the overlap is over, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import structlog.testing

from services.access.access_file import read_access
from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.event import RunClaimed, Writer
from swe_ai_fleet.following import in_background
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.host_logins import open_host_logins
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.runtime.installation.layout import check
from swe_ai_fleet.settings import Settings
from tests.confinement import until
from tests.secured import SecuredNats, secured_nats

MADE_ANEW = ("orchestrator", "context", "gateway", "worker", "operator", "sys")


@dataclass(kw_only=True)
class Load:
    """Clients that write all the time, each the next value behind its last one."""

    written: dict[str, int]

    async def write(self, name: str, write: Callable[[int], Awaitable[object]]) -> None:
        while True:
            await write(self.written[name])
            self.written[name] += 1

    async def goes_on(self) -> None:
        """Wait until every one has written more."""
        before = dict(self.written)
        await until(lambda: all(count > before[name] + 3 for name, count in self.written.items()))


async def _claim(journal: Journal, number: int) -> None:
    await journal.append(RunClaimed(generation=number + 1, host="h"))


def _agent(agent: str) -> Writer:
    return Writer(tenant="a", execution_id="e", task_id="t", agent_id=agent)


@asynccontextmanager
async def working(nats: SecuredNats, home: Path) -> AsyncIterator[tuple[Load, JetStream]]:
    """A host of agents, an orchestrator and a gateway at work, until the context ends."""
    nkeys = {"nats_nkey_file": nats.layout.nkey("orchestrator"), "nats_issuer_file": nats.layout.nkey("issuer")}
    place = {"home": home, "nats_url": nats.url, "nats_ca": nats.layout.authority}
    load = Load(written={})
    async with AsyncExitStack() as stack:
        settings = Settings.model_validate({**place, **nkeys})
        log = await stack.enter_async_context(connect_log(settings, name="orchestrator"))
        await log.ensure_streams()
        logins = await stack.enter_async_context(open_host_logins(settings, log))
        assert logins is not None
        shown = Credentials(host=await logins.grant("a"), ca=str(nats.layout.authority))
        host = await stack.enter_async_context(JetStream.connect(nats.url, credentials=shown, waits=20))
        shown = nats.credentials("gateway")
        gateway = await stack.enter_async_context(JetStream.connect(nats.url, credentials=shown))
        keys, revisions = await gateway.bucket("HTTP_KEYS", ttl_seconds=600), [0]

        async def put(number: int) -> None:
            revisions.append(await keys.put("key", str(number).encode(), revision=revisions[-1]))

        works: dict[str, Callable[[int], Awaitable[object]]] = {"gateway": put}
        for name, client in (("orchestrator", log), ("host", host)):
            journal = await stack.enter_async_context(client.journal(_agent(name), fresh=True))
            works[name] = partial(_claim, journal)
        for name, work in works.items():
            load.written[name] = 0
            await stack.enter_async_context(in_background(load.write(name, work), name=name))
        yield load, log


async def _comes_in(nats: SecuredNats, seed: Path) -> bool:
    try:
        login = Credentials(nkey=str(seed), ca=str(nats.layout.authority))
        async with JetStream.connect(nats.url, credentials=login) as log:
            return (await log.ping()).ok
    except PreconditionFailed as fault:
        assert "refused the credentials" in str(fault)
        return False


@pytest.mark.slow  # quick: unit/test_installation.py
async def test_keys_are_made_anew_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    async with secured_nats(tmp_path / "fleet", ("a",)) as nats:
        directory = nats.layout.directory
        (old := tmp_path / "old").mkdir()
        for user in MADE_ANEW:
            shutil.copy(nats.layout.nkey(user), old / user)
        async with working(nats, tmp_path / "home") as (load, log):
            await load.goes_on()
            with structlog.testing.capture_logs() as lines:
                await asyncio.to_thread(install, directory, rotate=("nats", "services"), overlap=3_600)
                await nats.reloaded()
                await load.goes_on()
            # The host's alone: a server that reloads has every host log in again.
            assert [line["event"] for line in lines].count("nats.connection_lost") == 1
            seeds = {user: (old / user, nats.layout.nkey(user)) for user in MADE_ANEW if user != "sys"}
            assert [user for user, pair in seeds.items() for one in pair if not await _comes_in(nats, one)] == []
            services = {entry.name: entry for entry in read_access(nats.layout.access).tokens}
            assert all(len(services[f"service:{name}"].digests) == 2 for name in ("orchestrator", "gateway"))
            assert check(directory) == ()
            with pytest.raises(InvalidRequest, match="an earlier rotation overlaps until"):
                await asyncio.to_thread(install, directory, rotate=("nats",), overlap=60)

            # The time is over: who came in by a former key is cut off, and comes in by the new one.
            former = json.loads(nats.layout.former.read_text())
            nats.layout.former.write_text(json.dumps({**former, "until": 1}))
            (finding,) = check(directory)
            assert (finding.file, finding.fault) == (nats.layout.former, "lets nkeys in whose overlap is over")
            await asyncio.to_thread(install, directory)
            await nats.reloaded()
            await load.goes_on()
            assert [await _comes_in(nats, one) for one in seeds["orchestrator"]] == [False, True]
            assert check(directory) == () and not nats.layout.former.exists()

            # Who lets hosts in takes a restart of NATS alone.
            await asyncio.to_thread(install, directory, rotate=("issuer",))
            await nats.restart()
            await load.goes_on()
            counts = dict(load.written)
            for agent in ("orchestrator", "host"):
                stored = [told.event.body async for told in log.read("a", "e", agent_id=agent)]
                assert len(stored) >= counts[agent] > 12
                assert stored == [RunClaimed(generation=number, host="h") for number in range(1, len(stored) + 1)]
