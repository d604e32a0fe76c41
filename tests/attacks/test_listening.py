"""Who may knock: the sockets that the processes of one machine listen on, found by looking at all of them."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

SECONDS = 120
WHOLE = """
import asyncio
import sys
from services.orchestrator.main import open_fleet
from swe_ai_fleet.settings import Settings

async def main():
    async with open_fleet(Settings()):
        # What is logged goes to the same place.
        print(flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@asynccontextmanager
async def running(script: str, **more: str) -> AsyncGenerator[int]:
    """The process of a script that says when it is there, and stays until its input ends."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "FLEET_", "AUTOSC"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script),
        env={**variables, **more},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            while (line := await process.stdout.readline()) != b"\n":
                assert line, "it ended before it was there"
        yield process.pid
    finally:
        process.stdin.close()
        await process.wait()


def listened(root: int) -> dict[int, ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses at which a process, and all that came of it, accept connections, by port."""
    found = dict[int, ipaddress.IPv4Address | ipaddress.IPv6Address]()
    top = psutil.Process(root)
    for process in (top, *top.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    address = ipaddress.ip_address(connection.laddr.ip)
                    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
                    found[connection.laddr.port] = mapped or address
    return found


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_a_whole_fleet_listens_where_its_settings_say(tmp_path: Path, listen: str) -> None:
    """gRPC, the context service, the gateway, NATS and Ray; the control is a fleet that is told otherwise."""
    settings = {"FLEET_HOME": str(tmp_path / "home"), "FLEET_LISTEN": listen, "FLEET_CONTEXT_LISTEN": "127.0.0.1:0"}
    async with running(WHOLE, **settings) as process:
        places = listened(process)
        assert len(places) >= 8
        # The page of Ray's autoscaler, which asks for no token, is not even there.
        assert 44217 not in places
        others = [address for address in places.values() if not address.is_loopback]
        assert len(others) == (0 if listen.startswith("127.") else 1)
