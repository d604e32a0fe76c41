"""One agent that uses, beside files, git, tests and shell, what an operator and a task opened to it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import nats
import pytest
from aiohttp import web

from swe_ai_fleet import ToolEnabledAgent, VLLMAgentJob
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Conversation, Script, ScriptedModelServer, Turn
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.environments import home_at
from tests.git_server import PASSWORD
from tests.scripts import FAILING, HELLO, HELLO_FILES, SLEEP
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


# --- the task "Add hello_world() to utils.py" as a library call, and as a Ray actor of the caller's own ---


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of one home: what one test has built the next one finds."""
    return Settings(home=home_at(tmp_path_factory.mktemp("library") / "home"))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "clone", HELLO_FILES)


@pytest.mark.parametrize(
    ("task", "constraints", "success", "verdict"),
    [
        (FAILING, {}, False, "refuted"),
        ("What is in utils.py?", {}, True, None),
    ],
)
async def test_success_is_what_checks_leave_of_an_answer(
    clone: Path,
    settings: Settings,
    model_server: ScriptedModelServer,
    task: str,
    constraints: dict[str, object],
    success: bool,
    verdict: str | None,
) -> None:
    agent = ToolEnabledAgent("a", "DEV", clone, model_server.url, settings=settings)
    result = await agent.execute_task(task, constraints=constraints)
    assert (result.success, result.verdict, str(result.stop_reason)) == (success, verdict, "final_answer")
    assert (result.error is None) is success
    if verdict == "refuted":
        assert result.verdict_reasons and result.verdict_reasons[0] in str(result.error)


async def test_the_agent_clones_where_nothing_is_yet(
    clone: Path, settings: Settings, tmp_path: Path, model_server: ScriptedModelServer
) -> None:
    target = tmp_path / "target"
    agent = ToolEnabledAgent("a", "DEV", target, model_server.url, settings=settings)
    result = await agent.execute_task("What is in utils.py?", constraints={"repo_url": str(clone)})
    assert result.success, result.error
    assert git(target, "rev-parse", "HEAD") == git(clone, "rev-parse", "HEAD")
    assert git(target, "remote") == ""


async def test_a_workspace_without_clone_is_a_clear_error(settings: Settings, tmp_path: Path) -> None:
    agent = ToolEnabledAgent("a", "DEV", tmp_path, "http://127.0.0.1:9/v1", settings=settings)
    with pytest.raises(InvalidRequest, match="repo_url"):
        await agent.execute_task(HELLO)


async def test_limits_and_abort_are_results(clone: Path, settings: Settings, model_server: ScriptedModelServer) -> None:
    agent = ToolEnabledAgent("a", "DEV", clone, model_server.url, settings=settings)
    stopped = await agent.execute_task(HELLO, constraints={"max_iterations": 2})
    assert (stopped.success, stopped.stop_reason) == (False, "max_iterations")
    denied = await agent.execute_task(HELLO, constraints={"denied_tools": ["files"], "abort_on_error": True})
    assert (denied.success, denied.stop_reason) == (False, "tool_error")
    assert denied.operations[0]["outcome"] == "refused"
    assert "files_read_file" in str(denied.operations[0]["error"])


async def test_each_run_of_a_job_is_an_attempt_whose_end_is_published(
    clone: Path, tmp_path: Path, settings: Settings, model_server: ScriptedModelServer, nats_server: EmbeddedNats
) -> None:
    """The actor's own code, without Ray: an answer, the same again, a fault, no workspace, a cancellation."""
    task_id, url = f"job-{uuid.uuid4().hex[:8]}", nats_server.address.url
    given, model = settings.model_dump_json(), model_server.url

    def job(workspace: str) -> VLLMAgentJob:
        actor: Any = VLLMAgentJob
        return actor.__ray_metadata__.modified_class("agent-dev-1", "DEV", model, workspace, url, settings=given)

    connection = await nats.connect(url)
    subscription = await connection.subscribe(f"agent.results.{task_id}")
    results = [await job(str(clone)).run(task_id, "What is in utils.py?") for _ in range(2)]
    for workspace, fault in ((str(tmp_path), "is not a git clone"), ("", "no workspace")):
        with pytest.raises(InvalidRequest, match=fault):
            await job(workspace).run(task_id, HELLO)
    events = await connection.subscribe("agent.events.default.*.agent-dev-1")
    running = asyncio.create_task(job(str(clone)).run(task_id, SLEEP))
    while b"tool_started" not in (await events.next_msg(timeout=60)).data:
        assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    told = [json.loads((await subscription.next_msg(timeout=10)).data) for _ in range(5)]
    assert told[:2] == json.loads(json.dumps(results))
    assert [one["status"] for one in told] == ["final_answer", "final_answer", "error", "error", "cancelled"]
    assert [one["success"] for one in told] == [True, True, False, False, False]
    assert len({one["execution_id"] for one in told}) == 5
    assert "is not a git clone" in told[2]["error"] and "workspace" in told[3]["error"]
    assert all(one["timestamp"] and one["duration_ms"] >= 0 for one in told) and told[0]["duration_ms"]
    schema = json.loads((Path(__file__).parents[2] / "docs/schemas/result.json").read_text())
    for one in told:
        jsonschema.validate(one, schema)
    await connection.close()
