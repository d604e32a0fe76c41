"""Who may knock: the sockets that the processes of one machine listen on, found by looking at all of them."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.processes import title

pytestmark = pytest.mark.slow

SECONDS = 120
# A Ray with an actor, as the fleet has it or as it is by itself, that ends with its input.
RAY = """
import sys
import ray
from swe_ai_fleet.runtime.local_ray import ray_connection
from swe_ai_fleet.settings import Settings

plain = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000, "_node_ip_address": "127.0.0.1"}
with ray.init("local", _temp_dir=sys.argv[1], **plain) if sys.argv[1:] else ray_connection(Settings()):
    @ray.remote(num_cpus=0)
    class Host:
        def there(self):
            return True
    host = Host.remote()
    ray.get(host.there.remote())
    print(flush=True)
    sys.stdin.read()
"""
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
async def running(script: str, *arguments: str, **more: str) -> AsyncGenerator[int]:
    """The process of a script that says when it is there, and stays until its input ends."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "FLEET_", "AUTOSC"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, *arguments),
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


async def test_ray_on_one_machine_listens_on_loopback_alone() -> None:
    async with running(RAY) as process:
        places = listened(process)
        assert len(places) >= 4
        assert {port: address for port, address in places.items() if not address.is_loopback} == {}
        # The autoscaler's page, which asks for no token, is not even there, and no agent of Ray's.
        assert 44217 not in places
        below = psutil.Process(process).children(recursive=True)
        assert not [found for child in below if (found := title(child)).startswith("ray::") and "Host" not in found]


async def test_control_ray_by_itself_listens_for_everybody() -> None:
    # The paths of its sockets must be short.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="plain-ray-") as directory:
        async with running(RAY, directory) as process:
            assert any(address.is_unspecified for address in listened(process).values())


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_a_whole_fleet_listens_where_its_settings_say(tmp_path: Path, listen: str) -> None:
    """gRPC, the context service, the gateway, NATS and Ray; the control is a fleet that is told otherwise."""
    settings = {"FLEET_HOME": str(tmp_path / "home"), "FLEET_LISTEN": listen, "FLEET_CONTEXT_LISTEN": "127.0.0.1:0"}
    async with running(WHOLE, **settings) as process:
        places = listened(process)
        assert len(places) >= 8
        others = [address for address in places.values() if not address.is_loopback]
        assert len(others) == (0 if listen.startswith("127.") else 1)
