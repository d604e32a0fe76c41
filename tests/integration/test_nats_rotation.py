"""New credentials on a NATS that works: what came in before comes in until the overlap is over, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import structlog.testing

from services.access.access_file import read_access
from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.event import RunClaimed, Writer
from swe_ai_fleet.ports import Journal
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.host_logins import open_host_logins
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.runtime.installation.layout import check
from swe_ai_fleet.settings import Settings
from tests.confinement import until
from tests.secured import SecuredNats, secured_nats

MADE_ANEW = ("orchestrator", "context", "gateway", "worker", "operator", "sys")


async def _write(journal: Journal, written: list[int]) -> None:
    """The next claim behind the last one, all the time."""
    while True:
        await journal.append(RunClaimed(generation=len(written) + 1, host="h"))
        written.append(len(written) + 1)


@asynccontextmanager
async def working(nats: SecuredNats, home: Path) -> AsyncIterator[tuple[dict[str, list[int]], JetStream]]:
    """A host of agents and an orchestrator that write all the time, until the context ends; what they wrote."""
    settings = Settings(
        home=home, nats_url=nats.url, nats_ca=nats.layout.authority,
        nats_nkey_file=nats.layout.nkey("orchestrator"), nats_issuer_file=nats.layout.nkey("issuer"),
    )  # fmt: skip
    written: dict[str, list[int]] = {"orchestrator": [], "host": []}
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(connect_log(settings, name="orchestrator"))
        await log.ensure_streams()
        logins = await stack.enter_async_context(open_host_logins(settings, log))
        assert logins is not None
        shown = NatsCredentials(host=await logins.grant("a"), ca=str(nats.layout.authority))
        host = await stack.enter_async_context(JetStream.connect(nats.url, credentials=shown, waits=20))
        for name, client in (("orchestrator", log), ("host", host)):
            writer = Writer(tenant="a", execution_id="e", task_id="t", agent_id=name)
            journal = await stack.enter_async_context(client.journal(writer, fresh=True))
            writing = asyncio.create_task(_write(journal, written[name]))
            stack.callback(writing.cancel)
        yield written, log


async def _goes_on(written: dict[str, list[int]]) -> None:
    """Wait until every one has written more."""
    before = {name: len(numbers) for name, numbers in written.items()}
    await until(lambda: all(len(numbers) > before[name] + 3 for name, numbers in written.items()))


async def _comes_in(nats: SecuredNats, seed: Path) -> bool:
    try:
        login = NatsCredentials(nkey=str(seed), ca=str(nats.layout.authority))
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
        async with working(nats, tmp_path / "home") as (written, log):
            await _goes_on(written)
            with structlog.testing.capture_logs() as lines:
                await asyncio.to_thread(install, directory, rotate=("nats", "services"), overlap=3_600)
                await nats.reloaded()
                await _goes_on(written)
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
            await _goes_on(written)
            assert [await _comes_in(nats, one) for one in seeds["orchestrator"]] == [False, True]
            assert check(directory) == () and not nats.layout.former.exists()

            # Who lets hosts in takes a restart of NATS alone.
            await asyncio.to_thread(install, directory, rotate=("issuer",))
            await nats.restart()
            await _goes_on(written)
            counts = {name: len(numbers) for name, numbers in written.items()}
            for agent, count in counts.items():
                stored = [told.event.body async for told in log.read("a", "e", agent_id=agent)]
                assert len(stored) >= count > 12
                assert stored == [RunClaimed(generation=number, host="h") for number in range(1, len(stored) + 1)]
