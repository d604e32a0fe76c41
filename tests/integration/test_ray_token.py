"""A Ray cluster that settings name, and the token that it asks for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_HEAD = """
import os, signal, sys
from swe_ai_fleet.runtime import local_ray
from swe_ai_fleet.settings import Settings
import ray
with local_ray.ray_connection(Settings()):
    print(os.environ["RAY_AUTH_TOKEN"], ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""
_DRIVER = """
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.runtime.local_ray import ray_connection
from swe_ai_fleet.settings import Settings
import ray
try:
    with ray_connection(Settings()):
        print("nodes", len(ray.nodes()), flush=True)
except FleetError as fault:
    print("fault", fault.field, flush=True)
"""


def _variables(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH", "FLEET_"))}
    return {**plain, **more}


@asynccontextmanager
async def _head(home: Path) -> AsyncIterator[tuple[str, str]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _HEAD),
        env=_variables(FLEET_HOME=str(home)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(90):
            token, address = (await process.stdout.readline()).decode().split()
        yield token, address
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(30):
                await process.wait()
        except TimeoutError:
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def _driven(home: Path, **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _DRIVER),
        # The cluster has the address of loopback, which Ray else takes for that of a machine in a network.
        env=_variables(FLEET_HOME=str(home), RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", **variables),
        cwd=home,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(120):
        told, _ = await process.communicate()
    lines = [line for line in told.decode().splitlines() if line.startswith(("nodes", "fault"))]
    return lines[-1] if lines else ""


async def test_the_cluster_lets_in_who_has_its_token_by_value_or_by_file(tmp_path: Path) -> None:
    kept = tmp_path / "ray-token"
    async with _head(tmp_path) as (token, address):
        kept.write_text(f"{token}\n")
        kept.chmod(0o600)
        assert await _driven(tmp_path, FLEET_RAY_ADDRESS=address, FLEET_RAY_TOKEN_FILE=str(kept)) == "nodes 1"
        refused = await _driven(tmp_path, FLEET_RAY_ADDRESS=address, FLEET_RAY_TOKEN="0" * 64)
    assert refused == "fault ray_address"
