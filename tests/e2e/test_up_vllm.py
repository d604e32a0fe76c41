"""`fleet up --vllm` from the outside: a model server that it starts, uses and takes along."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.fleet_command import SECONDS, Shell

DOUBLE = Path(__file__).parents[1] / "vllm_double"


@pytest.fixture
def shell(warm: str, tmp_path: Path) -> Shell:
    more = {"FLEET_LISTEN": "127.0.0.1:0", "FLEET_HTTP_LISTEN": "off", "PYTHONPATH": str(DOUBLE)}
    return Shell(home=tmp_path / "home", warm=warm, more=more)


@pytest.mark.slow
async def test_the_fleet_uses_the_server_and_takes_it_along(shell: Shell, tmp_path: Path) -> None:
    options = ("--vllm", "org/qwen3-8b", "--vllm-drain", "1", "--vllm-args", f"--state {tmp_path}")
    process = await replace(shell, warm="").start("up", "--json", *options)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            card = json.loads(await process.stdout.readline())
        start = json.loads((tmp_path / "start-0").read_text())
        port = start["argv"][start["argv"].index("--port") + 1]
        assert card["model_url"] == f"http://127.0.0.1:{port}/v1"
        assert all(psutil.pid_exists(pid) for pid in start["pids"])
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            _, told = await process.communicate()
        assert process.returncode == 0, told.decode()[-4000:]
        assert not any(psutil.pid_exists(pid) for pid in start["pids"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
