"""A function-calling agent at a scripted model server, and what a run of it told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from swe_ai_fleet import FunctionCallingAgent
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Failure, Script, ScriptedModelServer, Turn


def call(name: str, arguments: dict[str, Any] | str | None = None) -> Turn:
    return Turn(tool_calls=((name, {} if arguments is None else arguments),))


def answer(text: Any = "done", key: str = "result") -> Turn:
    return call("final_answer", {key: text})


@asynccontextmanager
async def serving(*turns: Turn | Failure, **options: Any) -> AsyncGenerator[ScriptedModelServer]:
    async with ScriptedModelServer(Script.of(*turns), **options) as server:
        yield server


def make(server: ScriptedModelServer, *tools: Any, **options: Any) -> FunctionCallingAgent:
    given: dict[str, Any] = {"retry_waits": (0.001, 0.001), "settings": Settings(), **options}
    return FunctionCallingAgent("scripted", list(tools), model_params={"base_url": server.url}, **given)


async def run(agent: FunctionCallingAgent, task: str = "Do it.", **options: Any) -> list[Any]:
    return [response async for response in agent.run(task, **{"use_planning": False, **options})]


async def told(*turns: Turn | Failure, tools: Sequence[Any] = (), **options: Any) -> list[Any]:
    """The responses of one run over these turns."""
    of_run = {name: options.pop(name) for name in RUN_OPTIONS & options.keys()}
    async with serving(*turns) as server:
        return await run(make(server, *tools, **options), **of_run)


RUN_OPTIONS = {"files", "max_iterations", "refine_final_answer", "use_planning", "loop_threshold", "chat_history"}


def observations(responses: Sequence[Any]) -> list[str]:
    return [r["value"] for r in responses if (r["type"], r["channel"]) == ("step", "tool")]


def events(responses: Sequence[Any], name: str) -> list[Any]:
    return [r for r in responses if r["metadata"]["event"] == name]


def asked(server: ScriptedModelServer) -> list[dict[str, Any]]:
    """The chat requests, probes aside."""
    return [body for body in server.bodies if body["messages"][0]["content"] != "Say ok."]


def stop_of(responses: Sequence[Any]) -> tuple[str, bool]:
    return responses[-1]["metadata"]["stop_reason"], responses[-1]["metadata"]["success"]


def weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Longer words about it.

    Args:
        city: Where.
    """
    return f"{city}: sunny for {days}"


def fail(number: int) -> None:
    """Fails, each time with other words."""
    raise ValueError(f"failure {number}")
