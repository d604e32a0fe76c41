"""A vLLM server of our own on the CPU, on a free loopback port, ended with the context."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

READY_SECONDS = 240.0
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.e+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMServer:
    """A running server."""

    url: str
    log: Path

    async def metrics(self) -> dict[str, float]:
        """Its metrics, those of one name added up."""
        async with aiohttp.ClientSession() as session, session.get(self.url.removesuffix("/v1") + "/metrics") as answer:
            text = await answer.text()
        sums: dict[str, float] = {}
        for name, value in _SAMPLE.findall(text):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums


def interpreter() -> Path:
    """The Python that vLLM is installed for: FLEET_VLLM_PYTHON, else that of `make test-vllm`."""
    return Path(os.environ.get("FLEET_VLLM_PYTHON") or ".venv-vllm/bin/python").absolute()


async def make_model(directory: Path) -> Path:
    """A tiny model with random weights."""
    maker = Path(__file__).with_name("tiny_model.py")
    process = await asyncio.create_subprocess_exec(str(interpreter()), str(maker), str(directory))
    if await process.wait() != 0:
        raise RuntimeError("the tiny model could not be made")
    return directory


@asynccontextmanager
async def serve(model: Path, log: Path, *options: str) -> AsyncIterator[VLLMServer]:
    """Serve a model as `tiny` until the context ends. Raises RuntimeError with the log's end if it can't start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    arguments: Sequence[str] = (
        *("-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--max-model-len", "16384"),
        *("--enable-prompt-tokens-details", *options),
    )
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(interpreter()),
            *arguments,
            env={**os.environ, **_ENVIRONMENT},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    server = VLLMServer(url=f"http://127.0.0.1:{port}/v1", log=log)
    try:
        await _until_ready(server, process)
        yield server
    finally:
        if process.returncode is None:
            # Its own session: the engine is a child of the server.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


async def _until_ready(server: VLLMServer, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
        while process.returncode is None:
            try:
                async with session.get(server.url.removesuffix("/v1") + "/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)
    raise RuntimeError(f"vLLM did not start: {server.log.read_text(errors='replace')[-2000:]}")
