"""Two real servers for the whole run; without FLEET_TEST_VLLM nothing here is collected."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from labs.vllm.server import VLLMServer, interpreter, make_model, serve

collect_ignore_glob = [] if os.environ.get("FLEET_TEST_VLLM") else ["test_*"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """`tools` reads native tool calls; `plain` does not, and refuses more than two waiting requests."""

    tools: VLLMServer
    plain: VLLMServer


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    directory = tmp_path_factory.mktemp("vllm")
    if not interpreter().exists():
        pytest.fail(f"no interpreter with vLLM at {interpreter().name}; run make test-vllm, or set FLEET_VLLM_PYTHON")
    model = await make_model(directory / "model")
    async with AsyncExitStack() as stack:
        starting = (
            serve(model, directory / "tools.log", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            serve(model, directory / "plain.log", "--max-num-seqs", "2", "--max-num-queued-reqs", "2"),
        )
        tools, plain = await asyncio.gather(*(stack.enter_async_context(one) for one in starting))
        yield Servers(tools=tools, plain=plain)
