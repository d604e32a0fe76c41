"""One agent that uses, beside files, git, tests and shell, what an operator and a task opened to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from swe_ai_fleet import ToolEnabledAgent
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import make_repository
from tests.environments import home_at
from tests.git_server import PASSWORD
from tests.tool_doubles import served

TASK = "Bring the version of the service into VERSION"
FETCH = (
    "python3 -c \"import urllib.request as r; print(r.build_opener(r.ProxyHandler()).open('{url}').read().decode())\""
)
DONE = Turn(tool_calls=(("final_answer", {"result": "Done."}),))


@pytest.fixture
async def service() -> AsyncIterator[str]:
    """A server of a private network; `host:port`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text="version 42\n")

    async with served(answer) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return home_at(tmp_path_factory.mktemp("outside") / "home")


def scripted(task: str, *calls: tuple[str, dict[str, object]]) -> Script:
    """A model that makes these calls, and ends."""
    turns = (*(Turn(tool_calls=(call,)) for call in calls), DONE)
    return Script(conversations=(Conversation(match=task, turns=turns),))


def outcomes(result: Any) -> list[str]:
    return [f"{operation['tool']}: {operation['outcome']}" for operation in result.operations]


async def test_what_is_not_opened_is_not_offered(home: Path, tmp_path: Path, service: str) -> None:
    clone = make_repository(tmp_path / "clone", {"README.md": "x\n"})
    closed = Settings(home=home, tool_private_hosts=service)
    url = f"http://{service}/version"
    calls = (
        ("http_get", {"url": url}),
        ("shell_run_command", {"command": f"no_proxy= NO_PROXY= {FETCH.format(url=url)}"}),
    )
    async with ScriptedModelServer(scripted(TASK, *calls)) as model:
        agent = ToolEnabledAgent("a", "DEV", clone, model.url, "scripted", settings=closed)
        result = await agent.execute_task(TASK, constraints={"max_iterations": 2})
        offered = {tool["function"]["name"] for body in model.bodies for tool in body.get("tools", ())}
        told = json.dumps([body["messages"] for body in model.bodies])
    assert not {name for name in offered if name.startswith("http_")}
    assert ("sandbox without network" in told, "version 42" in told) == (True, False)
    assert outcomes(result) == ["http: refused", "shell: error"]


async def test_a_malformed_setting_is_named_without_its_secrets(home: Path, tmp_path: Path) -> None:
    clone = make_repository(tmp_path / "clone", {"README.md": "x\n"})
    wrong = {
        "git_remotes.url": {"git_remotes": ({"name": "o", "url": "ssh://example.org/a", "secret": PASSWORD},)},
        "git_remotes": {"git_remotes": ({"name": "o", "url": 7, "secret": PASSWORD},)},
        "tool_hosts": {"tool_hosts": "not a host"}, "plugins": {"plugins": "no-such-plugin"},
    }  # fmt: skip
    for field, changed in wrong.items():
        settings = Settings.model_validate({"home": home, **changed})
        agent = ToolEnabledAgent("a", "DEV", clone, "http://127.0.0.1:1/v1", "m", settings=settings)
        with pytest.raises(InvalidRequest) as refused:
            await agent.execute_task(TASK)
        assert (refused.value.field, PASSWORD in str(refused.value)) == (field, False)


async def test_all_toolkits_stand_for_direct_calls(home: Path, tmp_path: Path, service: str) -> None:
    clone = make_repository(tmp_path / "clone", {"README.md": "x\n"})
    settings = Settings(home=home, tool_private_hosts=service, tool_hosts=service)
    agent = ToolEnabledAgent("a", "DEV", clone, settings=settings)
    tools = agent.tools
    assert {"git", "files", "tests", "http", "builtin"} <= set(tools)
    assert (await tools["git"].call("push", {})).outcome == "refused"
    assert (await tools["builtin"].call("calculator", {"expression": "6 * 7"})).metadata["result"] == 42
    assert (await tools["http"].call("get", {"url": f"http://{service}/"})).success
