"""`vllm_served` against a real server: its key, its parser, a crash, a drain, and nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from labs.vllm.server import interpreter, make_model
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.domain.message import ToolProtocol
from swe_ai_fleet.runtime.vllm_command import VLLMOrder, tool_parser, vllm_version
from swe_ai_fleet.runtime.vllm_server import ServedModel, Timeouts, vllm_served

pytestmark = pytest.mark.timeout(900)
SMALL = "--enforce-eager --max-model-len 8192"


@pytest.fixture(scope="module")
async def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not interpreter().exists():
        pytest.fail(f"no interpreter with vLLM at {interpreter().name}; run make test-vllm, or set FLEET_VLLM_PYTHON")
    return await make_model(tmp_path_factory.mktemp("supervised") / "tiny")


@pytest.fixture(autouse=True)
def of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)


def family(served: ServedModel) -> list[psutil.Process]:
    guardian = psutil.Process(served.pid)
    return [guardian, *guardian.children(recursive=True)]


async def complete(served: ServedModel, tokens: int) -> int:
    body = {"model": served.model, "prompt": "one two", "max_tokens": tokens, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {served.api_key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/completions", json=body, headers=headers) as answer,
    ):
        if answer.status == 200:
            assert (await answer.json())["usage"]["completion_tokens"] == tokens
        return answer.status


async def test_a_real_server_is_served_comes_back_and_is_drained(tiny: Path, tmp_path: Path) -> None:
    assert await vllm_version(str(interpreter()))
    assert tool_parser(str(tiny)) == "hermes"
    told: list[str] = []
    order = VLLMOrder(model=str(tiny), arguments=f"{SMALL} --served-model-name tiny", drain_seconds=60)
    serving = vllm_served(
        order, interpreter=str(interpreter()), log=tmp_path / "log", tell=told.append, timeouts=Timeouts(status=5)
    )
    async with serving as served:
        assert served.model == "tiny"
        async with OpenAIChatModel(base_url=served.url, api_key=served.api_key) as model:
            found = await model.probe()
        assert (found.protocol, found.max_model_len) == (ToolProtocol.NATIVE, 8192)
        async with aiohttp.ClientSession() as session, session.get(f"{served.url}/models") as answer:
            assert answer.status == 401

        first = family(served)
        assert served.api_key not in " ".join(word for process in first for word in process.cmdline())
        # The engine is another process than the one that listens; without it nothing is answered any more.
        os.kill(first[-1].pid, signal.SIGKILL)
        async with asyncio.timeout(400):
            while not any("is available again" in line for line in told):
                await asyncio.sleep(0.2)
        assert not any(process.is_running() for process in first)
        assert await complete(served, 8) == 200

        guardian = psutil.Process(os.getpid()).children()
        last = [one for child in guardian for one in (child, *child.children(recursive=True))]
        running = asyncio.create_task(complete(served, 4000))
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                async with session.get(served.url.removesuffix("/v1") + "/metrics") as answer:
                    if "vllm:num_requests_running{" in (text := await answer.text()):
                        line = next(row for row in text.splitlines() if row.startswith("vllm:num_requests_running{"))
                        if float(line.rsplit(" ", 1)[1]) >= 1:
                            break
                await asyncio.sleep(0.05)
    assert await running == 200, (tmp_path / "log").read_text()[-2000:]
    assert "mode=drain" in (tmp_path / "log").read_text()
    _, alive = psutil.wait_procs(last, timeout=10)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
