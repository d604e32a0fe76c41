"""Thirty model servers that come, go, drain, die and saturate, over real HTTP; found by a file, by DNS, by a router."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.model_servers import ModelServers
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import ScriptedModelServer
from swe_ai_fleet.testing.script import Script, Turn
from tests.model_servers import play
from tests.tables import table

DONE = Script.of(Turn(content="done"))
FOLLOWING = """
import asyncio, json, sys
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.settings import Settings

async def main():
    async with open_model(Settings(model_url=sys.argv[1], model="scripted"), look_every=0.05) as pool:
        told = None
        while True:
            names = sorted(one.name for one in pool.status().endpoints if one.circuit != "open")
            if names != told:
                told = names
                print(json.dumps(names), flush=True)
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


async def test_thirty_servers_that_come_go_die_and_saturate_lose_nothing_and_keep_caches_warm(tmp_path: Path) -> None:
    outcome, what = await play(tmp_path, agents=60, steps=6)
    assert outcome.failures == []
    assert outcome.replies == 80 * 6
    # Of whoever moved nearly all had to: their server left, died or had no room. The newcomers drew nobody away.
    had_to = {server.url for server in (*what.drained, *what.died, *what.busy)}
    moves = outcome.moves
    assert sum(count for url, count in moves.items() if url in had_to) >= 0.9 * moves.total() > 0
    assert outcome.hits > 0.6
    # Those that came later have work, those that were drained end what they had.
    assert all(server.requests for server in what.came)
    assert [server.in_flight for server in what.drained] == [0] * len(what.drained)


@pytest.mark.slow  # quick: a list of servers
async def test_the_addresses_of_a_name_are_followed(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"

    def point(*numbers: int) -> None:
        hosts.write_text("".join(f"127.0.0.{number} models.test\n" for number in numbers))

    point(1, 2)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ScriptedModelServer(DONE))
        port = int(first.url.split(":")[2].split("/")[0])
        for number in (2, 3):
            await stack.enter_async_context(ScriptedModelServer(DONE, host=f"127.0.0.{number}", port=port))
        process = await asyncio.create_subprocess_exec(
            *("bwrap", "--dev-bind", "/", "/", "--bind", str(hosts), "/etc/hosts", "--die-with-parent"),
            *(sys.executable, "-c", FOLLOWING, f"dns+http://models.test:{port}/v1"),
            stdout=asyncio.subprocess.PIPE,
        )
        stack.callback(process.kill)

        async def asked_at(*numbers: int) -> None:
            wanted = [f"http://127.0.0.{number}:{port}/v1" for number in numbers]
            assert process.stdout is not None
            async with asyncio.timeout(60):
                while json.loads(await process.stdout.readline()) != wanted:
                    pass

        await asked_at(1, 2)
        point(2, 3)
        await asked_at(2, 3)
        # A name without an address says nothing: those that are known stay.
        point()
        point(1, 2, 3)
        await asked_at(1, 2, 3)


@pytest.mark.parametrize(
    ("text", "mode", "found"),
    [
        ("http://a:1/v1 # one\n\n# two\nhttps://b/v1\n", 0o640, ["http://a:1/v1", "https://b/v1"]),
        ('["http://a:1/v1", "http://a:1/v1"]', 0o600, ["http://a:1/v1"]),
        ("http://a:1/v1", 0o602, ["http://old:1/v1"]),
        ("http://user:secret@a:1/v1", 0o600, ["http://old:1/v1"]),
        (f"http://a:1/v1 #{'x' * 300_000}", 0o600, ["http://old:1/v1"]),
    ],
)
async def test_a_list_of_servers_is_read_whole_or_not_at_all(
    text: str, mode: int, found: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "servers"
    path.write_text("http://old:1/v1")
    servers = ModelServers(settings=Settings(model_url=f"file:{path}"))
    assert [one.base_url for one in await servers.look()] == ["http://old:1/v1"]
    path.write_text(text)
    path.chmod(mode)
    assert [one.base_url for one in await servers.look()] == found
    path.unlink()
    assert [one.base_url for one in await servers.look()] == found


@table("address", ["dns+http://models/v1", "dns+https://models:8000/v1", "dns+http://u:p@models:8000", "file:servers"])
def test_an_address_that_leads_nowhere_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="malformed") as told:
        ModelServers(settings=Settings(model_url=address))
    assert told.value.field == "model_url" and "dns+http://NAME:PORT" in told.value.hint
