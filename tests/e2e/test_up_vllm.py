"""`fleet up --vllm` from the outside: a model server that it starts, uses and takes along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

DOUBLE = Path(__file__).parents[1] / "vllm_double"
SECONDS = 150.0


def environment(home: Path, **variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLEET_", "VLLM_", "RAY_"))}
    return {
        **inherited,
        "FLEET_HOME": str(home),
        "FLEET_LISTEN": "127.0.0.1:0",
        "FLEET_HTTP_LISTEN": "off",
        **variables,
    }


async def up(home: Path, *options: str, **variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "swe_ai_fleet.cli.main", "up", "--json", *options),
        env=environment(home, **variables),
        cwd=home.parent,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize(
    ("options", "variables", "code", "said"),
    [
        (("--vllm", "m"), {}, 3, "has no vLLM"),
        (("--vllm", "m", "--vllm-args", "--port 1"), {"PYTHONPATH": str(DOUBLE)}, 2, "--port cannot be passed to vLLM"),
        (("--vllm", "dies"), {"PYTHONPATH": str(DOUBLE)}, 3, "does not fit into the memory"),
    ],
)
async def test_what_cannot_be_served_is_told_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, str], code: int, said: str
) -> None:
    if "dies" in options:
        options += ("--vllm-args", f"--state {tmp_path}")
    process = await up(tmp_path / "home", *options, **variables)
    async with asyncio.timeout(SECONDS):
        out, _ = await process.communicate()
    told = json.loads(out)
    assert process.returncode == told["exit_code"] == code and said in told["error"]["message"]
    assert not (tmp_path / "home" / "fleet.json").exists()


@pytest.mark.slow
async def test_the_fleet_uses_the_server_and_takes_it_along(tmp_path: Path) -> None:
    options = ("--vllm", "org/qwen3-8b", "--vllm-drain", "1", "--vllm-args", f"--state {tmp_path}")
    process = await up(tmp_path / "home", *options, PYTHONPATH=str(DOUBLE))
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
