"""What a real vLLM server says and we read. The model's words are noise; their form is what is tested."""

from __future__ import annotations

import asyncio
import json

import pytest

from labs.vllm.conftest import Servers
from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.adapters.openai_model import OpenAIChatModel
from swe_ai_fleet.agents.toolbox import Toolbox
from swe_ai_fleet.domain.errors import ModelUnavailable
from swe_ai_fleet.domain.message import (
    Message,
    ModelRequest,
    SampledTokens,
    Sampling,
    SystemMessage,
    ToolProtocol,
    UserMessage,
)
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.runtime.factories import open_model
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools import Pipeline, Toolkit, operation

pytestmark = pytest.mark.timeout(300)
OPENING: tuple[Message, ...] = (SystemMessage(content="You are a calculator."), UserMessage(content="What is 2 + 3?"))


class Flags(Toolkit):
    """Operations whose arguments even noise can write."""

    name = "flags"

    @operation(read_only=True)
    async def set_flag(self, number: int, on: bool) -> ToolResult:
        """Set a flag."""
        return ToolResult(success=True, operation="set_flag", content=f"{number} is {on}")


async def test_the_probe_tells_native_from_constrained_json(servers: Servers) -> None:
    async with OpenAIChatModel(base_url=servers.tools.url) as model:
        native = await model.probe()
    async with OpenAIChatModel(base_url=servers.plain.url) as model:
        plain = await model.probe()
    assert (native.protocol, native.strict_schemas, native.structured_output) == (ToolProtocol.NATIVE, True, True)
    assert plain.protocol is ToolProtocol.JSON
    assert native.model == plain.model == "tiny" and native.max_model_len == plain.max_model_len == 16384


@pytest.mark.parametrize("place", ["tools", "plain"])
async def test_an_agent_ends_with_a_reason_whatever_the_model_says(servers: Servers, place: str) -> None:
    for seed in range(4):
        params = {"base_url": getattr(servers, place).url, "seed": seed, "temperature": 1.0, "max_tokens": 300}
        agent = FunctionCallingAgent("tiny", ["calculator"], model_params=params, settings=Settings())
        responses = [one async for one in agent.run("What is 2 + 3?", max_iterations=4, use_planning=False)]
        final = responses[-1]["metadata"]
        assert final["stop_reason"] in set(StopReason) - {StopReason.MODEL_ERROR}, final["error"]
        assert final["usage"]["prompt_tokens"] > 0
        asked = [call["id"] for message in agent.messages for call in message.get("tool_calls") or ()]
        answered = [message["tool_call_id"] for message in agent.messages if message["role"] == "tool"]
        assert sorted(asked) == sorted(answered) and len(set(asked)) == len(asked)


async def test_overload_is_503_and_passes(servers: Servers) -> None:
    """More requests than the server queues: refused ones are tried again, and its own metric counted them."""
    before = (await servers.plain.metrics()).get("vllm:admission_rejections_total", 0.0)
    sampling = Sampling(max_tokens=64, temperature=1.0)
    refused = 0
    async with OpenAIChatModel(base_url=servers.plain.url) as once:
        await once.probe()
        for outcome in await asyncio.gather(
            *(once.reply(ModelRequest(OPENING, (), sampling)) for _ in range(12)), return_exceptions=True
        ):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, ModelUnavailable), outcome
                refused += 1
    async with open_model(Settings(model_url=servers.plain.url)) as patient:
        replies = await asyncio.gather(*(patient.reply(ModelRequest(OPENING, (), sampling)) for _ in range(12)))
    after = (await servers.plain.metrics())["vllm:admission_rejections_total"]
    assert refused and len(replies) == 12 and after - before >= refused


async def test_the_pool_goes_by_the_metrics_of_two_servers(servers: Servers) -> None:
    """Runs spread over both servers, each stays with its own, and what the servers count agrees."""
    settings = Settings(model_url=f"{servers.tools.url},{servers.plain.url}", model="tiny")
    before = [await one.metrics() for one in (servers.tools, servers.plain)]
    async with open_model(settings) as pool:
        sessions = [pool.session(f"run-{number}") for number in range(6)]
        for one in sessions * 3:
            await one.reply(ModelRequest(OPENING, (), Sampling(max_tokens=8)))
        loads = [one.load for one in pool.status().endpoints]
        moved = pool.counters.moved
    after = [await one.metrics() for one in (servers.tools, servers.plain)]
    name = "vllm:request_success_total"
    served = [new[name] - old[name] for old, new in zip(before, after, strict=True)]
    assert sum(served) >= 18 and min(served) >= 3, served
    assert all(load is not None for load in loads) and moved == 0


async def test_constrained_json_makes_calls_that_fit_their_tools(servers: Servers) -> None:
    pipeline = Pipeline()
    box = Toolbox({"flags": Flags(None, pipeline)}, pipeline)
    names, seen = {spec.name for spec in box.specs}, 0
    async with OpenAIChatModel(base_url=servers.plain.url) as model:

        async def ask(seed: int) -> int:
            reply = await model.reply(
                ModelRequest(OPENING, box.specs, Sampling(seed=seed, temperature=1.0, max_tokens=4000))
            )
            for call in reply.message.tool_calls:
                assert call.name in names
                assert isinstance(json.loads(call.arguments), dict)
                if call.name == "flags_set_flag":
                    (observation,) = await box.call_all([call])
                    assert observation.result.success, observation.result.error
            return len(reply.message.tool_calls)

        for first in range(0, 12, 2):
            seen += sum(await asyncio.gather(ask(first), ask(first + 1)))
            if seen:
                break
    assert seen, "twelve constrained replies and not one call"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("place", ["tools", "plain"])
async def test_token_ids_and_log_probabilities_are_as_long_as_each_other(
    servers: Servers, place: str, streams: bool
) -> None:
    pipeline, tokens = Pipeline(), list[SampledTokens]()
    box = Toolbox({"flags": Flags(None, pipeline)}, pipeline)
    on_delta = (lambda _: None) if streams else None
    sampling = Sampling(seed=5, temperature=1.0, max_tokens=200)
    asked = ModelRequest(OPENING, box.specs, sampling, on_delta=on_delta, on_tokens=tokens.append)
    async with OpenAIChatModel(base_url=getattr(servers, place).url) as model:
        for _ in range(2):
            reply = await model.reply(asked)
            given = tokens.pop()
            assert len(given.prompt_token_ids) == reply.usage.prompt_tokens > 0
            assert len(given.completion_token_ids) == len(given.logprobs) == reply.usage.completion_tokens > 0
            assert all(number >= 0 for number in given.completion_token_ids) and max(given.logprobs) <= 0
            assert not reply.repairs
