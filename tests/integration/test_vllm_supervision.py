"""A model server that is started, watched, started again and drained; its double behaves as its model's name says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from swe_ai_fleet.domain.errors import InvalidRequest, Unavailable
from swe_ai_fleet.runtime.vllm_command import VLLMOrder, tool_parser, vllm_arguments
from swe_ai_fleet.runtime.vllm_server import ServedModel, Timeouts, vllm_served
from tests.confinement import until

DOUBLE = Path(__file__).parents[1] / "vllm_double"
QUICK = Timeouts(ready=20, status=0.2, unwell=1.0, looked=0.1, reply=0.5, pause=0.05, longest_pause=0.2, killed=0.5)
SECONDS = 20.0


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    monkeypatch.setenv("FLEET_MODEL_API_KEY", "not for the server")


@pytest.fixture
def serve(double: None, tmp_path: Path) -> Callable[..., object]:
    """Serve the double for a model; lines told, starts and the log are in `tmp_path`."""

    def start(model: str, *, drain: int = 3, timeouts: Timeouts = QUICK, told: list[str] | None = None):
        order = VLLMOrder(model=model, arguments=f"--state {tmp_path}", drain_seconds=drain)
        lines = told if told is not None else []
        return vllm_served(
            order, interpreter=sys.executable, log=tmp_path / "vllm.log", tell=lines.append, timeouts=timeouts
        )

    return start


def starts(directory: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("start-*"))]


def processes(directory: Path) -> list[int]:
    return [pid for start in starts(directory) for pid in start["pids"]]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def post(served: ServedModel, path: str) -> int:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.post(served.url.removesuffix("/v1") + path) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0


async def models(served: ServedModel, key: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{served.url}/models", headers={"Authorization": f"Bearer {key}"}) as answer,
    ):
        return answer.status


async def test_it_serves_with_a_key_that_only_callers_know_and_leaves_nothing(serve, tmp_path: Path) -> None:
    told: list[str] = []
    async with serve("org/qwen3-8b", told=told) as served:
        assert served.model == "qwen3-8b" and served.api_key not in repr(served)
        assert (await models(served, served.api_key), await models(served, "wrong")) == (200, 401)
        (start,) = starts(tmp_path)
        assert served.api_key not in " ".join(start["argv"]) and "VLLM_API_KEY" in start["environment"]
        assert "FLEET_MODEL_API_KEY" not in start["environment"]
        assert served.api_key not in " ".join(psutil.Process(served.pid).cmdline())
        assert oct((tmp_path / "vllm.log").stat().st_mode & 0o777) == "0o600"
        running = [served.pid, *start["pids"]]
        assert alive(running) == running
    assert not alive(running)
    assert any("starting vLLM" in line for line in told)


async def test_one_that_dies_at_the_start_is_told_at_once_with_the_end_of_its_output(serve, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="status 7") as fault:
        async with serve("dies"):
            pass
    assert "does not fit into the memory of this GPU" in fault.value.message
    assert len(starts(tmp_path)) == 1
    assert not alive(processes(tmp_path))


async def test_running_requests_finish(serve, tmp_path: Path) -> None:
    async with serve("well", drain=10) as served:
        running = asyncio.create_task(post(served, "/work/0.3"))
        await until((tmp_path / "request").exists)
    assert await running == 200
    assert "drained" in (tmp_path / "vllm.log").read_text()
    assert not alive(processes(tmp_path))


async def test_it_ends_with_a_fleet_that_is_killed(double: None, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from swe_ai_fleet.runtime.vllm_command import VLLMOrder
from swe_ai_fleet.runtime.vllm_server import vllm_served

async def main():
    order = VLLMOrder(model="ignores-sigterm", arguments="--state {tmp_path}", drain_seconds=60)
    async with vllm_served(order, interpreter=sys.executable, log=Path("{tmp_path}/vllm.log"), tell=print):
        print("ready", flush=True)
        await asyncio.sleep(300)

asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    assert owner.stdout is not None
    async with asyncio.timeout(SECONDS):
        while (line := await owner.stdout.readline()) != b"ready\n":
            assert line
    guardian = psutil.Process(owner.pid).children()[0].pid
    running = [guardian, *processes(tmp_path)]
    assert alive(running) == running
    owner.kill()
    await owner.wait()
    await until(lambda: not alive(running))


def test_what_the_supervisor_decides_cannot_be_passed_on() -> None:
    for arguments, named in (
        ("--api-key secret", "--api-key"),
        ("--port 80", "--port"),
        ("'unbalanced", "malformed"),
    ):
        with pytest.raises(InvalidRequest, match=named) as fault:
            vllm_arguments(VLLMOrder(model="m", arguments=arguments), port=1)
        assert fault.value.field == "vllm_args" and "secret" not in str(fault.value)


PARSERS = {
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3_coder",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai/Devstral-Small-2505": "mistral",
    "openai/gpt-oss-20b": "openai",
    "somebody/unheard-of": "",
}


def test_the_parser_goes_by_the_name_or_by_the_template_of_a_model_that_is_here(tmp_path: Path) -> None:
    assert {model: tool_parser(model) for model in PARSERS} == PARSERS
    model = tmp_path / "qwen3-named-wrongly"
    model.mkdir()
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "… [TOOL_CALLS] …"}))
    assert tool_parser(str(model)) == "mistral"


async def test_one_that_crashed_or_does_not_answer_comes_back_at_the_same_place(serve, tmp_path: Path) -> None:
    told: list[str] = []
    async with serve("crashes", told=told) as served:
        for crash, way in ((1, "/crash"), (2, "/wedge")):
            await post(served, way)
            await until(lambda crash=crash: sum("is available again" in line for line in told) == crash)
            assert await models(served, served.api_key) == 200
            assert len(starts(tmp_path)) == crash + 1
        first, second, third = starts(tmp_path)
        assert not alive([*first["pids"], *second["pids"]]) and len(alive(third["pids"])) == 2
    assert any("status 41" in line and "agents wait" in line for line in told)
    assert not alive(processes(tmp_path))
